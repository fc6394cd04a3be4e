"""The two machines on the local Step Functions: what each path leaves behind; and that every path is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from carillon import keys
from carillon.adapters.items import to_item
from carillon.launch import direct
from carillon.transitions import CAMPAIGN_TRANSITIONS, CANCELLABLE, LAUNCHABLE, RESUMABLE, CampaignState
from local.ports import AwsError
from tests.stack.account import CAMPAIGN, SPEC, Account, FunctionError, ReplyLost, denied
from tools import definitions

type Scenario = Callable[[Account], None]

SCENARIOS: list[Scenario] = []
GROUP = keys.group(CAMPAIGN, 1)
DIRECT = SPEC.model_copy(update={"route": "direct", "steps": SPEC.steps * 2})
RUNNING = {
    "executionArn": "arn:aws:states:eu-central-1:111122223333:execution:launch:1",
    "mapRunArn": "arn:aws:states:eu-central-1:111122223333:mapRun:launch/FanOut:1",
    "stateMachineArn": "arn:aws:states:eu-central-1:111122223333:stateMachine:launch",
    "startDate": datetime(2026, 11, 29, tzinfo=UTC),
}
OVER = {**RUNNING, "stopDate": datetime(2026, 11, 29, 1, tzinfo=UTC)}


def scenario(function: Scenario) -> Scenario:
    """A path through a machine; its docstring says what must come of it."""
    SCENARIOS.append(function)
    return function


def ends(execution: dict[str, Any], error: str) -> str:
    """The cause of an execution that must have failed with ``error``."""
    assert (execution["status"], execution.get("error")) == ("FAILED", error), execution
    return str(execution["cause"])


def succeeds(execution: dict[str, Any]) -> Any:
    """The output of an execution that must have succeeded."""
    assert execution["status"] == "SUCCEEDED", execution
    return json.loads(execution["output"])


def children(account: Account, outcome: str) -> list[dict[str, Any]]:
    """What ResultWriter wrote of the children that SUCCEEDED or FAILED, of all rounds."""
    prefix = keys.fan_out_results(CAMPAIGN, 1) + "/"
    found = [body for key, body in account.objects.items() if key.startswith(prefix) and f"/{outcome}_" in key]
    return [record for body in found for record in json.loads(body)]


# launch_campaign: the ways that lead to dispatching


@scenario
def launched(account: Account) -> None:
    """A launch enrols every batch, makes a schedule for each task and leaves the campaign dispatching."""
    account.create()
    output = succeeds(account.launch())
    campaign = account.campaign()
    assert output == {"campaign_id": CAMPAIGN, "generation": 1, "planned": 6}
    assert (campaign.state, campaign.generation) == (CampaignState.DISPATCHING, 1)
    assert campaign.execution == (
        f"arn:aws:states:{definitions.REGION}:{definitions.ACCOUNT_ID}:execution:carillon-demo-launch-campaign:launch"
    )
    assert account.groups == {GROUP}
    assert set(account.schedules) == {(GROUP, name) for batch in account.batches for name in batch}
    made = account.schedules[GROUP, account.batches[0][0]]
    assert made["ScheduleExpression"] == "at(2027-01-15T08:00:00)"
    assert made["ActionAfterCompletion"] == "DELETE"
    assert made["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert made["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"
    assert made["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 3600}
    assert made["Target"]["DeadLetterConfig"]["Arn"] == definitions.arn("ScheduleDeadLetterQueue")
    assert json.loads(made["Target"]["Input"])["DelaySeconds"] == 0
    assert account.tables["recipients_spring_sale"]["StorageDescriptor"]["Columns"] == [
        {"Name": "email", "Type": "string"}
    ]
    outputs = sorted((json.loads(c["Output"]) for c in children(account, "SUCCEEDED")), key=lambda o: o["batch"])
    assert outputs == [
        {"batch": f"g1-aaaa/{n}", "enrolled": 3, "scheduled": 3, "settled": 0, "refused": 0} for n in range(2)
    ]
    asked = dict(account.invoked)["ConfirmFanOutFunction"]
    assert asked["manifest_key"] == keys.manifest(CAMPAIGN, "g1-aaaa")
    assert asked["results_prefix"] == keys.fan_out_results(CAMPAIGN, 1)
    assert asked["round"] == 1
    assert ":mapRun:carillon-demo-launch-campaign/FanOut:" in asked["map_run"]


@scenario
def launched_directly(account: Account) -> None:
    """On the direct route the schedules call SES, each within its window, and no row is there."""
    account.create(spec=DIRECT)
    succeeds(account.launch())
    made = account.schedules[GROUP, account.batches[0][0]]
    assert len(account.schedules) == 6
    assert made["FlexibleTimeWindow"] == {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 17}
    assert made["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:sesv2:sendEmail"
    assert made["Target"]["RetryPolicy"] == {
        "MaximumRetryAttempts": 10,
        "MaximumEventAgeInSeconds": direct.EVENT_AGE,
    }
    assert account.dynamodb.scan(TableName="TasksTable")["Count"] == 0


@scenario
def refused_directly(account: Account) -> None:
    """A schedule that Scheduler refuses has no task to fail; it is counted, and stops nobody else."""
    account.create(spec=DIRECT)
    account.refused[account.batches[0][1]] = AwsError("ValidationException", "Invalid RequestJson provided")
    succeeds(account.launch())
    assert account.dynamodb.scan(TableName="TasksTable")["Count"] == 0
    outputs = [json.loads(c["Output"]) for c in children(account, "SUCCEEDED")]
    assert sorted((o["scheduled"], o["refused"]) for o in outputs) == [(2, 1), (3, 0)]


@scenario
def resumed_directly(account: Account) -> None:
    """Without rows nobody knows who has been written to: a resume on the direct route is refused."""
    account.create(CampaignState.ABORTED, generation=1, spec=DIRECT)
    assert "direct route" in ends(account.launch(resume=True), "CampaignNotLaunchable")
    assert account.campaign().state is CampaignState.ABORTED


@scenario
def resumed(account: Account) -> None:
    """A resume is the next generation, in a group of its own; the group before it goes, pause and error too."""
    account.create(CampaignState.DISPATCHING, generation=1, paused=True, error={"code": "X", "message": "x"})
    account.groups.add(GROUP)
    assert succeeds(account.launch(resume=True))["generation"] == 2
    campaign = account.campaign()
    assert (campaign.state, campaign.generation) == (CampaignState.DISPATCHING, 2)
    assert not campaign.paused
    assert campaign.error is None
    assert account.groups == {keys.group(CAMPAIGN, 2)}


@scenario
def resumed_with_a_group_that_stays(account: Account) -> None:
    """That the group of the generation before cannot be deleted does not hold the resume up."""
    account.create(CampaignState.ABORTED, generation=1)
    account.groups.add(GROUP)
    account.fail("DeletePriorScheduleGroup", denied())
    succeeds(account.launch(resume=True))
    assert account.groups == {GROUP, keys.group(CAMPAIGN, 2)}


@scenario
def resumed_with_nobody_left(account: Account) -> None:
    """A resume that finds everybody settled needs no schedule, and the reconciler completes the campaign."""
    account.create(CampaignState.DISPATCHING, generation=1)
    account.batches = []
    assert succeeds(account.launch(resume=True))["planned"] == 0
    assert account.campaign().state is CampaignState.DISPATCHING
    assert account.groups == set()


@scenario
def claimed_without_a_reply(account: Account) -> None:
    """A claim whose answer was lost is this execution's own: it goes on, in the same generation."""
    account.create()
    account.lose_reply("ClaimCampaign")
    assert succeeds(account.launch())["generation"] == 1


