"""The handlers, wired as on AWS: environment in, plain data in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from carillon import keys
from carillon.adapters import aws, clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.executions import Executions
from carillon.adapters.queue import SendQueue
from carillon.adapters.schedules import Schedules
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.consent.unsubscribing import KeyRing, read
from carillon.environment import load
from carillon.shapes import BatchLine, ManifestLine, Schedule
from carillon.transitions import CampaignState, TaskStatus

from .conftest import CONTEXT, NOW, SPEC, campaign, task

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

ENVIRONMENT = {
    "CAMPAIGNS_TABLE": "Campaigns",
    "TASKS_TABLE": "Tasks",
    "SETTINGS_TABLE": "Settings",
    "BUCKET": "bucket",
    "SEND_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/send",
    "SCHEDULER_ROLE_ARN": "arn:aws:iam::123456789012:role/schedules",
    "SCHEDULE_DEAD_LETTER_QUEUE_ARN": "arn:aws:sqs:eu-central-1:123456789012:dead",
    "CONFIGURATION_SET": "carillon-shop",
    "SENDING_DOMAIN": "example.com",
    "API_URL": "https://api.example.com",
    "UNSUBSCRIBE_KEYS_SECRET": "unsubscribe-keys",
}


@pytest.fixture
def s3(dynamodb: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    load.cache_clear()
    monkeypatch.setattr(clock, "epoch", NOW.timestamp)
    monkeypatch.setattr(aws, "dynamodb", lambda: dynamodb)
    with mock_aws(config={"core": {"passthrough": {"services": ["dynamodb"]}}}):  # its tables are MiniStack's
        client = boto3.client("s3", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y")
        client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        monkeypatch.setattr(aws, "s3", lambda: client)
        yield client


def write_batch(s3: S3Client, people: int, generation: int = 1, slot: int = int(NOW.timestamp())) -> dict[str, Any]:
    lines = [
        BatchLine(
            task=keys.task_id(0, f"r{n}@example.com"),
            step=0,
            address=f"r{n}@example.com",
            timezone=None,
            slot=slot,
            revision=0,
            input={"n": n},
        )
        for n in range(people)
    ]
    batch = f"g{generation}-aaaa/0"
    key = keys.batch("advent", batch)
    s3.put_object(Bucket="bucket", Key=key, Body="".join(f"{x.model_dump_json()}\n" for x in lines).encode())
    return {"batch": batch, "count": people}


def test_a_batch_goes_from_its_manifest_line_to_rows_and_schedules(
    s3: S3Client, campaigns: CampaignStore, rows: CampaignRows
) -> None:
    """The event is the Distributed Map's item; the result is plain JSON, the same when it is done again."""
    campaigns.create(campaign(state="enqueued", generation=1))
    event = {"campaign_id": "advent", "generation": 1, **write_batch(s3, 30)}
    handler = import_module("enrol_batch.app").handler
    result = handler(event, CONTEXT)
    assert json.loads(json.dumps(result)) == result == handler(event, CONTEXT)
    assert (result["enrolled"], result["settled"], len(result["schedules"])) == (30, 0, 30)
    assert rows.counts("advent")[TaskStatus.PENDING] == 30


