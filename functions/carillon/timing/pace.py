"""How fast this stack's sending identity may send: settings that planner and sender obey, and the bucket's arithmetic.

One item of Settings holds both the settings (rate, caps, paused) and what has been taken (`next_free`, `hours`).
The sender takes from it with one conditional write; `reserve` says what to write and under which condition, so that
any number of senders at once stay exact. Instants are epoch microseconds (``_us``), days are calendar days of the
stack's zone, hours are keyed in UTC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Protocol
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field

SECOND_US = 1_000_000
HOURS_KEPT = 26
"""The last 24 begun hours overlap 25 counters, and a day of 25 hours (end of summer time) overlaps 26."""
LONGEST_WAIT_US = 10 * SECOND_US
"""A sender waits in place for less than this; a longer wait is the queue's (DESIGN section 5)."""


def hour_key(now: datetime) -> str:
    """The hourly counter that ``now`` (aware) falls into: ``2026112915``, UTC."""
    return now.astimezone(UTC).strftime("%Y%m%d%H")


class WarmUp(BaseModel):
    """What may go on one day of a warm-up ramp."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    day: date
    cap: Annotated[int, Field(ge=0)]


class Pace(BaseModel):
    """The item ``pace`` of Settings. Without an item these defaults hold, and the first reservation creates it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rate_per_second: Annotated[float, Field(gt=0, le=100_000)] = 1.0
    """E-mails a second. Default: what SES allows a new account (sandbox: 1/s, AWS_CONTRACTS 3)."""
    daily_cap: Annotated[int, Field(ge=0)] = 200
    """E-mails a calendar day of the stack's zone. Default: SES's sandbox, 200 in 24 hours."""
    warm_up: tuple[WarmUp, ...] = ()
    """Lower caps for a while: an entry holds from its day until the next entry's; the last one for its day alone."""
    paused: bool = False
    max_24_hour_send: int | None = None
    """SES's Max24HourSend as the newest preparation saw it; -1 is unlimited, None is not known (SES then says no)."""
    next_free: float = 0.0
    """Epoch milliseconds: the first instant that nobody has reserved."""
    hours: dict[str, int] = {}
    """E-mails by `hour_key`; at least the last 24 hours."""

    @property
    def interval_us(self) -> int:
        """From one e-mail to the next, rounded up: never faster than the rate."""
        return math.ceil(SECOND_US / self.rate_per_second)

    @property
    def next_free_us(self) -> int:
        """`next_free` in microseconds."""
        return round(self.next_free * 1000)

    def cap_on(self, day: date) -> int:
        """How many may go on ``day``."""
        ramp = sorted(self.warm_up, key=lambda step: step.day)
        if not ramp or not ramp[0].day <= day <= ramp[-1].day:
            return self.daily_cap
        return min(self.daily_cap, [step.cap for step in ramp if step.day <= day][-1])

    def taken_on(self, day: date, zone: ZoneInfo) -> int:
        """How many have been taken on ``day``; an hour that belongs to two days (a zone at :30) counts in both."""
        start = datetime(day.year, day.month, day.day, tzinfo=zone)
        following = day + timedelta(days=1)
        end = datetime(following.year, following.month, following.day, tzinfo=zone)
        last = end.astimezone(UTC) - timedelta(microseconds=1)
        return self._between(start, last)

    def taken_last_24_hours(self, now: datetime) -> int:
        """How many have been taken in the last 24 hours, the hour that has half left still counted whole."""
        return self._between(now - timedelta(hours=24), now)

    def _between(self, first: datetime, last: datetime) -> int:
        low, high = hour_key(first), hour_key(last)
        return sum(count for hour, count in self.hours.items() if low <= hour <= high)

    def room(self, now: datetime, zone: ZoneInfo) -> int:
        """How many more may go at ``now`` under the day's cap and SES's 24-hour quota."""
        today = now.astimezone(zone).date()
        room = self.cap_on(today) - self.taken_on(today, zone)
        if self.max_24_hour_send is not None and self.max_24_hour_send >= 0:
            room = min(room, self.max_24_hour_send - self.taken_last_24_hours(now))
        return max(room, 0)


class Refusal(StrEnum):
    """Why nothing can be reserved now."""

    PAUSED = "paused"
    OVER_CAP = "over_cap"
    BUSY = "busy"
    """Others have the next seconds, or this invocation has too little time left."""


