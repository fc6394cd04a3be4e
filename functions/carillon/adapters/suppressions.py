"""The Suppressions table: hashes of addresses, never the addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from carillon.adapters import aws, clock, statements
from carillon.adapters.items import from_item, to_item, value
from carillon.consent.suppressions import Suppression
from carillon.shapes import instant

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import BatchStatementRequestTypeDef

_CALLS_AT_ONCE = 8


def key(address_hash: str, topic: str) -> dict[str, dict[str, str]]:
    """The primary key of one suppression."""
    return {"address_hash": {"S": address_hash}, "topic": {"S": topic}}


def key_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Address hash and topic of an item."""
    return item["address_hash"]["S"], item["topic"]["S"]


class SuppressionTable:
    """`carillon.consent.suppressions.Suppressions` and `carillon.consent.unsubscribing.Suppressions` on DynamoDB.

    PartiQL batches for many: BatchWriteItem knows no condition, and the first row of a person is to stay.
    """

    def __init__(
        self, table: str, client: DynamoDBClient | None = None, sleep: Callable[[float], None] = clock.sleep
    ) -> None:
        self._table = table
        self._client = client or aws.dynamodb()
        self._sleep = sleep

    def add(self, address_hash: str, topic: str, reason: str, now: datetime) -> None:
        """Suppress an address (`carillon.keys.address_hash`) for ``topic``; again is fine."""
        self.put_first(Suppression(address_hash, topic, reason, instant(now)))

    def put_first(self, suppression: Suppression) -> Suppression:
        """Put if absent; the row that is there now."""
        try:
            self._client.put_item(
                TableName=self._table,
                Item=_item(suppression),
                ConditionExpression="attribute_not_exists(address_hash)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            # A lost reply's retry finds its own row, and that is an answer as good as the first.
            return _suppression(error.response["Item"])  # type: ignore[typeddict-item]  # botocore adds it to this error
        return suppression

    def mark_archived(self, suppression: Suppression) -> None:
        """Note that the archive has the event; a row that was lifted meanwhile does not come back by that."""
        try:
            self._client.update_item(
                TableName=self._table,
                Key=key(suppression.address_hash, suppression.topic),
                UpdateExpression="SET archived = :yes",
                ConditionExpression="attribute_exists(address_hash)",
                ExpressionAttributeValues={":yes": {"BOOL": True}},
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return

    def put_all(self, suppressions: Sequence[Suppression]) -> int:
        """Put each that is absent; how many those were.

        Raises:
            TimeoutError: DynamoDB throttled some for too long; those written stay.
        """
        insert = f'INSERT INTO "{self._table}"'
        codes = self._run([statements.with_item(insert, _item(suppression)) for suppression in suppressions])
        return sum(code != statements.ALREADY_THERE for code in codes)

    def delete_all(self, suppressions: Sequence[tuple[str, str]]) -> int:
        """Delete these (address hash, topic); how many were there.

        Raises:
            TimeoutError: DynamoDB throttled some for too long; those deleted stay so.
        """
        statement = f'DELETE FROM "{self._table}" WHERE "address_hash" = ? AND "topic" = ?'  # noqa: S608  (our table's name)
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            there = list(pool.map(self._exists, suppressions))
        found = [each for each, exists in zip(suppressions, there, strict=True) if exists]
        self._run([{"Statement": statement, "Parameters": [value(part) for part in each]} for each in found])
        return len(found)

    def of(self, address_hash: str) -> list[Suppression]:
        """All of one address, whatever the topic."""
        answer = self._client.query(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression="address_hash = :hash",
            ExpressionAttributeValues={":hash": {"S": address_hash}},
        )
        return [_suppression(item) for item in answer["Items"]]

    def every(self) -> Iterator[list[Suppression]]:
        """The whole table, page by page, in no order."""
        pages = self._client.get_paginator("scan").paginate(TableName=self._table, ConsistentRead=True)
        for page in pages:
            yield [_suppression(item) for item in page["Items"]]

    def _exists(self, of: tuple[str, str]) -> bool:
        answer = self._client.get_item(
            TableName=self._table, Key=key(*of), ConsistentRead=True, ProjectionExpression="topic"
        )
        return "Item" in answer

    def _run(self, requests: Sequence[BatchStatementRequestTypeDef]) -> list[str | None]:
        """Run every statement, several calls at a time: None for each that was done, else why it was not."""
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            batches = pool.map(
                lambda some: statements.run(self._client, some, self._sleep, statements.ALREADY_THERE),
                batched(requests, statements.AT_ONCE, strict=False),
            )
            return [statements.code_of(outcome) for some in batches for outcome in some]


def _item(suppression: Suppression) -> dict[str, Any]:
    values = asdict(suppression)
    if not suppression.archived:
        del values["archived"]
    return to_item(values)


def _suppression(item: Mapping[str, Any]) -> Suppression:
    """Rows that an earlier version or another hand has written may have more, or less."""
    values = from_item(item)
    return Suppression(**({"reason": "unknown", "at": ""} | {n: values[n] for n in _FIELDS if n in values}))


_FIELDS = tuple(field.name for field in fields(Suppression))
