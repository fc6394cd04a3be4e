"""The Suppressions table as MiniStack's DynamoDB keeps it, a key ring, and an archive that remembers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from campaign_api import app as api_app
from carillon import keys
from carillon.adapters import clock
from carillon.adapters.suppressions import SuppressionTable
from carillon.consent.unsubscribing import KeyRing, Unsubscribing
from tests.unit.lifecycle.conftest import empty_tables
from unsubscribe import app

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

NOW = datetime(2026, 11, 29, 8, 0, tzinfo=UTC)
ANA = keys.address_hash("ana@example.com")
TASK = keys.task_id(1, "ana@example.com")
FIRST = "k" * 64
SECOND = "n" * 64


@dataclass
class Ring:
    """A key ring that is rotated by giving it another secret."""

    secret: str = json.dumps({"1": FIRST})

    def ring(self) -> KeyRing:
        return KeyRing.parse(self.secret)

    def reread(self) -> KeyRing:
        return self.ring()


@dataclass
class Archive:
    """Remembers events; refuses as often as it is told to."""

    events: list[Mapping[str, Any]] = field(default_factory=list)
    refusals: int = 0

    def archive(self, event: Mapping[str, Any]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TimeoutError("ana@example.com could not be archived")
        self.events.append(event)


def make_table() -> DynamoDBClient:
    client = empty_tables()
    client.create_table(
        TableName="Suppressions",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "address_hash", "KeyType": "HASH"},
            {"AttributeName": "topic", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("address_hash", "topic")],
    )
    return client


@pytest.fixture
def dynamodb() -> DynamoDBClient:
    """A client of empty tables."""
    return make_table()


@pytest.fixture
def table(dynamodb: DynamoDBClient) -> SuppressionTable:
    """The empty list."""
    return SuppressionTable("Suppressions", dynamodb, sleep=lambda seconds: None)


@dataclass
class Site:
    """The unsubscribe function, called with events of the HTTP API's payload 2.0."""

    ring: Ring
    archive: Archive
    table: SuppressionTable

    def __call__(
        self,
        method: str,
        token: str,
        body: str | None = None,
        *,
        headers: Mapping[str, str] = {},
        query: Mapping[str, str] = {},
        encoded: bool = False,
    ) -> dict[str, Any]:
        event = {
            "version": "2.0",
            "routeKey": "ANY /u/{token}",
            "rawPath": f"/u/{token}",
            "rawQueryString": "&".join(f"{name}={text}" for name, text in query.items()),
            "queryStringParameters": dict(query),
            "headers": dict(headers),
            "pathParameters": {"token": token},
            "requestContext": {"http": {"method": method, "path": f"/u/{token}"}, "stage": "$default"},
            "body": body,
            "isBase64Encoded": encoded,
        }
        answer: dict[str, Any] = app.handler(event, CONTEXT)
        return answer

    def rows(self) -> list[tuple[str, str]]:
        return [(row.address_hash, row.topic) for page in self.table.every() for row in page]


CONTEXT: Any = SimpleNamespace(
    function_name="unsubscribe", memory_limit_in_mb=256, invoked_function_arn="arn", aws_request_id="request"
)


@pytest.fixture
def site(table: SuppressionTable, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The public pages over an empty list."""
    made = Site(Ring(), Archive(), table)
    monkeypatch.setattr(app, "_unsubscribing", lambda: Unsubscribing(made.ring, table, made.archive))
    monkeypatch.setattr(clock, "epoch", NOW.timestamp)
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What the function logs, its own words and the domain's."""
    written = StringIO()
    for handler in {*app.logger.handlers, *api_app.logger.handlers, *logging.getLogger("carillon").handlers}:
        if isinstance(handler, logging.StreamHandler):
            monkeypatch.setattr(handler, "stream", written)
    return written
