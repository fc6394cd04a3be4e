"""The capacity curve: how much may have gone out by when, in integers.

C(t) counts capacity in `UNIT`-ths of an e-mail, over whole seconds of UTC (epoch), before second t. It rises only in
*open* stretches. Floats broke a daily cap by one; here a day's share of N e-mails is exactly N units, whatever
its length on the day of a clock change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
from numpy.typing import NDArray

from carillon import zones
from carillon.errors import PlanRefused
from carillon.shapes import CampaignPace, Window

type Ints = NDArray[np.int64]

UNIT = 1_000_000
"""Parts of an e-mail: a rate is exact to six digits, and ten million a day over ten years still fit 63 bits."""


@dataclass(frozen=True)
class Stretch:
    """Open from ``start`` to before ``end`` (epoch seconds), the ``offset``-th second of its day's open time.

    After x open seconds of the day its capacity is ``number * x // per`` units.
    """

    start: int
    end: int
    offset: int
    number: int
    per: int


class Curve:
    """C(t), and the way back from capacity to time."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        """``stretches`` in order and apart from each other; offset 0 begins a new day."""
        base, day_base, bases, starts = 0, 0, [], []
        kept = [s for s in stretches if s.end > s.start]
        for stretch in kept:
            if stretch.offset == 0:
                day_base = base
            bases.append(day_base)
            starts.append(day_base + stretch.number * stretch.offset // stretch.per)
            base = day_base + stretch.number * (stretch.offset + stretch.end - stretch.start) // stretch.per
        if not kept:
            raise PlanRefused("the pace is never open: give it a window that has a beginning before its end")
        self._start, self._end, self._offset, self._number, self._per = (
            np.array([getattr(s, name) for s in kept], dtype=np.int64)
            for name in ("start", "end", "offset", "number", "per")
        )
        self._day_base = np.array(bases, dtype=np.int64)
        self._start_capacity = np.array(starts, dtype=np.int64)
        self.end = int(self._end[-1])
        """The first second that the curve knows nothing of."""
        self.total = base
        """All that it can carry, in units."""

    def capacity(self, moments: Ints) -> Ints:
        """C at ``moments``: whole seconds, none at or after `end`."""
        at = np.searchsorted(self._end, moments, side="right")
        inside = np.maximum(moments - self._start[at], 0) + self._offset[at]
        reached: Ints = self._day_base[at] + self._number[at] * inside // self._per[at]
        return reached

    def moment(self, capacity: Ints) -> Ints:
        """The open second in which C reaches each of ``capacity`` (0 ≤, below `total`).

        A capacity that is reached as a stretch closes belongs to the next stretch's first second: windows are closed
        on the left, and whoever comes after the last of a day waits for the next.
        """
        at = np.searchsorted(self._start_capacity, capacity, side="right") - 1
        needed = capacity - self._day_base[at] + 1
        seconds = (needed * self._per[at] - 1) // self._number[at] - self._offset[at]
        second: Ints = self._start[at] + seconds
        return second


def build(pace: CampaignPace | None, rate_per_second: float, start: int, days: int) -> Curve:
    """The curve of a campaign's pace under an identity's rate, from ``start`` (epoch) for ``days`` days.

    Raises:
        PlanRefused: the pace has no open second.
    """
    rate = int(rate_per_second * UNIT + 0.5)
    if rate < 1:
        raise PlanRefused(f"a rate of {rate_per_second:g} e-mails a second sends nobody anything: raise it")
    end = start + days * 86_400
    if pace is None:
        return Curve([Stretch(start, end, 0, rate, 1)])
    windows = _merged(pace.windows)
    zone = zones.get(pace.timezone)
    day = datetime.fromtimestamp(start, UTC).astimezone(zone).date() - timedelta(days=1)
    last = datetime.fromtimestamp(end, UTC).astimezone(zone).date()
    stretches: list[Stretch] = []
    while day <= last:
        if day.isoweekday() in pace.weekdays:
            stretches += _day(day, windows, pace, rate)
        day += timedelta(days=1)
    return Curve(s for s in stretches if s.end > start)


def _day(day: date, windows: list[tuple[time, time]], pace: CampaignPace, rate: int) -> list[Stretch]:
    bounds = [(_epoch(pace.timezone, day, a), _epoch(pace.timezone, day, b, closing=True)) for a, b in windows]
    open_seconds = sum(max(b - a, 0) for a, b in bounds)
    number, per = UNIT * pace.per_day, open_seconds
    if number >= rate * per:
        number, per = rate, 1
    stretches, offset = [], 0
    for a, b in bounds:
        if b > a:
            stretches.append(Stretch(a, b, offset, number, per))
            offset += b - a
    return stretches


def _epoch(zone: str, day: date, wall: time, closing: bool = False) -> int:
    if closing and wall == time(0):
        day += timedelta(days=1)
    return zones.to_utc(zone, day, wall)


def _merged(windows: Iterable[Window]) -> list[tuple[time, time]]:
    """Windows in order, overlapping ones as one: a second must not count twice."""
    midnight = time(0)
    merged: list[tuple[time, time]] = []
    for window in sorted(windows, key=lambda w: w.start):
        start, end = window.start, window.end
        if merged and (merged[-1][1] == midnight or start <= merged[-1][1]):
            before = merged[-1][1]
            longest = midnight if midnight in (before, end) else max(before, end)
            merged[-1] = (merged[-1][0], longest)
        else:
            merged.append((start, end))
    return merged
