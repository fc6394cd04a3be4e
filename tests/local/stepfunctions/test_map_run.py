"""Distributed Map.

Sources: the contract sheet's section 2 (Distributed Map; "a Map Run can outlive a stopped parent"), "ItemReader (Map)",
"ResultWriter (Map)" (files, manifest, who is in FAILED and PENDING), "Setting failure thresholds", botocore's
DescribeMapRun, UpdateMapRun, ListMapRuns.
"""

import json
import re
import time
from typing import Any

import pytest

from local.ports import AwsError

World = Any

LAMBDA = "arn:aws:states:::lambda:invoke"
WORK = {
    "Work": {
        "Type": "Task",
        "Resource": LAMBDA,
        "Arguments": {"FunctionName": "f", "Payload": "{% $states.input %}"},
        "Output": "{% $states.result.Payload %}",
        "End": True,
    }
}
READER = {
    "Resource": "arn:aws:states:::s3:getObject",
    "ReaderConfig": {"InputType": "JSONL"},
    "Arguments": {"Bucket": "lists", "Key": "{% $states.input.key %}", "VersionId": "{% $states.input.version %}"},
}
WRITER = {
    "Resource": "arn:aws:states:::s3:putObject",
    "Arguments": {"Bucket": "lists", "Prefix": "{% 'results/' & $states.context.Execution.Name %}"},
}


