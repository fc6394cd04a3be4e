"""Tasks: parameters in, results and error names out.

Sources: the contract sheet's section 2 (Integrations and errors: PascalCase, ``Service.ErrorException``, the Java SDK's
class prefixes), executions recorded against AWS ([L]), and botocore's models for members and error codes.
"""

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from local.ports import AwsError
from local.stepfunctions.integration import UnsupportedResource, integration, java_class_prefix

World = Any


def sdk(service: str, action: str) -> str:
    return f"arn:aws:states:::aws-sdk:{service}:{action}"


def task(resource: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"A": {"Type": "Task", "Resource": resource, "Arguments": arguments, "End": True, **more}}


@pytest.mark.parametrize(
    ("service_id", "prefix"),
    [
        ("DynamoDB", "DynamoDb"),
        ("SFN", "Sfn"),
        ("SESv2", "SesV2"),
        ("S3", "S3"),
        ("SQS", "Sqs"),
        ("Scheduler", "Scheduler"),
        ("Secrets Manager", "SecretsManager"),
        ("CloudWatch Logs", "CloudWatchLogs"),
        ("EventBridge", "EventBridge"),
    ],
)
def test_error_prefixes_are_the_java_sdks_class_names(service_id: str, prefix: str) -> None:
    """``DynamoDb.``, ``Sfn.``, ``SecretsManager.`` are recorded on AWS, the others follow the same rule."""
    assert java_class_prefix(service_id) == prefix


@pytest.mark.parametrize(
    ("resource", "code", "name"),
    [
        (sdk("scheduler", "createSchedule"), "ConflictException", "Scheduler.ConflictException"),
        (sdk("scheduler", "createSchedule"), "AccessDeniedException", "Scheduler.SchedulerException"),
        (sdk("s3", "listObjects"), "NoSuchBucket", "S3.NoSuchBucketException"),
        (sdk("dynamodb", "putItem"), "ValidationException", "DynamoDb.DynamoDbException"),
        (sdk("dynamodb", "putItem"), "ResourceNotFoundException", "DynamoDb.ResourceNotFoundException"),
        (sdk("secretsmanager", "createSecret"), "ValidationException", "SecretsManager.SecretsManagerException"),
        (sdk("sfn", "startExecution"), "ExecutionAlreadyExists", "Sfn.ExecutionAlreadyExistsException"),
        (sdk("sesv2", "sendEmail"), "MessageRejected", "SesV2.MessageRejectedException"),
        ("arn:aws:states:::dynamodb:putItem", "ResourceNotFoundException", "DynamoDB.ResourceNotFoundException"),
        ("arn:aws:states:::dynamodb:putItem", "ValidationException", "DynamoDB.AmazonDynamoDBException"),
        (
            "arn:aws:states:::dynamodb:updateItem",
            "ConditionalCheckFailedException",
            "DynamoDB.ConditionalCheckFailedException",
        ),
        ("arn:aws:states:::lambda:invoke", "TooManyRequestsException", "Lambda.TooManyRequestsException"),
        ("arn:aws:states:::lambda:invoke", "ServiceException", "Lambda.ServiceException"),
        ("arn:aws:states:::lambda:invoke", "AccessDeniedException", "Lambda.AWSLambdaException"),
    ],
)
def test_an_error_has_the_name_aws_gives_it(resource: str, code: str, name: str) -> None:
    """``Exception`` is added where the API lacks it; a code that no model lists is the SDK's base class."""
    assert integration(resource).error_name(code) == name


def test_the_cause_tells_message_service_and_status(world: World) -> None:
    """``The specified bucket does not exist (Service: S3, Status Code: 404, Request ID: …)``, as recorded."""

    def missing(params: Any) -> Any:
        raise AwsError("NoSuchBucket", "The specified bucket does not exist", 404)

    world.caller.answers["s3", "ListObjectsV2"] = missing
    execution = world.run(task(sdk("s3", "listObjectsV2"), {"Bucket": "b"}))
    assert execution["error"] == "S3.NoSuchBucketException"
    assert execution["cause"].startswith(
        "The specified bucket does not exist (Service: S3, Status Code: 404, Request ID: "
    )


