"""Slots of the pace, as one invocation of the sender uses them: in time, one e-mail in each, the rest given back."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Protocol

from carillon.timing.pace import SECOND_US, Grant, PaceSettings, Refusal, Refused, epoch_us

_SHORTEST_LEAD_US = 20_000
_LONGEST_LEAD_US = 2 * SECOND_US


class Clock(Protocol):
    """The port to time (`carillon.adapters.clock`)."""

    def now(self) -> datetime:
        """Now, aware."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait in place."""
        ...


class _Duration:
    """A duration as last seen, and how much it varies; each is half old, half new (but 2 s at the most: a hiccup is to
    be forgotten after a few e-mails)."""

    def __init__(self) -> None:
        self.mean_us = 0
        self.deviation_us = 0

    def took(self, elapsed: timedelta) -> None:
        new_us = min(max(elapsed // timedelta(microseconds=1), 0), _LONGEST_LEAD_US)
        self.deviation_us = (self.deviation_us + abs(new_us - self.mean_us)) // 2
        self.mean_us = (self.mean_us + new_us) // 2

    @property
    def rarely_longer_us(self) -> int:
        """What it hardly ever exceeds: as TCP tells a late answer from a lost one (RFC 6298), with less patience."""
        return self.mean_us + 2 * self.deviation_us


class Cadence:
    """What a process has learnt about its own speed."""

    def __init__(self) -> None:
        self._reply = _Duration()
        self._ready = _Duration()
        self._posting = _Duration()
        self._look = _Duration()
        self._interval_us: int | None = None

    def reply_took(self, elapsed: timedelta, interval_us: int | None) -> None:
        """A reservation was answered; the pace is one e-mail every ``interval_us``."""
        self._reply.took(elapsed)
        self._interval_us = interval_us or self._interval_us

    def ready_took(self, elapsed: timedelta) -> None:
        """From deciding to claim until the e-mail could go."""
        self._ready.took(elapsed)

    def posting_took(self, elapsed: timedelta) -> None:
        """From asking SES until the outcome was written."""
        self._posting.took(elapsed)

    def look_took(self, elapsed: timedelta) -> None:
        """The campaign was read."""
        self._look.took(elapsed)

    @property
    def look_us(self) -> int:
        """How long before its slot the campaign has to be looked at again, so as not to miss it."""
        return self._look.rarely_longer_us

    @property
    def lead_us(self) -> int:
        """How long before its slot an e-mail has to be begun, so as not to miss it."""
        lead_us = self._reply.rarely_longer_us + self._ready.rarely_longer_us + self.look_us
        return min(max(lead_us, _SHORTEST_LEAD_US), _LONGEST_LEAD_US)

    def at_once(self, wanted: int) -> int:
        """How many slots to take together: all if we are faster than they follow each other, else the next alone.

        Slots that go by while we are busy are lost to everybody; many senders, each taking one, lose none.
        """
        keeps_up = self._interval_us is None or self._ready.mean_us + self._posting.mean_us <= self._interval_us
        return wanted if keeps_up else 1


class Slots:
    """The slots of one invocation, which sends nothing later than ``last_send``."""

    def __init__(self, pace: PaceSettings, clock: Clock, cadence: Cadence, last_send: datetime) -> None:
        self._pace = pace
        self._clock = clock
        self._cadence = cadence
        self._last_send_us = epoch_us(last_send)
        self._grant: Grant | None = None
        self._slot_us = 0
        self._unsent: Counter[str] = Counter()
        """By hour: counted in the pace and not sent."""

    def approach(self, wanted: int) -> Refused | None:
        """Wait until shortly before the next slot; reserve up to ``wanted`` if none is left."""
        grant = self._held(wanted)
        if isinstance(grant, Refused):
            return grant
        slot = grant.upcoming(self._now())
        if slot is not None:
            self._sleep_until(slot - self._cadence.lead_us)
        return None

    def draw_near(self, wanted: int) -> Refused | None:
        """Take the next slot and wait until it is as near as a look at the campaign takes."""
        while True:
            grant = self._held(wanted)
            if isinstance(grant, Refused):
                return grant
            slot = grant.take(self._now())
            if slot is not None:
                self._slot_us = slot
                self._sleep_until(slot - self._cadence.look_us)
                return None

    @property
    def opening(self) -> datetime:
        """When the slot that was taken last begins."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._slot_us)

    def enter(self) -> bool:
        """Wait for the slot; whether we are in it: an e-mail has to begin at once, and a slot that we miss is lost."""
        self._sleep_until(self._slot_us)
        return self.on_time()

    def on_time(self) -> bool:
        """Whether the slot that was entered last has not gone by, nor the time in which anything may be sent."""
        now = self._now()
        return self._grant is not None and now <= self._last_send_us and not self._grant.over(self._slot_us, now)

    def sent(self) -> None:
        """SES is being asked: this one is not given back, whatever SES says."""
        assert self._grant is not None
        self._unsent[self._grant.hour] -= 1

    def give_back(self) -> None:
        """What was counted and not sent no longer counts towards the cap. Its time is lost, unless we die before:
        then its share of the cap is lost as well."""
        for hour, count in self._unsent.items():
            if count > 0:
                self._pace.give_back(hour, count)

    def _held(self, wanted: int) -> Grant | Refused:
        now = self._now()
        if now > self._last_send_us:
            return Refused(Refusal.BUSY)
        if self._grant is not None and self._grant.upcoming(now) is not None:
            return self._grant
        began = self._clock.now()
        got = self._pace.reserve(
            self._cadence.at_once(wanted), lead_us=self._cadence.lead_us, last_send_us=self._last_send_us
        )
        interval = got.interval_us if isinstance(got, Grant) else None
        self._cadence.reply_took(self._clock.now() - began, interval)
        if isinstance(got, Grant):
            self._grant = got
            self._unsent[got.hour] += got.count
        return got

    def _now(self) -> int:
        return epoch_us(self._clock.now())

    def _sleep_until(self, instant_us: int) -> None:
        if (ahead := instant_us - self._now()) > 0:
            self._clock.sleep(ahead / SECOND_US)
