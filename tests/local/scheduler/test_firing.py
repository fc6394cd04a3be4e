"""What is due is invoked. Expectations are the contract sheet, section 1, and the user guide's page on DLQs."""

import json
import re
from datetime import UTC, datetime
from typing import Any

from local.ports import AwsError

DEAD = "arn:aws:sqs:eu-central-1:000000000000:dead"
QUEUE_URL = "https://sqs.amazonaws.com/000000000000/send"
UNIVERSAL = "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"


def attributes(call: tuple[str, str, dict[str, Any]]) -> dict[str, str]:
    return {name: value["StringValue"] for name, value in call[2]["MessageAttributes"].items()}


def test_nothing_fires_before_its_time(bench: Any) -> None:
    """A schedule due in 100 s has not fired after 99."""
    bench.create()
    bench.clock.advance(98)
    assert bench.caller.calls == []
    bench.clock.advance(3)
    bench.eventually(lambda: bench.caller.calls)


def test_a_queue_gets_the_input_as_its_body(bench: Any) -> None:
    """Templated target: the message body is Input, sent as the schedule's role, for the group's ARN."""
    bench("CreateScheduleGroup", Name="g")
    bench.create("a", GroupName="g")
    bench.clock.advance(101)
    bench.eventually(lambda: bench.caller.calls)
    assert bench.caller.calls == [("sqs", "SendMessage", {"QueueUrl": QUEUE_URL, "MessageBody": "hello"})]
    group = "arn:aws:scheduler:eu-central-1:000000000000:schedule-group/g"
    assert bench.caller.roles == [(bench.schedule()["Target"]["RoleArn"], group)]


def test_without_input_a_templated_target_gets_an_event(bench: Any) -> None:
    """The event names the schedule and its time."""
    target = {
        "Arn": "arn:aws:lambda:eu-central-1:000000000000:function:f",
        "RoleArn": bench.schedule()["Target"]["RoleArn"],
    }
    arn = bench("CreateSchedule", **{**bench.schedule("a"), "Target": target})["ScheduleArn"]
    bench.clock.advance(101)
    bench.eventually(lambda: bench.caller.calls)
    service, operation, params = bench.caller.calls[0]
    assert (service, operation, params["InvocationType"]) == ("lambda", "Invoke", "Event")
    event = json.loads(params["Payload"])
    assert (event["detail-type"], event["resources"]) == ("Scheduled Event", [arn])


def test_a_universal_target_is_called_with_its_input(bench: Any) -> None:
    """`aws-sdk:sqs:sendMessage`: Input's keys are the API's, DelaySeconds among them."""
    members = {"QueueUrl": QUEUE_URL, "MessageBody": "x", "DelaySeconds": 42}
    bench.create("a", target={"Arn": UNIVERSAL, "Input": json.dumps(members)})
    bench.clock.advance(101)
    bench.eventually(lambda: bench.caller.calls)
    assert bench.caller.calls == [("sqs", "SendMessage", members)]


def test_the_sdk_identifier_of_a_service_may_differ_from_its_name(bench: Any) -> None:
    """The user guide: `service` is the AWS SDK's identifier, `sfn` for Step Functions."""
    members = {"stateMachineArn": "arn:aws:states:eu-central-1:000000000000:stateMachine:m"}
    bench.create("a", target={"Arn": "arn:aws:scheduler:::aws-sdk:sfn:startExecution", "Input": json.dumps(members)})
    bench.clock.advance(101)
    bench.eventually(lambda: bench.caller.calls)
    assert bench.caller.calls == [("stepfunctions", "StartExecution", members)]


def test_context_is_put_into_the_input(bench: Any) -> None:
    """The four keywords of the user guide; scheduled-time is of the form 2022-03-22T18:59:43Z."""
    keywords = ("schedule-arn", "scheduled-time", "execution-id", "attempt-number")
    arn = bench.create("a", target={"Input": " ".join(f"<aws.scheduler.{keyword}>" for keyword in keywords)})
    due = bench("GetSchedule", Name="a")["ScheduleExpression"][3:-1]
    bench.clock.advance(101)
    bench.eventually(lambda: bench.caller.calls)
    body = bench.caller.calls[0][2]["MessageBody"].split(" ")
    assert (body[0], body[1], body[3]) == (arn, f"{due}Z", "1")
    assert re.fullmatch(r"[0-9a-f-]{36}", body[2])