def test_a_batch_of_the_direct_route_becomes_schedules_and_no_rows(
    s3: S3Client, campaigns: CampaignStore, rows: CampaignRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each calls SES, with a link that unsubscribes its own recipient."""
    ring = KeyRing({1: b"k" * 64})
    monkeypatch.setattr(UnsubscribeKeys, "ring", lambda self: ring)
    monkeypatch.setattr(UnsubscribeKeys, "__init__", lambda self, secret: None)
    spec = SPEC.model_copy(update={"route": "direct"})
    campaigns.create(campaign(state="enqueued", generation=1, enrolled=3, spec=spec))
    event = {"campaign_id": "advent", "generation": 1, **write_batch(s3, 3)}
    app = import_module("enrol_batch.app")
    app._links.cache_clear()
    result = app.handler(event, CONTEXT)
    assert json.loads(json.dumps(result)) == result == app.handler(event, CONTEXT)
    assert (result["enrolled"], result["settled"], len(result["schedules"])) == (3, 0, 3)
    assert not any(rows.counts("advent").values())
    asked = [json.loads(schedule["input"]) for schedule in result["schedules"]]
    links = [json.loads(call["Content"]["Template"]["TemplateData"])["html_unsubscribe_url"] for call in asked]
    known = UnsubscribeKeys("unsubscribe-keys")
    said = [read(link.removeprefix("https://api.example.com/u/"), known) for link in links]
    assert [found.address_hash for found in said] == [keys.address_hash(f"r{n}@example.com") for n in range(3)]


def test_a_fan_out_is_confirmed_from_the_files_of_its_children(
    s3: S3Client, campaigns: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch succeeded, one failed: the second is in a manifest of its own."""
    campaigns.create(campaign(state="enqueued", generation=1))
    monkeypatch.setattr(aws, "stepfunctions", lambda: None)
    monkeypatch.setattr(Executions, "map_run_counts", lambda *_: {"succeeded": 1, "failed": 1})
    lines = [ManifestLine(batch=f"g1-aaaa/{n}", count=2, first_slot=0) for n in range(2)]
    first = keys.manifest("advent", "g1-aaaa")
    s3.put_object(Bucket="bucket", Key=first, Body="".join(f"{x.model_dump_json()}\n" for x in lines).encode())
    prefix = keys.fan_out_results("advent", 1)
    done = {"batch": "g1-aaaa/0", "enrolled": 2, "scheduled": 2, "settled": 0, "refused": 0}
    records = {
        "SUCCEEDED": {"Status": "SUCCEEDED", "Input": '{"batch":"g1-aaaa/0"}', "Output": json.dumps(done)},
        "FAILED": {"Status": "FAILED", "Input": '{"batch":"g1-aaaa/1"}', "Error": "EnrolmentFailed", "Cause": ""},
    }
    files = {}
    for status, record in records.items():
        s3.put_object(Bucket="bucket", Key=f"{prefix}/u/{status}_0.json", Body=json.dumps([record]).encode())
        files[status] = [{"Key": f"{prefix}/u/{status}_0.json", "Size": 1}]
    s3.put_object(Bucket="bucket", Key=f"{prefix}/u/manifest.json", Body=json.dumps({"ResultFiles": files}).encode())
    event = {
        "campaign_id": "advent",
        "generation": 1,
        "map_run": "arn:map",
        "manifest_key": first,
        "results_prefix": prefix,
        "round": 1,
    }
    result = import_module("confirm_fan_out.app").handler(event, CONTEXT)
    assert result["remaining"] == 1
    again = s3.get_object(Bucket="bucket", Key=result["manifest_key"])["Body"].read()
    assert [json.loads(line)["batch"] for line in again.splitlines()] == ["g1-aaaa/1"]


def test_a_shard_is_swept(s3: S3Client, campaigns: CampaignStore, rows: CampaignRows) -> None:
    """The machine's item in, two numbers out."""
    campaigns.create(campaign(state="cancelled", generation=1))
    (row,) = rows.enrol([task("ana@example.com")])
    event = {"campaign_id": "advent", "shard": keys.shard(row.task)}
    assert import_module("cancel_tasks.app").handler(event, CONTEXT) == {"cancelled": 1, "running": 0, "rows": 1}


@pytest.mark.parametrize(
    "event",
    [{"campaign_id": "advent"}, {}, {"version": "0", "source": "aws.events", "detail-type": "Scheduled Event"}],
    ids=["on-demand", "empty", "rule"],
)
def test_a_reconcile_answers_to_the_rule_and_on_demand(
    s3: S3Client,
    campaigns: CampaignStore,
    rows: CampaignRows,
    event: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was lost is planned again from its batch's file, and the answer says so."""
    created: list[Schedule] = []
    monkeypatch.setattr(aws, "sqs", lambda: None)
    monkeypatch.setattr(aws, "scheduler", lambda: None)
    monkeypatch.setattr(aws, "ses", lambda: None)
    monkeypatch.setattr(SendQueue, "is_empty", lambda _: True)
    monkeypatch.setattr(Schedules, "ensure_group", lambda *_: None)
    monkeypatch.setattr(Schedules, "create", lambda _, schedule: created.append(schedule) or True)
    slot = int(NOW.timestamp()) - 7200
    campaigns.create(campaign(state="enqueued", generation=1, enrolled=2))
    import_module("enrol_batch.app").handler(
        {"campaign_id": "advent", "generation": 1, **write_batch(s3, 2, slot=slot)}, CONTEXT
    )
    campaigns.transition("advent", CampaignState.ENQUEUED, 1, CampaignState.DISPATCHING, now=NOW)
    answer = import_module("reconcile_tasks.app").handler(event, CONTEXT)
    assert answer == {
        "campaigns": [
            {
                "campaign_id": "advent",
                "pending": 2,
                "running": 0,
                "finished": 0,
                "failed": 0,
                "cancelled": 0,
                "rescheduled": 2,
                "completed": False,
            }
        ]
    }
    assert {schedule.name for schedule in created} == {keys.task_id(0, f"r{n}@example.com") for n in range(2)}
