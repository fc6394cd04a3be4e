"""Messages of the send queue, opened: what they say, and what the tables say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from carillon import keys
from carillon.addresses import canonical
from carillon.delivery.claims import TaskKey
from carillon.shapes import Campaign, Message, Task


@dataclass(frozen=True)
class Record:
    """One message as the queue hands it out."""

    message_id: str
    receipt: str
    body: str
    receives: int
    first_received: datetime
    """Aware."""


@dataclass(eq=False)
class Envelope:
    """One message, and what has been learnt about it so far."""

    record: Record
    message: Message
    address_hash: str
    campaign: Campaign = field(init=False)
    """As it was when its batch began: set before anything else is asked of the envelope."""
    row: Task | None = None
    next_row: Task | None = None
    """The row of the step that waits for this one, if there is one."""
    suppression: str | None = None
    """Why the address is not to be mailed, if it is not."""
    enriched: Mapping[str, Any] = field(default_factory=dict)
    """What the campaign's function says about the recipient."""

    @property
    def task_key(self) -> TaskKey:
        """Campaign and task."""
        return self.message.campaign, self.message.task


def open_record(record: Record) -> Envelope | str:
    """The message in ``record``, or the reason why there is none; no value of it is in the reason."""
    try:
        message = Message.model_validate_json(record.body)
    except ValidationError as error:
        wrong = "; ".join(f"{_field(e['loc'])}: {e['type']}" for e in error.errors(include_input=False)[:5])
        return f"MalformedMessage: {wrong}"
    # The row of this task was made for an address that was found good: whatever has its hash needs no second check.
    person = canonical(message.to)
    if message.task != keys.task_id(message.step, person):
        return "MalformedMessage: task is not that of step and to"
    return Envelope(record, message, keys.address_hash(person))


def _field(loc: tuple[int | str, ...]) -> str:
    """Which field of `Message`; what somebody else called a field may be an address."""
    name = str(loc[0]) if loc else "body"
    return name if name in Message.model_fields else "unknown field"
