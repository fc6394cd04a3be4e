"""Many wall clocks at once mean what one means by itself, whatever is done to clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones
from carillon.timing.clocks import DAY, Clocks
from tests.unit.list import test_zones

CHANGING = [*test_zones.CHANGING, "UTC"]


def wall(day: date, clock: time) -> int:
    """A wall time as a number."""
    return int(datetime.combine(day, clock, UTC).timestamp())


@given(
    asked=st.lists(
        st.tuples(st.sampled_from(CHANGING), st.dates(date(2005, 1, 1), date(2060, 12, 31)), st.times()),
        min_size=1,
        max_size=40,
    )
)
@settings(deadline=None, max_examples=200)
def test_a_million_wall_times_are_what_one_by_one_gives(asked: list[tuple[str, date, time]]) -> None:
    """Any zones and years in one call."""
    clocks = Clocks()
    numbers = clocks.numbers(zone for zone, _, _ in asked)
    found = clocks.utc(numbers, np.array([wall(day, clock) for _, day, clock in asked]))
    assert found.tolist() == [zones.to_utc(zone, day, clock) for zone, day, clock in asked]


@pytest.mark.parametrize(
    ("zone", "around"),
    [
        ("Australia/Lord_Howe", "2026-04-05"),
        ("Australia/Lord_Howe", "2026-10-04"),
        ("Pacific/Chatham", "2026-04-05"),
        ("Pacific/Chatham", "2026-09-27"),
        ("Asia/Kathmandu", "2026-06-01"),
        ("Pacific/Apia", "2011-12-30"),
        ("Antarctica/Troll", "2026-03-29"),
        ("Africa/Casablanca", "2026-02-15"),
        ("America/St_Johns", "2026-11-01"),
        ("Europe/Berlin", "2026-10-25"),
    ],
)
def test_a_scan_of_utc_seconds_finds_the_same_instants(zone: str, around: str) -> None:
    """The first instant at which zoneinfo shows the wanted time or has just jumped over it, and what it shows then.

    Half an hour in Lord Howe, 45 minutes' zones, a day that Samoa never had, two hours in Troll.
    """
    tz = zones.get(zone)
    middle = datetime.combine(date.fromisoformat(around), time(0), UTC)
    moments = [middle + timedelta(minutes=15 * n) for n in range(-3 * 96, 3 * 96)]
    shown = [m.astimezone(tz).replace(tzinfo=UTC) for m in moments]
    clocks = Clocks()
    number = clocks.number(zone)

    at = np.array([int(m.timestamp()) for m in moments])
    assert clocks.wall(np.full(len(at), number), at).tolist() == [int(w.timestamp()) for w in shown]

    wanted = [middle + timedelta(minutes=15 * n) for n in range(-96, 96)]
    first = [
        moments[shown.index(w)] if w in shown else next(m for m, s in zip(moments, shown, strict=True) if s > w)
        for w in wanted
    ]
    walls = np.array([int(w.timestamp()) for w in wanted])
    assert clocks.utc(np.full(len(walls), number), walls).tolist() == [int(m.timestamp()) for m in first]


def test_zones_that_show_the_same_for_a_while_are_alike_for_that_long() -> None:
    """Berlin and Paris always; Berlin and Lagos until the clocks go forward."""
    clocks = Clocks()
    clocks.numbers(["Europe/Berlin", "Europe/Paris", "Africa/Lagos", "UTC"])
    january, april = wall(date(2026, 1, 10), time(0)), wall(date(2026, 4, 10), time(0))
    assert clocks.alike(january, january + 30 * DAY).tolist() == [0, 0, 0, 3]
    assert clocks.alike(january, april).tolist() == [0, 0, 2, 3]
    assert clocks.changes(january, april).tolist() == [zones.to_utc("Europe/Berlin", date(2026, 3, 29), time(3))]


def test_a_zone_that_comes_later_does_not_move_the_others() -> None:
    """Numbers stay, and so do answers."""
    clocks = Clocks()
    berlin = clocks.numbers(["Europe/Berlin"])
    nine = np.array([wall(date(2026, 7, 1), time(9))])
    before = clocks.utc(berlin, nine)
    clocks.number("Asia/Tokyo")
    assert clocks.numbers(["Asia/Tokyo", "Europe/Berlin"]).tolist() == [1, 0]
    assert clocks.utc(berlin, nine).tolist() == before.tolist()
    assert not len(clocks.utc(berlin[:0], nine[:0]))
    assert not len(clocks.wall(berlin[:0], nine[:0]))
