"""The Campaigns table. Whoever writes a state names the state and the generation that it expects."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError
from pydantic import BaseModel

from carillon.adapters import aws
from carillon.adapters.items import from_item, to_item, value
from carillon.errors import CampaignNotFound, CampaignStateConflict, InvalidCursor
from carillon.shapes import Campaign, Problem, instant
from carillon.transitions import CAMPAIGN_TRANSITIONS, LAUNCHABLE, PAUSABLE, CampaignState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_AS_JSON = ("spec", "summary", "plan")
"""Stored as JSON strings: DynamoDB's own maps would lose nothing, but nobody queries inside them."""


class CampaignStore:
    """Campaign records of one stack."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        self._table = table
        self._client = client or aws.dynamodb()

    def get(self, campaign_id: str, *, consistent: bool = True) -> Campaign:
        """The campaign as it is now.

        Raises:
            CampaignNotFound: there is none of that id.
        """
        answer = self._client.get_item(TableName=self._table, Key=_key(campaign_id), ConsistentRead=consistent)
        if "Item" not in answer:
            raise CampaignNotFound(f"there is no campaign {campaign_id!r}: look the id up with GET /campaigns")
        return _campaign(answer["Item"])

    def create(self, campaign: Campaign) -> bool:
        """Put the record if there is none of its id; False when there is, and it stays as it is."""
        record = campaign.model_dump(by_alias=True, mode="json") | {"created_month": campaign.created_at[:7]}
        try:
            self._client.put_item(
                TableName=self._table,
                Item=to_item(_stored(record)),
                ConditionExpression="attribute_not_exists(campaign_id)",
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def transition(
        self,
        campaign_id: str,
        expected: CampaignState | Collection[CampaignState],
        generation: int,
        to: CampaignState,
        *,
        now: datetime,
        execution: str | None = None,
        **changes: Any,
    ) -> Campaign:
        """Go to state ``to`` from one of ``expected`` at ``generation``; ``changes`` are set with it (None removes).

        ``execution``, if given, must be the campaign's newest launch execution (its ARN).

        Raises:
            CampaignStateConflict: someone else decided; ``found`` is what is there.
            ValueError: the table of transitions has no such step.
        """
        states = _states(expected)
        for state in states:
            if to not in CAMPAIGN_TRANSITIONS[state]:
                raise ValueError(f"no campaign goes from {state} to {to}")
        return self._update(campaign_id, states, generation, execution, {"state": to, **changes}, now)

    def record(
        self,
        campaign_id: str,
        expected: CampaignState | Collection[CampaignState],
        generation: int,
        *,
        now: datetime,
        **changes: Any,
    ) -> Campaign:
        """Set ``changes`` (None removes) and leave the state as it is, if it is one of ``expected`` at ``generation``.

        Raises:
            CampaignStateConflict: someone else decided; ``found`` is what is there.
        """
        if "state" in changes:
            raise ValueError("a state is changed by transition() alone")
        return self._update(campaign_id, _states(expected), generation, None, changes, now)

    def record_preparation(
        self, campaign_id: str, generation: int, *, now: datetime, summary: Mapping[str, Any], **first: Any
    ) -> Campaign:
        """Put the ``summary`` of a generation's preparation on the record, once; ``first``: what the campaign's first
        preparation settles (``prepared``, ``enrolled``).

        Returns the campaign as it is then, with the summary of whoever was first.

        Raises:
            CampaignStateConflict: the campaign is not enqueued at this generation any more.
        """
        changes = {**first, "summary": summary, "prepared_generation": generation}
        try:
            return self._update(
                campaign_id, frozenset({CampaignState.ENQUEUED}), generation, None, changes, now,
                also="(attribute_not_exists(#prepared_generation) OR #prepared_generation < :prepared_generation)",
            )  # fmt: skip
        except CampaignStateConflict as conflict:
            found = conflict.found
            ours = found is not None and (found.state, found.generation) == (CampaignState.ENQUEUED, generation)
            if found is None or not ours or found.prepared_generation != generation:
                raise
            return found

    def record_plan(self, campaign_id: str, plan: Mapping[str, Any], *, now: datetime) -> Campaign:
        """Put a dry run's result on the record.

        Raises:
            CampaignStateConflict: the campaign has been launched.
        """
        return self.record(campaign_id, LAUNCHABLE, self.get(campaign_id).generation, now=now, plan=plan)

    def pause(
        self, campaign_id: str, generation: int, paused: bool, *, now: datetime, error: Problem | None = None
    ) -> Campaign:
        """Set or clear the flag that the sender reads; ``error`` says why it paused by itself.

        Raises:
            CampaignStateConflict: the campaign is not in a state that can be paused.
        """
        return self.record(campaign_id, PAUSABLE, generation, now=now, paused=paused, error=error)

    def count(self, campaign_id: str, **deltas: int) -> None:
        """Add to the advisory counters ``finished``, ``failed``, ``cancelled``; a campaign gone by now is left gone."""
        deltas = {name: n for name, n in deltas.items() if n}
        if not deltas:
            return
        try:
            self._client.update_item(
                TableName=self._table,
                Key=_key(campaign_id),
                UpdateExpression="ADD " + ", ".join(f"#{n} :{n}" for n in deltas),
                ConditionExpression="attribute_exists(campaign_id)",
                ExpressionAttributeNames={f"#{n}": n for n in deltas},
                ExpressionAttributeValues={f":{n}": value(d) for n, d in deltas.items()},
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return

    def count_refused(self, campaign_id: str, generation: int, refused: int) -> None:
        """Add a generation's refused schedules to ``failed``, once, however often it is said."""
        try:
            self._client.update_item(
                TableName=self._table,
                Key=_key(campaign_id),
                UpdateExpression="ADD failed :refused SET refused_counted = :generation",
                ConditionExpression="generation = :generation AND "
                "(attribute_not_exists(refused_counted) OR refused_counted < :generation)",
                ExpressionAttributeValues={":refused": value(refused), ":generation": value(generation)},
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return

    def next_attempt(self, seen: Campaign) -> int:
        """The last part of a new execution's name, for a campaign that is as it was ``seen``.

        No other execution has this number, and of two that saw the same only one gets any.

        Raises:
            CampaignStateConflict: it has changed since, or another execution was just started.
            CampaignNotFound: it is gone.
        """
        answer = self._conditional(
            seen.campaign_id,
            "and has changed this very moment, or was asked for twice: read it again",
            UpdateExpression="ADD attempts :one",
            ConditionExpression="#state = :state AND generation = :generation AND attempts = :attempts",
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues={
                ":one": value(1),
                ":state": value(seen.state),
                ":generation": value(seen.generation),
                ":attempts": value(seen.attempts),
            },
        )
        return answer.attempts

    def remember(self, key: str, campaign_id: str, fingerprint: str, expires_at: int) -> tuple[str, str]:
        """Tie an idempotency key to a campaign id and a fingerprint of what was asked; the first tie stands.

        Returns the id and the fingerprint that the key is tied to. ``expires_at`` in epoch seconds.
        """
        name = f"idempotency#{hashlib.sha256(key.encode()).hexdigest()}"
        tie = {"campaign_id": name, "creates": campaign_id, "fingerprint": fingerprint, "expires_at": expires_at}
        try:
            self._client.put_item(
                TableName=self._table,
                Item=to_item(tie),
                ConditionExpression="attribute_not_exists(campaign_id)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            there: Any = error.response.get("Item")
            tie = from_item(there)
        return str(tie["creates"]), str(tie["fingerprint"])

    def by_state(
        self, state: CampaignState, *, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Campaign], str | None]:
        """Campaigns in ``state``, newest first, and the cursor of the next page (None: that was all).

        From an index: it may lag the records by a moment.

        Raises:
            InvalidCursor: the cursor is none of this listing's.
        """
        return self._page("by_state", "state", str(state), limit, cursor)

    def by_created(
        self, month: str, *, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Campaign], str | None]:
        """Campaigns created in ``month`` (``2026-11``, UTC), newest first, and the cursor of the next page."""
        return self._page("by_created", "created_month", month, limit, cursor)

    def _page(
        self, index: str, attribute: str, wanted: str, limit: int, cursor: str | None
    ) -> tuple[list[Campaign], str | None]:
        start: dict[str, Any] = {"ExclusiveStartKey": read_cursor(cursor)} if cursor else {}
        try:
            answer = self._client.query(
                TableName=self._table,
                IndexName=index,
                KeyConditionExpression="#a = :a",
                ExpressionAttributeNames={"#a": attribute},
                ExpressionAttributeValues={":a": {"S": wanted}},
                ScanIndexForward=False,
                Limit=limit,
                **start,
            )
        except ClientError as error:
            # The only part of the request that comes from outside.
            if cursor and error.response["Error"]["Code"] == "ValidationException":
                raise InvalidCursor from None
            raise
        return [_campaign(item) for item in answer["Items"]], write_cursor(answer.get("LastEvaluatedKey"))

    def _update(
        self,
        campaign_id: str,
        states: frozenset[CampaignState],
        generation: int,
        execution: str | None,
        changes: Mapping[str, Any],
        now: datetime,
        also: str = "",
    ) -> Campaign:
        stored = _stored({**changes, "changed_at": instant(now)})
        kept = {name: v for name, v in stored.items() if v is not None}
        removed = [name for name, v in stored.items() if v is None]
        expressions = ["SET " + ", ".join(f"#{n} = :{n}" for n in kept)]
        if removed:
            expressions.append("REMOVE " + ", ".join(f"#{n}" for n in removed))
        expected = {f":expected{i}": value(state) for i, state in enumerate(sorted(states))}
        condition = f"#state IN ({', '.join(expected)}) AND #generation = :expected_generation"
        expected[":expected_generation"] = value(generation)
        names = {f"#{n}": n for n in (*stored, "state", "generation")}
        if execution is not None:
            condition += " AND #execution = :expected_execution"
            expected[":expected_execution"] = value(execution)
            names["#execution"] = "execution"
        if also:
            condition += f" AND {also}"
        return self._conditional(
            campaign_id,
            f"not {' or '.join(sorted(states))} at generation {generation}: someone else decided, read it again",
            UpdateExpression=" ".join(expressions),
            ConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={f":{n}": value(v) for n, v in kept.items()} | expected,
        )

    def _conditional(self, campaign_id: str, otherwise: str, **update: Any) -> Campaign:
        """One conditional update; the campaign after it, or the conflict with the campaign as it was found."""
        try:
            answer = self._client.update_item(
                TableName=self._table,
                Key=_key(campaign_id),
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **update,
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            item: Any = error.response.get("Item")
            if item is None:
                raise CampaignNotFound(f"there is no campaign {campaign_id!r}") from None
            found = _campaign(item)
            raise CampaignStateConflict(
                f"campaign {campaign_id} is {found.state} at generation {found.generation}, {otherwise}", found
            ) from None
        return _campaign(answer["Attributes"])


def write_cursor(key: Mapping[str, Any] | None) -> str | None:
    """DynamoDB's LastEvaluatedKey as text that fits a URL."""
    return None if key is None else base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> dict[str, Any]:
    """The key inside a cursor.

    Raises:
        InvalidCursor: this is none of ours.
    """
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:  # of base64, of UTF-8 or of JSON
        key = None
    if not isinstance(key, dict) or not all(isinstance(v, dict) and set(v) == {"S"} for v in key.values()):
        raise InvalidCursor
    return key


def _key(campaign_id: str) -> dict[str, Any]:
    return {"campaign_id": {"S": campaign_id}}


def _states(expected: CampaignState | Collection[CampaignState]) -> frozenset[CampaignState]:
    return frozenset({expected} if isinstance(expected, CampaignState) else expected)


def _stored(record: Mapping[str, Any]) -> dict[str, Any]:
    plain = {n: v.model_dump(mode="json", by_alias=True) if isinstance(v, BaseModel) else v for n, v in record.items()}
    return {
        n: json.dumps(v, ensure_ascii=False, separators=(",", ":")) if n in _AS_JSON and v is not None else v
        for n, v in plain.items()
    }


def _campaign(item: Mapping[str, Any]) -> Campaign:
    record = from_item(item)
    return Campaign.model_validate({n: json.loads(v) if n in _AS_JSON else v for n, v in record.items()})