@scenario
def paused_after_a_claim_without_a_reply(account: Account) -> None:
    """A pause between the claim and its repetition survives: the claim is found made, and not made again."""
    account.create()
    account.lose_reply("ClaimCampaign", lambda: account.change(paused=True))
    succeeds(account.launch())
    campaign = account.campaign()
    assert (campaign.state, campaign.generation, campaign.paused) == (CampaignState.DISPATCHING, 1, True)


@scenario
def launched_as_planned(account: Account) -> None:
    """The hash of the plan that a launch is bound to reaches PrepareList, which compares; nothing else does."""
    account.create()
    succeeds(account.launch(expected="a1b2"))
    asked = dict(account.invoked)["PrepareListFunction"]
    assert asked == {"campaign_id": CAMPAIGN, "generation": 1, "plan": False, "expected": "a1b2"}


@scenario
def planned(account: Account) -> None:
    """A plan is what PrepareList says; the campaign is neither claimed nor changed, and nothing is made."""
    account.create()
    before = account.campaign()
    output = succeeds(account.launch(plan=True, now="2026-12-01T08:00:00Z"))
    assert output == {"hash": "a1b2", "valid": 6}
    assert [event for _, event in account.invoked] == [
        {"campaign_id": CAMPAIGN, "generation": 1, "plan": True, "now": "2026-12-01T08:00:00Z"}
    ]
    assert account.campaign() == before
    assert (account.groups, account.tables, account.objects) == (set(), {}, {})


@scenario
def planned_twice_and_launched(account: Account) -> None:
    """A plan may be made any number of times, also of a campaign that waits for its launch, and is no launch."""
    account.create(CampaignState.SCHEDULED)
    for name in ("first", "second"):
        succeeds(account.run("launch_campaign", {"campaign_id": CAMPAIGN, "plan": True}, name))
    assert succeeds(account.launch())["generation"] == 1


@scenario
def planned_in_vain(account: Account) -> None:
    """A plan that fails says why, in the function's words, on the execution and in the campaign's plan alone."""
    account.create()
    before = account.campaign()
    sentence = 'no column holds "e-mail" addresses – name it'
    account.fail("PrepareList", FunctionError("ListRejected", sentence))
    assert ends(account.launch(plan=True), "PlanFailed") == f"ListRejected: {sentence}"
    after = account.campaign()
    assert after.plan == {"error": {"code": "ListRejected", "message": sentence}}
    assert after.model_copy(update={"plan": None}) == before


@scenario
def planned_in_vain_and_launched_meanwhile(account: Account) -> None:
    """A plan that fails late writes nothing to a campaign that has been launched since."""
    account.create()
    account.fail("PrepareList", FunctionError("ListRejected"))
    account.before["RecordPlanProblem"] = lambda: account.change(state="enqueued", generation=1)
    ends(account.launch(plan=True), "PlanFailed")
    assert account.campaign().plan is None


@scenario
def planned_while_it_is_launched(account: Account) -> None:
    """PrepareList finds the campaign launched: the plan gives way, and says so."""
    account.create()
    account.functions["PrepareListFunction"] = _conflict
    assert "no longer waiting for its launch" in ends(account.launch(plan=True), "LaunchSuperseded")
    assert account.campaign().state is CampaignState.CREATED


@scenario
def planned_too_late(account: Account) -> None:
    """What has been launched is not planned any more, and the error says what it is."""
    account.create(CampaignState.DISPATCHING, generation=1)
    assert "is dispatching" in ends(account.launch(plan=True), "CampaignNotLaunchable")


@scenario
def registered_before(account: Account) -> None:
    """A table that is there already is brought up to date."""
    account.create()
    account.tables["recipients_spring_sale"] = {}
    succeeds(account.launch())
    assert account.tables["recipients_spring_sale"]["TableType"] == "EXTERNAL_TABLE"


@scenario
def grouped_before(account: Account) -> None:
    """A group that is there already is this generation's own."""
    account.create()
    account.groups.add(GROUP)
    succeeds(account.launch())
    assert len(account.schedules) == 6


@scenario
def scheduled_before(account: Account) -> None:
    """A schedule that is there already counts as made: its name and group can only be this task's."""
    account.create()
    account.schedules[GROUP, account.batches[0][0]] = {}
    succeeds(account.launch())
    outputs = [json.loads(c["Output"]) for c in children(account, "SUCCEEDED")]
    assert [o["scheduled"] for o in outputs] == [3, 3]