def distributed(processor: dict[str, Any] = WORK, express: bool = True, **more: Any) -> dict[str, Any]:
    config = {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS" if express else "STANDARD"}
    return {
        "FanOut": {
            "Type": "Map",
            "ItemProcessor": {"ProcessorConfig": config, "StartAt": next(iter(processor)), "States": processor},
            "End": True,
            **more,
        }
    }


def map_run(world: World, execution_arn: str) -> dict[str, Any]:
    runs = world.api("ListMapRuns", executionArn=execution_arn)["mapRuns"]
    described: dict[str, Any] = world.api("DescribeMapRun", mapRunArn=runs[0]["mapRunArn"])
    return described


def failing_from(limit: int) -> Any:
    def work(n: int) -> int:
        if n >= limit:
            raise AwsError("TooManyRequestsException", "no", 429)
        return n

    return work


# Items in


def test_json_lines_are_read_at_the_version_named(world: World) -> None:
    """One child a line; blank lines are none; VersionId reaches S3."""
    world.caller.function(lambda item: item["n"] * 10)
    world.caller.objects["m"] = '{"n":1}\n\n{"n":2}\n{"n":3,"s":"a\u2028b"}\n'.encode()
    states = distributed(ItemReader=READER)
    assert world.output(states, {"key": "m", "version": "v1"}) == [10, 20, 30]
    assert world.caller.named("GetObject") == [{"Bucket": "lists", "Key": "m", "VersionId": "v1"}]


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe", b'{"a":1}\nnot json'])
def test_items_that_cannot_be_read_fail_the_map_under_their_name(world: World, content: bytes | None) -> None:
    """States.ItemReaderFailed, which a Catch can take; no child ran."""
    if content is not None:
        world.caller.objects["m"] = content
    states = distributed(
        ItemReader=READER, Catch=[{"ErrorEquals": ["States.ItemReaderFailed"], "Output": "caught", "Next": "Z"}]
    )
    states["Z"] = {"Type": "Pass", "End": True}
    arn = world.start(states, {"key": "m", "version": "v"})
    assert world.wait(arn)["output"] == '"caught"'
    assert world.caller.named("Invoke") == []
    assert map_run(world, arn)["status"] == "FAILED"


def test_an_item_selector_makes_each_childs_input(world: World) -> None:
    """ItemSelector sees the Map's input and each item; the child's Execution.Input is what it made."""
    echo = {"E": {"Type": "Pass", "Output": "{% $states.context.Execution.Input %}", "End": True}}
    states = distributed(
        echo,
        Items="{% $states.input.rows %}",
        ItemSelector={"row": "{% $states.context.Map.Item.Value %}", "campaign": "{% $states.input.campaign %}"},
    )
    assert world.output(states, {"campaign": "c", "rows": [1, 2]}) == [
        {"row": 1, "campaign": "c"},
        {"row": 2, "campaign": "c"},
    ]


def test_no_items_is_a_map_run_of_nothing(world: World) -> None:
    """An empty object succeeds with no children, and still writes its manifest."""
    world.caller.objects["m"] = b""
    arn = world.start(distributed(ItemReader=READER, ResultWriter=WRITER), {"key": "m", "version": "v"})
    assert world.wait(arn)["status"] == "SUCCEEDED"
    assert map_run(world, arn)["itemCounts"]["total"] == 0
    manifest = json.loads(next(body for key, body in world.caller.objects.items() if key.endswith("manifest.json")))
    assert manifest["ResultFiles"] == {"FAILED": [], "PENDING": [], "SUCCEEDED": []}


# Results out


def test_the_result_writer_leaves_manifest_and_files_in_the_documented_form(world: World) -> None:
    """``{prefix}/{map run id}/manifest.json`` beside SUCCEEDED_0.json and FAILED_0.json; the state's result points
    at the manifest."""
    world.caller.function(failing_from(3))
    states = distributed(Items=[1, 2, 3], ResultWriter=WRITER, ToleratedFailureCount=1, Label="fan-out")
    execution = world.run(states)
    result = json.loads(execution["output"])
    run_arn, directory = result["MapRunArn"], result["ResultWriterDetails"]["Key"].removesuffix("/manifest.json")
    assert re.fullmatch(r"arn:aws:states:eu-central-1:000000000000:mapRun:machine/fan-out:[0-9a-f-]{36}", run_arn)
    assert directory == f"results/{execution['name']}/{run_arn.rsplit(':', 1)[1]}"
    assert result["ResultWriterDetails"]["Bucket"] == "lists"

    manifest = json.loads(world.caller.objects[f"{directory}/manifest.json"])
    succeeded, failed = (world.caller.objects[f"{directory}/{name}_0.json"] for name in ("SUCCEEDED", "FAILED"))
    assert manifest == {
        "DestinationBucket": "lists",
        "MapRunArn": run_arn,
        "ResultFiles": {
            "FAILED": [{"Key": f"{directory}/FAILED_0.json", "Size": len(failed)}],
            "PENDING": [],
            "SUCCEEDED": [{"Key": f"{directory}/SUCCEEDED_0.json", "Size": len(succeeded)}],
        },
    }
    records = json.loads(succeeded)
    assert [record["Output"] for record in records] == ["1", "2"]
    assert set(records[0]) == {
        "ExecutionArn",
        "Input",
        "InputDetails",
        "Name",
        "Output",
        "OutputDetails",
        "RedriveCount",
        "RedriveStatus",
        "RedriveStatusReason",
        "StartDate",
        "StateMachineArn",
        "Status",
        "StopDate",
    }
    broken = json.loads(failed)[0]
    assert (broken["Status"], broken["Error"], broken["Input"]) == ("FAILED", "Lambda.TooManyRequestsException", "3")
    assert "Output" not in broken


def test_a_writer_that_may_not_write_fails_the_map_under_its_name(world: World) -> None:
    """States.ResultWriterFailed."""

    def refuse(params: Any) -> Any:
        raise AwsError("AccessDenied", "no", 403)

    world.caller.function(lambda n: n)
    world.caller.answers["s3", "PutObject"] = refuse
    execution = world.run(distributed(Items=[1], ResultWriter=WRITER))
    assert execution["error"] == "States.ResultWriterFailed"


def test_without_a_writer_more_than_256_kib_of_results_fail(world: World) -> None:
    """ "Exporting the results is helpful if your output payload size exceeds 256 KiB": otherwise it fails."""
    world.caller.function(lambda n: "x" * 100_000)
    assert world.run(distributed(Items=[1, 2]))["status"] == "SUCCEEDED"
    assert world.run(distributed(Items=[1, 2, 3]))["error"] == "States.DataLimitExceeded"


# Tolerance


@pytest.mark.parametrize(
    ("tolerance", "failures", "survives"),
    [
        ({}, 0, True),
        ({}, 1, False),
        ({"ToleratedFailureCount": 2}, 2, True),
        ({"ToleratedFailureCount": 2}, 3, False),
        ({"ToleratedFailureCount": "{% 1 + 1 %}"}, 3, False),
        ({"ToleratedFailurePercentage": 20}, 2, True),
        ({"ToleratedFailurePercentage": 20}, 3, False),
        ({"ToleratedFailurePercentage": "{% $states.context.State.RetryCount + 100 %}"}, 10, True),
        ({"ToleratedFailureCount": 1, "ToleratedFailurePercentage": 100}, 2, False),
        ({"ToleratedFailureCount": 9, "ToleratedFailurePercentage": 10}, 2, False),
    ],
)
def test_either_threshold_breached_fails_the_map(
    world: World, tolerance: dict[str, Any], failures: int, survives: bool
) -> None:
    """Default 0; "either breached" → States.ExceedToleratedFailureThreshold (contract sheet)."""
    world.caller.function(failing_from(10 - failures))
    arn = world.start(distributed(Items=list(range(10)), MaxConcurrency=1, **tolerance))
    execution = world.wait(arn)
    if survives:
        assert execution["status"] == "SUCCEEDED"
        assert map_run(world, arn)["itemCounts"]["failed"] == failures
    else:
        assert execution["error"] == "States.ExceedToleratedFailureThreshold"
        assert map_run(world, arn)["status"] == "FAILED"


def test_after_the_breach_nothing_starts_and_the_rest_is_pending(world: World) -> None:
    """ "PENDING_n.json – child workflow executions that weren't started because the Map Run failed or was aborted"."""
    world.caller.function(failing_from(2))
    arn = world.start(distributed(Items=list(range(10)), MaxConcurrency=1, ResultWriter=WRITER))
    assert world.wait(arn)["error"] == "States.ExceedToleratedFailureThreshold"
    counts = map_run(world, arn)["itemCounts"]
    assert (counts["succeeded"], counts["failed"], counts["pending"], counts["total"]) == (2, 1, 7, 10)
    pending = json.loads(next(body for key, body in world.caller.objects.items() if "PENDING_0" in key))
    assert pending[0] == {"Input": "3", "InputDetails": {"Included": True}, "Status": "PENDING"}
    assert len(pending) == 7


def test_an_express_child_may_run_five_minutes(world: World, gate: Any) -> None:
    """EXPRESS: 5 minutes, then TIMED_OUT; it is in FAILED_0.json as "failed, timed out, and aborted" ones are."""
    world.caller.function(gate)
    arn = world.start(distributed(Items=[1], ToleratedFailureCount=1, ResultWriter=WRITER))
    world.eventually(lambda: gate.entered)
    world.clock.advance(299)
    time.sleep(0.1)
    assert map_run(world, arn)["itemCounts"]["running"] == 1
    world.clock.advance(1)
    assert world.wait(arn, 3)["status"] == "SUCCEEDED"
    assert map_run(world, arn)["itemCounts"]["timedOut"] == 1
    failed = json.loads(next(body for key, body in world.caller.objects.items() if "FAILED_0" in key))
    assert failed[0]["Status"] == "TIMED_OUT"


# Concurrency


def test_max_concurrency_bounds_the_children_and_can_be_changed_in_flight(world: World, gate: Any) -> None:
    """UpdateMapRun changes maxConcurrency of a running Map Run (botocore)."""
    world.caller.function(gate)
    arn = world.start(distributed(Items=list(range(10)), MaxConcurrency="{% 2 %}"))
    world.eventually(lambda: len(gate.entered) == 2)
    time.sleep(0.05)
    assert len(gate.entered) == 2
    run = map_run(world, arn)
    assert (run["maxConcurrency"], run["itemCounts"]["running"], run["itemCounts"]["pending"]) == (2, 2, 8)
    world.api("UpdateMapRun", mapRunArn=run["mapRunArn"], maxConcurrency=5, toleratedFailureCount=3)
    world.eventually(lambda: len(gate.entered) == 5)
    assert map_run(world, arn)["toleratedFailureCount"] == 3
    gate.open()
    assert json.loads(world.wait(arn)["output"]) == list(range(10))


def test_a_map_run_that_is_over_cannot_be_changed(world: World) -> None:
    """UpdateMapRun is for a Map Run in progress."""
    world.caller.function(lambda n: n)
    arn = world.start(distributed(Items=[1]))
    world.wait(arn)
    with pytest.raises(AwsError) as refused:
        world.api("UpdateMapRun", mapRunArn=map_run(world, arn)["mapRunArn"], maxConcurrency=5)
    assert refused.value.code == "ValidationException"


# Stopping


def test_a_stopped_parent_leaves_running_express_children_to_their_end(world: World, gate: Any) -> None:
    """The Map Run outlives its parent: what runs goes on, what waits never starts, the results are written."""
    world.caller.function(gate)
    states = distributed(
        Items=[1, 2, 3, 4],
        MaxConcurrency=2,
        ResultWriter=WRITER,
        Catch=[{"ErrorEquals": ["States.ALL"], "Next": "Never"}],
    )
    states["Never"] = {"Type": "Pass", "End": True}
    arn = world.start(states)
    world.eventually(lambda: len(gate.entered) == 2)
    world.api("StopExecution", executionArn=arn, error="Cancelled", cause="by a person")
    assert world.wait(arn)["status"] == "ABORTED"
    time.sleep(0.05)
    run = map_run(world, arn)
    assert (run["status"], run["itemCounts"]["running"], run["itemCounts"]["pending"]) == ("RUNNING", 2, 2)
    gate.open()
    world.eventually(lambda: map_run(world, arn)["status"] == "ABORTED")
    counts = map_run(world, arn)["itemCounts"]
    assert (counts["succeeded"], counts["pending"], counts["running"], counts["resultsWritten"]) == (2, 2, 0, 2)
    assert sorted(gate.entered) == [1, 2]
    assert {key.rsplit("/", 1)[1] for key in world.caller.objects} == {
        "manifest.json",
        "SUCCEEDED_0.json",
        "PENDING_0.json",
    }
    assert "PassStateEntered" not in [event["type"] for event in world.history(arn)]


def test_a_stopped_parent_stops_its_standard_children(world: World, gate: Any) -> None:
    """ "A Map Run can outlive a stopped parent while it cancels STANDARD children" (contract sheet)."""
    world.caller.function(gate)
    arn = world.start(distributed(express=False, Items=[1, 2, 3], MaxConcurrency=2))
    world.eventually(lambda: len(gate.entered) == 2)
    world.api("StopExecution", executionArn=arn)
    world.eventually(lambda: map_run(world, arn)["status"] == "ABORTED")
    assert map_run(world, arn)["itemCounts"]["aborted"] == 2
    run_arn = map_run(world, arn)["mapRunArn"]
    children = world.api("ListExecutions", mapRunArn=run_arn)["executions"]
    assert [child["status"] for child in children] == ["ABORTED", "ABORTED"]


def test_a_parent_that_times_out_does_the_same(world: World, gate: Any) -> None:
    """The machine's TimeoutSeconds: the parent is TIMED_OUT, running EXPRESS children go on."""
    world.caller.function(gate)
    arn = world.start(distributed(Items=[1, 2], MaxConcurrency=1), TimeoutSeconds=200)
    world.eventually(lambda: gate.entered)
    world.clock.advance(200)
    assert world.wait(arn, 3)["status"] == "TIMED_OUT"
    gate.open()
    world.eventually(lambda: map_run(world, arn)["status"] == "ABORTED")
    assert map_run(world, arn)["itemCounts"]["succeeded"] == 1


# Children


def test_standard_children_are_executions_that_the_api_shows(world: World) -> None:
    """ListExecutions(mapRunArn), DescribeExecution and GetExecutionHistory know STANDARD children."""
    world.caller.function(lambda n: n + 1)
    arn = world.start(distributed(express=False, Items=[1]))
    world.wait(arn)
    run = map_run(world, arn)
    child = world.api("ListExecutions", mapRunArn=run["mapRunArn"])["executions"][0]
    assert child["mapRunArn"] == run["mapRunArn"]
    described = world.api("DescribeExecution", executionArn=child["executionArn"])
    assert (described["status"], described["input"], described["output"]) == ("SUCCEEDED", "1", "2")
    assert world.history(child["executionArn"])[-1]["type"] == "ExecutionSucceeded"


def test_express_children_are_not_listed(world: World) -> None:
    """ListExecutions "is not supported by EXPRESS state machines": StateMachineTypeNotSupported (botocore)."""
    world.caller.function(lambda n: n)
    arn = world.start(distributed(Items=[1]))
    world.wait(arn)
    with pytest.raises(AwsError) as refused:
        world.api("ListExecutions", mapRunArn=map_run(world, arn)["mapRunArn"])
    assert refused.value.code == "StateMachineTypeNotSupported"


def test_a_child_starts_with_no_variables_of_its_parent(world: World) -> None:
    """A child is an execution of its own: its context is its own, the machine's name has the label."""
    echo = {"E": {"Type": "Pass", "Output": "{% $states.context.StateMachine.Name %}", "End": True}}
    assert world.output(distributed(echo, Items=[1], Label="fan")) == ["machine/fan"]


def test_the_machine_of_a_campaign_end_to_end(world: World) -> None:
    """Manifest → EnrolBatch → CreateSchedule for each, conflicts taken as done, refusals recorded."""
    batches = {"0": ["a", "b"], "1": ["c", "taken"], "2": ["bad", "d"]}
    world.caller.function(
        lambda line: {"schedules": [{"name": name, "at": "2027-01-01T09:00:00"} for name in batches[line["batch"]]]}
    )
    made: list[str] = []

    def create(params: Any) -> Any:
        if params["Name"] == "taken":
            raise AwsError("ConflictException", "exists", 409)
        if params["Name"] == "bad":
            raise AwsError("ValidationException", "no", 400)
        made.append(params["Name"])
        return {"ScheduleArn": params["Name"]}

    world.caller.answers["scheduler", "CreateSchedule"] = create
    world.caller.objects["m"] = b'{"batch":"0"}\n{"batch":"1"}\n{"batch":"2"}'
    create_schedule = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:scheduler:createSchedule",
        "Arguments": {
            "Name": "{% $states.input.name %}",
            "ScheduleExpression": "{% 'at(' & $states.input.at & ')' %}",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {"Arn": "a", "RoleArn": "r"},
        },
        "Output": "made",
        "Catch": [
            {"ErrorEquals": ["Scheduler.ConflictException"], "Output": "there", "Next": "There"},
            {
                "ErrorEquals": ["Scheduler.ValidationException"],
                "Output": "{% $states.errorOutput.Error %}",
                "Next": "There",
            },
        ],
        "End": True,
    }
    processor = {
        "EnrolBatch": {**WORK["Work"], "End": None, "Next": "CreateSchedules"},
        "CreateSchedules": {
            "Type": "Map",
            "Items": "{% $states.input.schedules %}",
            "ItemProcessor": {
                "StartAt": "CreateSchedule",
                "States": {"CreateSchedule": create_schedule, "There": {"Type": "Pass", "End": True}},
            },
            "End": True,
        },
    }
    del processor["EnrolBatch"]["End"]
    output = world.output(distributed(processor, ItemReader=READER), {"key": "m", "version": "v"})
    assert output == [["made", "made"], ["made", "there"], ["Scheduler.ValidationException", "made"]]
    assert sorted(made) == ["a", "b", "c", "d"]
    assert world.caller.named("CreateSchedule")[0]["ScheduleExpression"] == "at(2027-01-01T09:00:00)"
