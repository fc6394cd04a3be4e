"""Cancelled, stopped, refused and resumed: nothing is sent that should not be, and everything that should."""

from __future__ import annotations

import pytest

from local.deployment import Refused
from local.scheduler.faults import Fault
from tests.local.end_to_end.stage import csv, people


@pytest.fixture(autouse=True)
def faultless(stage):
    """Each test starts and leaves with no fault switched on, at an ordinary pace."""
    stage.cloud.scheduler.faults.set()
    stage.pace()
    yield
    stage.cloud.scheduler.faults.set()
    stage.pace()


def test_after_a_cancel_is_acknowledged_nothing_is_accepted(stage):
    """Cancelled half-way: what was sent stays Finished, the rest is Cancelled, and no e-mail follows."""
    addresses = people(80, "cancel")
    campaign = stage.create(csv(addresses))
    stage.pace(rate_per_second=4)
    stage.launch(campaign, "dispatching")
    stage.to(stage.stack.slots(campaign)[0])
    stage.until(lambda: stage.stack.outcome(campaign).settled, 20)
    stage.api.call("POST", f"/campaigns/{campaign}/cancel")
    stage.api.wait(campaign, "cancelled")
    acknowledged = stage.mails(campaign)
    stage.until(lambda: stage.stack.outcome(campaign).settled, len(addresses))
    stage.quiet()
    assert stage.mails(campaign) == acknowledged
    assert max(acknowledged.values()) == 1
    outcome = stage.stack.outcome(campaign)
    assert outcome.balance
    assert outcome.statuses["Finished"] == len(acknowledged)
    assert outcome.statuses["Cancelled"] == len(addresses) - len(acknowledged) > 0
    with pytest.raises(Refused) as refused:
        stage.api.call("POST", f"/campaigns/{campaign}/resume")
    assert refused.value.status == 409


def test_a_launch_stopped_mid_fan_out_is_aborted_and_its_rest_is_sent_once(stage):
    """Stopped by hand while schedules are made: aborted, silent, and a resume mails everybody exactly once."""
    addresses = people(60, "stopped")
    campaign = stage.create(csv(addresses))
    # Half of the schedules cannot be made for now, so the fan-out is under way when it is stopped.
    stage.cloud.scheduler.faults.set(*(Fault("ThrottlingException", name=f"1-{digit}*") for digit in "89abcdef"))
    launched = stage.api.call("POST", f"/campaigns/{campaign}/launch")
    stage.until(lambda: sum(1 for _ in stage.stack.rows(campaign)), len(addresses))
    machine = stage.stack.outputs["LaunchCampaignArn"]
    execution = machine.replace(":stateMachine:", ":execution:") + ":" + launched["execution"]
    stage.stack.client("stepfunctions").stop_execution(executionArn=execution)
    aborted = stage.api.wait(campaign, "aborted")
    assert aborted["error"]["code"] == "LaunchStopped"
    assert "resume" in aborted["error"]["message"]

    stage.quiet()
    assert not stage.mails(campaign)

    stage.cloud.scheduler.faults.set()
    assert stage.resume(campaign)["state"] == "dispatching"
    assert stage.api.get(campaign)["generation"] == 2
    stage.ring(campaign, generation=2)
    stage.quiet()
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)
    assert stage.stack.outcome(campaign).balance


def test_one_refused_schedule_fails_its_own_task_alone(stage):
    """A recipient whose schedule Scheduler refuses is Failed with the reason; everybody else is mailed."""
    addresses = people(40, "refused")
    campaign = stage.create(csv(addresses))
    probe = stage.create(csv(addresses))
    stage.launch(probe, "dispatching")
    unlucky = sorted(row["task"] for row in stage.stack.rows(probe))[0]
    stage.cloud.scheduler.faults.set(Fault("ValidationException", name=unlucky))
    assert stage.launch(campaign)["state"] == "dispatching"
    rows = {row["task"]: row for row in stage.stack.rows(campaign)}
    assert rows[unlucky]["status"] == "Failed"
    assert rows[unlucky]["error"]["code"] == "ScheduleRefused"
    stage.ring(campaign)
    assert sum(stage.mails(campaign).values()) == len(addresses) - 1
    assert rows[unlucky]["address"] not in stage.mails(campaign)
    assert stage.stack.outcome(campaign).balance


def test_a_used_up_quota_aborts_the_launch_and_a_resume_sends_everything(stage):
    """No room for schedules: aborted with the reason, nothing sent; with room again everybody gets one."""
    addresses = people(30, "quota")
    campaign = stage.create(csv(addresses))
    stage.cloud.scheduler.faults.set(Fault("ServiceQuotaExceededException"))
    aborted = stage.launch(campaign)
    assert aborted["state"] == "aborted"
    assert "quota" in aborted["error"]["message"].lower()
    stage.quiet()
    assert not stage.mails(campaign)
    stage.cloud.scheduler.faults.set()
    assert stage.resume(campaign)["state"] == "dispatching"
    stage.ring(campaign, generation=2)
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)


def test_a_paused_campaign_rests_and_goes_on_at_the_next_generation(stage):
    """Paused before its slots: nothing goes; resumed: everybody gets one, and messages from before are dropped."""
    addresses = people(30, "paused")
    campaign = stage.create(csv(addresses))
    stage.launch(campaign, "dispatching")
    stage.api.call("POST", f"/campaigns/{campaign}/pause")
    stage.to(stage.stack.slots(campaign)[-1])
    stage.quiet()
    assert not stage.mails(campaign)
    assert stage.resume(campaign)["state"] == "dispatching"
    stage.ring(campaign, generation=2)
    stage.quiet()
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)
