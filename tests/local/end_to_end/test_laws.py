"""The laws under attack: senders killed, replies lost, messages repeated and late, machines and reconcilers racing.

Accepted at most once per recipient; every enrolled task in exactly one status at every look; nothing after a cancel;
nobody dropped. E-mails are counted where SES accepted them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from carillon.launch import enrolment
from carillon.shapes import BatchLine
from local.ministack import private
from local.scheduler.faults import Fault
from local.ses.faults import Fault as SesFault
from tests.local.end_to_end.stage import csv, people

OVERDUE = 6 * 3600 + 60
"""Past the reconciler's grace, whether messages wait or not."""


@pytest.fixture(autouse=True)
def faultless(stage):
    """Each test starts and leaves with no fault switched on, at an ordinary pace."""

    def restore():
        stage.cloud.scheduler.faults.set()
        stage.cloud.ses.faults.clear()
        stage.pace()

    restore()
    yield
    restore()


@pytest.fixture
def balanced(stage):
    """Watch a campaign's balance all the while: ``with balanced(campaign): …``."""

    @contextmanager
    def watched(campaign):
        done, looks, unbalanced = threading.Event(), [], []

        def watch():
            while not done.is_set():
                outcome = stage.stack.outcome(campaign)
                looks.append(outcome)
                if not outcome.balance:
                    unbalanced.append(outcome)
                done.wait(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
        assert looks
        assert not unbalanced

    return watched


def bodies(stage, campaign, generation=1):
    """The messages of a generation, as its schedules put them on the queue."""
    schedules = (
        enrolment.schedule_for(campaign, generation, BatchLine.model_validate(line), "queue")
        for line in stage.stack.batch_lines(campaign, generation)
    )
    return [json.loads(schedule.input)["MessageBody"] for schedule in schedules]


def count(stage, campaign, status):
    """How many tasks are in ``status``."""
    return stage.stack.outcome(campaign).statuses[status]


def reconcile(stage, campaign):
    """One pass over a campaign; what it found."""
    return stage.stack.invoke("ReconcileTasksFunction", {"campaign_id": campaign})["campaigns"]


def rest(stage, campaign):
    """Wait until nothing has become of any Pending task for some seconds, or none is left."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 4:
        before, seen = seen, count(stage, campaign, "Pending")
        if not seen:
            return
        if seen != before:
            since = time.monotonic()
        time.sleep(0.2)


def kill_senders():
    """SIGKILL every sender that is at work; how many there were."""
    runtime = private("core.lambda_runtime")
    workers = [w for key, several in list(runtime._workers.items()) if "SendBatch" in str(key) for w in several]
    killed = 0
    for worker in workers:
        process = worker._proc
        if worker.in_use and process is not None and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
    return killed


def test_senders_killed_at_any_moment_mail_nobody_twice_and_lose_nobody(stage, balanced):
    """What was killed between claim and outcome stays Running, for evidence; all others get exactly one e-mail."""
    addresses = people(60, "killed")
    campaign = stage.create(csv(addresses))
    stage.pace(rate_per_second=15)
    stage.launch(campaign, "dispatching")
    fate, killed = random.Random(7), 0
    with balanced(campaign):
        stage.to(stage.stack.slots(campaign)[0])
        stage.until(lambda: stage.stack.outcome(campaign).settled, 1)
        for _ in range(12):
            time.sleep(fate.uniform(0.05, 0.4))
            killed += kill_senders()
        stage.pace()
        for _ in range(4):
            stage.cloud.advance(OVERDUE)
            reconcile(stage, campaign)
            stage.cloud.advance(enrolment.CREATION_LEAD + 120)
            rest(stage, campaign)
        assert not count(stage, campaign, "Pending")
    assert killed >= 3
    if count(stage, campaign, "Running"):  # else every kill came before a claim or after an outcome
        stage.resume(campaign)
    stage.quiet()
    mails, rows = stage.mails(campaign), list(stage.stack.rows(campaign))
    assert max(mails.values()) == 1
    assert {row["address"] for row in rows if row["status"] == "Finished"} <= set(mails)
    assert {row["address"] for row in rows if row["status"] == "Running"} >= set(addresses) - set(mails)
    assert {row["status"] for row in rows} <= {"Finished", "Running"}


def test_an_acceptance_whose_reply_is_lost_is_never_repeated(stage, balanced):
    """SES took it and hung up: Running through redelivery, reconcile and resume, and the campaign is not complete."""
    addresses = people(12, "hungup")
    campaign = stage.create(csv(addresses))
    stage.cloud.ses.faults.add(SesFault(times=None, address="reader00[0-3]@hungup", when="after"))
    stage.launch(campaign, "dispatching")
    with balanced(campaign):
        stage.to(stage.stack.slots(campaign)[-1])
        stage.until(lambda: stage.stack.outcome(campaign).settled, 8)
        stage.until(lambda: count(stage, campaign, "Running"), 4)
        for body in bodies(stage, campaign):
            stage.send(body)
        stage.cloud.advance(OVERDUE)
        assert reconcile(stage, campaign)[0]["rescheduled"] == 0
        stage.resume(campaign)
        stage.cloud.advance(OVERDUE)
        (found,) = reconcile(stage, campaign)
        stage.quiet()
    assert (found["running"], found["rescheduled"], found["completed"]) == (4, 0, False)
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)


def test_old_and_repeated_messages_of_two_generations_at_once_mail_each_once(stage, balanced):
    """Every message of both generations three times over, all at once, while the second generation is due."""
    addresses = people(30, "thrice")
    campaign = stage.create(csv(addresses))
    stage.launch(campaign, "dispatching")
    stage.api.call("POST", f"/campaigns/{campaign}/pause")
    assert stage.resume(campaign)["generation"] == 2
    old, new = bodies(stage, campaign, 1), bodies(stage, campaign, 2)
    with balanced(campaign):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(stage.send, old * 3))
        stage.quiet_queue()
        assert not stage.mails(campaign)
        everything = old + new * 3
        random.Random(3).shuffle(everything)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(stage.send, everything))
        stage.to(stage.stack.slots(campaign, 2)[-1])
        stage.until(lambda: stage.stack.outcome(campaign).settled, len(addresses))
    stage.quiet()
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)


def test_a_cancel_in_the_middle_of_the_fan_out_lets_nothing_through(stage):
    """Half of the schedules are made, the others being tried: cancelled, silent, and no row or schedule left."""
    addresses = people(40, "midway")
    campaign = stage.create(csv(addresses))
    stage.cloud.scheduler.faults.set(*(Fault("ThrottlingException", name=f"1-{digit}*") for digit in "89abcdef"))
    stage.api.call("POST", f"/campaigns/{campaign}/launch")
    stage.until(lambda: sum(1 for _ in stage.stack.rows(campaign)), len(addresses))
    early = bodies(stage, campaign)
    stage.send(early[0])
    stage.api.call("POST", f"/campaigns/{campaign}/cancel")
    stage.api.wait(campaign, "cancelling", "cancelled")
    stage.cloud.advance(30)  # no sender has read dispatching, so nobody has to be waited for
    stage.api.wait(campaign, "cancelled")
    stage.cloud.scheduler.faults.set()
    for body in early:
        stage.send(body)
    stage.until(lambda: count(stage, campaign, "Cancelled"), len(addresses))
    stage.quiet()
    assert not stage.mails(campaign)
    assert stage.stack.outcome(campaign).balance
    assert stage.api.get(campaign)["state"] == "cancelled"
    groups = stage.stack.client("scheduler").list_schedule_groups(NamePrefix=f"campaign-{campaign}")
    assert not groups["ScheduleGroups"]


def test_of_launches_started_side_by_side_one_sends(stage, balanced):
    """Past the API, straight at the machine: one claims the campaign, the others change nothing."""
    addresses = people(15, "twins")
    campaign = stage.create(csv(addresses))
    states, machine = stage.stack.client("stepfunctions"), stage.stack.outputs["LaunchCampaignArn"]

    def start(n):
        given = json.dumps({"campaign_id": campaign})
        return states.start_execution(stateMachineArn=machine, name=f"{campaign}-twin-{n}", input=given)["executionArn"]

    with ThreadPoolExecutor(4) as pool:
        executions = list(pool.map(start, range(4)))
    assert stage.api.wait(campaign, "dispatching")["generation"] == 1

    def ended():
        return [e for e in (states.describe_execution(executionArn=arn) for arn in executions) if "stopDate" in e]

    stage.until(lambda: len(ended()), len(executions))
    how = sorted(e.get("error", e["status"]) for e in ended())
    assert how.count("SUCCEEDED") == 1
    assert set(how) <= {"SUCCEEDED", "CampaignTaken", "CampaignNotLaunchable"}
    with balanced(campaign):
        stage.ring(campaign)
    stage.quiet()
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)


def test_reconcilers_amid_sending_plan_again_and_nobody_gets_two(stage, balanced):
    """A backlog, overdue by hours, is planned again by several passes at once while its messages are handed out."""
    addresses = people(30, "amid")
    campaign = stage.create(csv(addresses))
    stage.pace(rate_per_second=1)
    stage.launch(campaign, "dispatching")
    with balanced(campaign):
        stage.to(stage.stack.slots(campaign)[-1])
        stage.until(lambda: stage.stack.outcome(campaign).settled, 5)
        stage.cloud.advance(OVERDUE)
        with ThreadPoolExecutor(4) as pool:
            passes = list(pool.map(lambda _: reconcile(stage, campaign), range(4)))
        assert sum(found["rescheduled"] for (found,) in passes) > 0
        stage.pace()
        for _ in range(4):
            stage.cloud.advance(enrolment.CREATION_LEAD + 900)
            rest(stage, campaign)
        stage.quiet()
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)
    reconcile(stage, campaign)  # unless the rule has, for the clock has moved by hours
    assert stage.api.get(campaign)["state"] == "completed"
