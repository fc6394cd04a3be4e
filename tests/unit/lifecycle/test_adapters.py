"""What is said to AWS, checked by botocore's own models, and what its answers mean to us."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
import requests
from botocore.config import Config
from botocore.stub import Stubber
from moto import mock_aws

from carillon import keys
from carillon.adapters import aws
from carillon.adapters.executions import Executions
from carillon.adapters.fan_out import FanOutFiles
from carillon.adapters.queue import SendQueue
from carillon.adapters.schedules import Schedules
from carillon.adapters.secrets import Tokens
from carillon.adapters.uploads import Uploads
from carillon.launch.enrolment import schedule_for
from carillon.shapes import BatchLine, ManifestLine
from local.stepfunctions.expression import parse

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ROLE = "arn:aws:iam::123456789012:role/schedules"
DEAD_LETTERS = "arn:aws:sqs:eu-central-1:123456789012:schedule-dead-letters"
LAUNCH = "arn:aws:states:eu-central-1:123456789012:stateMachine:launch"

LINE = BatchLine(
    task=keys.task_id(0, "ana@example.com"),
    step=0,
    address="ana@example.com",
    timezone=None,
    slot=1_796_025_637,
    revision=0,
    input={"name": "Zoë\u2028<b>"},
)


def stubbed(service: str) -> tuple[Any, Stubber]:
    client = boto3.client(service, region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y")
    return client, Stubber(client)


def test_a_schedule_is_created_as_the_machine_creates_it() -> None:
    """One time in UTC, at its minute, deleted afterwards, two retries within the hour, a queue for what fails."""
    schedule = schedule_for("advent", 1, LINE, "https://sqs.eu-central-1.amazonaws.com/123456789012/send")
    client, stub = stubbed("scheduler")
    expected = {
        "Name": schedule.name,
        "GroupName": "campaign-advent-g1",
        "ClientToken": schedule.client_token,
        "ScheduleExpression": f"at({schedule.at})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": "arn:aws:scheduler:::aws-sdk:sqs:sendMessage",
            "RoleArn": ROLE,
            "Input": schedule.input,
            "RetryPolicy": {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 3600},
            "DeadLetterConfig": {"Arn": DEAD_LETTERS},
        },
    }
    stub.add_response("create_schedule", {"ScheduleArn": "arn"}, expected)
    stub.add_client_error("create_schedule", "ConflictException", http_status_code=409)
    stub.add_client_error("create_schedule", "ServiceQuotaExceededException", http_status_code=402)
    schedules = Schedules(ROLE, DEAD_LETTERS, client)
    with stub:
        assert schedules.create(schedule) is True
        assert schedules.create(schedule) is False
        with pytest.raises(client.exceptions.ServiceQuotaExceededException):
            schedules.create(schedule)


def test_the_machine_and_the_reconciler_create_alike() -> None:
    """The same members, and the same values where they are not the schedule's own."""
    from pathlib import Path

    import yaml

    machine = yaml.safe_load((Path(__file__).parents[3] / "statemachines" / "launch_campaign.asl.yaml").read_text())
    child = machine["States"]["FanOut"]["ItemProcessor"]["States"]["CreateSchedules"]["ItemProcessor"]
    theirs = child["States"]["CreateSchedule"]["Arguments"]
    client, stub = stubbed("scheduler")
    ours: dict[str, Any] = {}
    client.meta.events.register(
        "provide-client-params.scheduler.CreateSchedule", lambda params, **_: ours.update(params)
    )
    stub.add_response("create_schedule", {"ScheduleArn": "arn"})
    schedule = schedule_for("advent", 1, LINE, "https://q")
    with stub:
        Schedules(ROLE, DEAD_LETTERS, client).create(schedule)

    def evaluated(written: Any) -> Any:
        if isinstance(written, dict):
            return {name: evaluated(part) for name, part in written.items()}
        if isinstance(written, str) and written.startswith("{%"):
            return parse(written[2:-2]).evaluate({"states": {"input": schedule.model_dump()}}, now=0)
        return written

    theirs = evaluated(theirs)
    theirs["Target"] |= {"RoleArn": ROLE, "DeadLetterConfig": {"Arn": DEAD_LETTERS}}  # substituted by the template
    assert ours == theirs