@scenario
def throttled(account: Account) -> None:
    """Scheduler's and DynamoDB's "not now" are waited out."""
    account.create()
    account.fail("CreateSchedule", *(AwsError("ThrottlingException", "slow down", 429) for _ in range(3)))
    account.fail("MarkDispatching", AwsError("ProvisionedThroughputExceededException", "slow down"))
    succeeds(account.launch())
    assert len(account.schedules) == 6


@scenario
def dispatching_without_a_reply(account: Account) -> None:
    """The last write's answer is lost: it is made again, and the campaign is dispatching."""
    account.create()
    account.lose_reply("MarkDispatching")
    succeeds(account.launch())


@scenario
def fanned_out_again(account: Account) -> None:
    """What ConfirmFanOut misses goes through FanOut again, by the manifest that it names."""
    account.create()
    retry = keys.retry_manifest(keys.manifest(CAMPAIGN, "g1-aaaa"), 2)
    answers = [
        {"remaining": 1, "manifest_key": retry, "manifest_version": "v1", "refused": 0},
        {"remaining": 0, "manifest_key": None, "manifest_version": None, "refused": 0},
    ]
    line = {"batch": "g1-aaaa/1", "count": 3, "first_slot": 0}
    account.objects[retry] = json.dumps(line).encode()
    account.functions["ConfirmFanOutFunction"] = lambda event: answers.pop(0)
    succeeds(account.launch())
    enrolled = [event["batch"] for name, event in account.invoked if name == "EnrolBatchFunction"]
    asked = [event for name, event in account.invoked if name == "ConfirmFanOutFunction"]
    assert sorted(enrolled) == ["g1-aaaa/0", "g1-aaaa/1", "g1-aaaa/1"]
    assert [event["round"] for event in asked] == [1, 2]
    assert {event["manifest_key"] for event in asked} == {keys.manifest(CAMPAIGN, "g1-aaaa")}


# launch_campaign: single recipients and batches


@scenario
def refused(account: Account) -> None:
    """A schedule that Scheduler refuses makes its own task Failed, and stops nobody else."""
    account.create()
    name = account.batches[0][1]
    account.refused[name] = AwsError("ValidationException", "Invalid Schedule Expression")
    succeeds(account.launch())
    task = account.task(name)
    assert (task["status"], task["error"]["code"]) == ("Failed", "ScheduleRefused")
    assert "Invalid Schedule Expression" in task["error"]["message"]
    assert len(account.schedules) == 5
    outputs = [json.loads(c["Output"]) for c in children(account, "SUCCEEDED")]
    assert sorted((o["scheduled"], o["refused"]) for o in outputs) == [(2, 1), (3, 0)]


@scenario
def refused_in_every_shard(account: Account) -> None:
    """The row's key that the machine makes of a schedule's name is the one that carillon.keys makes."""
    account.create()
    account.batches = [
        [f"{step}-{digit:02x}{'0123456789abcdef' * 2}"[: 2 + 32] for digit in range(256)] for step in (0,)
    ]
    for name in account.batches[0]:
        account.refused[name] = AwsError("ValidationException", "no")
    succeeds(account.launch())
    assert {account.task(name)["status"] for name in account.batches[0]} == {"Failed"}


@scenario
def refused_when_settled(account: Account) -> None:
    """A refusal whose task somebody else has settled meanwhile changes nothing."""
    account.create()
    name = account.batches[0][0]
    account.refused[name] = AwsError("ValidationException", "no")
    key = {n: {"S": v} for n, v in keys.task_key(CAMPAIGN, name).items()}

    def cancel_task() -> None:
        account.dynamodb.update_item(
            TableName="TasksTable",
            Key=key,
            UpdateExpression="SET #s = :s",
            ExpressionAttributeNames={"#s": "status"},
            ExpressionAttributeValues={":s": {"S": "Cancelled"}},
        )

    account.before["RecordRefusal"] = cancel_task
    succeeds(account.launch())
    assert account.task(name)["status"] == "Cancelled"


@scenario
def refusal_unrecorded(account: Account) -> None:
    """A refusal that cannot be written down fails its batch, for another round."""
    account.create()
    account.refused[account.batches[0][0]] = AwsError("ValidationException", "no")
    account.fail("RecordRefusal", denied())
    account.launch()
    assert [c["Error"] for c in children(account, "FAILED")] == ["RefusalUnrecorded"]


@scenario
def out_of_schedules(account: Account) -> None:
    """A used-up quota fails the batch under a name of its own, which ConfirmFanOut knows as hopeless."""
    account.create()
    account.refused[account.batches[1][0]] = AwsError("ServiceQuotaExceededException", "no more", 402)
    account.launch()
    assert [c["Error"] for c in children(account, "FAILED")] == ["ScheduleQuotaExceeded"]


@scenario
def not_let_in(account: Account) -> None:
    """So does a role that may not create schedules."""
    account.create()
    account.refused[account.batches[1][0]] = denied()
    account.launch()
    assert [c["Error"] for c in children(account, "FAILED")] == ["SchedulerAccessDenied"]


@scenario
def schedules_role_not_assumable(account: Account) -> None:
    """So does a schedules' role that Scheduler cannot assume, a ValidationException: no task is failed for it.

    The words are those that Scheduler has been seen to answer with (aws/aws-sdk-js-v3#6494).
    """
    account.create()
    name = account.batches[1][0]
    account.refused[name] = AwsError(
        "ValidationException",
        "The execution role you provide must allow AWS EventBridge Scheduler to assume the role.",
    )
    account.launch()
    assert [c["Error"] for c in children(account, "FAILED")] == ["SchedulerAccessDenied"]
    assert account.task(name)["status"] == "Pending"


@scenario
def throttled_for_too_long(account: Account) -> None:
    """Throttling that outlasts every retry fails the batch, and another round may do better."""
    account.create()
    account.refused[account.batches[1][0]] = AwsError("ThrottlingException", "slow down", 429)
    account.launch()
    assert [c["Error"] for c in children(account, "FAILED")] == ["SchedulingFailed"]


