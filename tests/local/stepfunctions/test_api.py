"""The API around executions and machines.

Sources: botocore's model (members, limits, error codes), StartExecution's documentation (idempotency, names), "Limits
related to state machine executions", "EventBridge (CloudWatch Events) for Step Functions execution status changes",
the contract sheet's section 2 (Guarantees and limits).
"""

import json
import time
from typing import Any

import botocore.session
import pytest

from local.contract import contract
from local.ports import AwsError
from local.stepfunctions import execution as execution_module

World = Any

PASS = {"A": {"Type": "Pass", "End": True}}
LAMBDA = {
    "A": {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke",
        "Arguments": {"FunctionName": "f", "Payload": "{% $states.input %}"},
        "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Caught"}],
        "End": True,
    },
    "Caught": {"Type": "Pass", "End": True},
}


def refused(world: World, operation: str, **params: Any) -> str:
    with pytest.raises(AwsError) as refusal:
        world.api(operation, **params)
    return str(refusal.value.code)


# StartExecution


def test_the_same_name_and_input_while_running_is_the_same_execution(world: World, gate: Any) -> None:
    """STANDARD: "idempotent if called with the same name and input as a running execution"."""
    world.caller.function(gate)
    arn = world.machine(LAMBDA)
    first = world.api("StartExecution", stateMachineArn=arn, name="n", input='{"a":1}')
    assert world.api("StartExecution", stateMachineArn=arn, name="n", input='{"a":1}') == first
    assert refused(world, "StartExecution", stateMachineArn=arn, name="n", input='{"a":2}') == "ExecutionAlreadyExists"
    world.eventually(lambda: gate.entered)
    assert len(gate.entered) == 1


def test_a_name_is_taken_after_its_execution_has_ended(world: World) -> None:
    """Names are unique for 90 days, also with the same input."""
    arn = world.machine(PASS)
    world.wait(world.api("StartExecution", stateMachineArn=arn, name="n", input="{}")["executionArn"])
    assert refused(world, "StartExecution", stateMachineArn=arn, name="n", input="{}") == "ExecutionAlreadyExists"


@pytest.mark.parametrize(
    "name", ["a b", "a/b", "a:b", "a?b", "a*b", "a\tb", "a#b", "a,b", "a\x85b", 'a"b', "a^b", "a`b"]
)
def test_a_name_with_forbidden_characters_is_refused(world: World, name: str) -> None:
    """No whitespace, brackets, wildcards, special or control characters: InvalidName."""
    assert refused(world, "StartExecution", stateMachineArn=world.machine(PASS), name=name) == "InvalidName"


def test_a_name_has_1_to_80_characters(world: World) -> None:
    """botocore: Name 1–80."""
    arn = world.machine(PASS)
    world.api("StartExecution", stateMachineArn=arn, name="é" * 80)
    for name in ("", "x" * 81):
        assert refused(world, "StartExecution", stateMachineArn=arn, name=name) == "ValidationException"


def test_input_is_json_of_at_most_256_kib(world: World) -> None:
    """InvalidExecutionInput; botocore's 262,144; no input is ``{}``."""
    arn = world.machine(PASS)
    assert refused(world, "StartExecution", stateMachineArn=arn, input="{") == "InvalidExecutionInput"
    too_long = json.dumps("x" * 262_143)
    assert refused(world, "StartExecution", stateMachineArn=arn, input=too_long) == "ValidationException"
    assert world.wait(world.api("StartExecution", stateMachineArn=arn)["executionArn"])["output"] == "{}"


def test_a_machine_that_does_not_exist_cannot_start(world: World) -> None:
    """StateMachineDoesNotExist."""
    assert refused(world, "StartExecution", stateMachineArn="arn:aws:states:x:0:stateMachine:n") == (
        "StateMachineDoesNotExist"
    )


def test_a_definition_that_cannot_run_is_refused_at_the_latest_here(world: World) -> None:
    """What slipped past the deployment is refused by name, and no execution exists."""
    arn = world.machine({"A": {"Type": "Parallel", "Branches": [], "End": True}})
    assert refused(world, "StartExecution", stateMachineArn=arn) == "InvalidDefinition"
    world.machine(PASS)
    assert world.api("ListExecutions", stateMachineArn=arn)["executions"] == []


def test_a_running_execution_keeps_the_definition_it_started_with(world: World) -> None:
    """ "Running executions continue to use the previous definition" (UpdateStateMachine)."""
    arn = world.start({"A": {"Type": "Wait", "Seconds": 60, "Next": "B"}, "B": {"Type": "Succeed", "Output": "old"}})
    world.eventually(lambda: len(world.history(arn)) == 2)
    world.machine({"A": {"Type": "Succeed", "Output": "new"}})
    world.clock.advance(60)
    assert world.wait(arn)["output"] == '"old"'