def test_the_cause_of_an_optimised_integration_is_that_of_the_older_sdk(world: World) -> None:
    """``Requested resource not found (Service: AmazonDynamoDBv2; Status Code: 400; Error Code: …)``, as recorded."""

    def missing(params: Any) -> Any:
        raise AwsError("ResourceNotFoundException", "Requested resource not found", 400)

    world.caller.answers["dynamodb", "DeleteItem"] = missing
    cause = world.run(task("arn:aws:states:::dynamodb:deleteItem", {"TableName": "t", "Key": {}}))["cause"]
    assert cause.startswith(
        "Requested resource not found (Service: AmazonDynamoDBv2; Status Code: 400; "
        "Error Code: ResourceNotFoundException; Request ID: "
    )
    assert cause.endswith("; Proxy: null)")


def test_the_call_is_made_as_the_machines_role(world: World) -> None:
    """The execution role signs; ``aws:SourceArn`` is the machine."""
    world.caller.function(lambda payload: payload)
    world.output(task("arn:aws:states:::lambda:invoke", {"FunctionName": "f"}))
    machine = next(iter(world.machines))
    assert world.caller.roles == {(world.machines[machine]["roleArn"], machine)}


# aws-sdk


def test_parameters_are_pascal_case_and_reach_the_models_members(world: World) -> None:
    """Step Functions' own API has ``stateMachineArn``; a machine writes ``StateMachineArn``."""
    world.caller.answers["stepfunctions", "StartExecution"] = lambda params: {
        "executionArn": "e",
        "startDate": datetime(2026, 11, 29, 10, 0, 0, 123000, tzinfo=UTC),
    }
    arguments = {"StateMachineArn": "m", "Input": "{% $string($states.input) %}"}
    output = world.output(task(sdk("sfn", "startExecution"), arguments), {"a": 1})
    assert world.caller.named("StartExecution") == [{"stateMachineArn": "m", "input": '{"a":1}'}]
    assert output == {"ExecutionArn": "e", "StartDate": "2026-11-29T10:00:00.123Z"}


def test_times_and_blobs_are_converted_both_ways(world: World) -> None:
    """A time is ISO 8601 text in the machine and a datetime in the call; a blob is text."""
    world.caller.answers["s3", "GetObject"] = lambda params: {
        "Body": io.BytesIO("é".encode()),
        "LastModified": datetime(2026, 11, 29, tzinfo=UTC),
        "ContentLength": 2,
        "Metadata": {"lower": "x"},
    }
    arguments = {"Bucket": "b", "Key": "k", "IfModifiedSince": "2026-01-01T00:00:00Z"}
    output = world.output(task(sdk("s3", "getObject"), arguments))
    assert world.caller.named("GetObject")[0]["IfModifiedSince"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert output == {
        "Body": "é",
        "LastModified": "2026-11-29T00:00:00.000Z",
        "ContentLength": 2,
        "Metadata": {"lower": "x"},
    }
    world.output(task(sdk("s3", "putObject"), {"Bucket": "b", "Key": "k", "Body": "text"}))
    assert world.caller.named("PutObject")[0]["Body"] == b"text"


def test_an_idempotency_token_is_filled_as_the_sdk_does(world: World) -> None:
    """botocore marks Scheduler's ClientToken; one that the machine gives stays."""
    world.caller.answers["scheduler", "CreateSchedule"] = lambda params: {"ScheduleArn": "s"}
    world.output(task(sdk("scheduler", "createSchedule"), {"Name": "n"}))
    world.output(task(sdk("scheduler", "createSchedule"), {"Name": "n", "ClientToken": "mine"}))
    filled, given = world.caller.named("CreateSchedule")
    assert len(filled["ClientToken"]) == 36
    assert given["ClientToken"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"Naam": "n"}, 'The field "Naam" is not supported by Step Functions'),
        ({"Target": {"Arn": "a", "Role": "r"}}, 'The field "Target/Role" is not supported by Step Functions'),
        ({"Name": 5}, 'The value for the field "Name" must be a string'),
        ({"Target": {"RetryPolicy": {"MaximumRetryAttempts": "2"}}}, "MaximumRetryAttempts"),
        ({"Target": "arn"}, 'The field "Target" must be an object'),
        ("text", "The Arguments must be an object"),
    ],
)
def test_parameters_known_only_at_run_time_are_refused_then(world: World, arguments: Any, told: str) -> None:
    """A wrong field fails the execution with States.Runtime before any call, and nothing catches it."""
    states = task(sdk("scheduler", "createSchedule"), "{% $states.input %}")
    states["A"]["Catch"] = [{"ErrorEquals": ["States.ALL"], "Next": "B"}]
    states["B"] = {"Type": "Pass", "End": True}
    execution = world.run(states, arguments)
    assert execution["error"] == "States.Runtime"
    assert told in execution["cause"]
    assert "the state 'A' (entered at the event id #2)" in execution["cause"]
    assert world.caller.calls == []


