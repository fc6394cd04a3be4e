"""The stack's tables as MiniStack's DynamoDB keeps them, called in this process and without a socket.

Not moto: PartiQL batches, which enrol and sweep, need per-statement outcomes (`DuplicateItem`, the item of a
failed condition), as botocore's model of BatchExecuteStatement has them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.items import to_item
from carillon.shapes import Campaign, CampaignSpec, Task
from carillon.transitions import CampaignState, TaskStatus
from local.ministack import private

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

tables = private("services.dynamodb")

NOW = datetime(2026, 11, 29, 8, 0, tzinfo=UTC)
# Not the account of a local cloud that other tests of this process may use.
ACCOUNT_ID = "111111111111"

CONTEXT: Any = SimpleNamespace(
    function_name="function",
    memory_limit_in_mb=512,
    invoked_function_arn="arn",
    aws_request_id="request",
    get_remaining_time_in_millis=lambda: 900_000,
)

SPEC = CampaignSpec.model_validate(
    {
        "name": "Advent",
        "from": "Shop <shop@example.com>",
        "topic": "offers",
        "steps": [{"template": "advent.html", "subject": "Hello", "rule": {"kind": "asap"}}],
    }
)


def campaign(**changes: Any) -> Campaign:
    """A campaign just created, with ``changes``."""
    fields: dict[str, Any] = {
        "campaign_id": "advent",
        "spec": SPEC,
        "state": CampaignState.CREATED,
        "created_at": "2026-11-29T08:00:00Z",
        "changed_at": "2026-11-29T08:00:00Z",
        "expires_at": 1_900_000_000,
    }
    return Campaign.model_validate(fields | changes)


def task(address: str, **changes: Any) -> Task:
    """A Pending task of generation 1 due in an hour, with ``changes``."""
    name = keys.task_id(0, address)
    fields: dict[str, Any] = {
        "campaign_id": "advent",
        "task": name,
        "step": 0,
        "address": address,
        "slot": int(NOW.timestamp()) + 3600,
        "status": TaskStatus.PENDING,
        "generation": 1,
        "revision": 0,
        "batch": "g1-aaaa/0",
        "client_token": keys.client_token("advent", changes.get("generation", 1), name, 0),
        "expires_at": 1_900_000_000,
    }
    return Task.model_validate(fields | changes)


def put(client: DynamoDBClient, row: Task) -> None:
    """Write a row as it is, over whatever is there."""
    item = to_item(keys.task_key(row.campaign_id, row.task) | row.model_dump(mode="json"))
    client.put_item(TableName="Tasks", Item=item)


class _Raw:
    """What botocore reads a response's body from."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Any:
        yield self._body


def _answer(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
    headers = {name.lower(): v.decode() if isinstance(v, bytes) else v for name, v in request.headers.items()}
    body = request.body or b""
    with private("core.responses").request_scope(ACCOUNT_ID, "eu-central-1"):
        status, answered, content = asyncio.run(
            tables.handle_request("POST", "/", headers, body.encode() if isinstance(body, str) else body, {})
        )
    return AWSResponse(request.url, status, answered, _Raw(content))  # type: ignore[arg-type]


@cache
def _client() -> DynamoDBClient:
    client = boto3.client(
        "dynamodb", region_name="eu-central-1", aws_access_key_id="testing", aws_secret_access_key="testing"
    )
    client.meta.events.register("before-send.dynamodb", _answer)
    return client


def empty_tables() -> DynamoDBClient:
    """Empty tables Campaigns, Tasks and Settings, keyed and indexed as in template.yaml."""
    client = _client()
    for name in client.list_tables()["TableNames"]:
        client.delete_table(TableName=name)
    client.create_table(
        TableName="Campaigns",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "campaign_id", "KeyType": "HASH"}],
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": "S"}
            for name in ("campaign_id", "state", "created_at", "created_month")
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": index,
                "KeySchema": [
                    {"AttributeName": attribute, "KeyType": "HASH"},
                    {"AttributeName": "created_at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
            for index, attribute in (("by_state", "state"), ("by_created", "created_month"))
        ],
    )
    client.create_table(
        TableName="Tasks",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")],
    )
    client.create_table(
        TableName="Settings",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
    )
    return client


@pytest.fixture
def dynamodb() -> DynamoDBClient:
    """A client of empty tables."""
    return empty_tables()


@pytest.fixture
def rows(dynamodb: DynamoDBClient) -> CampaignRows:
    """The rows in the empty table."""
    return CampaignRows("Tasks", dynamodb)


@pytest.fixture
def campaigns(dynamodb: DynamoDBClient) -> CampaignStore:
    """The store over the empty table."""
    return CampaignStore("Campaigns", dynamodb)