# StopExecution


def test_a_stopped_execution_is_aborted_and_no_catch_runs(world: World, gate: Any) -> None:
    """ABORTED at once, with the error and cause given; a call in flight goes on and changes nothing."""
    world.caller.function(gate)
    arn = world.start(LAMBDA)
    world.eventually(lambda: gate.entered)
    stopped = world.api("StopExecution", executionArn=arn, error="Cancelled", cause="by a person")
    described = world.api("DescribeExecution", executionArn=arn)
    assert (described["status"], described["error"], described["cause"]) == ("ABORTED", "Cancelled", "by a person")
    assert described["stopDate"] == stopped["stopDate"]
    gate.open()
    time.sleep(0.1)
    types = [event["type"] for event in world.history(arn)]
    assert types[-1] == "ExecutionAborted"
    assert "PassStateEntered" not in types


def test_stopping_what_has_ended_changes_nothing(world: World) -> None:
    """The end it had is answered again."""
    arn = world.start(PASS)
    ended = world.wait(arn)
    assert world.api("StopExecution", executionArn=arn) == {"stopDate": ended["stopDate"]}
    assert world.api("DescribeExecution", executionArn=arn)["status"] == "SUCCEEDED"


def test_a_waiting_execution_stops_too(world: World) -> None:
    """A Wait of a year ends when the execution is stopped."""
    arn = world.start({"A": {"Type": "Wait", "Seconds": 31_536_000, "End": True}})
    world.eventually(lambda: len(world.history(arn)) == 2)
    world.api("StopExecution", executionArn=arn)
    assert world.wait(arn)["status"] == "ABORTED"


def test_whenever_it_is_stopped_an_execution_ends_once(world: World) -> None:
    """A stop at any moment of a run leaves one last event, and the status that it tells."""
    loop = {"A": {"Type": "Pass", "Next": "B"}, "B": {"Type": "Pass", "Next": "C"}, "C": {"Type": "Succeed"}}
    arn = world.machine(loop)
    for moment in range(60):
        execution = world.api("StartExecution", stateMachineArn=arn)["executionArn"]
        time.sleep(moment * 0.00002)
        world.api("StopExecution", executionArn=execution)
        status = world.wait(execution)["status"]
        last = {"ABORTED": "ExecutionAborted", "SUCCEEDED": "ExecutionSucceeded"}[status]
        types = [event["type"] for event in world.history(execution)]
        assert [kind for kind in types if kind in ENDS] == [last]
        assert types[-1] == last


ENDS = ("ExecutionSucceeded", "ExecutionAborted", "ExecutionFailed", "ExecutionTimedOut")


@pytest.mark.parametrize("operation", ["StopExecution", "DescribeExecution", "GetExecutionHistory", "ListMapRuns"])
def test_an_execution_that_does_not_exist(world: World, operation: str) -> None:
    """ExecutionDoesNotExist."""
    assert refused(world, operation, executionArn="arn:aws:states:x:0:execution:m:n") == "ExecutionDoesNotExist"


# Describing and listing


def test_every_answer_has_the_shape_of_the_service_model(world: World) -> None:
    """Each operation's answer has botocore's required members and none that the model lacks."""
    arn = world.start(PASS)
    world.wait(arn)
    machine = next(iter(world.machines))
    model = botocore.session.get_session().get_service_model("stepfunctions")
    for operation, params in {
        "DescribeExecution": {"executionArn": arn},
        "ListExecutions": {"stateMachineArn": machine},
        "GetExecutionHistory": {"executionArn": arn},
        "DescribeStateMachine": {"stateMachineArn": machine},
        "ListStateMachines": {},
        "ListMapRuns": {"executionArn": arn},
        "ValidateStateMachineDefinition": {"definition": world.machines[machine]["definition"]},
    }.items():
        answer = world.api(operation, **params)
        shape = model.operation_model(operation).output_shape
        assert set(shape.required_members) <= set(answer) <= set(shape.members), operation
        status, _, body = contract("stepfunctions").answer(operation, answer)
        assert (status, json.loads(body) is not None) == (200, True)


