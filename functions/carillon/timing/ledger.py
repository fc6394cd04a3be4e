"""What campaigns have taken of the identity's capacity, minute by minute, so that two plans never take the same.

One item of Settings for each UTC day: for every campaign how many e-mails it plans in which minute, and a version.
A campaign's entry is replaced as a whole and only if nobody has written the day since it was read; so a retry takes
nothing twice, and giving back is removing one's own entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

import numpy as np

from carillon import zones
from carillon.errors import LedgerConflict, PlanRefused
from carillon.timing.curve import Ints

MINUTES = 1_440
_STORED = np.dtype("<u4")

LARGEST_DAY = 390_000
"""Bytes of a day's entries: an item of DynamoDB holds 400 KB (AWS_CONTRACTS 5), names and numbers included.

An entry has 34 bytes where the rate is steady, about 3 KB where every minute is another, and 6 KB at the very most:
thousands of campaigns, 130 or 67.
"""

ATTEMPTS = 8
"""Plans made before giving up: each but the first because somebody else has taken something meanwhile, or because the
one before reached beyond the days that had been read."""

_AHEAD = 100
"""Days read beyond the end of such a plan."""


@dataclass(frozen=True)
class Taken:
    """E-mails by minute (epoch seconds ÷ 60): ``minutes`` in order and once each, ``counts`` above 0."""

    minutes: Ints
    counts: Ints

    def between(self, start: int, end: int) -> int:
        """How many from ``start`` to before ``end`` (epoch seconds, whole minutes)."""
        first, last = np.searchsorted(self.minutes, (-(-start // 60), -(-end // 60)))
        return int(self.counts[first:last].sum())

    def since(self, moment: int) -> Taken:
        """What is from ``moment`` (epoch seconds) on, its minute included."""
        first = int(np.searchsorted(self.minutes, moment // 60))
        return Taken(self.minutes[first:], self.counts[first:])


NOTHING = Taken(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def sent(hours: Mapping[str, int]) -> Taken:
    """The counters of `carillon.timing.pace` as if each hour's e-mails had gone in its last minute: no earlier than
    they did, so that none leaves the last 24 hours too soon."""
    counted = sorted((_last_minute(hour), count) for hour, count in hours.items() if count)
    return Taken(*np.array(counted, dtype=np.int64).reshape(-1, 2).T)


def _last_minute(hour: str) -> int:
    return int(datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC).timestamp()) // 60 + 59


@dataclass(frozen=True)
class Day:
    """One day of the ledger as it was read."""

    day: date
    """UTC."""
    version: int
    """0: there is no item yet."""
    takers: Mapping[str, bytes]
    """By campaign: `encode`."""


class Ledger(Protocol):
    """The port to the ledger (`carillon.adapters.ledger.LedgerTable`)."""

    def read(self, days: Iterable[date]) -> list[Day]:
        """Those days as they are now."""
        ...

    def take(self, campaign_id: str, day: Day, entry: bytes | None) -> None:
        """Make ``entry`` the campaign's entry of that day (None: it has none), and its version one more.

        Raises:
            LedgerConflict: somebody has written the day since ``day`` was read.
        """
        ...

    def give_back(self, campaign_id: str, days: Iterable[date]) -> None:
        """Remove the campaign's entries; those that are not there are fine."""
        ...


def encode(counts: Ints) -> bytes:
    """A day's 1,440 counts as they are stored."""
    return zlib.compress(counts.astype(_STORED).tobytes(), 9)


def decode(entry: bytes) -> Ints:
    """`encode`, undone."""
    return np.frombuffer(zlib.decompress(entry), dtype=_STORED).astype(np.int64)


