"""Slots: never early, never over capacity, in order, all of them, and the same every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import curve, planning, rules, zones
from carillon.curve import Curve, Stretch
from carillon.errors import PlanRefused
from carillon.planning import Limits, plan
from carillon.shapes import At, CampaignPace, LocalTime, Window

MONDAY = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())
HOUR = 3600
DAY = 24 * HOUR


def at(day: str, clock: str, zone: str = "UTC") -> int:
    return zones.to_utc(zone, date.fromisoformat(day), time.fromisoformat(clock))


def limits(
    pace: CampaignPace | None = None,
    rate: float = 1000,
    cap_on: Callable[[date], int] | None = None,
    cap_zone: str = "UTC",
) -> Limits:
    return Limits(lambda start, days: curve.build(pace, rate, start, days), cap_on, cap_zone)


def slots(targets: list[int], earliest: int, of: Limits, end: int | None = None) -> list[int]:
    return plan(np.array(targets, dtype=np.int64), earliest, of, end).tolist()


def windowed(
    per_day: int, *windows: tuple[int, int], weekdays: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
) -> CampaignPace:
    return CampaignPace(
        per_day=per_day,
        weekdays=weekdays,
        windows=tuple(Window(start=time(a), end=time(b % 24)) for a, b in windows),
        timezone="UTC",
    )


def test_a_blast_goes_out_at_the_rate_and_not_spread_until_the_evening() -> None:
    """A cap is not a rate: 500 under a cap of 1,000 a day are gone in 50 seconds at 10 a second."""
    nine = MONDAY + 9 * HOUR
    found = slots([nine] * 500, MONDAY, limits(rate=10, cap_on=lambda _: 1000))
    assert (found[0], found[-1]) == (nine, nine + 49)
    assert max(Counter(found).values()) == 10


def test_n_a_day_are_spread_evenly_over_the_windows() -> None:
    """Eight in eight open hours: one an hour, from each window's first second, none in the break."""
    found = slots([MONDAY] * 9, MONDAY, limits(windowed(8, (9, 12), (13, 18))))
    assert [(s - MONDAY) / HOUR for s in found] == [9, 10, 11, 13, 14, 15, 16, 17, 24 + 9]


def test_whoever_comes_as_a_window_closes_waits_for_the_next_one() -> None:
    """A closed stretch is left at its right end: 17:00 is not open, and the ninth of eight is tomorrow's first."""
    of = limits(windowed(8, (9, 17)))
    assert slots([MONDAY + 17 * HOUR], MONDAY, of) == [MONDAY + DAY + 9 * HOUR]
    assert slots([MONDAY + 20 * HOUR], MONDAY, of) == [MONDAY + DAY + 9 * HOUR]


def test_weekends_are_closed() -> None:
    """Friday's overflow is Monday's first."""
    friday = at("2026-12-04", "16:30")
    found = slots([friday] * 2, friday, limits(windowed(8, (9, 17), weekdays=(1, 2, 3, 4, 5))))
    assert found == [friday, at("2026-12-07", "09:30")]


def test_the_identitys_rate_bounds_a_campaigns_pace() -> None:
    """A million a day over eight hours would be 35 a second; the identity has two."""
    found = slots([MONDAY] * 5, MONDAY, limits(windowed(1_000_000, (9, 17)), rate=2))
    nine = MONDAY + 9 * HOUR
    assert found == [nine, nine, nine + 1, nine + 1, nine + 2]


def test_the_cap_admits_in_order_of_target_and_the_rest_goes_to_the_next_day() -> None:
    """The caps of a warm-up, day by day; nobody who waits overtakes."""
    caps = {date(2026, 11, 30): 2, date(2026, 12, 1): 3, date(2026, 12, 2): 0}
    targets = [MONDAY + 8 * HOUR + n for n in (5, 1, 4, 2, 3)] + [MONDAY + DAY + HOUR, MONDAY + DAY + 2 * HOUR]
    found = slots(targets, MONDAY, limits(cap_on=lambda day: caps.get(day, 100)))
    assert found[1] == MONDAY + 8 * HOUR + 1
    assert found[3] == MONDAY + 8 * HOUR + 2
    assert [found[n] for n in (4, 2, 0)] == [MONDAY + DAY] * 3
    assert found[5:] == [MONDAY + 3 * DAY] * 2


def test_the_caps_day_ends_at_the_stacks_midnight() -> None:
    """In Kathmandu that is 18:15 UTC."""
    found = slots([MONDAY + 18 * HOUR] * 3, MONDAY, limits(cap_on=lambda _: 2, cap_zone="Asia/Kathmandu"))
    assert found == [MONDAY + 18 * HOUR] * 2 + [MONDAY + 18 * HOUR + 900]