def test_history_events_are_known_to_the_service_model(world: World) -> None:
    """Every event's type is in HistoryEventType's enumeration and its details are members of HistoryEvent."""
    world.caller.function(lambda payload: payload)
    processor = {"StartAt": "I", "States": {"I": {**LAMBDA["A"], "Catch": [], "Arguments": {"FunctionName": "f"}}}}
    del processor["States"]["I"]["Catch"]
    arn = world.start(
        {
            "W": {"Type": "Wait", "Seconds": 0, "Assign": {"x": 1}, "Next": "M"},
            "M": {"Type": "Map", "Items": [1], "ItemProcessor": processor, "Next": "D"},
            "D": {
                "Type": "Map",
                "Items": [1],
                "ItemProcessor": {
                    "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"},
                    "StartAt": "J",
                    "States": {"J": {"Type": "Pass", "End": True}},
                },
                "End": True,
            },
        }
    )
    world.wait(arn)
    model = botocore.session.get_session().get_service_model("stepfunctions")
    event_shape = model.shape_for("HistoryEvent")
    events = world.history(arn)
    for event in events:
        assert event["type"] in event_shape.members["type"].enum
        assert set(event) <= set(event_shape.members)
        for key, details in event.items():
            if key.endswith("Details"):
                assert set(details) <= set(event_shape.members[key].members), key
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events][:4] == [
        "ExecutionStarted",
        "WaitStateEntered",
        "WaitStateExited",
        "MapStateEntered",
    ]
    assert events[2]["stateExitedEventDetails"]["assignedVariables"] == {"x": "1"}
    assert {"MapIterationSucceeded", "TaskSucceeded", "MapRunStarted", "MapRunSucceeded"} <= {
        event["type"] for event in events
    }


def test_history_comes_in_pages_in_either_order_with_or_without_data(world: World) -> None:
    """maxResults, nextToken, reverseOrder, includeExecutionData."""
    arn = world.start(PASS, {"a": 1})
    world.wait(arn)
    first = world.api("GetExecutionHistory", executionArn=arn, maxResults=3)
    rest = world.api("GetExecutionHistory", executionArn=arn, maxResults=3, nextToken=first["nextToken"])
    assert [event["id"] for event in first["events"] + rest["events"]] == [1, 2, 3, 4]
    assert "nextToken" not in rest
    backwards = world.api("GetExecutionHistory", executionArn=arn, reverseOrder=True, includeExecutionData=False)
    assert [event["id"] for event in backwards["events"]] == [4, 3, 2, 1]
    assert "input" not in backwards["events"][-1]["executionStartedEventDetails"]
    assert refused(world, "GetExecutionHistory", executionArn=arn, nextToken="x") == "InvalidToken"
    assert refused(world, "GetExecutionHistory", executionArn=arn, maxResults=1001) == "ValidationException"