def test_a_group_that_is_there_or_gone_is_fine() -> None:
    """Conflict on creation and ResourceNotFound on deletion are what was wanted; other errors are not."""
    client, stub = stubbed("scheduler")
    stub.add_response("create_schedule_group", {"ScheduleGroupArn": "arn"}, {"Name": "campaign-a-g1"})
    stub.add_client_error("create_schedule_group", "ConflictException", http_status_code=409)
    stub.add_response("delete_schedule_group", {}, {"Name": "campaign-a-g1"})
    stub.add_client_error("delete_schedule_group", "ResourceNotFoundException", http_status_code=404)
    stub.add_client_error("delete_schedule_group", "ConflictException", http_status_code=409)  # it is being deleted
    stub.add_client_error("delete_schedule_group", "ValidationException")
    schedules = Schedules(client=client)
    with stub:
        schedules.ensure_group("campaign-a-g1")
        schedules.ensure_group("campaign-a-g1")
        for _ in range(3):
            schedules.delete_group("campaign-a-g1")
        with pytest.raises(client.exceptions.ValidationException):
            schedules.delete_group("campaign-a-g1")
    stub.assert_no_pending_responses()


def test_an_execution_is_started_by_name() -> None:
    """A name that an ended execution has used is no execution."""
    client, stub = stubbed("stepfunctions")
    expected = {"stateMachineArn": LAUNCH, "name": "advent-g1-1", "input": '{"campaign_id":"advent"}'}
    stub.add_response("start_execution", {"executionArn": "arn:e", "startDate": 0}, expected)
    stub.add_client_error("start_execution", "ExecutionAlreadyExists")
    executions = Executions(client)
    with stub:
        assert executions.start(LAUNCH, "advent-g1-1", {"campaign_id": "advent"}) == "arn:e"
        assert executions.start(LAUNCH, "advent-g1-1", {"campaign_id": "advent"}) is None


def test_a_map_run_is_counted_by_its_children() -> None:
    """executionCounts of DescribeMapRun."""
    client, stub = stubbed("stepfunctions")
    counts = dict.fromkeys(
        ("pending", "running", "succeeded", "failed", "timedOut", "aborted", "total", "resultsWritten"), 0
    )
    arn = "arn:aws:states:eu-central-1:123456789012:mapRun:launch/FanOut:1"
    answer = {
        "mapRunArn": arn,
        "executionArn": "arn:e",
        "status": "SUCCEEDED",
        "startDate": 0,
        "maxConcurrency": 1,
        "toleratedFailurePercentage": 0.0,
        "toleratedFailureCount": 10,
        "itemCounts": counts,
        "executionCounts": counts | {"succeeded": 3, "total": 3},
    }
    stub.add_response("describe_map_run", answer, {"mapRunArn": arn})
    with stub:
        assert Executions(client).map_run_counts(arn)["succeeded"] == 3


