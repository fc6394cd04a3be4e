"""The items ``ledger#YYYY-MM-DD`` of the Settings table: see `carillon.timing.ledger`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from itertools import batched
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws, clock
from carillon.errors import LedgerConflict

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from carillon.timing.ledger import Day

KEPT = 40 * 86_400
"""Seconds that a day's item outlives its day: long enough to look up what was planned for it."""

_AT_ONCE = 100
"""Keys of a BatchGetItem (botocore's model: KeyList has 1 to 100)."""
_ROUNDS = 10


class LedgerTable:
    """`carillon.timing.ledger.Ledger` on DynamoDB."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        self._table = table
        self._client = client or aws.dynamodb()

    def read(self, days: Iterable[date]) -> list[Day]:
        """Those days, consistently; one without an item has version 0.

        Raises:
            TimeoutError: DynamoDB leaves keys unprocessed.
        """
        from carillon.timing.ledger import Day  # here, for numpy comes with it, and who only gives back has none

        by_name = {_name(day): Day(day, 0, {}) for day in days}
        for names in batched(by_name, _AT_ONCE, strict=False):
            for item in self._items(names):
                day = by_name[item["name"]["S"]].day
                takers = {taker: entry["B"] for taker, entry in item["takers"]["M"].items()}
                by_name[item["name"]["S"]] = Day(day, int(item["version"]["N"]), takers)
        return list(by_name.values())

    def _items(self, names: Iterable[str]) -> Iterable[dict[str, Any]]:
        wanted: Any = {self._table: {"Keys": [{"name": {"S": name}} for name in names], "ConsistentRead": True}}
        for attempt in range(_ROUNDS):
            if attempt:
                clock.sleep(0.05 * 2**attempt)
            answer = self._client.batch_get_item(RequestItems=wanted)
            yield from answer["Responses"].get(self._table, ())
            wanted = answer.get("UnprocessedKeys")  # also what is beyond an answer's 16 MB
            if not wanted:
                return
        raise TimeoutError("DynamoDB leaves days of the ledger unread: try again")

    def take(self, campaign_id: str, day: Day, entry: bytes | None) -> None:
        """See `carillon.timing.ledger.Ledger.take`. A lost reply looks like a conflict, and then all is planned
        anew."""
        values: dict[str, Any] = {
            ":next": {"N": str(day.version + 1)},
            ":expiry": {
                "N": str(int(datetime(day.day.year, day.day.month, day.day.day, tzinfo=UTC).timestamp()) + KEPT)
            },
        }
        names = {"#version": "version"}
        sets, removes = "#version = :next, expires_at = :expiry", ""
        if day.version:
            condition = "#version = :seen"
            values[":seen"] = {"N": str(day.version)}
            names |= {"#takers": "takers", "#taker": campaign_id}
            if entry is None:
                removes = " REMOVE #takers.#taker"
            else:
                sets += ", #takers.#taker = :entry"
                values[":entry"] = {"B": entry}
        else:
            condition = "attribute_not_exists(#version)"
            names["#takers"] = "takers"
            sets += ", #takers = :takers"
            values[":takers"] = {"M": {} if entry is None else {campaign_id: {"B": entry}}}
        try:
            self._client.update_item(
                TableName=self._table,
                Key={"name": {"S": _name(day.day)}},
                UpdateExpression=f"SET {sets}{removes}",
                ConditionExpression=condition,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            raise LedgerConflict(
                f"other campaigns keep taking capacity of {day.day} while this one is planned: launch again"
            ) from None

    def give_back(self, campaign_id: str, days: Iterable[date]) -> None:
        """See `carillon.timing.ledger.Ledger.give_back`. The version stays: who plans with too much taken plans
        safely."""
        for day in days:
            try:
                self._client.update_item(
                    TableName=self._table,
                    Key={"name": {"S": _name(day)}},
                    UpdateExpression="REMOVE #takers.#taker",
                    ConditionExpression="attribute_exists(#takers.#taker)",  # else it would make an item
                    ExpressionAttributeNames={"#takers": "takers", "#taker": campaign_id},
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                continue


def _name(day: date) -> str:
    return f"ledger#{day.isoformat()}"
