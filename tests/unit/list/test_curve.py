"""The curve in integers: what a second-by-second count gives, both ways, and what others leave of it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, time
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon.errors import PlanRefused
from carillon.shapes import CampaignPace, Window
from carillon.timing import curve
from carillon.timing.curve import UNIT, Curve, Stretch
from carillon.timing.ledger import NOTHING, Taken

MONDAY = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())


@given(
    per_day=st.integers(1, 400),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
    edges=st.sets(st.integers(0, 1439), min_size=2, max_size=6),
    seconds=st.lists(st.integers(0, 10 * 86_400), min_size=1, max_size=50),
)
@settings(deadline=None, max_examples=100)
def test_position_and_moment_are_each_others_inverse(
    per_day: int, zone: str, edges: set[int], seconds: list[int]
) -> None:
    """C never falls; the moment of a position is open, and C has not passed it there."""
    bounds = sorted(edges)
    windows = tuple(
        Window(start=time(a // 60, a % 60), end=time(b // 60, b % 60))
        for a, b in zip(bounds[::2], bounds[1::2], strict=False)
    )
    c = curve.build(CampaignPace(per_day=per_day, windows=windows, timezone=zone), 1000.0, MONDAY, 30)
    moments = np.sort(np.array([MONDAY + s for s in seconds], dtype=np.int64))
    reached = c.position(moments)
    assert (np.diff(reached) >= 0).all()
    back = c.moment(reached)
    assert (back >= moments).all()
    assert (c.position(back) <= reached).all()
    assert (c.position(back + 1) > reached)[back + 1 < c.end].all()
    assert c.position(np.array([c.end, c.end + 999])).tolist() == [c.total, c.total]


@given(
    days=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=3),
            st.integers(1, 40),
            st.integers(1, 7),
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(deadline=None, max_examples=200)
def test_position_and_moment_are_what_counting_second_by_second_gives(
    days: list[tuple[list[tuple[int, int]], int, int]],
) -> None:
    """Each day begins anew; C counts what is before a second; a capacity lies in the last open second that C allows."""
    stretches: list[Stretch] = []
    counted: list[int] = []
    open_seconds: list[int] = []
    clock, base = 100, 0
    for pairs, number, per in days:
        number, offset = number + per, 0  # at least one unit a second, as a real curve has
        for gap, length in pairs:
            counted += [base + number * offset // per] * gap
            clock += gap
            stretches.append(Stretch(clock, clock + length, offset, number, per))
            for second in range(length):
                open_seconds.append(clock + second)
                counted.append(base + number * (offset + second) // per)
            clock, offset = clock + length, offset + length
        base += number * offset // per
    c = Curve(stretches)
    assert (c.end, c.total) == (clock, base)
    seconds = np.arange(100, clock, dtype=np.int64)
    assert c.position(seconds).tolist() == counted
    capacities = np.arange(base, dtype=np.int64)
    assert c.moment(capacities).tolist() == [
        max(s for s in open_seconds if counted[s - 100] <= capacity) for capacity in range(base)
    ]


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=200)
def test_what_others_leave_is_counted_minute_by_minute(seed: int) -> None:
    """A minute carries what it would by itself, or the whole e-mails that others leave; no other one changes."""
    random = Random(seed)
    stretches, clock = [], MONDAY - MONDAY % 60 + random.randint(0, 59)
    rate = random.choice([1, 3, 7.5])
    for _ in range(random.randint(1, 4)):
        length = random.randint(1, 300)
        stretches.append(Stretch(clock, clock + length, 0, int(rate * UNIT) // random.choice([1, 1, 50]), 1))
        clock += length + random.randint(1, 90)
    c = Curve(stretches)
    minutes = range(stretches[0].start // 60 - 1, clock // 60 + 2)
    counts = {m: random.randint(1, int(rate * 70)) for m in minutes if random.random() < 0.5}
    taken = Taken(
        np.array(sorted(counts), dtype=np.int64), np.array([counts[m] for m in sorted(counts)], dtype=np.int64)
    )
    expected: Counter[int] = Counter()
    for stretch in stretches:
        for second in range(stretch.start, stretch.end):
            expected[second // 60] += stretch.number
    for minute, count in counts.items():
        if minute in expected:
            left = max(int(rate * UNIT) * 60 - count * UNIT, 0) // UNIT * UNIT
            expected[minute] = min(expected[minute], left)
    try:
        less = c.less(taken, rate)
    except PlanRefused:
        assert not any(expected.values())
        return
    edges = np.array([minutes[0] * 60, *(60 * (m + 1) for m in minutes)])
    assert np.diff(less.position(edges)).tolist() == [expected[m] for m in minutes]


def test_a_curve_that_nobody_has_taken_from_stays_the_same() -> None:
    """And what is taken elsewhere is nobody's loss."""
    c = Curve([Stretch(MONDAY, MONDAY + 600, 0, UNIT, 1)])
    assert c.less(NOTHING, 1.0) is c
    elsewhere = Taken(np.array([MONDAY // 60 - 3, MONDAY // 60 + 99]), np.array([60, 60]))
    assert c.less(elsewhere, 1.0).total == c.total


def test_a_day_keeps_its_share_where_others_take_minutes_of_another() -> None:
    """Cutting days in pieces rounds nothing away: seven e-mails in 8 hours stay seven, on both days."""
    pace = CampaignPace(per_day=7, timezone="UTC")
    c = curve.build(pace, 1.0, MONDAY, 1)
    cut = c.less(Taken(MONDAY // 60 + np.arange(540, 1020, 7), np.full(69, 1)), 1.0)
    assert cut.total == c.total == 2 * 7 * UNIT


def test_nothing_open_is_refused() -> None:
    """A rate of nothing, a window that is none, and a day that others have taken whole."""
    with pytest.raises(PlanRefused, match="raise it"):
        curve.build(None, 0.0000001, MONDAY, 1)
    with pytest.raises(PlanRefused, match="never open"):
        Curve([])
    with pytest.raises(PlanRefused, match="never open"):
        Curve([Stretch(MONDAY, MONDAY + 60, 0, UNIT, 1)]).less(Taken(np.array([MONDAY // 60]), np.array([60])), 1.0)
