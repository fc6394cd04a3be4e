"""Unsubscribing: the signed links in e-mails, and what happens when somebody uses one.

A link says who may be unsubscribed from what, and nothing else: it carries no address, needs no log-in (RFC 8058) and
works for as long as its key is in the ring, whatever has become of the campaign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from carillon import keys
from carillon.consent.suppressions import EVERY_TOPIC, Suppression
from carillon.errors import CarillonError
from carillon.shapes import CampaignId, Shape, TopicName, instant

_log = logging.getLogger(__name__)

PATH = "/u/"
"""Of the HTTP API: what follows is the token."""

_VERSION = 1
_MAC = 16
"""Bytes kept of HMAC-SHA256: half of it, and RFC 2104 (section 5) asks for no more."""
_HASH = 32
_SHORTEST_KEY = 32
"""Characters. The deployment makes keys of 64 letters and digits, which is more than HMAC-SHA256 can use."""
_LATEST_KEY = 2**16 - 1
_LONGEST = 300
"""Characters; the longest token (campaign id of 40, topic of 64) has 211."""
_LETTERS = re.compile(r"[A-Za-z0-9_-]+")


class KeysUnusable(CarillonError):
    """The secret does not hold a key ring."""


class InvalidToken(CarillonError):
    """A token that this stack never gave, or whose key has been taken out of the ring."""


@dataclass(frozen=True)
class KeyRing:
    """Keys by number. The highest signs; all of them verify, so that a rotation breaks no link."""

    keys: Mapping[int, bytes]

    @classmethod
    def parse(cls, secret: str) -> KeyRing:
        """The secret's value: a JSON object of keys by number, ``{"1": "…", "2": "…"}``.

        Raises:
            KeysUnusable: it is something else; the message does not quote it.
        """
        try:
            found = {int(number): str(key).encode() for number, key in json.loads(secret).items()}
        except (ValueError, AttributeError):
            found = {}
        if not found or not all(0 < n <= _LATEST_KEY and len(key) >= _SHORTEST_KEY for n, key in found.items()):
            raise KeysUnusable(
                'the secret of unsubscribe links must be a JSON object of keys by number, {"1": "…", "2": "…"}, each '
                f"of at least {_SHORTEST_KEY} characters: put its previous version back"
            )
        return cls(found)


class Keys(Protocol):
    """The port to the key ring (`carillon.adapters.secrets.UnsubscribeKeys`)."""

    def ring(self) -> KeyRing:
        """The ring, as it was at most some minutes ago."""
        ...

    def reread(self) -> KeyRing:
        """The ring as it is now, or was seconds ago: asked for when a token names a key that is not known."""
        ...


class Unsubscription(Shape):
    """What a token says: who (by hash) may be unsubscribed from what, and which e-mail it was in."""

    campaign_id: CampaignId
    task: str
    topic: TopicName
    address_hash: str

    @property
    def step(self) -> int:
        """Which of the campaign's e-mails, counted from 1."""
        return int(self.task.partition("-")[0])


def sign(ring: KeyRing, campaign_id: str, task: str, topic: str, address_hash: str) -> str:
    """The token: URL-safe ASCII of at most 211 characters. ``task`` is this address's (`carillon.keys.task_id`)."""
    step, _, digits = task.partition("-")
    if address_hash[: keys.DIGITS] != digits:
        raise ValueError("the task is another address's")
    number = max(ring.keys)
    campaign = campaign_id.encode()
    head = bytes((_VERSION, number >> 8, number & 0xFF, int(step), len(campaign)))
    said = b"".join((head, campaign, bytes.fromhex(address_hash), topic.encode()))
    return base64.urlsafe_b64encode(said + _mac(ring.keys[number], said)).rstrip(b"=").decode()


def read(token: str, known: Keys) -> Unsubscription:
    """What ``token`` says, if one of our keys has signed exactly that.

    Raises:
        InvalidToken: it was not signed by us; the message says no more than that.
    """
    said, mac = _parts(token)
    number = int.from_bytes(said[1:3])
    key = known.ring().keys.get(number) or known.reread().keys.get(number)
    # Compared also when there is no such key, so that the time taken does not say which numbers there are.
    right = hmac.compare_digest(_mac(key or b"\0", said), mac)
    if key is None or not right:
        raise InvalidToken("the link is not one of ours")
    step, end = said[3], 5 + said[4]
    address_hash = said[end : end + _HASH].hex()
    return Unsubscription(
        campaign_id=said[5:end].decode(),
        task=f"{step}-{address_hash[: keys.DIGITS]}",
        topic=said[end + _HASH :].decode(),
        address_hash=address_hash,
    )


