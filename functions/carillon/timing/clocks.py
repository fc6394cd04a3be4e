"""The wall clocks of many zones at a time: what `carillon.zones` answers for one wall time, here for a million.

Zones are numbered, and a wall time is a number too: the seconds from 1970-01-01 00:00 to it as a calendar and a clock
show them, whatever the zone (UTC's own are epoch seconds).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

import numpy as np

from carillon import zones
from carillon.timing.curve import Ints

DAY = 86_400
_ZONE = 2**40
"""Beyond every second of our calendar: zones lie end to end on one line, and one look-up serves them all."""
_BLOCK = 256 * DAY
"""Zones are read by blocks of days, and remembered."""


class Clocks:
    """Wall clocks by number, read from the pinned tzdata for the years that are asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The zones by number."""
        self._numbers: dict[str, int] = {}
        self._known: tuple[int, int, int] = (0, 0, 0)
        """How many zones the tables hold, from which second to which."""

    def number(self, name: str) -> int:
        """The number of the zone called ``name`` (an IANA name as `carillon.zones.find` gives it)."""
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def numbers(self, names: Iterable[str]) -> Ints:
        """The number of each of ``names``."""
        return np.array([self.number(name) for name in names], dtype=np.int64)

    def wall(self, clock: Ints, moments: Ints) -> Ints:
        """What each ``clock`` shows at each of ``moments`` (epoch seconds)."""
        if not len(moments):
            return np.empty(0, dtype=np.int64)
        self._cover(int(moments.min()), int(moments.max()))
        at = np.searchsorted(self._change, clock * _ZONE + moments, side="right") - 1
        shown: Ints = moments + self._offset[at]
        return shown

    def utc(self, clock: Ints, walls: Ints) -> Ints:
        """The instant (epoch seconds) at which each ``clock`` shows each of ``walls``.

        One that a clock change skips is the first valid instant after the gap; one that it repeats is the first.
        """
        if not len(walls):
            return np.empty(0, dtype=np.int64)
        self._cover(int(walls.min()), int(walls.max()))
        # The first stretch of equal offset that does not end before the wall time is shown.
        at = np.searchsorted(self._shown_until, clock * _ZONE + walls, side="right")
        moments: Ints = np.maximum(walls - self._offset[at], self._change[at] - clock * _ZONE)
        return moments

    def alike(self, first: int, last: int) -> Ints:
        """For each zone the number of the first one whose clock shows the same from ``first`` to ``last``."""
        self._cover(first, last)
        seen: dict[tuple[tuple[int, int], ...], int] = {}
        return np.array([seen.setdefault(_key(c, first, last), n) for n, c in enumerate(self._changes)], dtype=np.int64)

    def changes(self, first: int, last: int) -> Ints:
        """All instants after ``first`` and before ``last`` at which some zone's clock is changed."""
        self._cover(first, last)
        found = {at for changes in self._changes for at, _ in changes if first < at < last}
        return np.array(sorted(found), dtype=np.int64)

    def _cover(self, first: int, last: int) -> None:
        count, start, end = self._known
        if count == len(self.names) and start <= first - 2 * DAY and last + 2 * DAY <= end:
            return
        if not count:
            start, end = first, last
        # A year more than was asked for, so that a plan's next days are there already.
        start, end = min(start, first - 2 * DAY), max(end, last + 366 * DAY)
        self._changes = [_offsets(name, start, end) for name in self.names]
        change, offset, until = [], [], []
        for number, changes in enumerate(self._changes):
            ats = np.array([at for at, _ in changes], dtype=np.int64)
            ats[0] = -_ZONE // 2
            offsets = np.array([seconds for _, seconds in changes], dtype=np.int64)
            ends = np.append(ats[1:] + offsets[:-1], _ZONE // 2 - 1)
            change.append(number * _ZONE + ats)
            offset.append(offsets)
            until.append(number * _ZONE + np.maximum.accumulate(ends))
        self._change, self._offset, self._shown_until = map(np.concatenate, (change, offset, until))
        self._known = len(self.names), start, end


def _key(changes: list[tuple[int, int]], first: int, last: int) -> tuple[tuple[int, int], ...]:
    before = [seconds for at, seconds in changes if at <= first]
    return ((first, before[-1]), *((at, seconds) for at, seconds in changes if first < at <= last))


def _offsets(name: str, first: int, last: int) -> list[tuple[int, int]]:
    """From when on (epoch) which UTC offset is in force, beginning before ``first``."""
    found: list[tuple[int, int]] = []
    for block in range(first // _BLOCK, last // _BLOCK + 1):
        begins, *changes = _block(name, block)
        found += [begins, *changes] if not found or begins[1] != found[-1][1] else changes
    return found


@cache
def _block(name: str, number: int) -> tuple[tuple[int, int], ...]:
    """`_offsets` of the ``number``-th `_BLOCK` since the epoch.

    Looked at once a day: nowhere have clocks been changed twice within one. zoneinfo does not hand out its own table.
    """
    zone = zones.get(name)

    def offset_at(moment: int) -> int:
        offset = datetime.fromtimestamp(moment, UTC).astimezone(zone).utcoffset()
        assert offset is not None
        return offset.days * DAY + offset.seconds

    found = [(number * _BLOCK, offset_at(number * _BLOCK))]
    for day in range(number * _BLOCK + DAY, (number + 1) * _BLOCK + 1, DAY):
        after = offset_at(day)
        if after == found[-1][1]:
            continue
        low, high = day - DAY, day
        while high - low > 1:
            middle = (low + high) // 2
            if offset_at(middle) == after:
                high = middle
            else:
                low = middle
        found.append((high, after))
    return tuple(found)
