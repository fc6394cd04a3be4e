"""The world around a preparation: moto for S3 and DynamoDB, and fakes on the same ports where nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import count
from typing import Any

import boto3
import moto
import pytest

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.ledger import LedgerTable
from carillon.adapters.objects import Objects
from carillon.adapters.settings import PaceTable
from carillon.adapters.suppressed import SuppressionLookup
from carillon.adapters.suppressions import SuppressionTable
from carillon.content.typesetting import SesTemplate
from carillon.launch.forecast import Quotas
from carillon.launch.preparation import Preparation
from carillon.launch.readiness import Account
from carillon.shapes import BatchLine, Campaign, CampaignSpec, ManifestLine, Prepare, PrepareListResult, Task
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState, TaskStatus
from carillon.zones import get

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
"""A Monday."""
BUCKET = "carillon-test"
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/carillon-send"
TABLES = {
    "campaigns": ["campaign_id"],
    "settings": ["name"],
    "suppressions": ["address_hash", "topic"],
    "tasks": ["pk", "sk"],
}


@cache
def client(service: str) -> Any:
    """A client, made once: that takes longer than most tests. It may outlive the moto that it was made under."""
    return boto3.client(service)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty account with the stack's bucket (versioned) and tables."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with moto.mock_aws():
        s3 = client("s3")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        dynamodb = client("dynamodb")
        for table, attributes in TABLES.items():
            dynamodb.create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": a, "AttributeType": "S"} for a in attributes],
                KeySchema=[
                    {"AttributeName": a, "KeyType": kind}
                    for a, kind in zip(attributes, ("HASH", "RANGE"), strict=False)
                ],
            )
        yield


class KnownIdentities:
    """Identities that SES knows, and the account."""

    def __init__(self) -> None:
        self.known: dict[str, bool] = {"example.com": True}
        self.of = Account(
            production=True, enabled=True, max_24_hour_send=-1, max_send_rate=1000.0, price_plan="ESSENTIALS"
        )
        self.asked: list[str] = []

    def verified(self, identity: str) -> bool | None:
        """As SES says it."""
        self.asked.append(identity)
        return self.known.get(identity)

    def account(self) -> Account:
        """As it is now."""
        return self.of


class SettledRows:
    """Task rows of which only status, ``waits`` and slot matter; rows that are not there are Pending and unseen."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskStatus] = {}
        self.slots: dict[str, int] = {}
        """Of those that wait no more."""
        self.waiting: set[str] = set()

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        """Like the Tasks table."""
        yield [
            Task(
                campaign_id=campaign_id,
                task=task,
                step=int(task.partition("-")[0]),
                address="x@example.com",
                slot=self.slots.get(task, 0),
                status=status,
                generation=1,
                revision=0,
                batch="g1-aaaa/1",
                waits=task in self.waiting,
                client_token="t",
                expires_at=0,
            )
            for task, status in self.tasks.items()
            if keys.shard(task) == number and (status in statuses or not statuses)
        ]

    def cancel(self, tasks: Sequence[Task]) -> int:
        """Like the Tasks table."""
        for task in tasks:
            self.tasks[task.task] = TaskStatus.CANCELLED
        return len(tasks)

    def enrol(self, wanted: Sequence[Task]) -> list[Task]:
        """Like the Tasks table."""
        for task in wanted:
            self.tasks.setdefault(task.task, task.status)
        return list(wanted)


class KeptTemplates:
    """What SES keeps for direct campaigns."""

    def __init__(self) -> None:
        self.kept: dict[str, SesTemplate] = {}

    def put_template(self, name: str, template: SesTemplate) -> None:
        """Like SES."""
        self.kept[name] = template

    def delete_template(self, name: str) -> None:
        """Like SES."""
        self.kept.pop(name, None)