@scenario
def not_enrolled(account: Account) -> None:
    """A batch that EnrolBatch cannot write fails alone."""
    account.create()
    account.fail("EnrolBatch", FunctionError("RuntimeError"))
    account.launch()
    assert [c["Error"] for c in children(account, "FAILED")] == ["EnrolmentFailed"]
    assert len(account.schedules) == 3


@scenario
def overtaken_in_the_fan_out(account: Account) -> None:
    """Children of a launch that was overtaken enrol nobody, and the launch leaves the campaign as it is."""
    account.create()
    account.before["FanOut"] = lambda: account.change(state="cancelling")
    account.functions["ConfirmFanOutFunction"] = _conflict
    ends(account.launch(), "LaunchSuperseded")
    assert {c["Error"] for c in children(account, "FAILED")} == {"LaunchSuperseded"}
    assert account.campaign().state is CampaignState.CANCELLING
    assert account.schedules == {}


def _conflict(event: dict[str, Any]) -> Any:
    raise FunctionError("CampaignStateConflict")


@scenario
def too_many_batches_failed(account: Account) -> None:
    """More than ten failed batches, and more than a tenth, break the fan-out, and ConfirmFanOut says by what.

    Aborted, and nothing is left of it.
    """
    account.create()
    account.batches = [[f"0-{b:032x}"] for b in range(12)]
    for (name,) in account.batches:
        account.refused[name] = AwsError("ServiceQuotaExceededException", "no more", 402)
    quota = "ScheduleQuotaExceeded: The account's quota of schedules is used up."

    def confirm(event: dict[str, Any]) -> Any:
        assert event["map_run"] is None
        assert {c["Error"] for c in children(account, "FAILED")} == {"ScheduleQuotaExceeded"}
        raise FunctionError("FanOutBroken", quota)

    account.functions["ConfirmFanOutFunction"] = confirm
    ends(account.launch(), "LaunchAborted")
    campaign = account.campaign()
    assert campaign.state is CampaignState.ABORTED
    assert campaign.error is not None
    assert (campaign.error.code, campaign.error.message) == ("FanOutBroken", quota)
    assert account.groups == set()


# launch_campaign: refused, and nothing changed


@scenario
def asked_for_nothing(account: Account) -> None:
    """An input without a campaign's id is refused, whatever stands in its place."""
    ends(account.run("launch_campaign", {"campaign": CAMPAIGN}), "InputInvalid")
    for number, given in enumerate((5, "", None, [CAMPAIGN], "x" * 3000, "../advent")):
        ends(account.run("launch_campaign", {"campaign_id": given}, f"odd-{number}"), "InputInvalid")


@scenario
def asked_for_what_is_not_known(account: Account) -> None:
    """A misspelt plan is no launch; nor is a flag that is no flag, a hash that is none, a launch that pins its now."""
    account.create()
    odd = (
        {"Plan": True}, {"dry_run": True}, {"plan": "true"}, {"plan": 1}, {"resume": "yes"},
        {"plan": True, "resume": True}, {"plan": True, "now": "tomorrow"}, {"now": "2026-12-01T08:00:00Z"},
        {"plan": True, "now": 1_800_000_000}, {"expected": ""}, {"expected": 5}, {"expected": ["a1b2"]},
    )  # fmt: skip
    for number, fields in enumerate(odd):
        given = {"campaign_id": CAMPAIGN, **fields}
        ends(account.run("launch_campaign", given, f"odd-{number}"), "InputInvalid")
    for number, other in enumerate(([{"campaign_id": CAMPAIGN}], CAMPAIGN, None)):
        ends(account.run("launch_campaign", other, f"other-{number}"), "InputInvalid")
    assert account.campaign().state is CampaignState.CREATED
    assert account.invoked == []


@scenario
def unreadable(account: Account) -> None:
    """A campaign that cannot be read is not touched."""
    account.create()
    account.fail("GetCampaign", denied())
    ends(account.launch(), "CampaignUnreadable")
    assert account.campaign().state is CampaignState.CREATED


@scenario
def unknown(account: Account) -> None:
    """An unknown campaign is named."""
    assert CAMPAIGN in ends(account.launch(), "CampaignNotFound")


@scenario
def launched_twice(account: Account) -> None:
    """A second launch is refused by the state that the first one brought, and leaves it as it is."""
    account.create()
    account.launch()
    before = account.campaign()
    assert "is dispatching" in ends(
        account.run("launch_campaign", {"campaign_id": CAMPAIGN}, "second"), "CampaignNotLaunchable"
    )
    assert account.campaign() == before


@scenario
def past_retention(account: Account) -> None:
    """A campaign past its retention is not launched: its rows could vanish under way."""
    account.create(expires_at=int(account.clock.time()) - 1)
    ends(account.launch(), "CampaignNotLaunchable")


@scenario
def taken(account: Account) -> None:
    """Of two launches that read the same campaign one gets it; the other changes nothing."""
    account.create()
    account.before["ClaimCampaign"] = lambda: account.change(state="enqueued", generation=1, execution="another")
    ends(account.launch(), "CampaignTaken")
    assert account.campaign().execution == "another"


@scenario
def taken_in_a_later_generation(account: Account) -> None:
    """A claim that was made and lost again is nobody's: whoever has the campaign now keeps it."""
    account.create()
    account.lose_reply("ClaimCampaign", lambda: account.change(state="cancelling"))
    ends(account.launch(), "CampaignTaken")
    assert account.campaign().state is CampaignState.CANCELLING


@scenario
def claim_unread(account: Account) -> None:
    """A claim that was made and cannot be read leaves no campaign that waits for nobody."""
    account.create()
    account.lose_reply("ClaimCampaign")
    account.fail("ReadClaim", denied())
    ends(account.launch(), "LaunchFailed")
    assert account.campaign().state is CampaignState.FAILED


@scenario
def claim_refused(account: Account) -> None:
    """A claim that failed for good and was not made leaves the campaign as it was."""
    account.create()
    account.fail("ClaimCampaign", denied())
    ends(account.launch(), "LaunchSuperseded")
    assert account.campaign().state is CampaignState.CREATED


# launch_campaign: failed