def test_a_day_of_a_clock_change_carries_exactly_its_share() -> None:
    """Berlin's 29 March 2026 has 23 hours and the 25 October has 25; both carry 100, spread over what is open."""
    pace = CampaignPace(
        per_day=100, weekdays=(7,), windows=(Window(start=time(0), end=time(0)),), timezone="Europe/Berlin"
    )
    for day, seconds in (("2026-03-29", 23 * HOUR), ("2026-10-25", 25 * HOUR)):
        midnight = at(day, "00:00", "Europe/Berlin")
        found = slots([midnight] * 101, midnight, limits(pace))
        assert found[:100] == [midnight + n * seconds // 100 for n in range(100)]
        assert found[100] > midnight + seconds


def test_a_window_that_a_clock_change_swallows_is_closed_that_day() -> None:
    """02:00–03:00 does not exist in Berlin on 29 March 2026."""
    pace = CampaignPace(
        per_day=2, weekdays=(7,), windows=(Window(start=time(2), end=time(3)),), timezone="Europe/Berlin"
    )
    start = at("2026-03-29", "00:00", "Europe/Berlin")
    assert slots([start], start, limits(pace)) == [at("2026-04-05", "02:00", "Europe/Berlin")]


def test_overlapping_windows_count_once() -> None:
    """Two windows that share an hour are one: no second carries twice."""
    assert slots([MONDAY] * 8, MONDAY, limits(windowed(8, (9, 14), (13, 17)))) == slots(
        [MONDAY] * 8, MONDAY, limits(windowed(8, (9, 17)))
    )


def test_nothing_is_planned_before_the_fan_out_can_have_finished() -> None:
    """A thousand schedules at 250 a second, and what EnrolBatch wants ahead."""
    ready = planning.fan_out_ready(MONDAY, 1000, 250, 120)
    assert ready == MONDAY + planning.HANDLING + 4 + 120
    assert min(slots([MONDAY] * 3, ready, limits())) == ready


def test_whoever_cannot_go_before_the_end_is_planned_nowhere() -> None:
    """The last in order stay without a slot, and nobody else is moved."""
    assert slots([MONDAY] * 4, MONDAY, limits(rate=1), end=MONDAY + 2) == [MONDAY, MONDAY + 1, MONDAY + 2, -1]
    assert slots([MONDAY, MONDAY + DAY], MONDAY, limits(), end=MONDAY + 5) == [MONDAY, -1]
    assert slots([MONDAY] * 3, MONDAY, limits(cap_on=lambda _: 1), end=MONDAY + DAY) == [MONDAY, MONDAY + DAY, -1]


def test_a_pace_that_takes_years_is_refused() -> None:
    """Twenty a day for ten thousand is a setting gone wrong, and the message names what to raise."""
    with pytest.raises(PlanRefused, match="raise per_day, the rate or the daily cap"):
        slots([MONDAY] * 10_000, MONDAY, limits(windowed(20, (9, 17))))
    with pytest.raises(PlanRefused, match="without a slot"):
        slots([MONDAY], MONDAY, limits(cap_on=lambda _: 0))


RATES = st.one_of(st.integers(1, 50).map(float), st.fractions(Fraction(1, 1000), 20).map(lambda f: round(float(f), 6)))


@st.composite
def paces(draw: st.DrawFn) -> CampaignPace | None:
    if draw(st.booleans()):
        return None
    edges = sorted(draw(st.sets(st.integers(0, 48 * 30), min_size=2, max_size=6)))
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    return CampaignPace(
        per_day=draw(st.integers(1, 400)),
        weekdays=tuple(sorted(draw(st.sets(st.integers(1, 7), min_size=1)))),
        windows=tuple(
            Window(start=time(a // 60, a % 60), end=time(b // 60 % 24, b % 60)) for a, b in pairs
        ),
        timezone=draw(st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"])),
    )  # fmt: skip


STARTS = st.sampled_from(
    [MONDAY, at("2026-03-28", "12:00"), at("2026-10-24", "21:17"), at("2026-04-04", "03:33"), at("2026-10-03", "01:01")]
)


@given(
    pace=paces(),
    rate=RATES,
    start=STARTS,
    offsets=st.lists(st.integers(-2 * DAY, 4 * DAY), min_size=1, max_size=80),
    repeat=st.integers(1, 4),
    caps=st.one_of(st.none(), st.lists(st.integers(0, 120), min_size=7, max_size=7).filter(lambda c: max(c) > 5)),
    cap_zone=st.sampled_from(["UTC", "Asia/Kathmandu", "America/New_York"]),
)
@settings(deadline=None, max_examples=200)
def test_the_laws_of_a_plan_hold_on_any_curve(
    pace: CampaignPace | None,
    rate: float,
    start: int,
    offsets: list[int],
    repeat: int,
    caps: list[int] | None,
    cap_zone: str,
) -> None:
    """Never early; no second, open stretch or day over capacity; order kept; everybody planned; the same again."""
    targets = [start + offset for offset in offsets] * repeat
    cap_on = None if caps is None else (lambda day: caps[day.toordinal() % 7])
    of = limits(pace, rate, cap_on, cap_zone)
    try:
        found = slots(targets, start, of)
    except PlanRefused:
        assert pace is not None or rate < 1 or caps is not None
        return

    assert len(found) == len(targets)
    assert min(found) >= start
    assert all(slot >= target for slot, target in zip(found, targets, strict=True))
    by_target = sorted(range(len(targets)), key=lambda n: (targets[n], n))
    assert [found[n] for n in by_target] == sorted(found)
    assert found == slots(targets, start, of)

    assert max(Counter(found).values()) <= ceil(rate)
    ordered = sorted(found)
    for few in (2, 3, 10):
        for first, last in zip(ordered, ordered[few - 1 :], strict=False):
            # `few` e-mails need the time of few - 1 intervals; slots are cut to whole seconds, hence one more.
            assert last - first + 1 >= int((few - 1) / rate * (1 - 1e-6)), "faster than the rate"
    if cap_on is not None:
        per_day = Counter(datetime.fromtimestamp(s, UTC).astimezone(zones.get(cap_zone)).date() for s in found)
        assert all(count <= cap_on(day) for day, count in per_day.items())
    if pace is not None:
        local = [datetime.fromtimestamp(s, UTC).astimezone(zones.get(pace.timezone)) for s in found]
        per_day = Counter(moment.date() for moment in local)
        assert max(per_day.values()) <= pace.per_day
        for moment in local:
            assert moment.isoweekday() in pace.weekdays
            assert any(
                w.start <= moment.time() and (w.end == time(0) or moment.time() < w.end) for w in pace.windows
            ) or _clocks_changed(moment), moment


def _clocks_changed(moment: datetime) -> bool:
    """Around a change a window's bounds move with the clock (gap: to its end; fold: to the first of the two)."""
    return (moment - timedelta(hours=3)).utcoffset() != (moment + timedelta(hours=3)).utcoffset()


@given(
    pace=paces().filter(lambda p: p is not None),
    start=STARTS,
    seconds=st.lists(st.integers(0, 10 * DAY), min_size=1, max_size=50),
)
@settings(deadline=None, max_examples=100)
def test_capacity_and_moment_are_each_others_inverse(pace: CampaignPace, start: int, seconds: list[int]) -> None:
    """C never falls; the moment of a capacity is open, and C has not passed it there."""
    c: Curve = curve.build(pace, 1000.0, start, 30)
    moments = np.sort(np.array([start + s for s in seconds], dtype=np.int64))
    reached = c.capacity(moments)
    assert (np.diff(reached) >= 0).all()
    back = c.moment(reached)
    assert (back >= moments).all()
    assert (c.capacity(back) <= reached).all()
    assert (c.capacity(back + 1) > reached)[back + 1 < c.end].all()


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
def test_capacity_and_moment_are_what_counting_second_by_second_gives(
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
    assert c.capacity(seconds).tolist() == counted
    capacities = np.arange(base, dtype=np.int64)
    assert c.moment(capacities).tolist() == [
        max(s for s in open_seconds if counted[s - 100] <= capacity) for capacity in range(base)
    ]


def test_a_target_that_is_past_takes_the_next_day_at_the_same_wall_time() -> None:
    """Nine o'clock was an hour ago: tomorrow at nine, clock change or not, however long ago the date was."""
    now = at("2026-03-28", "10:00", "Europe/Berlin")
    rule = LocalTime.model_validate({"kind": "local_time", "date": "2026-03-28", "time": "09:00"})
    due, past = rules.local(rule, [("Europe/Berlin", time(9)), ("America/New_York", time(9))], now)
    assert due.tolist() == [at("2026-03-29", "09:00", "Europe/Berlin"), at("2026-03-28", "09:00", "America/New_York")]
    assert past.tolist() == [True, False]
    weeks_ago = rule.model_copy(update={"date": date(2026, 3, 1)})
    assert rules.local(weeks_ago, [("Europe/Berlin", time(11))], now)[0].tolist() == [
        at("2026-03-28", "11:00", "Europe/Berlin")
    ]


def test_one_instant_for_all_is_never_early_and_past_is_tomorrow() -> None:
    """``at`` names an offset, not a zone: its next day is 24 hours on. A fraction of a second is not cut off early."""
    rule = At.model_validate({"kind": "at", "at": "2026-11-30T09:00:00.500+01:00"})
    assert rules.same_for_all(rule, MONDAY) == (MONDAY + 8 * HOUR + 1, False)
    assert rules.same_for_all(rule, MONDAY + 9 * HOUR) == (MONDAY + DAY + 8 * HOUR + 1, True)
    assert rules.same_for_all(rule, MONDAY + 5 * DAY) == (MONDAY + 5 * DAY + 8 * HOUR + 1, True)


@pytest.mark.parametrize(
    ("written", "wall"),
    [("9:05", time(9, 5)), ("09.05", time(9, 5)), ("23:59:30", time(23, 59, 30)), ("24:00", None), ("9", None),
     ("9:5", None), ("9am", None), ("", None)],
)  # fmt: skip
def test_wall_times_are_read_as_people_write_them(written: str, wall: time | None) -> None:
    """Hours and minutes; anything that could mean two things means nothing."""
    assert rules.parse_wall(written) == wall