def by_day(slots: Ints) -> dict[date, Ints]:
    """How many of ``slots`` (epoch seconds; -1: none) lie in which minute of which UTC day."""
    minutes = np.sort(slots[slots >= 0]) // 60
    days, starts = np.unique(minutes // MINUTES, return_index=True)
    return {
        _date(int(day)): np.bincount(minutes[start:end] - day * MINUTES, minlength=MINUTES)
        for day, start, end in zip(days, starts, [*starts[1:], len(minutes)], strict=False)
    }


def others(days: Iterable[Day], campaign_id: str) -> Taken:
    """What all campaigns but this one have taken."""
    minutes, counts = [NOTHING.minutes], [NOTHING.counts]
    for day in sorted(days, key=lambda d: d.day):
        entries = [decode(entry) for taker, entry in day.takers.items() if taker != campaign_id]
        if entries:
            total: Ints = np.sum(entries, axis=0)
            at = np.flatnonzero(total)
            minutes.append(at + _number(day.day) * MINUTES)
            counts.append(total[at])
    return Taken(np.concatenate(minutes), np.concatenate(counts))


def reserve(
    ledger: Ledger, campaign_id: str, days: Sequence[date], cap_zone: str, plan: Callable[[Taken], Ints]
) -> Ints:
    """Plan on what others leave, and take that before anybody else does: the slots that ``plan`` made in the end.

    Days are written in order, each on the condition that nobody has since it was read; a conflict begins anew.
    Also written are the days without a slot that a day of the cap reaches into (``cap_zone``'s is not UTC's), for of
    two campaigns that share a day's cap one has to see the other. What an attempt that broke has left is replaced by
    the next one, or given back.

    Args:
        days: the UTC days that are likely to get a slot, and all on which the campaign may have an entry. Where the
            plan reaches further, those days are read as well, and it is made again.
        plan: given what others have taken, the slots (epoch seconds; -1: none).

    Raises:
        LedgerConflict: others were faster `ATTEMPTS` times.
        PlanRefused: a day has more campaigns than its item can hold; or as ``plan`` raises.
    """
    readable = set(days)
    taken: set[date] = set()
    try:
        for attempt in range(1, ATTEMPTS + 1):
            seen = {day.day: day for day in ledger.read(sorted(readable))}
            slots = plan(others(seen.values(), campaign_id))
            wanted = by_day(slots)
            written = _reached(wanted, cap_zone) | {day for day, read in seen.items() if campaign_id in read.takers}
            if not written <= seen.keys():
                first, last = min(readable | written), max(written)
                readable = {first + timedelta(days=n) for n in range((last - first).days + _AHEAD)}
                continue
            entries = {day: encode(wanted[day]) if day in wanted else None for day in sorted(written)}
            for day, entry in entries.items():
                _check_size(seen[day], campaign_id, entry)
            try:
                for day, entry in entries.items():
                    taken.add(day)
                    ledger.take(campaign_id, seen[day], entry)
            except LedgerConflict:
                if attempt == ATTEMPTS:
                    raise
            else:
                return slots
        raise PlanRefused(
            "others take so much of the identity's capacity that no end of this plan was found: try again"
        )
    except Exception:
        ledger.give_back(campaign_id, sorted(taken))
        raise


def _reached(days: Iterable[date], cap_zone: str) -> set[date]:
    """The UTC days that share a day of ``cap_zone`` with one of ``days``."""
    reached: set[date] = set()
    for day in days:
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        for moment in (start, start + timedelta(days=1, seconds=-1)):
            of_cap = moment.astimezone(zones.get(cap_zone)).date()
            first = zones.to_utc(cap_zone, of_cap, datetime.min.time())
            last = zones.to_utc(cap_zone, of_cap + timedelta(days=1), datetime.min.time()) - 1
            reached |= {_date(first // 86_400), _date(last // 86_400)}
    return reached


def _check_size(day: Day, campaign_id: str, entry: bytes | None) -> None:
    entries = {**day.takers, campaign_id: entry or b""}
    size = sum(len(taker) + len(stored) + 4 for taker, stored in entries.items())  # 3 bytes of overhead, and a type
    if size > LARGEST_DAY:
        raise PlanRefused(
            f"{len(entries):,} campaigns share {day.day}, more than its ledger can hold: plan this one for other days, "
            "or put lists together into fewer campaigns"
        )


def _date(day: int) -> date:
    return date.fromordinal(date(1970, 1, 1).toordinal() + day)


def _number(day: date) -> int:
    return day.toordinal() - date(1970, 1, 1).toordinal()