def test_a_zone_moves_the_instant(bench: Any) -> None:
    """09:00 in Tokyo is midnight UTC."""
    bench.create("a", ScheduleExpression="at(2030-01-01T09:00:00)", ScheduleExpressionTimezone="Asia/Tokyo")
    bench.clock.advance_to(datetime(2029, 12, 31, 23, 59, 58, tzinfo=UTC))
    assert bench.caller.calls == []
    bench.clock.advance(3)
    bench.eventually(lambda: bench.caller.calls)


def test_a_flexible_window_spreads_without_being_early(bench: Any) -> None:
    """FLEXIBLE: some time within the window after the instant."""
    window = {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 10}
    for number in range(30):
        bench.create(f"n{number}", FlexibleTimeWindow=window)
    bench.clock.advance(99)
    assert bench.caller.calls == []
    bench.clock.advance(301)
    bench.eventually(lambda: len(bench.caller.calls) > 5)
    assert len(bench.caller.calls) < 25
    bench.clock.advance(301)
    bench.eventually(lambda: len(bench.caller.calls) == 30)


def test_an_instant_of_the_running_minute_fires_and_an_earlier_one_never_does(bench: Any) -> None:
    """Precision is a minute; a past `at()` is accepted and must not be relied on (contract sheet)."""
    bench.clock.advance(60 - bench.clock.time() % 60 + 10)
    bench.create("now", ScheduleExpression=bench.at(-9), target={"Input": "now"})
    bench.create("past", ScheduleExpression=bench.at(-71), target={"Input": "past"})
    bench.eventually(lambda: bench.caller.calls)
    bench.clock.advance(3600)
    bench.create("later", ScheduleExpression=bench.at(0), target={"Input": "later"})
    bench.eventually(lambda: len(bench.caller.calls) == 2)
    assert [params["MessageBody"] for _, _, params in bench.caller.calls] == ["now", "later"]


def test_deletion_after_completion(bench: Any) -> None:
    """DELETE removes a one-time schedule once it was invoked, NONE keeps it; neither fires again."""
    bench.create("deleted", ActionAfterCompletion="DELETE")
    bench.create("kept", ActionAfterCompletion="NONE")
    bench.clock.advance(101)
    bench.eventually(lambda: bench.names() == ["kept"])
    bench.clock.advance(86_400)
    assert len(bench.caller.calls) == 2


def test_what_is_deleted_disabled_or_moved_does_not_fire(bench: Any) -> None:
    """The last request decides."""
    for name in ("deleted", "disabled", "moved"):
        bench.create(name, target={"Input": name})
    bench.create("off", State="DISABLED", target={"Input": "off"})
    bench("DeleteSchedule", Name="deleted")
    bench("UpdateSchedule", **bench.schedule("disabled", State="DISABLED"))
    bench("UpdateSchedule", **bench.schedule("moved", ScheduleExpression=bench.at(200), target={"Input": "moved"}))
    bench.clock.advance(150)
    bench.create("proof", ScheduleExpression=bench.at(0), target={"Input": "proof"})
    bench.eventually(lambda: bench.caller.calls)
    assert [params["MessageBody"] for _, _, params in bench.caller.calls] == ["proof"]
    bench.clock.advance(100)
    bench.eventually(lambda: len(bench.caller.calls) == 2)
    assert bench.caller.calls[1][2]["MessageBody"] == "moved"


def test_due_schedules_still_fire_while_their_group_is_deleted(bench: Any) -> None:
    """Contract sheet: DeleteScheduleGroup is eventually consistent; so cancellation lives in the task row."""
    bench.scheduler.deletion_seconds = 300.0
    bench("CreateScheduleGroup", Name="g")
    bench.create("soon", GroupName="g")
    bench.create("late", GroupName="g", ScheduleExpression=bench.at(1000))
    bench("DeleteScheduleGroup", Name="g")
    bench.clock.advance(101)
    bench.eventually(lambda: len(bench.caller.calls) == 1)
    bench.clock.advance(1000)
    bench.eventually(lambda: len(bench("ListScheduleGroups")["ScheduleGroups"]) == 1)
    assert len(bench.caller.calls) == 1


def test_a_fault_of_the_target_is_tried_again(bench: Any) -> None:
    """RetryPolicy: the attempt number counts up, each with an execution id of its own."""
    text = "<aws.scheduler.attempt-number> <aws.scheduler.execution-id>"
    bench.caller.errors = [AwsError("InternalError", "no", 500), AwsError("ThrottlingException", "no", 400)]
    bench.create("a", ActionAfterCompletion="DELETE", target={"Input": text})
    bench.clock.advance(101)
    for calls in (1, 2):
        bench.eventually(lambda calls=calls: len(bench.caller.calls) == calls)
        assert bench.names() == ["a"]
        bench.clock.advance(2**calls)
    bench.eventually(lambda: bench.names() == [])
    bodies = [params["MessageBody"].split(" ") for _, _, params in bench.caller.calls]
    assert [attempt for attempt, _ in bodies] == ["1", "2", "3"]
    assert len({execution for _, execution in bodies}) == 3