@scenario
def claim_failed_but_made(account: Account) -> None:
    """A claim that failed for good and was made all the same leaves no campaign that waits for nobody."""
    account.create()
    account.fail("ClaimCampaign", ReplyLost("AccessDeniedException", "what?", 403))
    ends(account.launch(), "LaunchFailed")
    assert account.campaign().state is CampaignState.FAILED


@scenario
def list_rejected(account: Account) -> None:
    """A list that cannot be used fails the campaign, with the function's own name and words."""
    account.create()
    sentence = 'no column holds "e-mail" addresses – name it'
    account.fail("PrepareList", FunctionError("ListRejected", sentence))
    assert sentence in ends(account.launch(), "LaunchFailed")
    campaign = account.campaign()
    assert campaign.state is CampaignState.FAILED
    assert campaign.error is not None
    assert (campaign.error.code, campaign.error.message) == ("ListRejected", sentence)
    assert (account.groups, account.tables) == (set(), {})


@scenario
def list_rejected_on_resume(account: Account) -> None:
    """The same on a resume aborts it: some have their mail, and a person decides about the rest."""
    account.create(CampaignState.ABORTED, generation=1)
    account.fail("PrepareList", FunctionError("ListRejected"))
    ends(account.launch(resume=True), "LaunchAborted")
    assert account.campaign().state is CampaignState.ABORTED


@scenario
def overtaken_while_preparing(account: Account) -> None:
    """PrepareList finds that somebody else decided: nothing is changed."""
    account.create()
    account.before["PrepareList"] = lambda: account.change(state="cancelling")
    account.functions["PrepareListFunction"] = _conflict
    ends(account.launch(), "LaunchSuperseded")
    assert account.campaign().state is CampaignState.CANCELLING


@scenario
def function_not_callable(account: Account) -> None:
    """A cause that is no function's JSON is kept as it is."""
    account.create()
    account.fail("PrepareList", *(denied() for _ in range(5)))
    ends(account.launch(), "LaunchFailed")
    error = account.campaign().error
    assert error is not None
    assert error.code == "Lambda.AWSLambdaException"
    assert "not authorized" in error.message


@scenario
def not_registered(account: Account) -> None:
    """A list that Glue does not take aborts the launch before anything is enrolled: the list is good."""
    account.create()
    account.fail("RegisterList", AwsError("InvalidInputException", "no"))
    ends(account.launch(), "LaunchAborted")
    assert account.campaign().state is CampaignState.ABORTED
    succeeds(account.run("launch_campaign", {"campaign_id": CAMPAIGN, "resume": True}, "mended"))


@scenario
def not_registered_again(account: Account) -> None:
    """Neither does one whose table cannot be brought up to date."""
    account.create()
    account.tables["recipients_spring_sale"] = {}
    account.fail("UpdateRegisteredList", AwsError("EntityNotFoundException", "no"))
    ends(account.launch(), "LaunchAborted")
    assert account.campaign().state is CampaignState.ABORTED


@scenario
def failed_but_overtaken(account: Account) -> None:
    """Whoever cancelled while the preparation broke keeps the word."""
    account.create()
    account.fail("PrepareList", FunctionError("ListRejected"))
    account.before["MarkFailed"] = lambda: account.change(state="cancelling")
    ends(account.launch(), "LaunchSuperseded")
    assert account.campaign().state is CampaignState.CANCELLING


@scenario
def failed_without_a_word(account: Account) -> None:
    """What cannot be written is left to RecordLaunchEnd, which sees the execution fail."""
    account.create()
    account.fail("PrepareList", FunctionError("ListRejected"))
    account.fail("MarkFailed", denied())
    ends(account.launch(), "LaunchUnrecorded")
    assert account.campaign().state is CampaignState.ENQUEUED


# launch_campaign: aborted


@scenario
def no_group(account: Account) -> None:
    """A group that cannot be made aborts the launch: the list is good, and a resume finds it."""
    account.create()
    account.fail("CreateScheduleGroup", AwsError("ServiceQuotaExceededException", "500 groups", 402))
    ends(account.launch(), "LaunchAborted")
    assert account.campaign().state is CampaignState.ABORTED


@scenario
def no_manifest(account: Account) -> None:
    """A manifest that cannot be read aborts the launch and its group goes."""
    account.create()
    account.fail("FanOut", AwsError("NoSuchKey", "gone", 404))
    ends(account.launch(), "LaunchAborted")
    assert account.groups == set()


@scenario
def broken_fan_out(account: Account) -> None:
    """A fan-out that ConfirmFanOut calls broken is aborted, says why, and leaves no schedule."""
    account.create()
    account.fail("ConfirmFanOut", FunctionError("FanOutBroken", "7 of 10 batches could not be scheduled"))
    ends(account.launch(), "LaunchAborted")
    campaign = account.campaign()
    assert campaign.state is CampaignState.ABORTED
    assert campaign.error is not None
    assert (campaign.error.code, campaign.error.message) == ("FanOutBroken", "7 of 10 batches could not be scheduled")
    assert (account.groups, account.schedules) == (set(), {})


@scenario
def broken_fan_out_and_a_group_that_stays(account: Account) -> None:
    """It is aborted all the same when its group cannot be deleted."""
    account.create()
    account.fail("ConfirmFanOut", FunctionError("FanOutBroken"))
    account.fail("DeleteScheduleGroup", denied())
    ends(account.launch(), "LaunchAborted")
    assert account.campaign().state is CampaignState.ABORTED


@scenario
def overtaken_at_the_end(account: Account) -> None:
    """A cancel that comes before the last write wins, and its work is left to it."""
    account.create()
    account.before["MarkDispatching"] = lambda: account.change(state="cancelling")
    ends(account.launch(), "LaunchSuperseded")
    assert account.campaign().state is CampaignState.CANCELLING
    assert account.groups == {GROUP}


@scenario
def not_dispatching(account: Account) -> None:
    """A launch that cannot say dispatching says aborted."""
    account.create()
    account.fail("MarkDispatching", denied())
    ends(account.launch(), "LaunchAborted")
    assert account.campaign().state is CampaignState.ABORTED


