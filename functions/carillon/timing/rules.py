"""Rules: when each recipient's e-mail is due, before any pace.

A target is an instant and what a wall clock shows then, for its next day is the next day at the same wall time. The
clock is the recipient's own where the rule speaks of wall times; `event` counts days in the stack's zone, `at` names
an offset and no zone, so that its days have 24 hours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time

import numpy as np

from carillon.shapes import AfterPrevious, Asap, At, ColumnDate, Event, LocalTime, Offset
from carillon.timing.clocks import DAY, Clocks
from carillon.timing.curve import Ints

WALL = r"([01]?[0-9]|2[0-3])[:.]([0-5][0-9])(?::([0-5][0-9]))?"
"""``9:05``, ``09.05`` or ``09:05:30``; for DuckDB too."""

DATE, WALL_TIME, EXACT = 10, 19, 20
"""What a cell of a date column holds, by the length of its canonical text (`carillon.timing.dates.canonical`)."""

_LONG_PAST = 3 * DAY
"""What is past for longer is past in every zone, and only its wall time matters."""


@dataclass(frozen=True)
class Targets:
    """When e-mails are due: arrays of one length."""

    at: Ints
    """Epoch seconds."""
    clock: Ints
    """Number (`Clocks`) of the zone whose days count."""
    wall: Ints
    """What that clock was to show (`carillon.timing.clocks`); a next day repeats it."""


@dataclass(frozen=True)
class Cells:
    """What the list says about when, one for each recipient.

    For a `LocalTime` with a time column ``seconds`` is the wall time as seconds since midnight. For a `ColumnDate` it
    is the date or date-time as seconds since 1970-01-01 00:00, and ``form`` is `DATE`, `WALL_TIME` or `EXACT` (UTC).
    """

    seconds: Ints
    form: Ints | None = None


def parse_wall(written: str) -> time | None:
    """What is written like `WALL` as a wall time; None for all else."""
    match = re.fullmatch(WALL, written)
    return time(int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def targets(
    rule: Asap | At | LocalTime | ColumnDate | Event,
    zone: Ints,
    clocks: Clocks,
    *,
    now: int,
    stack_zone: str,
    cells: Cells | None = None,
) -> Targets:
    """The target of each recipient of a step.

    Args:
        rule: any but `AfterPrevious`, whose targets `after` gives.
        zone: number (``clocks``) of each recipient's zone.
        clocks: knows ``stack_zone`` and all others by number, or gets to know them.
        now: epoch seconds.
        stack_zone: the IANA name of the zone in which `Event` counts days.
        cells: what the list says, for a `ColumnDate` and for a `LocalTime` with a time column. A date of `ColumnDate`
            without a time of day needs ``rule.time``: whoever has neither has been refused.
    """
    match rule:
        case Asap():
            return _everybody(len(zone), clocks.number("UTC"), now, now)
        case At():
            at = _ceil(rule.at)
            return _everybody(len(zone), clocks.number("UTC"), at, at)
        case Event():
            clock = clocks.number(stack_zone)
            one = after(np.array([_ceil(rule.at)]), rule.offset, np.array([clock]), clocks)
            return _everybody(len(zone), clock, int(one.at[0]), int(one.wall[0]))
        case LocalTime():
            midnight = int(datetime(rule.date.year, rule.date.month, rule.date.day, tzinfo=UTC).timestamp())
            clock_time = seconds(rule.time) if rule.time else _given(cells).seconds
            wall = np.zeros(len(zone), dtype=np.int64) + midnight + clock_time
            return Targets(clocks.utc(zone, wall), zone, wall)
        case ColumnDate():
            return _column(rule, zone, clocks, now, _given(cells))


def after(moments: Ints, offset: Offset, clock: Ints, clocks: Clocks) -> Targets:
    """``offset`` after (or before) each of ``moments``: its days on each ``clock``, then its seconds."""
    return _moved(clock, clocks.wall(clock, moments), offset, clocks, exact=None if offset.days else moments)


def follow(rule: AfterPrevious, sent: Ints, zone: Ints, clocks: Clocks) -> Targets:
    """The targets of a step whose step before went out (or will, as far as the plan knows) at ``sent``."""
    return after(sent, rule.offset, zone, clocks)


def _column(rule: ColumnDate, zone: Ints, clocks: Clocks, now: int, cells: Cells) -> Targets:
    assert cells.form is not None
    written, exact = cells.seconds, cells.form == EXACT
    # A list may hold dates of a century: what is long past keeps its wall time and no more.
    longest = _LONG_PAST + DAY * max(0, rule.offset.days) + max(0, rule.offset.seconds)
    written = written + np.maximum(0, (now - longest - written) // DAY) * DAY
    wall = np.where(exact, clocks.wall(zone, written), written) if exact.any() else written
    if rule.time is not None:
        wall = wall - wall % DAY + seconds(rule.time)
        return _moved(zone, wall, rule.offset, clocks, exact=None)
    moved = _moved(zone, wall, rule.offset, clocks, exact=None)
    if rule.offset.days or not exact.any():
        return moved
    at = np.where(exact, written + rule.offset.seconds, moved.at)
    return Targets(at, zone, np.where(exact, clocks.wall(zone, at), moved.wall))


def _moved(clock: Ints, wall: Ints, offset: Offset, clocks: Clocks, exact: Ints | None) -> Targets:
    """``wall`` moved by ``offset``; ``exact`` is its instant where that is known and no day moves it."""
    wall = wall + offset.days * DAY
    at = clocks.utc(clock, wall) if exact is None else exact
    if not offset.seconds:
        return Targets(at, clock, wall)
    at = at + offset.seconds
    return Targets(at, clock, clocks.wall(clock, at))


def _everybody(count: int, clock: int, at: int, wall: int) -> Targets:
    return Targets(*(np.full(count, value, dtype=np.int64) for value in (at, clock, wall)))


def _given(cells: Cells | None) -> Cells:
    assert cells is not None, "this rule takes its times from the list"
    return cells


def _ceil(moment: datetime) -> int:
    """Whole seconds, never early."""
    return -int(-moment.timestamp() // 1)


def seconds(wall: time) -> int:
    """Since midnight; never early."""
    return wall.hour * 3600 + wall.minute * 60 + wall.second + (wall.microsecond > 0)