def test_retries_end_in_the_dead_letter_queue(bench: Any) -> None:
    """After MaximumRetryAttempts: Input is the body, attributes say why; DELETE applies all the same."""
    policy = {"MaximumRetryAttempts": 1, "MaximumEventAgeInSeconds": 3600}
    bench.caller.errors = [AwsError("InternalError", f"no {n}", 500) for n in range(5)]
    arn = bench.create(
        "a", ActionAfterCompletion="DELETE", target={"RetryPolicy": policy, "DeadLetterConfig": {"Arn": DEAD}}
    )
    due = bench("GetSchedule", Name="a")["ScheduleExpression"][3:-1]
    bench.clock.advance(101)
    bench.eventually(lambda: len(bench.caller.calls) == 1)
    bench.clock.advance(10)
    bench.eventually(lambda: bench.names() == [])
    letter = bench.caller.calls[2]
    assert letter[:2] == ("sqs", "SendMessage")
    assert letter[2]["QueueUrl"] == "https://sqs.amazonaws.com/000000000000/dead"
    assert letter[2]["MessageBody"] == "hello"
    told = attributes(letter)
    assert re.fullmatch(r"[0-9a-f-]{36}", told.pop("EXECUTION_ID"))
    assert told == {
        "ERROR_CODE": "InternalError",
        "ERROR_MESSAGE": "no 1",
        "EXHAUSTED_RETRY_CONDITION": "MaximumRetryAttempts",
        "IS_PAYLOAD_TRUNCATED": "false",
        "RETRY_ATTEMPTS": "1",
        "SCHEDULED_TIME": f"{due}Z",
        "SCHEDULE_ARN": arn,
        "TARGET_ARN": "arn:aws:sqs:eu-central-1:000000000000:send",
    }


def test_age_ends_retries_too(bench: Any) -> None:
    """MaximumEventAgeInSeconds counts from when the schedule was due."""
    policy = {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 60}
    bench.caller.errors = [AwsError("InternalError", "no", 500) for _ in range(100)]
    bench.create("a", target={"RetryPolicy": policy, "DeadLetterConfig": {"Arn": DEAD}})
    bench.clock.advance(101)
    for _ in range(20):
        before = len(bench.caller.calls)
        bench.eventually(lambda before=before: len(bench.caller.calls) >= max(before, 1))
        bench.clock.advance(10)
    bench.eventually(lambda: "MessageAttributes" in bench.caller.calls[-1][2])
    assert attributes(bench.caller.calls[-1])["EXHAUSTED_RETRY_CONDITION"] == "MaximumEventAgeInSeconds"


def test_what_the_target_refuses_is_not_tried_again(bench: Any) -> None:
    """Missing permissions and wrong requests stay wrong: one attempt, then the dead-letter queue."""
    bench.caller.errors = [AwsError("AccessDeniedException", "no", 403)]
    bench.create("a", target={"DeadLetterConfig": {"Arn": DEAD}})
    bench.clock.advance(101)
    bench.eventually(lambda: len(bench.caller.calls) == 2)
    told = attributes(bench.caller.calls[1])
    assert (told["ERROR_CODE"], told["RETRY_ATTEMPTS"]) == ("AccessDeniedException", "0")
    assert "EXHAUSTED_RETRY_CONDITION" not in told


def test_many_fire_side_by_side_in_a_bounded_number(bench: Any) -> None:
    """A slow target does not stop the clock's thread, nor take a thread for each schedule."""
    import threading

    bench.caller.gate.clear()
    for number in range(100):
        bench.create(f"n{number}")
    bench.clock.advance(101)
    bench.eventually(lambda: sum("scheduler-fire" in thread.name for thread in threading.enumerate()) > 5)
    assert sum("scheduler-fire" in thread.name for thread in threading.enumerate()) <= 12
    bench.caller.gate.set()
    bench.eventually(lambda: len(bench.caller.calls) == 100)


def test_reset_forgets_what_was_planned(bench: Any) -> None:
    """An empty account fires nothing."""
    bench.create()
    bench.scheduler.reset()
    assert bench.names() == []
    bench.clock.advance(101)
    bench.create("proof", ScheduleExpression=bench.at(0), target={"Input": "proof"})
    bench.eventually(lambda: bench.caller.calls)
    assert [params["MessageBody"] for _, _, params in bench.caller.calls] == ["proof"]