@scenario
def aborted_without_a_reply(account: Account) -> None:
    """The answer to the abort is lost: it is made again, and the group still goes."""
    account.create()
    account.fail("ConfirmFanOut", FunctionError("FanOutBroken"))
    account.lose_reply("MarkAborted")
    ends(account.launch(), "LaunchAborted")
    assert account.groups == set()


@scenario
def aborted_but_overtaken(account: Account) -> None:
    """A launch that broke after somebody took the campaign over leaves it, and its group, alone."""
    account.create()
    account.fail("ConfirmFanOut", FunctionError("FanOutBroken"))
    account.before["MarkAborted"] = lambda: account.change(execution="another")
    ends(account.launch(), "LaunchSuperseded")
    assert account.campaign().state is CampaignState.ENQUEUED
    assert account.groups == {GROUP}


@scenario
def aborted_without_a_word(account: Account) -> None:
    """An abort that cannot be written is left to RecordLaunchEnd."""
    account.create()
    account.fail("ConfirmFanOut", FunctionError("FanOutBroken"))
    account.fail("MarkAborted", denied())
    ends(account.launch(), "LaunchUnrecorded")


# cancel_campaign


@scenario
def cancelled(account: Account) -> None:
    """A cancel stops the launch, waits for senders, deletes the group, says cancelled and sweeps every shard twice."""
    account.create()
    account.launch()
    waited = account.clock.offset
    account.map_runs = [[OVER]]
    assert succeeds(account.cancel()) == {"campaign_id": CAMPAIGN, "cancelled": 64}
    campaign = account.campaign()
    assert campaign.state is CampaignState.CANCELLED
    assert account.stopped == [campaign.execution]
    assert account.clock.offset - waited >= 29
    assert account.schedules == {}
    swept = [event["shard"] for name, event in account.invoked if name == "CancelTasksFunction"]
    assert sorted(swept) == sorted([*range(keys.SHARDS)] * 2)
    acknowledged = account.visited.index("MarkCancelled")
    assert account.visited.index("WaitForSenders") < acknowledged < account.visited.index("SweepTasks")


@scenario
def cancelled_directly(account: Account) -> None:
    """On the direct route the templates go before the acknowledgement: SES takes nothing after it. No row is swept."""
    account.create(spec=DIRECT)
    account.launch()
    account.templates = {"another", *direct.template_names(account.campaign())}
    assert len(account.templates) == 3
    assert succeeds(account.cancel()) == {"campaign_id": CAMPAIGN, "cancelled": 0}
    assert account.campaign().state is CampaignState.CANCELLED
    assert (account.templates, account.groups) == ({"another"}, set())
    order = [account.visited.index(s) for s in ("DeleteScheduleGroup", "DeleteTemplate", "MarkCancelled")]
    assert order == sorted(order)
    assert "CancelTasks" not in account.visited


@scenario
def cancelled_directly_in_two_runs(account: Account) -> None:
    """A template that SES does not delete leaves the campaign cancelling; the next run finds the other one gone."""
    account.create(CampaignState.DISPATCHING, generation=1, spec=DIRECT)
    account.templates = {f"carillon-{CAMPAIGN}-1"}
    account.fail("DeleteTemplate", *(denied() for _ in range(7)))
    assert "TemplateStays" in ends(account.cancel(), "CancelUnfinished")
    assert account.campaign().state is CampaignState.CANCELLING
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))
    assert account.templates == set()
    assert account.campaign().state is CampaignState.CANCELLED
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "once-more"))


@scenario
def cancelled_before_launch(account: Account) -> None:
    """A campaign that only waited for its launch has nothing to stop and no group."""
    account.create(CampaignState.SCHEDULED)
    assert succeeds(account.cancel())["cancelled"] == 32
    assert account.stopped == []


@scenario
def cancelled_while_it_is_resumed(account: Account) -> None:
    """A resume between reading and marking: what is stopped and deleted is the generation that was marked."""
    account.create(CampaignState.DISPATCHING, generation=1, execution=RUNNING["executionArn"].replace("launch", "a"))
    newer = f"arn:aws:states:eu-central-1:{definitions.ACCOUNT_ID}:execution:carillon-demo-launch-campaign:newer"
    account.groups.add(keys.group(CAMPAIGN, 2))
    account.before["MarkCancelling"] = lambda: account.change(state="enqueued", generation=2, execution=newer)
    succeeds(account.cancel())
    assert account.stopped == [newer]
    assert account.groups == set()


@scenario
def cancelled_with_a_launch_that_cannot_be_stopped(account: Account) -> None:
    """The launch finds the campaign cancelling by itself, so that it cannot be stopped is no obstacle."""
    account.create()
    account.launch()
    account.fail("StopLaunch", AwsError("ExecutionDoesNotExist", "no such execution"))
    succeeds(account.cancel())
    assert account.campaign().state is CampaignState.CANCELLED


@scenario
def cancelled_after_its_group(account: Account) -> None:
    """A group that is gone already is fine."""
    account.create()
    account.launch()
    account.groups.clear()
    succeeds(account.cancel())


@scenario
def cancelled_with_a_fan_out_that_goes_on(account: Account) -> None:
    """Children that outlive the stopped launch are waited for before the last sweep."""
    account.create()
    account.launch()
    account.map_runs = [[RUNNING], [RUNNING], [OVER, RUNNING], [OVER, OVER]]
    succeeds(account.cancel())
    assert account.visited.count("WaitForFanOut") == 3
    assert account.visited[-3:] == ["IsEverybodyEnrolled", "ReleaseCapacity", "CampaignCancelled"]


@scenario
def cancelled_with_a_fan_out_that_never_ends(account: Account) -> None:
    """After ten minutes it says so; the campaign is cancelled, and another run sweeps again."""
    account.create()
    account.launch()
    account.map_runs = [[RUNNING]]
    assert "FanOutOutlivedCancel" in ends(account.cancel(), "CancelUnfinished")
    assert account.campaign().state is CampaignState.CANCELLED
    account.map_runs = [[OVER]]
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))


@scenario
def cancelled_after_its_execution_is_forgotten(account: Account) -> None:
    """An execution that Step Functions no longer knows has no Map Run that goes on."""
    account.create()
    account.launch()
    account.fail("ListMapRuns", AwsError("ExecutionDoesNotExist", "no such execution"))
    succeeds(account.cancel())