def test_a_history_of_25_000_events_fails_the_execution(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "The execution reached the maximum number of history events": States.Runtime, never caught; here 30."""
    monkeypatch.setattr(execution_module, "MAX_EVENTS", 30)
    loop = {
        "A": {"Type": "Pass", "Next": "B"},
        "B": {"Type": "Choice", "Choices": [{"Condition": "{% true %}", "Next": "A"}], "Default": "C"},
        "C": {"Type": "Succeed"},
    }
    arn = world.start(loop)
    execution = world.wait(arn)
    assert execution["error"] == "States.Runtime"
    assert "maximum number of history events" in execution["cause"]
    assert len(world.history(arn)) == 30


def test_executions_are_listed_newest_first_by_status_and_in_pages(world: World, gate: Any) -> None:
    """ListExecutions: statusFilter, maxResults, nextToken; one of stateMachineArn and mapRunArn."""
    world.caller.function(gate)
    arn = world.machine(LAMBDA)
    names = [
        world.api("StartExecution", stateMachineArn=arn, name=name)["executionArn"].rsplit(":", 1)[1]
        for name in ("first", "second")
    ]
    world.eventually(lambda: len(gate.entered) == 2)
    listed = world.api("ListExecutions", stateMachineArn=arn, statusFilter="RUNNING")["executions"]
    assert [each["name"] for each in listed] == names[::-1]
    assert world.api("ListExecutions", stateMachineArn=arn, statusFilter="FAILED")["executions"] == []
    page = world.api("ListExecutions", stateMachineArn=arn, maxResults=1)
    rest = world.api("ListExecutions", stateMachineArn=arn, maxResults=1, nextToken=page["nextToken"])
    assert [each["name"] for each in page["executions"] + rest["executions"]] == names[::-1]
    assert refused(world, "ListExecutions") == "ValidationException"


def test_a_machine_is_described_with_its_definition_as_json(world: World) -> None:
    """DescribeStateMachine and ListStateMachines show what CloudFormation stored."""
    arn = world.machine(PASS)
    described = world.api("DescribeStateMachine", stateMachineArn=arn)
    assert json.loads(described["definition"])["States"] == PASS
    assert (described["name"], described["type"], described["status"]) == ("machine", "STANDARD", "ACTIVE")
    assert [each["stateMachineArn"] for each in world.api("ListStateMachines")["stateMachines"]] == [arn]
    assert refused(world, "DescribeStateMachine", stateMachineArn="arn:x") == "StateMachineDoesNotExist"


def test_a_definition_can_be_validated_without_being_stored(world: World) -> None:
    """ValidateStateMachineDefinition: OK, or FAIL with diagnostics."""
    good = json.dumps({"QueryLanguage": "JSONata", "StartAt": "A", "States": PASS})
    assert world.api("ValidateStateMachineDefinition", definition=good)["result"] == "OK"
    bad = world.api("ValidateStateMachineDefinition", definition=good.replace("true", "false"))
    assert bad["result"] == "FAIL"
    assert "'End' must be true" in bad["diagnostics"][0]["message"]


def test_what_is_not_built_is_refused_by_name(world: World) -> None:
    """RedriveExecution, StartSyncExecution, TestState … answer that they are not here."""
    with pytest.raises(AwsError, match="RedriveExecution is not built"):
        world.api("RedriveExecution", executionArn="arn:x")


def test_reset_forgets_executions_and_stops_them(world: World, gate: Any) -> None:
    """After a reset no old execution is known, and names are free."""
    world.caller.function(gate)
    arn = world.start(LAMBDA)
    world.eventually(lambda: gate.entered)
    world.service.reset()
    assert refused(world, "DescribeExecution", executionArn=arn) == "ExecutionDoesNotExist"
    gate.open()
    assert world.output(PASS, 5) == 5


# Status events


def test_each_change_of_status_is_an_event_of_the_documented_shape(world: World) -> None:
    """source aws.states, the execution as resource, dates in milliseconds; RUNNING, then SUCCEEDED."""
    arn = world.start(PASS, {"a": 1})
    world.wait(arn)
    world.eventually(lambda: len(world.events) == 2)
    running, succeeded = world.events
    assert running["source"] == "aws.states"
    assert running["detail-type"] == "Step Functions Execution Status Change"
    assert running["resources"] == [arn]
    assert (running["detail"]["status"], running["detail"]["stopDate"], running["detail"]["output"]) == (
        "RUNNING",
        None,
        None,
    )
    detail = succeeded["detail"]
    assert detail["executionArn"] == arn
    assert detail["stateMachineArn"] == next(iter(world.machines))
    assert detail["name"] == arn.rsplit(":", 1)[1]
    assert detail["status"] == "SUCCEEDED"
    assert (detail["input"], detail["inputDetails"]) == ('{"a": 1}', {"included": True})
    assert (detail["output"], detail["outputDetails"]) == ('{"a":1}', {"included": True})
    assert len(str(detail["startDate"])) == len(str(detail["stopDate"])) == 13


def test_failed_stopped_and_timed_out_executions_tell_so(world: World) -> None:
    """FAILED with error and cause, ABORTED, TIMED_OUT: what a rule for a broken launch listens to."""
    world.run({"A": {"Type": "Fail", "Error": "E", "Cause": "C"}})
    stopped = world.start({"A": {"Type": "Wait", "Seconds": 60, "End": True}})
    world.api("StopExecution", executionArn=stopped, cause="enough")
    slow = world.start({"A": {"Type": "Wait", "Seconds": 60, "End": True}}, TimeoutSeconds=30)
    world.eventually(lambda: len(world.history(slow)) == 2)
    world.clock.advance(30)
    world.wait(slow)
    world.eventually(lambda: len(world.events) == 6)
    ended = {event["detail"]["status"]: event["detail"] for event in world.events}
    assert (ended["FAILED"]["error"], ended["FAILED"]["cause"]) == ("E", "C")
    assert ended["ABORTED"]["cause"] == "enough"
    assert ended["TIMED_OUT"]["executionArn"] == slow


def test_a_large_input_is_left_out_of_the_event(world: World) -> None:
    """Over 248 KiB: null, with ``included: false``."""
    world.run(PASS, "x" * 255_000)
    world.eventually(lambda: len(world.events) == 2)
    assert world.events[0]["detail"]["input"] is None
    assert world.events[0]["detail"]["inputDetails"] == {"included": False}


def test_an_event_that_cannot_be_published_harms_no_execution(world: World) -> None:
    """Status events are best effort."""

    def broken(event: Any) -> None:
        raise RuntimeError("no bus")

    world.service._emit = broken
    assert world.output(PASS, 1) == 1