@dataclass(frozen=True)
class Refused:
    """No slot. ``wait_us`` is how long to stay away where that is known (`Refusal.BUSY`)."""

    why: Refusal
    wait_us: int = 0


@dataclass(frozen=True)
class Reservation:
    """A write that takes ``count`` slots, exact under the conditions that it names.

    ``next_free`` within [``earliest_us``, ``latest_us``]: it moves on by ``advance_us`` and the slots start where it
    was, whatever others have added meanwhile. ``next_free`` below ``earliest_us``: it becomes ``earliest_us`` +
    ``advance_us``. (DynamoDB has no max, hence two branches.) The counter of ``hour`` must be at most ``hour_most``
    before, and that of the hour before must not have changed, for its e-mails were counted when room was found.
    """

    count: int
    interval_us: int
    earliest_us: int
    latest_us: int
    hour: str
    hour_most: int
    previous_hour: str
    forget: tuple[str, ...]
    """Counters too old to matter."""

    @property
    def advance_us(self) -> int:
        """How much time the slots take up."""
        return self.count * self.interval_us


def reserve(
    pace: Pace, wanted: int, now: datetime, zone: ZoneInfo, *, lead_us: int, last_send_us: int
) -> Reservation | Refused:
    """What to write so that up to ``wanted`` slots are taken, as far as ``pace`` shows the item.

    Args:
        pace: the item as last seen, seen in the hour of ``now``.
        wanted: e-mails ready to go, at least 1.
        now: aware.
        zone: whose midnight ends the cap's day.
        lead_us: the first slot is at least this long after ``now``: what it takes until the first e-mail is ready.
        last_send_us: this invocation cannot begin to send any later.
    """
    if pace.paused:
        return Refused(Refusal.PAUSED)
    room = pace.room(now, zone)
    if room == 0:
        return Refused(Refusal.OVER_CAP)
    now_us = epoch_us(now)
    earliest = now_us + lead_us
    start = max(earliest, pace.next_free_us)
    latest = min(now_us + LONGEST_WAIT_US, last_send_us)
    if start > latest:
        return Refused(Refusal.BUSY, wait_us=start - now_us)
    interval = pace.interval_us
    count = min(wanted, room, 1 + (last_send_us - start) // interval)
    hour = hour_key(now)
    oldest = hour_key(now - timedelta(hours=HOURS_KEPT))
    return Reservation(
        count=count,
        interval_us=interval,
        earliest_us=earliest,
        latest_us=min(latest, last_send_us - (count - 1) * interval),
        hour=hour,
        hour_most=pace.hours.get(hour, 0) + room - count,
        previous_hour=hour_key(now - timedelta(hours=1)),
        forget=tuple(sorted(key for key in pace.hours if key < oldest)),
    )


def epoch_us(moment: datetime) -> int:
    """``moment`` (aware) as epoch microseconds, exactly."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Grant:
    """Slots that are ours alone: ``count`` stretches of ``interval_us`` from ``start_us`` on, one e-mail in each.

    An e-mail begins inside its own stretch. So any sliding second meets at most one more stretch than the rate has
    in a second, however late a sender is: what it misses is lost, never made up for.
    """

    def __init__(self, start_us: int, interval_us: int, count: int, hour: str) -> None:
        self.start_us = start_us
        self.interval_us = interval_us
        self.count = count
        self.hour = hour
        """The counter that holds these slots, for what is given back."""
        self._next = 0

    def upcoming(self, now_us: int) -> int | None:
        """When the first slot begins that is not over at ``now_us``; None: none is left."""
        self._next = max(self._next, (now_us - self.start_us) // self.interval_us)
        return self.start_us + self._next * self.interval_us if self._next < self.count else None

    def take(self, now_us: int) -> int | None:
        """Like `upcoming`, and nobody gets this slot again."""
        slot = self.upcoming(now_us)
        if slot is not None:
            self._next += 1
        return slot

    def over(self, slot_us: int, now_us: int) -> bool:
        """Whether the slot that began at ``slot_us`` has gone by."""
        return now_us >= slot_us + self.interval_us


class PaceSettings(Protocol):
    """The pace item, as the sender takes from it."""

    def reserve(self, wanted: int, *, lead_us: int, last_send_us: int) -> Grant | Refused:
        """Take up to ``wanted`` slots by one conditional write (see `reserve`)."""

    def give_back(self, hour: str, count: int) -> None:
        """``count`` e-mails counted in ``hour`` were not sent. Their slots stay lost, their share of the cap not."""