@scenario
def cancelled_without_knowing_the_fan_out(account: Account) -> None:
    """Not knowing whether children go on, it does not say that all is done."""
    account.create()
    account.launch()
    account.fail("ListMapRuns", *(denied() for _ in range(6)))
    ends(account.cancel(), "CancelUnfinished")


@scenario
def cancelled_nothing(account: Account) -> None:
    """An input without a campaign's id is refused, whatever stands in its place."""
    ends(account.run("cancel_campaign", {}), "InputInvalid")
    for number, given in enumerate((5, "", None, [CAMPAIGN], "x" * 3000, "../advent")):
        ends(account.run("cancel_campaign", {"campaign_id": given}, f"odd-{number}"), "InputInvalid")


@scenario
def cancelled_unread(account: Account) -> None:
    """A campaign that cannot be read is not touched."""
    account.create(CampaignState.DISPATCHING, generation=1)
    account.fail("GetCampaign", denied())
    ends(account.cancel(), "CancelUnfinished")
    assert account.campaign().state is CampaignState.DISPATCHING


@scenario
def cancelled_unknown(account: Account) -> None:
    """An unknown campaign is named."""
    assert CAMPAIGN in ends(account.cancel(), "CampaignNotFound")


@scenario
def cancelled_too_late(account: Account) -> None:
    """A completed campaign stays completed, and the error says that it is."""
    account.create(CampaignState.COMPLETED, generation=1)
    assert "is completed" in ends(account.cancel(), "CampaignNotCancellable")
    assert account.campaign().state is CampaignState.COMPLETED


@scenario
def cancelling_refused(account: Account) -> None:
    """Cancelling that cannot be written is not done by halves."""
    account.create(CampaignState.DISPATCHING, generation=1)
    account.fail("MarkCancelling", denied())
    ends(account.cancel(), "CancelUnfinished")
    assert account.stopped == []


@scenario
def cancelled_in_two_runs(account: Account) -> None:
    """A group that cannot be deleted leaves the campaign cancelling, and the next run finishes."""
    account.create()
    account.launch()
    account.fail("DeleteScheduleGroup", denied(), denied(), denied(), denied(), denied(), denied())
    ends(account.cancel(), "CancelUnfinished")
    assert account.campaign().state is CampaignState.CANCELLING
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))
    assert account.campaign().state is CampaignState.CANCELLED


@scenario
def cancelled_without_a_reply(account: Account) -> None:
    """An acknowledgement whose answer was lost is made again."""
    account.create(CampaignState.ABORTED, generation=1)
    account.lose_reply("MarkCancelling")
    account.lose_reply("MarkCancelled")
    succeeds(account.cancel())


@scenario
def cancelled_and_deleted(account: Account) -> None:
    """A record that goes while it is cancelled is not made again."""
    account.create(CampaignState.ABORTED, generation=1)
    account.before["MarkCancelled"] = lambda: account.dynamodb.delete_item(
        TableName="CampaignsTable", Key={"campaign_id": {"S": CAMPAIGN}}
    )
    ends(account.cancel(), "CampaignNotFound")


@scenario
def cancelled_without_acknowledgement(account: Account) -> None:
    """An acknowledgement that cannot be written is none."""
    account.create(CampaignState.ABORTED, generation=1)
    account.fail("MarkCancelled", denied())
    ends(account.cancel(), "CancelUnfinished")
    assert account.campaign().state is CampaignState.CANCELLING


@scenario
def cancelled_but_unswept(account: Account) -> None:
    """A shard that cannot be swept leaves the campaign cancelled; the next run sweeps."""
    account.create(CampaignState.ABORTED, generation=1)
    account.fail("CancelTasks", FunctionError("RuntimeError"))
    assert "SweepFailed" in ends(account.cancel(), "CancelUnfinished")
    assert account.campaign().state is CampaignState.CANCELLED
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))


def _prepared(account: Account, **fields: Any) -> None:
    """A campaign whose launch was prepared and then stopped: six tasks in its manifest, none of them enrolled."""
    lines = [{"batch": f"g1-aaaa/{n}", "count": 3, "first_slot": 0} for n in range(2)]
    account.objects[keys.manifest(CAMPAIGN, "g1-aaaa")] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    account.create(CampaignState.ABORTED, generation=1, enrolled=6, prepared="g1-aaaa", **fields)


def _ledger(account: Account, day: str, *takers: str) -> None:
    item = {"name": f"ledger#{day}", "version": 3, "takers": dict.fromkeys(takers, "minutes")}
    account.dynamodb.put_item(TableName="SettingsTable", Item=to_item(item))


def _takers(account: Account) -> dict[str, set[str]]:
    items = account.dynamodb.scan(TableName="SettingsTable")["Items"]
    return {item["name"]["S"].removeprefix("ledger#"): set(item["takers"]["M"]) for item in items}


@scenario
def cancelled_before_everybody_was_enrolled(account: Account) -> None:
    """Whom a broken launch had not reached gets a Cancelled row by the first manifest; a second cancel adds nothing."""
    _prepared(account)
    succeeds(account.cancel())
    assert {account.task(name)["status"] for batch in account.batches for name in batch} == {"Cancelled"}
    asked = [event for name, event in account.invoked if name == "EnrolBatchFunction"]
    assert [event["cancelled"] for event in asked] == [True, True]
    swept = max(n for n, name in enumerate(account.visited) if name == "CancelTasks")
    assert account.visited.index("EnrolUnreached") > swept
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))
    assert account.visited.count("EnrolUnreached") == 1


@scenario
def cancelled_with_a_batch_that_cannot_be_written(account: Account) -> None:
    """Then the cancel is unfinished, and the next one goes on."""
    _prepared(account)
    account.fail("EnrolBatch", FunctionError("RuntimeError"))
    ends(account.cancel(), "CancelUnfinished")
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))
    assert {account.task(name)["status"] for batch in account.batches for name in batch} == {"Cancelled"}


