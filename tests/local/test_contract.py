import json
from datetime import UTC, datetime
from typing import Any

import pytest

from local.contract import contract
from local.ports import AwsError

SCHEDULE: dict[str, Any] = {
    "Name": "1-abc",
    "ScheduleExpression": "at(2030-01-01T00:00:00)",
    "FlexibleTimeWindow": {"Mode": "OFF"},
    "Target": {
        "Arn": "arn:aws:sqs:eu-central-1:000000000000:send",
        "RoleArn": "arn:aws:iam::000000000000:role/scheduler",
        "RetryPolicy": {"MaximumRetryAttempts": 2},
    },
}


def refusal(service: str, operation: str, params: Any) -> AwsError:
    with pytest.raises(AwsError) as refused:
        contract(service).operation(operation).validate(params)
    return refused.value


def test_a_request_that_the_model_allows_passes() -> None:
    """What botocore's scheduler model allows raises nothing."""
    contract("scheduler").operation("CreateSchedule").validate(SCHEDULE)


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"Name": "a b"}, "Value at 'name' failed to satisfy constraint: Member must satisfy regular expression"),
        ({"Name": "a\n"}, "Value at 'name' failed to satisfy constraint: Member must satisfy regular expression"),
        ({"Name": "n" * 65}, "Value at 'name' failed to satisfy constraint: Member must have length less than or"),
        ({"Target": None}, "Value at 'target' failed to satisfy constraint: Member must not be null"),
        ({"Target": {"Arn": "x"}}, "Value at 'target.roleArn' failed to satisfy constraint: Member must not be null"),
        ({"State": "ON"}, "Member must satisfy enum value set: [ENABLED, DISABLED]"),
        ({"Colour": "red"}, "Value at 'colour' failed to satisfy constraint: Member is not known"),
        (
            {"FlexibleTimeWindow": {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 1441}},
            "Value at 'flexibleTimeWindow.maximumWindowInMinutes' failed to satisfy constraint: Member must have value",
        ),
    ],
)
def test_each_constraint_of_the_model_is_enforced(change: dict[str, Any], constraint: str) -> None:
    """Patterns, lengths, ranges, enumerations, required and unknown members: botocore, scheduler 2021-06-30."""
    refused = refusal("scheduler", "CreateSchedule", {**SCHEDULE, **change})
    assert refused.code == "ValidationException"
    assert refused.status == 400
    assert constraint in refused.message


def test_every_broken_constraint_is_told_at_once() -> None:
    """AWS counts the errors and joins them."""
    message = refusal("scheduler", "CreateSchedule", {**SCHEDULE, "Name": "", "State": "ON"}).message
    assert message.startswith("3 validation errors detected: Value at 'name'")


def test_a_message_never_repeats_the_value() -> None:
    """Values may be addresses or tokens, and messages are logged."""
    message = refusal("sesv2", "SendEmail", {"FromEmailAddress": "ann@example.com", "EmailTags": [{"Name": "a"}]})
    assert "ann@" not in message.message


def test_a_wrong_type_is_a_serialization_error() -> None:
    """A number where a string belongs does not reach validation."""
    assert refusal("scheduler", "CreateSchedule", {**SCHEDULE, "Name": 3}).code == "SerializationException"
    assert refusal("scheduler", "ListSchedules", {"MaxResults": True}).code == "SerializationException"


def test_items_of_lists_and_maps_are_checked() -> None:
    """The path names the position, from one."""
    tags = [{"Key": "a", "Value": "b"}, {"Key": "", "Value": "b"}]
    message = refusal("scheduler", "CreateScheduleGroup", {"Name": "g", "Tags": tags}).message
    assert "Value at 'tags.2.member.key' failed" in message


def test_a_shape_that_contains_itself_compiles() -> None:
    """DynamoDB's AttributeValue holds AttributeValues."""
    item = {"a": {"M": {"b": {"L": [{"S": "c"}]}}}}
    contract("dynamodb").operation("PutItem").validate({"TableName": "tasks", "Item": item})