def test_values_stay_out_of_the_cause(world: World) -> None:
    """Arguments may hold addresses, and causes are logged."""
    states = task(sdk("sesv2", "sendEmail"), "{% $states.input %}")
    cause = world.run(states, {"FromEmailAddress": ["someone@example.com"]})["cause"]
    assert "someone@example.com" not in cause


# Lambda and DynamoDB, optimised


def test_lambda_invoke_sends_the_payload_and_answers_it_parsed(world: World) -> None:
    """The optimised integration parses Payload; StatusCode and ExecutedVersion come with it."""
    world.caller.function(lambda payload: {"got": payload})
    output = world.output(
        task("arn:aws:states:::lambda:invoke", {"FunctionName": "f", "Payload": {"a": "{% $states.input.a %}"}}),
        {"a": "é"},
    )
    assert output == {"ExecutedVersion": "$LATEST", "Payload": {"got": {"a": "é"}}, "StatusCode": 200}
    assert world.caller.calls[0][:2] == ("lambda", "Invoke")


def test_a_functions_error_carries_its_exception_class(world: World) -> None:
    """Error is the exception's class, Cause the error document; a function that died without one is Lambda.Unknown."""
    document = {"errorMessage": "no rows", "errorType": "ListRejected", "stackTrace": []}
    answers = iter([json.dumps(document).encode(), b"killed"])
    world.caller.answers["lambda", "Invoke"] = lambda params: {
        "StatusCode": 200,
        "FunctionError": "Unhandled",
        "Payload": next(answers),
    }
    states = task("arn:aws:states:::lambda:invoke", {"FunctionName": "f"})
    execution = world.run(states)
    assert execution["error"] == "ListRejected"
    assert json.loads(execution["cause"]) == document
    assert world.run(states)["error"] == "Lambda.Unknown"


def test_lambda_needs_a_function_name(world: World) -> None:
    """Recorded on AWS: ``The field "FunctionName" is required but was missing`` under States.Runtime."""
    execution = world.run(task("arn:aws:states:::lambda:invoke", "{% $states.input %}"), {"Payload": 1})
    assert execution["error"] == "States.Runtime"
    assert 'The field "FunctionName" is required but was missing' in execution["cause"]


def test_dynamodb_items_keep_their_attribute_values(world: World) -> None:
    """Keys of maps and DynamoDB's types are data, not members."""
    item = {"campaign_id": {"S": "c"}, "n": {"N": "1"}, "list": {"L": [{"BOOL": True}]}}
    world.caller.answers["dynamodb", "GetItem"] = lambda params: {"Item": item}
    arguments = {"TableName": "t", "Key": {"campaign_id": {"S": "{% $states.input.id %}"}}, "ConsistentRead": True}
    output = world.output(task("arn:aws:states:::dynamodb:getItem", arguments), {"id": "c"})
    assert world.caller.named("GetItem") == [
        {"TableName": "t", "Key": {"campaign_id": {"S": "c"}}, "ConsistentRead": True}
    ]
    assert output == {"Item": item}


@pytest.mark.parametrize("resource", ["arn:aws:states:::dynamodb:scan", "arn:aws:states:::sns:publish", "lambda"])
def test_what_is_not_built_is_refused_by_its_name(resource: str) -> None:
    """Nothing is silently ignored."""
    with pytest.raises(UnsupportedResource, match=resource):
        integration(resource)
