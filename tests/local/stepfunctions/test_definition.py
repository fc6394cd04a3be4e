"""What a definition is refused for, by state and field.

Sources: the Developer Guide's pages on each state type, "Handling errors in Step Functions" (Retry, Catch),
"Passing data between states with variables" (names, scopes, where ``$states.result`` may stand), the contract sheet's
section 2; the diagnostics' codes and words are those of ValidateStateMachineDefinition where they are known.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from local.ports import AwsError
from local.stepfunctions.definition import compile_definition

LAMBDA = "arn:aws:states:::lambda:invoke"
PASS = {"Type": "Pass", "End": True}
TASK = {"Type": "Task", "Resource": LAMBDA, "Arguments": {"FunctionName": "f"}, "End": True}
PROCESSOR = {"StartAt": "Inner", "States": {"Inner": PASS}}
DISTRIBUTED = {"ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"}, **PROCESSOR}
MAP = {"Type": "Map", "ItemProcessor": PROCESSOR, "End": True}
DISTRIBUTED_MAP = {"Type": "Map", "ItemProcessor": DISTRIBUTED, "End": True}
READER = {
    "Resource": "arn:aws:states:::s3:getObject",
    "ReaderConfig": {"InputType": "JSONL"},
    "Arguments": {"Bucket": "b", "Key": "k", "VersionId": "v"},
}
WRITER = {"Resource": "arn:aws:states:::s3:putObject", "Arguments": {"Bucket": "b", "Prefix": "p"}}


def refusal(state: Mapping[str, Any], **top: Any) -> str:
    """The message that refuses a machine whose state A this is."""
    definition = {"QueryLanguage": "JSONata", "StartAt": "A", "States": {"A": state}, **top}
    with pytest.raises(AwsError) as refused:
        compile_definition(json.dumps(definition))
    assert refused.value.code == "InvalidDefinition"
    return refused.value.message


def compiles(state: Mapping[str, Any], **top: Any) -> None:
    compile_definition(json.dumps({"QueryLanguage": "JSONata", "StartAt": "A", "States": {"A": state}, **top}))


@pytest.mark.parametrize(
    "state",
    [
        PASS,
        TASK,
        MAP,
        DISTRIBUTED_MAP,
        {**DISTRIBUTED_MAP, "ItemReader": READER, "ResultWriter": WRITER, "Label": "fan-out", "MaxConcurrency": 5},
        {**DISTRIBUTED_MAP, "ToleratedFailureCount": "{% $states.input.count %}"},
        {**DISTRIBUTED_MAP, "ToleratedFailurePercentage": 0.5},
        {"Type": "Wait", "Seconds": 0, "End": True},
        {"Type": "Wait", "Timestamp": "2027-01-01T00:00:00Z", "End": True},
        {"Type": "Fail", "Error": "ListRejected", "Cause": "{% 'no ' & $states.input.what %}"},
        {"Type": "Succeed", "Output": {"a": "{% $states.input %}"}},
    ],
)
def test_what_aws_accepts_and_is_built_compiles(state: dict[str, Any]) -> None:
    """Every state type of the two machines, with the fields they use."""
    compiles(state)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        # Fields of another type of state, misspelt fields
        ({**PASS, "Retry": []}, "Field 'Retry' is not supported at /States/A"),
        ({**PASS, "Parameters": {}}, "Field 'Parameters' is not supported at /States/A"),
        ({**MAP, "TimeoutSeconds": 5}, "Field 'TimeoutSeconds' is not supported at /States/A"),
        ({**TASK, "_comment": ""}, "Field '_comment' is not supported at /States/A"),
        ({**TASK, "ResultPath": "$.a"}, "Field 'ResultPath' is not supported at /States/A"),
        ({"Type": "Passs", "End": True}, "Unsupported state type: Passs at /States/A/Type"),
        ({"Type": "Succeed", "Assign": {"a": 1}}, "Field 'Assign' is not supported at /States/A"),
        # Transitions
        ({"Type": "Pass"}, "exactly one of them: [Next, End] at /States/A"),
        ({"Type": "Pass", "Next": "A", "End": True}, "exactly one of them: [Next, End] at /States/A"),
        ({"Type": "Pass", "Next": "B"}, "MISSING_TRANSITION_TARGET: Missing 'Next' target: B at /States/A/Next"),
        ({"Type": "Pass", "Next": "A"}, "No terminal state found"),
        (
            {**TASK, "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "B"}]},
            "Missing 'Next' target: B at /States/A/Catch[0]/Next",
        ),
        # Expressions
        (
            {**PASS, "Output": "{% 1 + %}"},
            "INVALID_JSONATA_EXPRESSION: Unexpected end of expression at /States/A/Output",
        ),
        ({**PASS, "Output": {"v": ["{% phone %}"]}}, "UNSUPPORTED_JSONATA_EXPRESSION: Reference to 'phone'"),
        ({**PASS, "Output": {"v": ["{% phone %}"]}}, "at /States/A/Output/v[0]"),
        ({**PASS, "Output": "{% $states.input"}, "An expression ends with %} at /States/A/Output"),
        ({**PASS, "Output": "{% $typo %}"}, "Variable $typo is not assigned by any state in scope at /States/A/Output"),
        ({**PASS, "Output": "{% $states.result %}"}, "$states.result is not available here at /States/A/Output"),
        ({**TASK, "Arguments": "{% $states.result %}"}, "$states.result is not available here at /States/A/Arguments"),
        ({**TASK, "Output": "{% $states.errorOutput %}"}, "$states.errorOutput is not available here"),
        ({**PASS, "Assign": {"states": 1}}, "'states' is not a valid variable name"),
        ({**PASS, "Assign": {"x.y": 1}}, "'x.y' is not a valid variable name"),
        ({**PASS, "Assign": {"_x": 1}}, "'_x' is not a valid variable name"),
        ({**PASS, "Assign": {"x" * 81: 1}}, "is not a valid variable name"),
        # Durations
        ({"Type": "Wait", "End": True}, "exactly one of them: [Seconds, Timestamp]"),
        ({"Type": "Wait", "Seconds": 1, "Timestamp": "2027-01-01T00:00:00Z", "End": True}, "[Seconds, Timestamp]"),
        ({"Type": "Wait", "Seconds": -1, "End": True}, "'Seconds' must be a valid number"),
        ({"Type": "Wait", "Seconds": "5", "End": True}, "'Seconds' must be a valid number"),
        ({"Type": "Wait", "Seconds": 1.5, "End": True}, "'Seconds' must be a valid number"),
        ({"Type": "Wait", "Timestamp": "2027-01-01", "End": True}, "'Timestamp' must be a valid timestamp"),
        ({**TASK, "TimeoutSeconds": 0}, "'TimeoutSeconds' must be a valid number"),
        # Choice
        ({"Type": "Choice", "Choices": []}, "'Choices' must be a non-empty array"),
        ({"Type": "Choice", "Choices": [{"Condition": "{% true %}"}]}, "[Condition, Next] at /States/A/Choices[0]"),
        ({"Type": "Choice", "Choices": [{"Condition": 1, "Next": "A"}]}, "'Condition' must be a valid boolean"),
        # Map
        ({"Type": "Map", "End": True}, "The field 'ItemProcessor' is required"),
        ({**MAP, "ItemReader": READER}, "Field 'ItemReader' is for mode DISTRIBUTED"),
        ({**MAP, "ToleratedFailureCount": 1}, "Field 'ToleratedFailureCount' is for mode DISTRIBUTED"),
        ({**MAP, "MaxConcurrency": -1}, "'MaxConcurrency' must be a valid number"),
        ({**MAP, "Items": 5}, "'Items' must be a valid array"),
        ({**DISTRIBUTED_MAP, "ToleratedFailurePercentage": 101}, "'ToleratedFailurePercentage' must be a valid number"),
        ({**DISTRIBUTED_MAP, "Label": "a label"}, "Label has 1 to 40 characters"),
        ({**DISTRIBUTED_MAP, "Label": "x" * 41}, "Label has 1 to 40 characters"),
        ({**DISTRIBUTED_MAP, "ItemReader": READER, "Items": []}, "ItemReader and Items exclude each other"),
        ({**DISTRIBUTED_MAP, "ItemReader": {**READER, "Arguments": {"Bucket": "b"}}}, "The field 'Key' is required"),
        ({**DISTRIBUTED_MAP, "ResultWriter": {**WRITER, "Arguments": {}}}, "The field 'Bucket' is required"),
        (
            {"Type": "Map", "End": True, "ItemProcessor": {**PROCESSOR, "ProcessorConfig": {"Mode": "DISTRIBUTED"}}},
            "ExecutionType must be EXPRESS or STANDARD",
        ),
        # What AWS has and the local cloud has not
        ({"Type": "Parallel", "Branches": [], "End": True}, "NOT_BUILT_LOCALLY: Type 'Parallel' at /States/A/Type"),
        ({**TASK, "HeartbeatSeconds": 5}, "NOT_BUILT_LOCALLY: Field 'HeartbeatSeconds' at /States/A/HeartbeatSeconds"),
        ({**DISTRIBUTED_MAP, "ItemBatcher": {"MaxItemsPerBatch": 5}}, "NOT_BUILT_LOCALLY: Field 'ItemBatcher'"),
        (
            {**DISTRIBUTED_MAP, "ItemReader": {**READER, "ReaderConfig": {"InputType": "CSV"}}},
            "NOT_BUILT_LOCALLY: InputType 'CSV': only JSONL at /States/A/ItemReader/ReaderConfig",
        ),
        (
            {**DISTRIBUTED_MAP, "ResultWriter": {**WRITER, "WriterConfig": {"OutputType": "JSONL"}}},
            "NOT_BUILT_LOCALLY: OutputType other than JSON",
        ),
        (
            {**TASK, "Resource": "arn:aws:states:::sqs:sendMessage"},
            "sqs:sendMessage' is not built into the local cloud",
        ),
        ({**TASK, "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken"}, "is not built into the local cloud"),
        ({**TASK, "Resource": "arn:aws:lambda:x:0:function:f"}, "is not built into the local cloud"),
        # Integrations, by the service models
        ({**TASK, "Resource": "arn:aws:states:::aws-sdk:nowhere:doIt"}, "names no service at /States/A/Resource"),
        ({**TASK, "Resource": "arn:aws:states:::aws-sdk:scheduler:createScheduel"}, "names no action of scheduler"),
        ({**TASK, "Arguments": {"FunctionNam": "f"}}, "The field 'FunctionNam' is not supported by Step Functions"),
        (
            {
                "Type": "Task",
                "Resource": "arn:aws:states:::aws-sdk:scheduler:createSchedule",
                "Arguments": {"Name": "n", "Target": {"Arn": "a", "RetryPolice": {}}},
                "End": True,
            },
            "The field 'Target/RetryPolice' is not supported by Step Functions at /States/A/Arguments",
        ),
        (
            {
                "Type": "Task",
                "Resource": "arn:aws:states:::aws-sdk:sfn:startExecution",
                "Arguments": {"stateMachineArn": "a"},
                "End": True,
            },
            "The field 'stateMachineArn' is not supported by Step Functions",
        ),
    ],
)
def test_a_wrong_state_is_refused_by_name(state: dict[str, Any], told: str) -> None:
    """The message names what is wrong, and where."""
    assert told in refusal(state)


@pytest.mark.parametrize(
    ("retry", "told"),
    [
        ([], "'Retry' must be a non-empty array"),
        ([{"ErrorEquals": []}], "ErrorEquals must be a non-empty array"),
        ([{"ErrorEquals": ["States.ALL", "X"]}], "'States.ALL' must stand alone"),
        ([{"ErrorEquals": ["States.ALL"]}, {"ErrorEquals": ["X"]}], "'States.ALL' must stand alone, in the last entry"),
        ([{"ErrorEquals": ["X"], "IntervalSeconds": 0}], "IntervalSeconds must be an integer from 1"),
        ([{"ErrorEquals": ["X"], "MaxAttempts": -1}], "MaxAttempts must be an integer from 0"),
        ([{"ErrorEquals": ["X"], "BackoffRate": 0.5}], "BackoffRate must be a number of at least 1.0"),
        ([{"ErrorEquals": ["X"], "IntervalSeconds": 5, "MaxDelaySeconds": 5}], "greater than IntervalSeconds"),
        ([{"ErrorEquals": ["X"], "MaxDelaySeconds": 31622400}], "MaxDelaySeconds must be an integer"),
        ([{"ErrorEquals": ["X"], "JitterStrategy": "HALF"}], "JitterStrategy must be FULL or NONE"),
        ([{"ErrorEquals": ["X"], "Interval": 5}], "Field 'Interval' is not supported at /States/A/Retry[0]"),
    ],
)
def test_a_wrong_retry_is_refused(retry: list[Any], told: str) -> None:
    """The limits of "Retrying after an error"."""
    assert told in refusal({**TASK, "Retry": retry})


def test_only_jsonata_machines_are_built() -> None:
    """A machine without a top-level QueryLanguage is JSONPath, which the local cloud refuses by name."""
    assert "QueryLanguage 'JSONPath'" in refusal(PASS, QueryLanguage="JSONPath")
    with pytest.raises(AwsError, match="QueryLanguage 'JSONPath'"):
        compile_definition(json.dumps({"StartAt": "A", "States": {"A": PASS}}))
    assert "can not be 'JSONPath' if set to 'JSONata'" in refusal({**PASS, "QueryLanguage": "JSONPath"})


def test_an_express_machine_is_refused_by_name() -> None:
    """Only STANDARD machines are built; EXPRESS is for the children of a Distributed Map."""
    with pytest.raises(AwsError, match="A machine of type EXPRESS"):
        compile_definition(json.dumps({"QueryLanguage": "JSONata", "StartAt": "A", "States": {"A": PASS}}), "EXPRESS")


def test_a_state_that_nothing_leads_to_is_refused() -> None:
    """AWS refuses unreachable states."""
    states = {"A": PASS, "Lost": PASS}
    assert 'State "Lost" is not reachable.' in refusal(PASS, States=states)


def test_a_start_that_does_not_exist_is_refused() -> None:
    """StartAt names a state of the same States field."""
    assert "Missing 'Next' target: B at /StartAt" in refusal(PASS, StartAt="B")


def test_state_names_are_unique_in_the_whole_machine() -> None:
    """ "State names must be unique within the scope of the whole state machine.\""""
    inner = {"StartAt": "A", "States": {"A": PASS}}
    assert "Duplicate State name: A" in refusal({**MAP, "ItemProcessor": inner})