def test_ses_calls_a_broken_constraint_a_bad_request() -> None:
    """sesv2 models no ValidationException."""
    assert refusal("sesv2", "SendEmail", {}).code == "BadRequestException"


@pytest.mark.parametrize("service", ["scheduler", "sesv2", "stepfunctions", "firehose", "athena", "glue", "dynamodb"])
def test_every_operation_compiles(service: str) -> None:
    """Patterns are Java's: each must mean something to Python."""
    for name in contract(service).model.operation_names:
        assert contract(service).operation(name).name == name


@pytest.mark.parametrize(
    ("service", "code", "status"),
    [
        ("scheduler", "ConflictException", 409),
        ("scheduler", "ServiceQuotaExceededException", 402),
        ("sesv2", "TooManyRequestsException", 429),
        ("scheduler", "AccessDeniedException", 403),
        ("stepfunctions", "AccessDeniedException", 400),
        ("stepfunctions", "ExecutionDoesNotExist", 400),
    ],
)
def test_errors_have_the_status_of_the_model(service: str, code: str, status: int) -> None:
    """botocore's error shapes; JSON services answer 400 for whatever is the caller's fault."""
    assert contract(service).http_status(code) == status


def test_a_rest_request_is_read_from_path_query_and_body() -> None:
    """GroupName is `ScheduleGroup` in ListSchedules' query string, `groupName` in GetSchedule's (botocore)."""
    rules = contract("scheduler")
    query = {"ScheduleGroup": ["g"], "MaxResults": ["3"]}
    assert rules.parse("GET", "/schedules", {}, b"", query) == ("ListSchedules", {"GroupName": "g", "MaxResults": 3})
    body = json.dumps({"StartDate": 0, "GroupName": "g"}).encode()
    assert rules.parse("POST", "/schedules/a", {}, body, {}) == (
        "CreateSchedule",
        {"Name": "a", "GroupName": "g", "StartDate": datetime(1970, 1, 1, tzinfo=UTC)},
    )


def test_a_label_at_the_end_of_a_path_may_hold_slashes() -> None:
    """Resource ARNs and addresses are labels too."""
    arn = "arn:aws:scheduler:eu-central-1:000000000000:schedule-group/g"
    assert contract("scheduler").parse("GET", f"/tags/{arn}", {}, b"", {})[1] == {"ResourceArn": arn}
    path = "/v2/email/suppression/addresses/a/b@example.com"
    assert contract("sesv2").parse("GET", path, {}, b"", {})[1] == {"EmailAddress": "a/b@example.com"}


def test_a_json_request_names_its_operation_in_a_header() -> None:
    """The JSON protocol's X-Amz-Target."""
    headers = {"x-amz-target": "AWSStepFunctions.StartExecution"}
    assert contract("stepfunctions").parse("POST", "/", headers, b'{"name":"a"}', {}) == (
        "StartExecution",
        {"name": "a"},
    )


def test_an_unknown_path_or_a_broken_body_is_refused() -> None:
    """Neither is taken for an empty request."""
    for path, body, code in (("/nowhere", b"", "UnknownOperationException"), ("/schedules/a", b"{", "Serialization")):
        with pytest.raises(AwsError, match=code):
            contract("scheduler").parse("POST", path, {}, body, {})


def test_answers_and_errors_are_written_as_the_protocol_wants() -> None:
    """Times are epoch seconds; REST names the error in a header, JSON in `__type`."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    status, _, body = contract("scheduler").answer("GetScheduleGroup", {"Name": "g", "CreationDate": at})
    assert (status, json.loads(body)) == (200, {"Name": "g", "CreationDate": at.timestamp()})
    rest = contract("scheduler")
    status, headers, body = rest.refusal(rest.error("ConflictException", "no"))
    assert (status, headers["x-amzn-errortype"], json.loads(body)) == (409, "ConflictException", {"Message": "no"})
    plain = contract("stepfunctions")
    _, _, body = plain.refusal(plain.error("InvalidName", "no"))
    assert json.loads(body) == {"message": "no", "__type": "InvalidName"}