@scenario
def cancelled_and_its_capacity_given_back(account: Account) -> None:
    """Its own entries of the ledger from today to the last slot's day; other campaigns' and other days' stay."""
    today = datetime.fromtimestamp(account.clock.time(), UTC)
    days = [(today + timedelta(days=n)).strftime("%Y-%m-%d") for n in range(5)]
    _ledger(account, days[0], CAMPAIGN, "another")
    _ledger(account, days[1], "another")
    _ledger(account, days[3], CAMPAIGN)
    _ledger(account, days[4], CAMPAIGN)
    summary = {"first_slot": f"{(today - timedelta(days=9)):%Y-%m-%d}T10:00:00Z", "last_slot": f"{days[3]}T00:00:00Z"}
    account.create(CampaignState.DISPATCHING, generation=1, summary=summary)
    succeeds(account.cancel())
    assert _takers(account) == {days[0]: {"another"}, days[1]: {"another"}, days[3]: set(), days[4]: {CAMPAIGN}}
    assert account.visited.count("GiveBackDay") == 4


@scenario
def cancelled_and_its_capacity_kept(account: Account) -> None:
    """A day that cannot be given back leaves the cancel unfinished; the next one gives it back."""
    day = datetime.fromtimestamp(account.clock.time(), UTC).strftime("%Y-%m-%d")
    _ledger(account, day, CAMPAIGN)
    slot = f"{day}T23:59:59Z"
    account.create(CampaignState.ABORTED, generation=1, summary={"first_slot": slot, "last_slot": slot})
    account.fail("GiveBackDay", denied())
    assert "CapacityKept" in ends(account.cancel(), "CancelUnfinished")
    succeeds(account.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "again"))
    assert _takers(account) == {day: set()}


@scenario
def cancelled_with_nothing_planned(account: Account) -> None:
    """A plan without a slot has taken nothing."""
    account.create(CampaignState.ABORTED, generation=1, summary={"first_slot": None, "last_slot": None})
    succeeds(account.cancel())
    assert "GiveBackDay" not in account.visited


# The tests


@dataclass(frozen=True)
class Trace:
    """What a scenario went through."""

    visited: frozenset[str]
    caught: frozenset[tuple[str, int]]


_traces: dict[str, Trace] = {}


def trace(play: Scenario) -> Trace:
    """Play a scenario, once per process."""
    if play.__name__ not in _traces:
        account = Account()
        try:
            play(account)
        finally:
            account.close()
        _traces[play.__name__] = Trace(frozenset(account.visited), frozenset(account.caught))
    return _traces[play.__name__]


@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__)
def test_a_path_through_a_machine(play: Scenario) -> None:
    """See the scenario's own sentence."""
    trace(play)


@pytest.mark.parametrize("machine", definitions.state_machines(), ids=lambda machine: machine.name)
def test_every_state_is_entered_and_every_catch_taken(machine: definitions.StateMachine) -> None:
    """A state that no scenario enters, or a catcher that none takes, has never been seen to work."""
    of_cancel = machine.name == "cancel_campaign"
    traces = [trace(play) for play in SCENARIOS if play.__name__.startswith("cancel") == of_cancel]
    visited = frozenset().union(*(t.visited for t in traces))
    caught = frozenset().union(*(t.caught for t in traces))
    states = {name: state for name, state, _ in definitions.states(machine.definition)}
    assert set(states) - visited == set()
    catchers = {(name, n) for name, state in states.items() for n in range(len(state.get("Catch", ())))}
    assert catchers - caught == set()


@pytest.mark.parametrize(
    "changed",
    [{"state": "cancelling"}, {"execution": "another"}, {"generation": 2}, {"state": "completed"}],
    ids=lambda changed: "-".join(map(str, *changed.items())),
)
@pytest.mark.parametrize(
    ("mark", "broken"),
    [("MarkDispatching", ""), ("MarkFailed", "PrepareList"), ("MarkAborted", "ConfirmFanOut")],
)
def test_whoever_is_overtaken_changes_nothing(mark: str, broken: str, changed: dict[str, Any]) -> None:
    """Each of the three last writes names state, generation and execution, and gives way to whoever changed one."""
    account = Account()
    try:
        account.create()
        if broken:
            account.fail(broken, FunctionError("ListRejected"))
        account.before[mark] = lambda: account.change(**changed)
        seen: list[Any] = []
        account.before["LaunchSuperseded"] = lambda: seen.append(account.campaign())
        ends(account.launch(), "LaunchSuperseded")
        (campaign,) = seen
        assert {name: getattr(campaign, name) for name in changed} == changed
        assert campaign.state == changed.get("state", "enqueued")
        assert campaign.error is None
        if broken != "PrepareList":
            assert account.groups == {GROUP}
    finally:
        account.close()


@pytest.mark.parametrize("state", CampaignState)
@pytest.mark.parametrize("asked", ["launch", "resume", "cancel"])
def test_a_machine_changes_a_campaign_only_along_the_table_of_transitions(state: CampaignState, asked: str) -> None:
    """Whatever state a machine finds, each state that it writes may follow the one before (DESIGN section 13)."""
    account = Account()
    try:
        account.create(state, generation=0 if state in LAUNCHABLE else 1)
        seen = [state]
        update = account.answer

        def watching(service: str, operation: str, params: Any) -> dict[str, Any]:
            answer = update(service, operation, params)
            if (after := account.campaign().state) != seen[-1]:
                seen.append(after)
            return answer

        account.answer = watching  # type: ignore[method-assign]
        execution = account.cancel() if asked == "cancel" else account.launch(resume=asked == "resume")
    finally:
        account.close()
    for before, after in pairwise(seen):
        assert after in CAMPAIGN_TRANSITIONS[before]
    # Cancelling again what is being cancelled, or is cancelled and perhaps not swept, is how one finishes.
    starts_from = {
        "launch": LAUNCHABLE,
        "resume": RESUMABLE,
        "cancel": CANCELLABLE | {CampaignState.CANCELLING, CampaignState.CANCELLED},
    }
    assert (execution["status"] == "SUCCEEDED") == (state in starts_from[asked])
    if state not in starts_from[asked]:
        assert seen == [state]
