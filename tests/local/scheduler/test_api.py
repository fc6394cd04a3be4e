"""Scheduler's API. Expectations are botocore's scheduler 2021-06-30 model and the contract sheet, section 1."""

import json
import time
from typing import Any

import pytest

from local.scheduler.faults import Fault

PREFIX = "arn:aws:scheduler:eu-central-1:000000000000"
UNIVERSAL = "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"
MESSAGE = json.dumps({"QueueUrl": "https://sqs.amazonaws.com/000000000000/send", "MessageBody": "x"})


def test_a_schedule_comes_back_as_it_was_created_with_defaults(bench: Any) -> None:
    """botocore: CreateScheduleOutput, GetScheduleOutput; ARN pattern of ScheduleArn."""
    arn = bench.create("a", Description="d", target={"RetryPolicy": {"MaximumRetryAttempts": 2}})
    assert arn == f"{PREFIX}:schedule/default/a"
    schedule = bench("GetSchedule", Name="a")
    assert schedule["Arn"] == arn
    assert schedule["Description"] == "d"
    assert schedule["GroupName"] == "default"
    assert schedule["State"] == "ENABLED"
    assert schedule["ScheduleExpressionTimezone"] == "UTC"
    assert schedule["ActionAfterCompletion"] == "NONE"
    assert schedule["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 86400}
    assert schedule["CreationDate"] == schedule["LastModificationDate"]
    assert "ClientToken" not in schedule


@pytest.mark.parametrize(
    "expression",
    [
        "at(2030-01-01T00:00:00Z)",
        "at(2030-01-01)",
        "at(2030-13-01T00:00:00)",
        "at(2030-01-01T24:00:00)",
        "at(2030-1-1T0:0:0)",
        "at( 2030-01-01T00:00:00)",
        "AT(2030-01-01T00:00:00)",
        "2030-01-01T00:00:00",
        "rate(5 minutes)",
        "cron(0 9 * * ? *)",
    ],
)
def test_only_the_exact_at_form_is_taken(bench: Any, expression: str) -> None:
    """Contract sheet: `at(…Z)` and date-only are ValidationException; rate and cron are not built here."""
    refused = bench.refused("CreateSchedule", **bench.schedule(ScheduleExpression=expression))
    assert refused.code == "ValidationException"


def test_a_zone_must_be_an_iana_name(bench: Any) -> None:
    """Contract sheet: ScheduleExpressionTimezone is an IANA name."""
    bench.create("a", ScheduleExpressionTimezone="Europe/Berlin")
    for zone in ("CEST", "+02:00", "Europe/Nowhere", "../etc/passwd"):
        refused = bench.refused("CreateSchedule", **bench.schedule("b", ScheduleExpressionTimezone=zone))
        assert refused.code == "ValidationException", zone


def test_a_window_has_minutes_exactly_when_it_is_flexible(bench: Any) -> None:
    """botocore: MaximumWindowInMinutes 1-1440, of mode FLEXIBLE."""
    bench.create("a", FlexibleTimeWindow={"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 5})
    for window in ({"Mode": "FLEXIBLE"}, {"Mode": "OFF", "MaximumWindowInMinutes": 5}):
        refused = bench.refused("CreateSchedule", **bench.schedule("b", FlexibleTimeWindow=window))
        assert refused.code == "ValidationException"


@pytest.mark.parametrize(
    "target",
    [
        {"Arn": "queue"},
        {"Arn": "arn:aws:ecs:eu-central-1:000000000000:cluster/c"},
        {"Arn": "arn:aws:scheduler:::aws-sdk:sqs:getQueueUrl", "Input": "{}"},
        {"Arn": "arn:aws:scheduler:::aws-sdk:dynamodb:batchGetItem", "Input": "{}"},
        {"Arn": "arn:aws:scheduler:::aws-sdk:sqs:SendMessage", "Input": MESSAGE},
        {"Arn": "arn:aws:scheduler:::aws-sdk:nothing:doIt", "Input": "{}"},
        {"Arn": "arn:aws:scheduler:::aws-sdk:sqs:doIt", "Input": "{}"},
        {"Arn": UNIVERSAL, "Input": "not json"},
        {"Arn": UNIVERSAL, "Input": "[]"},
        {"Arn": UNIVERSAL, "Input": '{"QueueUrl": "q"}'},
        {"Arn": UNIVERSAL, "Input": json.dumps({**json.loads(MESSAGE), "Colour": "red"})},
        {"Arn": "arn:aws:lambda:eu-central-1:000000000000:function:f", "Input": "not json"},
        {"Input": "x" * 262_145},
        {"DeadLetterConfig": {"Arn": "arn:aws:sqs:eu-central-1:000000000000:dead.fifo"}},
    ],
)
def test_a_target_that_cannot_be_called_is_refused_at_creation(bench: Any, target: dict[str, Any]) -> None:
    """Contract sheet, Targets: read-only actions, camelCase actions, keys of the service API, JSON, 256 KB."""
    assert bench.refused("CreateSchedule", **bench.schedule(target=target)).code == "ValidationException"


def test_a_name_can_be_taken_once_in_a_group(bench: Any) -> None:
    """Contract sheet: Name is unique inside its group; ConflictException 409 on a duplicate."""
    bench("CreateScheduleGroup", Name="g")
    bench.create("a", ClientToken="one")
    bench.create("a", GroupName="g")
    refused = bench.refused("CreateSchedule", **bench.schedule("a", ClientToken="two"))
    assert (refused.code, refused.status) == ("ConflictException", 409)


def test_a_client_token_repeats_its_answer(bench: Any) -> None:
    """botocore: ClientToken makes a request idempotent; the answer stands though the schedule has gone."""
    members = bench.schedule("a", ClientToken="one")
    first = bench("CreateSchedule", **members)
    assert bench("CreateSchedule", **members) == first
    bench("DeleteSchedule", Name="a")
    assert bench("CreateSchedule", **members) == first
    assert bench.names() == []


def test_a_client_token_with_other_members_conflicts(bench: Any) -> None:
    """The same token cannot mean two things."""
    bench.create("a", ClientToken="one")
    assert bench.refused("CreateSchedule", **bench.schedule("b", ClientToken="one")).code == "ConflictException"


def test_a_client_token_is_remembered_for_a_day(bench: Any) -> None:
    """AWS does not say how long; here a day of the clock."""
    members = bench.schedule("a", ClientToken="one", State="DISABLED")
    bench("CreateSchedule", **members)
    bench.clock.advance(24 * 3600 + 1)
    assert bench.refused("CreateSchedule", **members).code == "ConflictException"


def test_update_replaces_everything(bench: Any) -> None:
    """Contract sheet: an omitted optional field returns to its default."""
    bench.create("a", State="DISABLED", Description="d", ActionAfterCompletion="DELETE")
    bench.clock.advance(1)
    bench("UpdateSchedule", **bench.schedule("a"))
    schedule = bench("GetSchedule", Name="a")
    assert (schedule["State"], schedule["ActionAfterCompletion"]) == ("ENABLED", "NONE")
    assert "Description" not in schedule
    assert schedule["LastModificationDate"] > schedule["CreationDate"]


def test_what_does_not_exist_is_not_found(bench: Any) -> None:
    """ResourceNotFoundException 404; without GroupName the default group is searched (contract sheet)."""
    bench("CreateScheduleGroup", Name="g")
    bench.create("a", GroupName="g")
    for operation, members in (
        ("GetSchedule", {"Name": "a"}),
        ("DeleteSchedule", {"Name": "a"}),
        ("UpdateSchedule", bench.schedule("a")),
        ("CreateSchedule", bench.schedule("a", GroupName="none")),
        ("ListSchedules", {"GroupName": "none"}),
        ("GetScheduleGroup", {"Name": "none"}),
        ("DeleteScheduleGroup", {"Name": "none"}),
    ):
        refused = bench.refused(operation, **members)
        assert (refused.code, refused.status) == ("ResourceNotFoundException", 404), operation


def test_lists_are_filtered_and_paged(bench: Any) -> None:
    """botocore: GroupName, NamePrefix, State, MaxResults 1-100, NextToken."""
    bench("CreateScheduleGroup", Name="g")
    for number in range(7):
        bench.create(f"a{number}", GroupName="g", State="DISABLED" if number % 2 else "ENABLED")
    bench.create("b", GroupName="g")
    bench.create("a9")
    assert bench.names(NamePrefix="a", State="ENABLED") == ["a9", "a0", "a2", "a4", "a6"]
    pages, token = [], {}
    while True:
        page = bench("ListSchedules", GroupName="g", MaxResults=3, **token)
        pages.append([schedule["Name"] for schedule in page["Schedules"]])
        if "NextToken" not in page:
            break
        token = {"NextToken": page["NextToken"]}
    assert pages == [["a0", "a1", "a2"], ["a3", "a4", "a5"], ["a6", "b"]]
    summary = bench("ListSchedules", GroupName="g", NamePrefix="b")["Schedules"][0]
    assert set(summary) == {
        "Arn", "Name", "GroupName", "State", "Target", "CreationDate", "LastModificationDate",
    }  # fmt: skip
    assert set(summary["Target"]) == {"Arn"}


def test_a_page_goes_on_where_it_was_though_schedules_go(bench: Any) -> None:
    """A token names a place, not a number."""
    for number in range(4):
        bench.create(f"a{number}")
    token = bench("ListSchedules", MaxResults=2)["NextToken"]
    bench("DeleteSchedule", Name="a0")
    bench("DeleteSchedule", Name="a1")
    assert bench.names(NextToken=token) == ["a2", "a3"]
    assert bench.refused("ListSchedules", NextToken="nonsense").code == "ValidationException"


def test_groups_are_made_listed_and_tagged(bench: Any) -> None:
    """botocore: ARN pattern of ScheduleGroupArn; only groups carry tags."""
    arn = bench("CreateScheduleGroup", Name="g", Tags=[{"Key": "k", "Value": "v"}])["ScheduleGroupArn"]
    assert arn == f"{PREFIX}:schedule-group/g"
    assert bench("GetScheduleGroup", Name="g")["State"] == "ACTIVE"
    assert bench.refused("CreateScheduleGroup", Name="g").code == "ConflictException"
    assert [group["Name"] for group in bench("ListScheduleGroups")["ScheduleGroups"]] == ["default", "g"]
    first = bench("ListScheduleGroups", MaxResults=1)
    rest = bench("ListScheduleGroups", NextToken=first["NextToken"])
    assert [group["Name"] for group in rest["ScheduleGroups"]] == ["g"]
    bench("TagResource", ResourceArn=arn, Tags=[{"Key": "m", "Value": "w"}])
    bench("UntagResource", ResourceArn=arn, TagKeys=["k"])
    assert bench("ListTagsForResource", ResourceArn=arn) == {"Tags": [{"Key": "m", "Value": "w"}]}


def test_a_group_is_deleting_before_it_is_gone(bench: Any) -> None:
    """Contract sheet: DELETING until its schedules are deleted; nothing is created in it or again meanwhile."""
    bench("CreateScheduleGroup", Name="g")
    bench.create("a", GroupName="g")
    bench("DeleteScheduleGroup", Name="g")
    assert bench("GetScheduleGroup", Name="g")["State"] == "DELETING"
    for operation, members in (
        ("CreateSchedule", bench.schedule("b", GroupName="g")),
        ("UpdateSchedule", bench.schedule("a", GroupName="g")),
        ("CreateScheduleGroup", {"Name": "g"}),
        ("DeleteScheduleGroup", {"Name": "g"}),
    ):
        assert bench.refused(operation, **members).code == "ConflictException", operation
    bench.clock.advance(bench.scheduler.deletion_seconds + 1)
    bench.eventually(lambda: len(bench("ListScheduleGroups")["ScheduleGroups"]) == 1)
    assert bench.refused("GetSchedule", Name="a", GroupName="g").code == "ResourceNotFoundException"
    bench("CreateScheduleGroup", Name="g")
    assert bench.names(GroupName="g") == []


def test_the_default_group_stays(bench: Any) -> None:
    """Every account has it."""
    assert bench.refused("DeleteScheduleGroup", Name="default").code == "ValidationException"


def test_quotas_are_errors_of_their_own(bench: Any) -> None:
    """ServiceQuotaExceededException is 402 (botocore); finished schedules count until they are deleted."""
    bench.scheduler.schedule_quota, bench.scheduler.group_quota = 1, 2
    bench.create("a")
    refused = bench.refused("CreateSchedule", **bench.schedule("b"))
    assert (refused.code, refused.status) == ("ServiceQuotaExceededException", 402)
    bench("DeleteSchedule", Name="a")
    bench.create("b")
    bench("CreateScheduleGroup", Name="g")
    assert bench.refused("CreateScheduleGroup", Name="h").code == "ServiceQuotaExceededException"


def test_whoever_creates_must_be_allowed_to_pass_the_role(bench: Any) -> None:
    """Contract sheet: the caller needs iam:PassRole on the target role."""
    from local import identity

    token = identity.caller.set(identity.Identity("AKIA"))
    try:
        bench.create("a")
        role = bench.schedule()["Target"]["RoleArn"]
        assert bench.iam.asked == [("iam:PassRole", role, {"iam:PassedToService": "scheduler.amazonaws.com"})]
        bench.iam.refused.add("iam:PassRole")
        assert bench.refused("CreateSchedule", **bench.schedule("b")).code == "AccessDeniedException"
    finally:
        identity.caller.reset(token)


def test_a_role_that_does_not_trust_scheduler_is_refused(bench: Any) -> None:
    """Only a role that Scheduler may assume can be a schedule's."""
    bench.iam.refused.add(bench.schedule()["Target"]["RoleArn"])
    refused = bench.refused("CreateSchedule", **bench.schedule("a"))
    assert (refused.code, "must allow AWS EventBridge Scheduler to assume" in refused.message) == (
        "ValidationException",
        True,
    )


def test_faults_hit_whom_they_name_as_often_as_they_say(bench: Any) -> None:
    """Tests switch on what AWS does only under load."""
    bench.scheduler.faults.set(
        Fault("ThrottlingException", name="1-*", times=1), Fault("ValidationException", name="x")
    )
    bench.create("2-a")
    refused = bench.refused("CreateSchedule", **bench.schedule("1-a"))
    assert (refused.code, refused.status) == ("ThrottlingException", 429)
    bench.create("1-a")
    for _ in range(2):
        assert bench.refused("CreateSchedule", **bench.schedule("x")).code == "ValidationException"
    bench.scheduler.faults.set()
    bench.create("x")


def test_creating_is_fast_enough_for_a_distributed_map(bench: Any) -> None:
    """The Map is to reach 1,000 CreateSchedule/s; this is the engine's share, with a wide margin."""
    members = [bench.schedule(f"n{n}", target={"Arn": UNIVERSAL, "Input": MESSAGE}) for n in range(1000)]
    started = time.process_time()
    for each in members:
        bench("CreateSchedule", **each)
    assert time.process_time() - started < 0.9
