"""SES's events as it publishes them: one JSON document each, times in ISO 8601 with milliseconds and a Z."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple


class EventType(NamedTuple):
    """The names of one kind of event: in MatchingEventTypes, of the member that holds its details, and as
    EventBridge's detail-type (EventBridge's reference, "Amazon Simple Email Service events")."""

    matching: str
    member: str
    detail_type: str


# By eventType on the wire.
EVENT_TYPES = {
    "Send": EventType("SEND", "send", "Email Sent"),
    "Delivery": EventType("DELIVERY", "delivery", "Email Delivered"),
    "Bounce": EventType("BOUNCE", "bounce", "Email Bounced"),
    "Complaint": EventType("COMPLAINT", "complaint", "Email Complaint Received"),
    "Reject": EventType("REJECT", "reject", "Email Rejected"),
    "Open": EventType("OPEN", "open", "Email Opened"),
    "Click": EventType("CLICK", "click", "Email Clicked"),
    "DeliveryDelay": EventType("DELIVERY_DELAY", "deliveryDelay", "Email Delivery Delayed"),
    "Rendering Failure": EventType("RENDERING_FAILURE", "failure", "Email Rendering Failed"),
}
# SES's developer guide: what is beyond 10 KB of headers is cut off.
_MAX_HEADER_BYTES = 10_240
OUTGOING_IP = "198.51.100.7"


@dataclass(frozen=True)
class Accepted:
    """A message that SES took, as its events describe it. ``headers`` is None when nothing was rendered."""

    message_id: str
    at: float
    source: str
    source_arn: str
    account_id: str
    destination: tuple[str, ...]
    tags: Mapping[str, list[str]]
    configuration_set: str | None
    headers: tuple[tuple[str, str], ...] | None = None
    common: Mapping[str, Any] | None = None

    @property
    def configuration_set_arn(self) -> str:
        """In whose name events are published: what a role's trust policy may ask for as ``aws:SourceArn``."""
        return f"{self.source_arn.rpartition(':')[0]}:configuration-set/{self.configuration_set}"


@dataclass(frozen=True)
class Happening:
    """What happens to a message at ``at`` (epoch seconds): an event type and its details."""

    at: float
    event_type: str
    message: Accepted
    details: Mapping[str, Any]
    # Whether another mail server was spoken to, which SES shows as ``ses:outgoing-ip``.
    over_smtp: bool = False


def timestamp(epoch: float) -> str:
    """``epoch`` as SES writes it: ``2026-03-14T09:00:01.214Z``."""
    at = datetime.fromtimestamp(epoch, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def document(happening: Happening) -> dict[str, Any]:
    """The event's JSON document."""
    kind = happening.event_type
    with_headers = kind not in ("DeliveryDelay", "Rendering Failure")
    return {
        "eventType": kind,
        "mail": _mail(happening.message, with_headers, happening.over_smtp),
        EVENT_TYPES[kind].member: happening.details,
    }


def record(happening: Happening) -> bytes:
    """The event as one Firehose record: SES ends each with a newline itself."""
    return json.dumps(document(happening), separators=(",", ":")).encode() + b"\n"


def bus_event(happening: Happening) -> dict[str, Any]:
    """The event as it appears on the account's default event bus."""
    return {
        "source": "aws.ses",
        "detail-type": EVENT_TYPES[happening.event_type].detail_type,
        "time": datetime.fromtimestamp(happening.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resources": [happening.message.configuration_set_arn],
        "detail": document(happening),
    }


def _mail(message: Accepted, with_headers: bool, over_smtp: bool) -> dict[str, Any]:
    tags = dict(message.tags)
    if over_smtp:
        tags["ses:outgoing-ip"] = [OUTGOING_IP]
    mail: dict[str, Any] = {
        "timestamp": timestamp(message.at),
        "source": message.source,
        "sourceArn": message.source_arn,
        "sendingAccountId": message.account_id,
        "messageId": message.message_id,
        "destination": list(message.destination),
        "headersTruncated": False,
    }
    if with_headers and message.headers is not None:
        kept, size = [], 0
        for name, value in message.headers:
            size += len(name) + len(value)
            if size > _MAX_HEADER_BYTES:
                mail["headersTruncated"] = True
                break
            kept.append({"name": name, "value": value})
        mail["headers"] = kept
        mail["commonHeaders"] = message.common
    mail["tags"] = tags
    return mail