@dataclass
class World:
    """A stack with one campaign, and what a person would look at afterwards."""

    campaign_id: str = "advent"
    identities: KnownIdentities = field(default_factory=KnownIdentities)
    sending_domain: str = "example.com"
    rows: SettledRows = field(default_factory=SettledRows)
    ses_templates: KeptTemplates = field(default_factory=KeptTemplates)
    postal_address: str | None = "Bell & Sons, 1 Tower Street, Bruges"
    quotas: Quotas = field(default_factory=Quotas)
    now: datetime = NOW

    def __post_init__(self) -> None:
        self.nonces = (f"a{n}" for n in count(1))
        self.campaigns = CampaignStore("campaigns", client("dynamodb"))
        self.objects = Objects(BUCKET, client("s3"))
        self.suppressions = SuppressionTable("suppressions", client("dynamodb"))
        self.ledger = LedgerTable("settings", client("dynamodb"))
        self.pace = PaceTable(client("dynamodb"), "settings", get("UTC"), lambda: self.now)

    def set_pace(self, pace: Pace) -> None:
        """Write the pace item as an operator would."""
        client("dynamodb").put_item(
            TableName="settings",
            Item={
                "name": {"S": "pace"},
                "rate_per_second": {"N": str(pace.rate_per_second)},
                "daily_cap": {"N": str(pace.daily_cap)},
                "warm_up": {"L": [{"M": {"day": {"S": str(w.day)}, "cap": {"N": str(w.cap)}}} for w in pace.warm_up]},
            },
        )

    def campaign(self, **changes: Any) -> None:
        """A campaign enqueued at generation 1; ``changes`` are the spec's."""
        spec: dict[str, Any] = {
            "name": "Advent",
            "from": "Shop <shop@example.com>",
            "topic": "offers",
            "steps": [{"template": "news.html", "subject": "Hi {{ name }}", "rule": {"kind": "asap"}}],
        }
        self.campaigns.create(
            Campaign(
                campaign_id=self.campaign_id,
                spec=CampaignSpec.model_validate(spec | changes),
                state=CampaignState.ENQUEUED,
                generation=1,
                created_at="2026-11-30T09:00:00Z",
                changed_at="2026-11-30T09:00:00Z",
                expires_at=1_900_000_000,
            )
        )

    def upload(self, content: str | bytes, name: str = "list.csv") -> None:
        """What a presigned upload would write."""
        body = content.encode() if isinstance(content, str) else content
        self.objects.put(keys.upload(self.campaign_id, name), body, "text/csv")

    def preparation(self) -> Preparation:
        """PrepareList with everything it needs."""
        return Preparation(
            campaigns=self.campaigns,
            objects=self.objects,
            suppressions=SuppressionLookup("suppressions", client("dynamodb")),
            identities=self.identities,
            pace=self.pace,
            ledger=self.ledger,
            rows=self.rows,
            now=lambda: self.now.timestamp(),
            nonce=lambda: next(self.nonces),
            sending_domain=self.sending_domain,
            queue_url=QUEUE,
            cap_zone="UTC",
            quotas=self.quotas,
            memory_limit="500MB",
            ses_templates=self.ses_templates,
            postal_address=lambda: self.postal_address,
        )

    def prepare(self, generation: int = 1) -> PrepareListResult:
        """Prepare it as the launch would."""
        return self.preparation().prepare(Prepare(campaign_id=self.campaign_id, generation=generation))

    def read(self, key: str) -> str:
        """An object of the campaign's first preparation."""
        prepared = self.campaigns.get(self.campaign_id).prepared
        assert prepared is not None
        content = self.objects.read(keys.preparation(self.campaign_id, prepared) + key)
        assert content is not None, key
        return content.decode()

    def first(self) -> PrepareListResult:
        """What the first preparation found, as it wrote it down."""
        return PrepareListResult.model_validate_json(self.read("summary.json"))

    def lines(self, result: PrepareListResult) -> list[BatchLine]:
        """Every task of a preparation's batches, through its manifest."""
        written = self.objects.read(result.manifest_key) or b""
        manifest = [ManifestLine.model_validate_json(line) for line in written.splitlines()]
        lines: list[BatchLine] = []
        for entry in manifest:
            content = self.objects.read(keys.batch(self.campaign_id, entry.batch))
            assert content is not None
            batch = [BatchLine.model_validate(json.loads(line)) for line in content.decode().splitlines()]
            assert len(batch) == entry.count
            assert batch[0].slot == entry.first_slot
            lines += batch
        return lines


@pytest.fixture
def world(aws: None) -> World:
    """A stack with nothing in it yet."""
    return World()
