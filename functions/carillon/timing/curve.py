"""The capacity curve: how much may have gone out by when, in integers.

C(t) counts capacity in `UNIT`-ths of an e-mail, over whole seconds of UTC (epoch), before second t. It rises only in
*open* stretches. Floats broke a daily cap by one; here a day's share of N e-mails is exactly N units, whatever
its length on the day of a clock change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from carillon import zones
from carillon.errors import PlanRefused
from carillon.shapes import CampaignPace
from carillon.timing import openings

if TYPE_CHECKING:
    from carillon.timing.ledger import Taken

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
    """C(t), and the way back from capacity to time.

    Also a line of places to put e-mails on, as `carillon.timing.planning` sees one: an e-mail takes `step` of it.
    """

    step = UNIT

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        """``stretches`` in order and apart from each other.

        Raises:
            PlanRefused: not one of them is open.
        """
        self._build(
            *(
                np.array(column, dtype=np.int64)
                for column in zip(*((s.start, s.end, s.offset, s.number, s.per) for s in stretches), strict=True)
            )
        )

    def _build(self, *columns: Ints) -> None:
        kept = [column[columns[1] > columns[0]] for column in columns] if columns else []
        if not kept or not len(kept[0]):
            raise PlanRefused("the pace is never open: give it a window that has a beginning before its end")
        self._start, self._end, self._offset, self._number, self._per = kept
        before = _carried(self._number, self._per, self._offset)
        gained = _carried(self._number, self._per, self._offset + self._end - self._start) - before
        self._start_capacity: Ints = np.cumsum(gained) - gained
        self._base: Ints = self._start_capacity - before
        self.end = int(self._end[-1])
        """The first second that the curve knows nothing of."""
        self.total = int(gained.sum())
        """All that it can carry, in units."""

    def less(self, taken: Taken, rate_per_second: float) -> Curve:
        """What is left where others send ``taken`` with the same identity.

        In a minute that they have something of, what they leave of the identity's rate (whole e-mails, for a part of
        one is nobody's) bounds this curve too, spread over what is open of that minute.
        """
        if not len(taken.minutes):
            return self
        edges = np.concatenate((taken.minutes * 60, taken.minutes * 60 + 60, self._start, self._end))
        edges = np.unique(edges[(edges >= self._start[0]) & (edges <= self.end)])
        start, end = edges[:-1], edges[1:]
        within = np.searchsorted(self._end, start, side="right")
        is_open = self._start[within] <= start
        start, end, within = start[is_open], end[is_open], within[is_open]
        offset = self._offset[within] + start - self._start[within]
        number, per = self._number[within], self._per[within]
        own = _carried(number, per, offset + end - start) - _carried(number, per, offset)

        at = np.minimum(np.searchsorted(taken.minutes, start // 60), len(taken.minutes) - 1)
        cut = np.flatnonzero(taken.minutes[at] == start // 60)
        minute = at[cut]
        before = np.cumsum(own[cut]) - own[cut]
        left: Ints = np.maximum((_units(rate_per_second) * 60 - taken.counts[minute] * UNIT) // UNIT, 0) * UNIT
        # Two windows may share a minute: the second gets what the first has left.
        earlier = np.searchsorted(minute, minute, side="left")
        given = np.clip(left - before + before[earlier], 0, own[cut]).astype(np.int64)
        seconds = (end - start)[cut]
        number[cut], per[cut], offset[cut] = given, seconds, 0
        end[cut[given < seconds]] = start[cut[given < seconds]]  # less than a unit a second: closed
        left_over = Curve.__new__(Curve)
        left_over._build(start, end, offset, number, per)
        return left_over

    def position(self, moments: Ints) -> Ints:
        """C at ``moments``: whole seconds; all of it from `end` on."""
        at = np.minimum(np.searchsorted(self._end, moments, side="right"), len(self._end) - 1)
        inside = np.minimum(np.maximum(moments, self._start[at]), self._end[at]) - self._start[at] + self._offset[at]
        reached: Ints = self._base[at] + _carried(self._number[at], self._per[at], inside)
        return reached

    def moment(self, positions: Ints) -> Ints:
        """The open second in which C reaches each of ``positions`` (0 ≤, below `total`).

        A capacity that is reached as a stretch closes belongs to the next stretch's first second: windows are closed
        on the left, and whoever comes after the last of a day waits for the next.
        """
        at = np.searchsorted(self._start_capacity, positions, side="right") - 1
        needed = positions - self._base[at] + 1
        seconds = (needed * self._per[at] - 1) // self._number[at] - self._offset[at]
        second: Ints = self._start[at] + seconds
        return second


def _carried(number: Ints, per: Ints, seconds: Ints) -> Ints:
    """Units in the first ``seconds`` of a day's open time."""
    units: Ints = number * seconds // per
    return units


def _units(rate_per_second: float) -> int:
    return int(rate_per_second * UNIT + 0.5)


def build(pace: CampaignPace | None, rate_per_second: float, start: int, days: int) -> Curve:
    """The curve of a campaign's pace under an identity's rate, from ``start`` (epoch) for ``days`` days.

    Raises:
        PlanRefused: the pace has no open second.
    """
    rate = _units(rate_per_second)
    if rate < 1:
        raise PlanRefused(f"a rate of {rate_per_second:g} e-mails a second sends nobody anything: raise it")
    end = start + days * 86_400
    if pace is None:
        return Curve([Stretch(start, end, 0, rate, 1)])
    zone = zones.get(pace.timezone)
    day = datetime.fromtimestamp(start, UTC).astimezone(zone).date() - timedelta(days=1)
    last = datetime.fromtimestamp(end, UTC).astimezone(zone).date()
    stretches: list[Stretch] = []
    while day <= last:
        stretches += _day(openings.open_on(pace, day), pace.per_day, rate)
        day += timedelta(days=1)
    return Curve(s for s in stretches if s.end > start)


def _day(bounds: list[tuple[int, int]], per_day: int, rate: int) -> list[Stretch]:
    number, per = UNIT * per_day, sum(end - begin for begin, end in bounds)
    if number >= rate * per:
        number, per = rate, 1
    stretches, offset = [], 0
    for begin, end in bounds:
        stretches.append(Stretch(begin, end, offset, number, per))
        offset += end - begin
    return stretches