@pytest.mark.parametrize(("waiting", "hidden", "delayed"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_queue_is_empty_when_nothing_waits_runs_or_is_delayed(waiting: int, hidden: int, delayed: int) -> None:
    """SQS counts the three apart."""
    client, stub = stubbed("sqs")
    numbers = {
        "ApproximateNumberOfMessages": str(waiting),
        "ApproximateNumberOfMessagesNotVisible": str(hidden),
        "ApproximateNumberOfMessagesDelayed": str(delayed),
    }
    stub.add_response(
        "get_queue_attributes", {"Attributes": numbers}, {"QueueUrl": "https://q", "AttributeNames": [*numbers]}
    )
    with stub:
        assert SendQueue("https://q", client).is_empty() is (waiting + hidden + delayed == 0)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    with mock_aws():
        client = boto3.client(
            "s3",
            region_name="eu-central-1",
            aws_access_key_id="x",
            aws_secret_access_key="y",
            config=Config(signature_version="s3v4"),
        )
        client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        client.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
        yield client


def test_batches_and_manifests_are_read_line_by_line(s3: S3Client) -> None:
    """Only a line feed ends a line: what is in a name (U+2028) does not."""
    files = FanOutFiles("bucket", s3)
    s3.put_object(
        Bucket="bucket", Key=keys.batch("advent", "g1-a/1"), Body=(LINE.model_dump_json() + "\n").encode() * 2 + b"\n"
    )
    assert files.batch("advent", "g1-a/1") == [LINE, LINE]
    lines = [ManifestLine(batch=f"g1-a/{n}", count=1, first_slot=0) for n in range(3)]
    version = files.write_manifest("m", lines)
    assert files.manifest("m") == lines
    assert version == s3.head_object(Bucket="bucket", Key="m")["VersionId"]
    with pytest.raises(FileNotFoundError):
        files.batch("advent", "g1-a/2")


def test_the_results_of_all_rounds_are_read_as_resultwriter_wrote_them(s3: S3Client) -> None:
    """Each Map Run's manifest.json names its files; those of another generation or campaign are not read."""

    def write(prefix: str, name: str, records: list[str], *, lines: bool = False) -> None:
        files: dict[str, list[dict[str, Any]]] = {"FAILED": [], "PENDING": [], "SUCCEEDED": []}
        for number, record in enumerate(records):
            key = f"{prefix}/{name}/SUCCEEDED_{number}.json"
            body = json.dumps({"Name": record}) if lines else json.dumps([{"Name": record}])
            s3.put_object(Bucket="bucket", Key=key, Body=body.encode())
            files["SUCCEEDED"].append({"Key": key, "Size": len(body)})
        s3.put_object(Bucket="bucket", Key=f"{prefix}/{name}/SUCCEEDED_9.json", Body=b"[never named]")
        manifest = {"DestinationBucket": "bucket", "MapRunArn": "arn", "ResultFiles": files}
        s3.put_object(Bucket="bucket", Key=f"{prefix}/{name}/manifest.json", Body=json.dumps(manifest).encode())

    write("campaigns/advent/fan-out/g1", "round-1", ["a", "b"])
    write("campaigns/advent/fan-out/g1", "round-2", ["c"], lines=True)
    write("campaigns/advent/fan-out/g1", "round-3", [])
    write("campaigns/advent/fan-out/g11", "round-1", ["other"])
    found = FanOutFiles("bucket", s3).results(keys.fan_out_results("advent", 1))
    assert sorted(record["Name"] for record in found) == ["a", "b", "c"]


def test_an_upload_link_takes_one_file(s3: S3Client) -> None:
    """Of its key and type, within its size (the policy is signed, so S3 holds to it), and then it exists."""
    import base64

    uploads = Uploads("bucket", s3)
    key = keys.upload("advent", "list.csv")
    assert uploads.version(key) is None
    url, fields = uploads.link(key, "text/csv", 100, 600)
    policy = json.loads(base64.b64decode(fields["policy"]))
    assert ["content-length-range", 1, 100] in policy["conditions"]
    assert {"Content-Type": "text/csv"} in policy["conditions"]
    assert {"key": key} in policy["conditions"]
    answer = requests.post(url, data=fields, files={"file": io.BytesIO(b"email\na@example.com\n")}, timeout=5)
    assert answer.ok
    assert uploads.version(key) == s3.head_object(Bucket="bucket", Key=key)["VersionId"]


def test_an_upload_link_names_the_buckets_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers a new bucket's POST at s3.amazonaws.com with a redirect that no form follows (boto/boto3#1982)."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    url, _ = Uploads("bucket", aws.s3.__wrapped__()).link(keys.upload("advent", "list.csv"), "text/csv", 100, 600)
    assert url == "https://bucket.s3.eu-central-1.amazonaws.com/"


def test_both_tokens_of_a_rotation_are_valid_and_read_once_a_minute() -> None:
    """AWSCURRENT and AWSPREVIOUS; one taken away is refused a minute later at most."""
    with mock_aws():
        client = boto3.client(
            "secretsmanager", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y"
        )
        client.create_secret(Name="token", SecretString="first")
        now = [0.0]
        tokens = Tokens("token", client, now=lambda: now[0])
        assert tokens.valid() == ("first",)
        client.put_secret_value(SecretId="token", SecretString="second")
        assert tokens.valid() == ("first",)
        now[0] = 60.0
        assert tokens.valid() == ("second", "first")
        client.put_secret_value(SecretId="token", SecretString="third")
        now[0] = 120.0
        assert tokens.valid() == ("third", "second")


def test_a_download_link_is_signed_for_one_key_and_saved_under_a_name(s3: S3Client) -> None:
    """By Signature Version 4, which every Region takes; whoever has it gets the file, and no header is needed."""
    s3.put_object(Bucket="bucket", Key="campaigns/advent/plans/n/rejects.csv", Body=b"line,reason\n")
    url = Uploads("bucket", s3).download("campaigns/advent/plans/n/rejects.csv", "rejects.csv", 600)
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url
    assert "X-Amz-Expires=600" in url
    answer = requests.get(url, timeout=5)
    assert (answer.status_code, answer.content) == (200, b"line,reason\n")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="rejects.csv"'
