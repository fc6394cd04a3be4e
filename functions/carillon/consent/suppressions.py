"""Who is not to be mailed, about what and why: hashes of addresses alone, for no address is kept.

A topic is a campaign's (`CampaignSpec.topic`), `EVERY_TOPIC`, or `exits` of one campaign: who is on that list gets none
of its e-mails any more. The first row of an address and topic stays as it is, whoever comes later with another reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol

from pydantic import Field

from carillon import keys
from carillon.addresses import canonical, judge
from carillon.shapes import Shape, instant

EVERY_TOPIC = "*"
MOST_ADDRESSES = 1000
"""Of one call; more go through an import."""


def exits(campaign_id: str) -> str:
    """The topic of one campaign's exit list. No campaign's own topic has a dot."""
    return f"campaign.{campaign_id}"


@dataclass(frozen=True)
class Suppression:
    """A row of Suppressions: who, about what, why and since when; and by the link of which e-mail, if by one."""

    address_hash: str
    topic: str
    reason: str
    at: str
    campaign: str | None = None
    task: str | None = None
    archived: bool = False
    """Whether the archive has the event of it."""


class Suppressions(Protocol):
    """The port to the table (`carillon.adapters.suppressions.SuppressionTable`)."""

    def put_all(self, suppressions: Sequence[Suppression]) -> int:
        """Put each that is absent; how many those were."""
        ...

    def delete_all(self, suppressions: Sequence[tuple[str, str]]) -> int:
        """Delete these (address hash, topic); how many were there."""
        ...

    def of(self, address_hash: str) -> list[Suppression]:
        """All of one address, whatever the topic."""
        ...


Topic = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9_-]{1,64})$")]
Reason = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}$")]
Address = Annotated[str, Field(max_length=400)]
Addresses = Annotated[tuple[Address, ...], Field(min_length=1, max_length=MOST_ADDRESSES)]


class Suppress(Shape):
    """Addresses that are not to be mailed about ``topic``."""

    addresses: Addresses
    topic: Topic = EVERY_TOPIC
    reason: Reason


class Lift(Shape):
    """Addresses that may be mailed about ``topic`` again. `EVERY_TOPIC` is a row of its own, beside the topics'."""

    addresses: Addresses
    topic: Topic = EVERY_TOPIC


class Exit(Shape):
    """Addresses that leave a campaign."""

    addresses: Addresses


class Lookup(Shape):
    """Addresses that are asked about."""

    addresses: Annotated[Addresses, Field(max_length=100)]


class Changed(Shape):
    """What a call did. ``invalid``: positions in ``addresses``, from 0, of what is no address."""

    changed: int
    unchanged: int
    """Suppressed, or not suppressed, already; the same address twice is one and then this."""
    invalid: list[int]


class Entry(Shape):
    """One suppression of an address that was asked about; ``address``: its position, from 0."""

    address: int
    topic: str
    reason: str
    at: str


class Entries(Shape):
    """What suppresses the addresses that were asked about; who is in no entry may be mailed."""

    entries: list[Entry]
    invalid: list[int]


class SuppressionList:
    """The list, as an operator changes it."""

    def __init__(self, suppressions: Suppressions) -> None:
        self._suppressions = suppressions

    def suppress(self, asked: Suppress, now: datetime) -> Changed:
        """Suppress them; what is suppressed already keeps its reason."""
        return self._add(asked.addresses, asked.topic, asked.reason, now)

    def leave(self, campaign_id: str, asked: Exit, now: datetime) -> Changed:
        """Put them on the campaign's exit list: the sender fails what they would still get as Suppressed."""
        return self._add(asked.addresses, exits(campaign_id), "exit", now)

    def lift(self, asked: Lift) -> Changed:
        """Take back the suppressions of exactly that topic."""
        hashes, invalid = _hashes(asked.addresses)
        lifted = self._suppressions.delete_all([(each, asked.topic) for each in dict.fromkeys(hashes.values())])
        return Changed(changed=lifted, unchanged=len(hashes) - lifted, invalid=invalid)

    def look_up(self, asked: Lookup) -> Entries:
        """Every suppression of these addresses."""
        hashes, invalid = _hashes(asked.addresses)
        entries = [
            Entry(address=position, topic=row.topic, reason=row.reason, at=row.at)
            for position, address_hash in hashes.items()
            for row in self._suppressions.of(address_hash)
        ]
        return Entries(entries=entries, invalid=invalid)

    def _add(self, addresses: Iterable[str], topic: str, reason: str, now: datetime) -> Changed:
        hashes, invalid = _hashes(addresses)
        rows = [Suppression(each, topic, reason, instant(now)) for each in dict.fromkeys(hashes.values())]
        added = self._suppressions.put_all(rows)
        return Changed(changed=added, unchanged=len(hashes) - added, invalid=invalid)


def hash_of(written: str) -> str | None:
    """The hash by which the address in ``written`` is known everywhere; None: there is no address in it."""
    address = judge(written)
    return None if address is None else keys.address_hash(canonical(address))


def _hashes(addresses: Iterable[str]) -> tuple[dict[int, str], list[int]]:
    """Hashes by position, and the positions of what is no address."""
    found = {position: hash_of(written) for position, written in enumerate(addresses)}
    invalid = [position for position, address_hash in found.items() if address_hash is None]
    return {position: address_hash for position, address_hash in found.items() if address_hash is not None}, invalid
