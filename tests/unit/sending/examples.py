"""A campaign, its tasks and their messages, as the planner and EnrolBatch make them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from carillon import keys
from carillon.addresses import canonical
from carillon.content.templates import Prepared
from carillon.delivery.envelopes import Record
from carillon.shapes import Campaign, CampaignSpec, Message, Task
from carillon.transitions import CampaignState, TaskStatus

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
"""A Monday, 10 o'clock in Berlin."""

SPEC: dict[str, Any] = {
    "name": "Advent",
    "from": "Glöckner <shop@example.com>",
    "reply_to": "reply@example.com",
    "topic": "offers",
    "steps": [{"template": "advent.html", "subject": "Hello {{ first_name }}", "rule": {"kind": "asap"}}],
}

PREPARED = Prepared(
    subject="Hello {{ first_name }}",
    html="<p>Dear {{ first_name }}</p>",
    text="Dear {{ first_name }}",
    placeholders=("first_name",),
    required=("first_name",),
)


def campaign(spec: dict[str, Any] | None = None, **changes: Any) -> Campaign:
    """One that is dispatching its first generation, with ``changes``."""
    fields: dict[str, Any] = {
        "campaign_id": "advent",
        "spec": CampaignSpec.model_validate(SPEC | (spec or {})),
        "state": CampaignState.DISPATCHING,
        "generation": 1,
        "prepared": "g1-aaaa",
        "created_at": "2026-11-29T08:00:00Z",
        "changed_at": "2026-11-29T08:00:00Z",
        "expires_at": 1_900_000_000,
    }
    return Campaign.model_validate(fields | changes)


def address(n: int) -> str:
    return f"Person.{n}@example.com"


def task(n: int, **changes: Any) -> Task:
    """Person ``n``'s Pending task, due now, with ``changes``."""
    to = address(n)
    fields: dict[str, Any] = {
        "campaign_id": "advent",
        "task": keys.task_id(0, canonical(to)),
        "step": 0,
        "address": to,
        "slot": int(NOW.timestamp()),
        "status": TaskStatus.PENDING,
        "generation": 1,
        "revision": 0,
        "batch": "g1-aaaa/0",
        "client_token": "c",
        "expires_at": 1_900_000_000,
    }
    return Task.model_validate(fields | changes)


def message(n: int, **changes: Any) -> Message:
    """The message of person ``n``'s schedule, with ``changes``."""
    row = task(n)
    fields: dict[str, Any] = {
        "campaign": row.campaign_id,
        "generation": 1,
        "revision": 0,
        "task": row.task,
        "step": 0,
        "to": row.address,
        "slot": row.slot,
        "data": {"first_name": f"Name {n}"},
    }
    return Message.model_validate(fields | changes)


def record(
    content: Message | str, message_id: str = "", *, receives: int = 1, first_received: datetime = NOW
) -> Record:
    """``content`` as the queue hands it out."""
    body = content if isinstance(content, str) else content.model_dump_json()
    message_id = message_id or f"m-{abs(hash(body))}"
    return Record(message_id, f"receipt-{message_id}", body, receives, first_received)