def _mac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, b"carillon unsubscribe\0" + said, "sha256")[:_MAC]


def _parts(token: str) -> tuple[bytes, bytes]:
    """What is said, and its MAC; `InvalidToken` unless the token is spelt as `sign` spells it."""
    if len(token) <= _LONGEST and _LETTERS.fullmatch(token):
        try:
            whole = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except binascii.Error:
            whole = b""
        # The last character has bits that say nothing: one spelling alone is ours.
        spelt = base64.urlsafe_b64encode(whole).rstrip(b"=").decode()
        if spelt == token and whole[0] == _VERSION and len(whole) > 5 + _HASH + _MAC:
            return whole[:-_MAC], whole[-_MAC:]
    raise InvalidToken("the link is not one of ours")


@dataclass(frozen=True)
class Links:
    """The links that e-mails carry. ``api_url`` is the HTTP API's, without a slash at its end."""

    api_url: str
    keys: Keys

    def unsubscribe(self, campaign_id: str, task: str, topic: str, address_hash: str) -> str:
        """The link for the e-mail ``task``: for `{{ unsubscribe_url }}` and for `List-Unsubscribe`."""
        return f"{self.api_url}{PATH}{sign(self.keys.ring(), campaign_id, task, topic, address_hash)}"


# What a POST does


class Suppressions(Protocol):
    """The port to the suppression list (`carillon.adapters.suppressions.SuppressionTable`)."""

    def put_first(self, suppression: Suppression) -> Suppression:
        """Put if absent; the row that is there now."""
        ...

    def mark_archived(self, suppression: Suppression) -> None:
        """Note that the archive has the event."""
        ...


class Archive(Protocol):
    """The port to the archive of events (`carillon.adapters.archive.EventArchive`)."""

    def archive(self, event: Mapping[str, Any]) -> None:
        """Hand over one event; once that returns it is durable."""
        ...


@dataclass(frozen=True)
class Unsubscribing:
    """What the links lead to."""

    keys: Keys
    suppressions: Suppressions
    archive: Archive

    def look(self, token: str) -> Unsubscription:
        """What the token would do. Nothing happens.

        Raises:
            InvalidToken: it is not ours.
        """
        return read(token, self.keys)

    def act(self, token: str, *, everything: bool, one_click: bool, now: datetime) -> Unsubscription:
        """Unsubscribe the token's address from its topic, or from ``everything``; again is fine and changes nothing.

        The row comes first: once this returns, nobody is mailed. Its event is written until the row says that the
        archive has it, so a POST that is repeated mends an archive that failed; with the row's own time and an id
        made from it, for the queries to take two of them for one.

        Raises:
            InvalidToken: it is not ours.
        """
        said = read(token, self.keys)
        asked = Suppression(
            address_hash=said.address_hash,
            topic=EVERY_TOPIC if everything else said.topic,
            reason="one_click" if one_click else "unsubscribed",
            at=instant(now),
            campaign=said.campaign_id,
            task=said.task,
        )
        row = self.suppressions.put_first(asked)
        ours = (row.campaign, row.task) == (asked.campaign, asked.task)
        if ours and not row.archived:
            try:
                self.archive.archive(event(row))
                self.suppressions.mark_archived(row)
            except Exception as error:
                _log.error("unsubscribed, but the event is not archived", extra={"error": type(error).__name__})
        return said


def event(row: Suppression) -> dict[str, Any]:
    """The unsubscription as a record of the archive, in the form of SES's events: what SES itself never says.

    ``messageId`` is no SES id: it is made from the row, so that the same unsubscription twice is one.
    """
    assert row.campaign is not None
    assert row.task is not None
    digest = hashlib.sha256(f"{row.campaign}#{row.task}#{row.topic}#{row.at}".encode()).hexdigest()[:32]
    timestamp = row.at.removesuffix("Z") + ".000Z"
    step = row.task.partition("-")[0]
    return {
        "eventType": "Unsubscribe",
        "mail": {
            "timestamp": timestamp,
            "messageId": f"unsubscribe-{digest}",
            "destination": [],
            "tags": {"campaign": [row.campaign], "task": [row.task], "step": [step]},
        },
        "unsubscribe": {"timestamp": timestamp, "topic": row.topic, "source": row.reason},
    }
