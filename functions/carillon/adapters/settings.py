"""The items ``pace`` and ``sender`` of the Settings table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

from botocore.exceptions import ClientError

from carillon.adapters import aws
from carillon.adapters.items import from_item, to_item
from carillon.timing.pace import Grant, Pace, Refusal, Refused, Reservation, WarmUp, hour_key, reserve

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_KEY = {"name": {"S": "pace"}}
_SENDER = {"name": {"S": "sender"}}
_SETTINGS = ("rate_per_second", "daily_cap", "warm_up", "paused", "max_24_hour_send")
"""What a reservation is conditioned on: a change by anybody makes it fail, and the next attempt obeys."""
_ATTEMPTS = 12
"""Each failed attempt hands back the newest item, so more than a few mean that somebody is changing settings."""

type Item = Mapping[str, Any]
"""An item in DynamoDB's JSON."""


class PaceTable:
    """`carillon.timing.pace.PaceSettings` on DynamoDB. Keeps the item as last seen: a warm sender reserves without a
    read."""

    def __init__(self, client: DynamoDBClient, table: str, zone: ZoneInfo, clock: Callable[[], datetime]) -> None:
        self._client = client
        self._table = table
        self._zone = zone
        self._clock = clock
        self._seen: tuple[str, Item] | None = None
        """The item, and the hour in which it was seen: a counter of an hour gone by is final only then."""

    def read(self) -> Pace:
        """The item, consistently; the defaults where it is missing or incomplete."""
        return _parse(self._client.get_item(TableName=self._table, Key=_KEY, ConsistentRead=True).get("Item", {}))

    def record_quota(self, max_24_hour_send: int) -> None:
        """Note SES's Max24HourSend for the senders, which have no time to ask for it."""
        self._client.update_item(
            TableName=self._table,
            Key=_KEY,
            UpdateExpression="SET max_24_hour_send = :quota",
            ExpressionAttributeValues={":quota": {"N": str(max_24_hour_send)}},
        )

    def reserve(self, wanted: int, *, lead_us: int, last_send_us: int) -> Grant | Refused:
        """See `carillon.timing.pace.reserve`. A refusal always rests on the item as it is now, never on what was seen
        before.

        One write in a warm sender; one more for each time that others or new settings came between.
        """
        fresh = False
        for _ in range(_ATTEMPTS):
            now = self._clock()
            if self._seen is None or self._seen[0] != hour_key(now):
                self._look(now)
                fresh = True
            assert self._seen is not None
            item = self._seen[1]
            plan = reserve(_parse(item), wanted, now, self._zone, lead_us=lead_us, last_send_us=last_send_us)
            if isinstance(plan, Refused):
                if fresh:
                    return plan
                self._seen = None
                continue
            start_us = self._write(plan, item, now)
            if start_us is not None:
                return Grant(start_us, plan.interval_us, plan.count, plan.hour)
            fresh = True
        return Refused(Refusal.BUSY)

    def give_back(self, hour: str, count: int) -> None:
        """See `carillon.timing.pace.PaceSettings.give_back`."""
        self._seen = None
        try:
            self._client.update_item(
                TableName=self._table,
                Key=_KEY,
                UpdateExpression="SET #hours.#hour = #hours.#hour - :count",
                ConditionExpression="#hours.#hour >= :count",
                ExpressionAttributeNames={"#hours": "hours", "#hour": hour},
                ExpressionAttributeValues={":count": {"N": str(count)}},
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return  # forgotten by now, or somebody has made the item anew

    def _look(self, now: datetime) -> None:
        """See the item; make it, or what it lacks, where an operator has written only some settings."""
        item = self._client.get_item(TableName=self._table, Key=_KEY, ConsistentRead=True).get("Item", {})
        if not {"rate_per_second", "daily_cap", "next_free", "hours"} <= item.keys():
            defaults = Pace()
            item = self._client.update_item(
                TableName=self._table,
                Key=_KEY,
                UpdateExpression=(
                    "SET rate_per_second = if_not_exists(rate_per_second, :rate),"
                    " daily_cap = if_not_exists(daily_cap, :cap),"
                    " next_free = if_not_exists(next_free, :zero), #hours = if_not_exists(#hours, :none)"
                ),
                ExpressionAttributeNames={"#hours": "hours"},
                ExpressionAttributeValues={
                    ":rate": {"N": str(defaults.rate_per_second)},
                    ":cap": {"N": str(defaults.daily_cap)},
                    ":zero": {"N": "0"},
                    ":none": {"M": {}},
                },
                ReturnValues="ALL_NEW",
            )["Attributes"]
        self._seen = (hour_key(now), item)

    def _write(self, plan: Reservation, item: Item, now: datetime) -> int | None:
        """Where the slots start, or None: the item has changed, and is seen anew."""
        values: dict[str, Any] = {
            ":earliest": _milliseconds(plan.earliest_us),
            ":count": {"N": str(plan.count)},
            ":most": {"N": str(plan.hour_most)},
            ":nothing": {"N": "0"},
        }
        conditions = ["(attribute_not_exists(#hours.#hour) OR #hours.#hour <= :most)"]
        for name in _SETTINGS:
            if name in item:
                values[f":{name}"] = item[name]
                conditions.append(f"{name} = :{name}")
            else:
                conditions.append(f"attribute_not_exists({name})")
        counted = item["hours"]["M"]
        if plan.previous_hour in counted:
            values[":before"] = counted[plan.previous_hour]
            conditions.append("#hours.#before = :before")
        else:
            conditions.append("attribute_not_exists(#hours.#before)")
        follows = _microseconds(item["next_free"]) >= plan.earliest_us
        if follows:
            values[":latest"] = _milliseconds(plan.latest_us)
            values[":advance"] = _milliseconds(plan.advance_us)
            conditions.append("next_free BETWEEN :earliest AND :latest")
            free = "next_free + :advance"
        else:
            values[":free"] = _milliseconds(plan.earliest_us + plan.advance_us)
            conditions.append("next_free < :earliest")
            free = ":free"
        names = {"#hours": "hours", "#hour": plan.hour, "#before": plan.previous_hour}
        names |= {f"#old{n}": hour for n, hour in enumerate(plan.forget)}
        forget = "".join(f"{',' if n else ' REMOVE'} #hours.#old{n}" for n in range(len(plan.forget)))
        try:
            before = self._client.update_item(
                TableName=self._table,
                Key=_KEY,
                UpdateExpression=(
                    f"SET next_free = {free}, #hours.#hour = if_not_exists(#hours.#hour, :nothing) + :count{forget}"
                ),
                ConditionExpression=" AND ".join(conditions),
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
                ReturnValues="ALL_OLD",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )["Attributes"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            newest = cast("Item | None", error.response.get("Item"))
            self._seen = (hour_key(now), newest) if newest and "hours" in newest else None
            return None
        start_us = _microseconds(before["next_free"]) if follows else plan.earliest_us
        hours = {hour: n for hour, n in before["hours"]["M"].items() if hour not in plan.forget}
        hours[plan.hour] = {"N": str(int(hours.get(plan.hour, {"N": "0"})["N"]) + plan.count)}
        after = before | {"next_free": _milliseconds(start_us + plan.advance_us), "hours": {"M": hours}}
        self._seen = (hour_key(now), after)
        return start_us


class SettingsTable:
    """What an operator sets (`carillon.lifecycle.api.Settings`)."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        self._table = table
        self._client = client or aws.dynamodb()

    def pace(self) -> Pace:
        """The item ``pace``, consistently; the defaults where it is missing or incomplete."""
        return _parse(self._item(_KEY))

    def set_pace(self, rate_per_second: float, daily_cap: int, warm_up: Sequence[WarmUp], paused: bool) -> None:
        """Set these four alone: what senders have reserved and counted is theirs, and stays."""
        values = {":rate": rate_per_second, ":cap": daily_cap, ":paused": paused}
        ramp = [step.model_dump(mode="json") for step in warm_up]
        self._client.update_item(
            TableName=self._table,
            Key=_KEY,
            UpdateExpression="SET rate_per_second = :rate, daily_cap = :cap, warm_up = :ramp, paused = :paused",
            ExpressionAttributeValues=to_item({**values, ":ramp": ramp}),
        )

    def postal_address(self) -> str | None:
        """The sender's postal address; None: nobody has set one."""
        text: str | None = self._item(_SENDER).get("postal_address", {}).get("S")
        return text

    def set_postal_address(self, text: str) -> None:
        """Set it, and nothing beside it."""
        self._client.update_item(
            TableName=self._table,
            Key=_SENDER,
            UpdateExpression="SET postal_address = :text",
            ExpressionAttributeValues={":text": {"S": text}},
        )

    def _item(self, key: Mapping[str, Any]) -> Item:
        return self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True).get("Item", {})


def _parse(item: Item) -> Pace:
    return Pace.model_validate(from_item(item))


def _milliseconds(us: int) -> dict[str, str]:
    """Microseconds as DynamoDB's number of milliseconds, exactly."""
    return {"N": str(Decimal(us) / 1000)}


def _microseconds(milliseconds: Mapping[str, Any]) -> int:
    return int(Decimal(milliseconds["N"]) * 1000)
