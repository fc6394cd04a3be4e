"""Who is not to be mailed: hashes of addresses, never the addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws
from carillon.shapes import instant

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

EVERY_TOPIC = "*"


def key(address_hash: str, topic: str) -> dict[str, dict[str, str]]:
    """The primary key of one suppression."""
    return {"address_hash": {"S": address_hash}, "topic": {"S": topic}}


def key_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Address hash and topic of an item."""
    return item["address_hash"]["S"], item["topic"]["S"]


class SuppressionTable:
    """The Suppressions table."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        self._table = table
        self._client = client or aws.dynamodb()

    def add(self, address_hash: str, topic: str, reason: str, now: datetime) -> None:
        """Suppress an address (`carillon.keys.address_hash`) for ``topic`` or `EVERY_TOPIC`; again is fine."""
        item: dict[str, Any] = key(address_hash, topic)
        self._client.put_item(TableName=self._table, Item={**item, "reason": {"S": reason}, "at": {"S": instant(now)}})

    def hashes(self, topic: str) -> Iterator[str]:
        """All hashes that are suppressed for ``topic`` or for every topic, some perhaps twice, in no order."""
        pages = self._client.get_paginator("scan").paginate(
            TableName=self._table,
            ConsistentRead=True,
            ProjectionExpression="address_hash",
            FilterExpression="topic IN (:topic, :every)",
            ExpressionAttributeValues={":topic": {"S": topic}, ":every": {"S": EVERY_TOPIC}},
        )
        for page in pages:
            for item in page["Items"]:
                yield item["address_hash"]["S"]
