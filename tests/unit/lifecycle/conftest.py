"""The stack's tables, queue and bucket as moto keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from carillon.adapters.campaigns import CampaignStore
from carillon.shapes import Campaign, CampaignSpec
from carillon.transitions import CampaignState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

NOW = datetime(2026, 11, 29, 8, 0, tzinfo=UTC)

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


@pytest.fixture
def dynamodb(monkeypatch: pytest.MonkeyPatch) -> Iterator[DynamoDBClient]:
    """Tables Campaigns and Tasks, keyed and indexed as in template.yaml."""
    for name, value in {
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        client = boto3.client("dynamodb")
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
        yield client


@pytest.fixture
def campaigns(dynamodb: DynamoDBClient) -> CampaignStore:
    """The store over the empty table."""
    return CampaignStore("Campaigns", dynamodb)