def test_an_inner_scope_cannot_assign_a_name_of_an_outer_one() -> None:
    """ "A variable assigned in an inner scope cannot have the same name as one assigned in an outer scope.\""""
    inner = {"StartAt": "Inner", "States": {"Inner": {**PASS, "Assign": {"x": 1}}}}
    told = refusal({**MAP, "Assign": {"x": 2}, "ItemProcessor": inner})
    assert "Variable 'x' is already assigned in an outer scope at /States/A/ItemProcessor/States" in told


def test_a_distributed_map_cannot_see_variables_outside() -> None:
    """ "Distributed Map states cannot currently reference variables in outer scopes", inline Maps can."""
    inner = {"StartAt": "Inner", "States": {"Inner": {**PASS, "Output": "{% $x %}"}}}
    compiles({**MAP, "Assign": {"x": 2}, "ItemProcessor": inner})
    told = refusal({**DISTRIBUTED_MAP, "Assign": {"x": 2}, "ItemProcessor": {**DISTRIBUTED, **inner}})
    assert "Variable $x is not assigned by any state in scope" in told


def test_a_distributed_map_cannot_run_inside_an_express_child() -> None:
    """EXPRESS workflows have no Distributed Map."""
    inner = {"StartAt": "Again", "States": {"Again": {**DISTRIBUTED_MAP}}}
    assert "cannot run inside an EXPRESS child" in refusal(
        {**DISTRIBUTED_MAP, "ItemProcessor": {**DISTRIBUTED, **inner}}
    )


def test_every_problem_is_told_at_once() -> None:
    """One deployment is enough to see all that is wrong."""
    told = refusal({"Type": "Pass", "Next": "B", "Output": "{% 1 + %}", "Foo": 1})
    assert all(part in told for part in ("Field 'Foo'", "Unexpected end of expression", "target: B"))


def test_yaml_is_read_as_json_would_be() -> None:
    """CloudFormation takes YAML; an unquoted time in it stays a string."""
    machine = compile_definition(
        "QueryLanguage: JSONata\nStartAt: A\nStates:\n  A: {Type: Pass, Output: {at: 2027-01-01T00:00:00Z}, End: true}"
    )
    output = machine.states["A"].output
    assert output is not None
    assert output({}, 0.0) == {"at": "2027-01-01T00:00:00Z"}


@pytest.mark.parametrize("text", ["", "[]", "a: [", "x" * 1_048_577])
def test_what_is_no_definition_is_refused(text: str) -> None:
    """Not JSON, not YAML, not an object, or longer than botocore's 1,048,576."""
    with pytest.raises(AwsError, match="Invalid State Machine Definition"):
        compile_definition(text)
