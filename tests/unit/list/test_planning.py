"""Slots: never early, never over capacity, in order, all of them, and the same every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from math import ceil, floor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones
from carillon.errors import PlanRefused
from carillon.shapes import AfterPrevious, CampaignPace, Offset, QuietHours, Window
from carillon.timing import openings, planning
from carillon.timing.clocks import Clocks
from carillon.timing.curve import Ints
from carillon.timing.ledger import NOTHING, Taken
from carillon.timing.planning import Follow, Limits, Planned, Request, interleave, plan
from carillon.timing.rules import Targets

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
    taken: Taken = NOTHING,
) -> Limits:
    return Limits(pace, rate, cap_on, cap_zone, taken)


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def request(targets: Sequence[int], earliest: int, of: Limits, zones_of: Sequence[str] = (), **more: object) -> Request:
    """A request for targets on their recipients' clocks (UTC's, unless ``zones_of`` tells), none of them past."""
    clocks = Clocks()
    zone = clocks.numbers(zones_of or ["UTC"] * len(targets))
    due = Targets(ints(targets), zone, clocks.wall(zone, ints(targets)))
    wanted: dict[str, object] = {"now": min([earliest, *targets])} | more
    return Request(due, zone, clocks, earliest=earliest, limits=of, **wanted)  # type: ignore[arg-type]


def slots(targets: list[int], earliest: int, of: Limits, end: int | None = None) -> list[int]:
    return plan(request(targets, earliest, of, end=end)).slots.tolist()


def taken(counts: dict[int, int]) -> Taken:
    """By the minute's first second."""
    return Taken(ints([at // 60 for at in sorted(counts)]), ints([counts[at] for at in sorted(counts)]))


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


QUIET = QuietHours(start=time(21), end=time(8))


def test_whoever_is_asleep_is_mailed_as_soon_as_their_quiet_hours_are_over() -> None:
    """Noon in UTC: Auckland sleeps until eight, and Berlin does not wait for it."""
    noon = MONDAY + 12 * HOUR
    where = ["Pacific/Auckland", "Europe/Berlin", "Pacific/Auckland", "Europe/Berlin"]
    found = plan(request([noon] * 4, noon, limits(rate=1), where, quiet_hours=QUIET)).slots.tolist()
    assert found[1::2] == [noon, noon + 1]
    assert found[::2] == [at("2026-12-01", "08:00", "Pacific/Auckland") + n for n in (0, 1)]


def test_a_queue_that_runs_into_the_night_goes_on_in_the_morning() -> None:
    """Four an hour from 20:00: those who would be mailed after 21:00 are mailed from 08:00 on, in their order."""
    evening = at("2026-11-30", "20:00", "Europe/Berlin")
    pace = windowed(96, (0, 24))
    found = plan(request([evening] * 6, evening, limits(pace), ["Europe/Berlin"] * 6, quiet_hours=QUIET)).slots.tolist()
    assert [s - evening for s in found] == [0, 900, 1800, 2700, 12 * HOUR, 12 * HOUR + 900]


def test_quiet_hours_that_leave_a_pace_nothing_open_are_refused() -> None:
    """A window from 22:00 to 23:00 and a night from 21:00: the plan says so, and does not wait for ever."""
    with pytest.raises(PlanRefused, match="without a slot"):
        plan(request([MONDAY], MONDAY, limits(windowed(9, (22, 23))), quiet_hours=QUIET))


def test_who_comes_too_late_is_put_off_to_the_next_day_at_the_same_wall_time() -> None:
    """Ten a day within an hour: the rest is due at nine tomorrow, on the day that the clocks go forward too."""
    nine = at("2026-03-28", "09:00", "Europe/Berlin")
    of = limits(rate=0.001)  # one in 1,000 seconds
    found = plan(request([nine] * 6, nine, of, ["Europe/Berlin"] * 6, within=Offset(seconds=HOUR)))
    tomorrow = at("2026-03-29", "09:00", "Europe/Berlin")
    assert tomorrow == nine + 23 * HOUR
    assert found.slots.tolist() == [nine, nine + 1000, nine + 2000, nine + 3000, tomorrow, tomorrow + 1000]
    assert (found.next_day, found.late, found.unplanned()) == (2, 0, {})


def test_who_comes_too_late_is_skipped_and_the_next_in_line_has_the_place() -> None:
    """Two an hour within an hour. The second of nine o'clock's three is the last in time; ten o'clock's goes at ten."""
    nine = MONDAY + 9 * HOUR
    of = limits(windowed(48, (0, 24)))
    found = plan(request([nine] * 4 + [nine + HOUR], nine, of, within=Offset(seconds=1800), if_late="skip"))
    assert found.slots.tolist() == [nine, nine + 1800, -1, -1, nine + HOUR]
    assert found.unplanned() == {"too_late": 2}


def test_who_comes_too_late_goes_all_the_same_if_the_campaign_says_so() -> None:
    """And is counted."""
    found = plan(request([MONDAY] * 4, MONDAY, limits(rate=1), within=Offset(seconds=1), if_late="late"))
    assert found.slots.tolist() == [MONDAY + n for n in range(4)]
    assert (found.late, found.next_day, found.unplanned()) == (2, 0, {})


def test_within_that_no_window_ever_meets_is_refused() -> None:
    """Due at 20:00, within the hour, and the window ends at 17:00."""
    with pytest.raises(PlanRefused, match="within PT1H of their targets"):
        plan(request([MONDAY + 20 * HOUR], MONDAY, limits(windowed(9, (9, 17))), within=Offset(seconds=HOUR)))


@pytest.mark.parametrize(
    ("if_late", "slot", "unplanned"),
    [("next_day", 23 * HOUR, {}), ("late", 0, {}), ("skip", -MONDAY - 1, {"past": 1})],
)
def test_a_target_that_is_past_is_the_campaigns_choice(if_late: str, slot: int, unplanned: dict[str, int]) -> None:
    """An hour ago: the next day at the same wall time, at once, or not at all; and the plan says how many."""
    found = plan(request([MONDAY - HOUR, MONDAY], MONDAY, limits(), now=MONDAY, if_late=if_late))
    assert found.slots.tolist() == [MONDAY + slot, MONDAY]
    assert (found.past, found.unplanned()) == (1, unplanned)


def test_a_target_weeks_ago_takes_the_first_day_that_is_left() -> None:
    """Eleven o'clock is still to come today; nine o'clock is not, and tomorrow the clocks go forward."""
    now = at("2026-03-28", "10:00", "Europe/Berlin")
    past = [at("2026-03-01", clock, "Europe/Berlin") for clock in ("11:00", "09:00", "02:30")]
    found = plan(request(past, now, limits(), ["Europe/Berlin"] * 3, now=now)).slots.tolist()
    assert found[:2] == [at("2026-03-28", "11:00", "Europe/Berlin"), at("2026-03-29", "09:00", "Europe/Berlin")]
    assert found[2] == at("2026-03-29", "03:00", "Europe/Berlin"), "half past two is in the gap"


def test_who_goes_first_among_equal_targets_is_the_callers_choice() -> None:
    """By rank; an earlier target comes before any rank."""
    found = plan(request([MONDAY] * 3 + [MONDAY - 5], MONDAY, limits(rate=1), rank=ints([2, 0, 1, 9])))
    assert found.slots.tolist() == [MONDAY + 3, MONDAY + 1, MONDAY + 2, MONDAY]


def test_mailbox_domains_are_interleaved_evenly() -> None:
    """Six of one, two of another and one of a third: nobody's burst, nobody's tail, each in its own order."""
    rank = interleave(ints([7, 7, 7, 7, 7, 7, 3, 3, 5]))
    assert [int(n) for n in np.argsort(rank)] == [0, 1, 6, 2, 8, 3, 4, 7, 5]
    assert interleave(ints([1, 1, 1])).tolist() == [0, 1, 2]
    assert interleave(ints([])).tolist() == []


def test_a_forecast_follows_its_own_step_on_what_the_others_leave() -> None:
    """Three days after each slot, wall clock kept; a step whose step before has no slot has none either."""
    start = at("2026-03-27", "09:00", "Europe/Berlin")
    follow = Follow(ints([2, 3]), ints([0, 1]), AfterPrevious(kind="after_previous", offset=Offset(days=3)))
    wanted = request([start, start + 1, 0, 0], start, limits(rate=1), ["Europe/Berlin"] * 4, follows=[follow], now=0)
    found = plan(wanted)
    later = at("2026-03-30", "09:00", "Europe/Berlin")
    assert found.slots.tolist() == [start, start + 1, later, later + 1]
    assert later - start == 3 * DAY - HOUR
    skipped = plan(replace(wanted, now=start + 1, if_late="skip"))
    assert skipped.slots.tolist() == [-1, start + 1, -1, later + 1]
    assert skipped.unplanned() == {"past": 1, "previous": 1}


def test_what_other_campaigns_have_taken_is_not_taken_again() -> None:
    """A minute of sixty with fifty-eight gone has two places left, and a full one none."""
    of = limits(rate=1, taken=taken({MONDAY: 58, MONDAY + 60: 60, MONDAY + 120: 70}))
    assert slots([MONDAY] * 4, MONDAY, of) == [MONDAY, MONDAY + 30, MONDAY + 180, MONDAY + 181]


def test_two_windows_of_one_minute_share_what_others_leave_of_it() -> None:
    """Each by itself has room for the one e-mail that is left; together they have no more."""
    pace = CampaignPace(
        per_day=10_000_000,
        weekdays=(1,),
        windows=(
            Window(start=time(9), end=time(9, 0, 20)),
            Window(start=time(9, 0, 30), end=time(9, 2)),
        ),
        timezone="UTC",
    )
    nine = MONDAY + 9 * HOUR
    found = slots([nine] * 4, nine, limits(pace, rate=1, taken=taken({nine: 59})))
    assert found == [nine, nine + 60, nine + 61, nine + 62]


def test_other_campaigns_plans_come_off_the_days_cap_from_now_on() -> None:
    """What they planned for earlier has been sent and counted; the cap's day is the stack's, the ledger's is UTC's."""
    kathmandu = at("2026-12-01", "00:00", "Asia/Kathmandu")
    of = limits(
        cap_on=lambda _: 10,
        cap_zone="Asia/Kathmandu",
        taken=taken({kathmandu: 50, kathmandu + HOUR: 3, kathmandu + 12 * HOUR: 4, kathmandu + DAY: 9}),
    )
    start = kathmandu + HOUR
    found = slots([start] * 5, start, of)
    assert found == [start, start, start, kathmandu + DAY, kathmandu + 2 * DAY]


def test_holidays_are_closed() -> None:
    """Epiphany is one in Bavaria and not in Berlin."""
    for land, day in (("DE-BY", "2027-01-07"), ("DE-BE", "2027-01-06")):
        pace = windowed(8, (9, 17)).model_copy(update={"holidays": land})
        start = at("2027-01-06", "00:00")
        assert slots([start], start, limits(pace)) == [at(day, "09:00")]
    with pytest.raises(PlanRefused, match="public holidays of XX"):
        slots([MONDAY], MONDAY, limits(windowed(8, (9, 17)).model_copy(update={"holidays": "XX"})))


ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kathmandu", "Pacific/Auckland"]
STARTS = [
    MONDAY, at("2026-03-28", "12:00"), at("2026-10-24", "21:17"), at("2026-04-04", "03:33"), at("2026-10-03", "01:01")
]  # fmt: skip
"""A week like any other, and weeks in which some of `ZONES` change their clocks."""
RATES = [0.001, 0.0017, 0.016667, 0.1, 0.517203, 1.0, 1.000001, 7.3, 50.0]


def some_pace(random: Random) -> CampaignPace:
    edges = sorted(random.sample(range(48 * 30 + 1), 2 * random.randint(1, 3)))
    return CampaignPace(
        per_day=random.choice([1, 3, 20, 100]),
        weekdays=tuple(sorted(random.sample(range(1, 8), random.randint(1, 7)))),
        windows=tuple(
            Window(start=time(a // 60, a % 60), end=time(b // 60 % 24, b % 60))
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ),
        timezone=random.choice(ZONES[:4]),
    )


def some_campaign(random: Random) -> Request:
    """Anything that a spec can ask for, with up to sixty e-mails, and more often crowded than not."""

    def sometimes[T](value: T) -> T | None:
        return random.choice([value, None])

    start, moments = random.choice(STARTS), [random.randint(-DAY, 3 * DAY) for _ in range(random.randint(1, 6))]
    count = random.randint(1, 60)
    caps = sometimes([random.choice([0, 5, 20, 120]) for _ in range(7)])
    minutes = {random.randint(-90, 3 * 1440): random.randint(1, 400) for _ in range(random.choice([0, 0, 40]))}
    minutes |= dict.fromkeys(range(0, random.choice([0, 0, 30, 1440]), 2), random.choice([1, 3, 5, 59]))
    followed = random.choice([0, count // 3])
    offset = Offset(days=random.randint(0, 3), seconds=random.choice([1, HOUR, DAY]))
    follow = Follow(
        ints(range(count - followed, count)), ints(range(followed)), AfterPrevious(kind="after_previous", offset=offset)
    )
    quiet = QuietHours(start=time(random.randint(12, 23), 15), end=time(random.randint(0, 11), random.choice([0, 30])))
    return request(
        [start + random.choice(moments) for _ in range(count)],
        start + random.choice([0, 600]),
        limits(
            sometimes(some_pace(random)),
            random.choice(RATES),
            None if caps is None else (lambda day: caps[day.toordinal() % 7]),
            random.choice(["UTC", "Asia/Kathmandu", "America/New_York"]),
            taken({(start // 60 + minute) * 60: n for minute, n in minutes.items()}),
        ),
        random.choices(ZONES[: random.randint(1, 6)], k=count),
        now=start,
        rank=sometimes(ints(random.sample(range(count), count))),
        follows=[follow] if followed else [],
        quiet_hours=random.choice([None, quiet, QuietHours(start=quiet.end, end=quiet.start)]),
        within=sometimes(Offset(days=random.choice([0, 0, 1]), seconds=random.choice([600, 6 * HOUR, 20 * HOUR]))),
        if_late=random.choice(["next_day", "next_day", "late", "skip"]),
        end=random.choice([None, None, None, start - HOUR, start + 2 * DAY, start + 5 * DAY]),
    )


def under_a_quota(random: Random) -> Request:
    """The same of an account that may send so many in any 24 hours and has sent some."""
    wanted = some_campaign(random)
    hours = [random.randint(-26, 0) for _ in range(random.choice([0, 5]))]
    sent = {wanted.now - wanted.now % HOUR + hour * HOUR + HOUR - 60: random.randint(1, 10) for hour in hours}
    quota = random.choice([1, 3, 20, 150, 1000])
    return replace(wanted, limits=replace(wanted.limits, quota=quota, sent=taken(sent)))


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=200)
def test_the_laws_of_a_plan_hold_on_any_curve(seed: int) -> None:
    """Never early, over capacity, asleep or too late; order kept; everybody planned or told why; the same again."""
    wanted = some_campaign(Random(seed))
    try:
        found = plan(wanted)
    except PlanRefused:
        return
    everybody_has_a_slot_or_a_reason(wanted, found)
    nobody_is_early_or_late(wanted, found)
    nothing_is_over_capacity(wanted, found)
    order_is_kept(wanted, found)
    again = plan(wanted)
    assert found.slots.tolist() == again.slots.tolist()
    assert found.reason.tolist() == again.reason.tolist()


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=150)
def test_no_24_hours_hold_more_than_the_quota(seed: int) -> None:
    """With what others plan and what was sent, whatever else bounds the plan; and the other laws hold all the same."""
    wanted = under_a_quota(Random(seed))
    try:
        found = plan(wanted)
    except PlanRefused:
        return
    everybody_has_a_slot_or_a_reason(wanted, found)
    nobody_is_early_or_late(wanted, found)
    nothing_is_over_capacity(wanted, found)
    order_is_kept(wanted, found)
    of, own = wanted.limits, found.slots[found.slots >= 0]
    planned = of.taken.minutes >= wanted.now // 60
    given = np.repeat(
        np.concatenate((of.taken.minutes[planned], of.sent.minutes)) * 60,
        np.concatenate((of.taken.counts[planned], of.sent.counts)),
    )
    everything = np.sort(np.concatenate((own, given)))
    quota = of.quota or 0
    for slot in own.tolist():  # 24 hours with one of ours among the most that they hold begin with somebody's
        for begin in everything[(everything > slot - DAY) & (everything <= slot)].tolist():
            assert int(((everything >= begin) & (everything < begin + DAY)).sum()) <= quota


@given(
    targets=st.lists(st.integers(0, 2 * DAY), min_size=1, max_size=60), quota=st.integers(1, 30),
    rate=st.sampled_from([0.01, 1, 100]),
)  # fmt: skip
@settings(deadline=None)
def test_the_quota_makes_nobody_wait_longer_than_it_must(targets: list[int], quota: int, rate: float) -> None:
    """Each goes as soon as it is due, the rate allows it and the one `quota` before it is a day ago, or 1:59 later."""
    of = replace(limits(rate=rate), quota=quota)
    found = sorted(slots([MONDAY + target for target in targets], MONDAY, of))
    for n, (slot, target) in enumerate(zip(found, sorted(targets), strict=True)):
        soonest = MONDAY + target
        if n:
            soonest = max(soonest, found[n - 1] + ceil(1 / rate))
        if n >= quota:
            soonest = max(soonest, found[n - quota] + DAY)
        assert slot < soonest + 120


def test_a_quota_that_is_spent_before_midnight_is_not_spent_again_after_it() -> None:
    """The cap's day ends, SES's 24 hours do not: the next go when the first have been a day ago, to the minute."""
    evening = MONDAY + DAY - 10
    found = slots([evening] * 6, MONDAY, replace(limits(cap_on=lambda _: 3), quota=3))
    assert found == [evening] * 3 + [MONDAY + 2 * DAY] * 3


def test_a_large_quota_is_waited_for_a_hundredth_at_a_time() -> None:
    """What was spent second by second comes back like that: the second day is as the first, a hundredth later."""
    found = slots([MONDAY] * 20_000, MONDAY, replace(limits(rate=1), quota=10_000))
    assert found[9_999] == MONDAY + 9_999
    late = np.array(found[10_000:]) - (np.array(found[:10_000]) + DAY)
    assert (late >= 0).all()
    assert late.max() <= 100 + 120


def everybody_has_a_slot_or_a_reason(wanted: Request, found: Planned) -> None:
    count = len(wanted.zone)
    assert (np.equal(found.slots < 0, found.reason > 0)).all()
    assert int((found.slots >= 0).sum()) + sum(found.unplanned().values()) == count
    assert wanted.end is not None or "not_after" not in found.unplanned()
    assert wanted.if_late == "skip" or not found.unplanned().keys() & {"past", "too_late"}
    if wanted.if_late == "skip" and wanted.end is None:
        assert found.unplanned().get("past", 0) == found.past


def nobody_is_early_or_late(wanted: Request, found: Planned) -> None:
    waiting = {int(n) for follow in wanted.follows for n in follow.tasks}
    for n in np.flatnonzero(found.slots >= 0).tolist():
        slot, target = int(found.slots[n]), int(found.targets.at[n])
        zone = zones.get(wanted.clocks.names[wanted.zone[n]])
        assert slot >= max(target, wanted.earliest)
        if wanted.end is not None:
            assert slot <= wanted.end
        if n not in waiting:
            original = int(wanted.targets.at[n])
            assert target >= original
            assert target >= wanted.now or wanted.if_late == "late"
            assert (found.targets.wall[n] - wanted.targets.wall[n]) % DAY == 0
            if target != original:
                assert wanted.if_late == "next_day"
                shown = datetime.fromtimestamp(int(found.targets.wall[n]), UTC)
                assert zones.to_utc(zone.key, shown.date(), shown.time()) == target
        if wanted.within is not None and wanted.if_late != "late":
            shown = datetime.fromtimestamp(int(found.targets.wall[n]), UTC) + timedelta(days=wanted.within.days)
            base = zones.to_utc(zone.key, shown.date(), shown.time()) if wanted.within.days else target
            assert slot <= base + wanted.within.seconds
        if wanted.quiet_hours is not None:
            wall = datetime.fromtimestamp(slot, UTC).astimezone(zone).time()
            assert not openings.is_quiet(wanted.quiet_hours, wall)
    for follow in wanted.follows:
        for task, before in zip(follow.tasks.tolist(), follow.previous.tolist(), strict=True):
            assert found.slots[task] < 0 or found.slots[task] > found.slots[before] >= 0


def nothing_is_over_capacity(wanted: Request, found: Planned) -> None:
    of = wanted.limits
    pace, rate = of.pace, of.rate_per_second
    ordered = sorted(found.slots[found.slots >= 0].tolist())
    if not ordered:
        return
    assert max(Counter(ordered).values()) <= ceil(rate)
    for few in (2, 3, 10):
        for first, last in zip(ordered, ordered[few - 1 :], strict=False):
            # `few` e-mails need the time of few - 1 intervals; slots are cut to whole seconds, hence one more.
            assert last - first + 1 >= int((few - 1) / rate * (1 - 1e-6)), "faster than the rate"
    others = dict(zip(of.taken.minutes.tolist(), of.taken.counts.tolist(), strict=True))
    for minute, count in Counter(slot // 60 for slot in ordered).items():
        if minute in others:
            assert count + others[minute] <= floor(Fraction(str(rate)) * 60), "a minute is shared"
        assert count <= ceil(Fraction(str(rate)) * 60)
    if of.cap_on is not None:
        zone = zones.get(of.cap_zone)
        per_day = Counter(datetime.fromtimestamp(s, UTC).astimezone(zone).date() for s in ordered)
        for minute, count in others.items():
            if minute * 60 >= wanted.now:
                day = datetime.fromtimestamp(minute * 60, UTC).astimezone(zone).date()
                if day in per_day:
                    per_day[day] += count
        assert all(count <= of.cap_on(day) for day, count in per_day.items())
    if pace is not None:
        local = [datetime.fromtimestamp(s, UTC).astimezone(zones.get(pace.timezone)) for s in ordered]
        assert max(Counter(moment.date() for moment in local).values()) <= pace.per_day
        for moment in local:
            assert moment.isoweekday() in pace.weekdays
            assert any(
                w.start <= moment.time() and (w.end == time(0) or moment.time() < w.end) for w in pace.windows
            ) or _clocks_changed(moment), moment


def order_is_kept(wanted: Request, found: Planned) -> None:
    """Among those of one zone whom the same round has planned: a put-off task goes after its new day's own."""
    rank = np.arange(len(wanted.zone)) if wanted.rank is None else wanted.rank
    waiting = np.zeros(len(wanted.zone), dtype=np.bool_)
    for follow in wanted.follows:
        waiting[follow.tasks] = True
    moved = (found.targets.wall - wanted.targets.wall) // DAY
    moved[wanted.targets.at < wanted.now] = -1
    kept = [n for n in np.flatnonzero(found.slots >= 0).tolist() if not waiting[n] and moved[n] == 0]
    by_zone: dict[int, list[tuple[int, int, int]]] = {}
    for n in kept:
        key = 0 if wanted.quiet_hours is None else int(wanted.zone[n])
        by_zone.setdefault(key, []).append((int(found.targets.at[n]), int(rank[n]), int(found.slots[n])))
    for tasks in by_zone.values():
        planned = [slot for *_, slot in sorted(tasks)]
        assert planned == sorted(planned)


def _clocks_changed(moment: datetime) -> bool:
    """Around a change a window's bounds move with the clock (gap: to its end; fold: to the first of the two)."""
    return (moment - timedelta(hours=3)).utcoffset() != (moment + timedelta(hours=3)).utcoffset()


STEP = 400
"""Seconds that an e-mail takes in the model below: exactly 1,000,000 units of a rate of 0.0025."""


def model(wanted: Request) -> list[int]:
    """The same plan, slot by slot: whoever is first in order, awake and in time gets it; misfits begin anew."""
    of, names = wanted.limits, wanted.clocks.names
    end = wanted.earliest + 30 * DAY
    used: Counter[date] = Counter()
    found = [-1] * len(wanted.zone)
    target = wanted.targets.at.tolist()
    tasks = list(range(len(target)))
    free = list(range(wanted.earliest, end, STEP))
    while tasks:
        queue = sorted(tasks, key=lambda n: (target[n], n))
        misfits = []
        for slot in list(free):
            day = datetime.fromtimestamp(slot, UTC).astimezone(zones.get(of.cap_zone)).date()
            if of.cap_on is not None and used[day] >= of.cap_on(day):
                continue
            for n in list(queue):
                if target[n] > slot:
                    break
                wall = datetime.fromtimestamp(slot, UTC).astimezone(zones.get(names[wanted.zone[n]])).time()
                if wanted.quiet_hours and openings.is_quiet(wanted.quiet_hours, wall):
                    continue
                queue.remove(n)
                if wanted.within and slot > target[n] + wanted.within.seconds:
                    misfits.append(n)
                    continue
                found[n] = slot
                free.remove(slot)
                used[day] += 1
                break
        assert not queue
        tasks = misfits if wanted.if_late == "next_day" else []
        for n in tasks:
            target[n] += DAY  # no clock is changed in these weeks
    return found


@given(
    steps=st.lists(st.integers(0, 3 * 216), min_size=1, max_size=40),
    where=st.lists(st.sampled_from(["UTC", "Asia/Tokyo", "America/New_York"]), min_size=40, max_size=40),
    quiet=st.one_of(
        st.none(),
        st.tuples(st.integers(0, 23), st.integers(0, 23))
        .filter(lambda h: h[0] != h[1] and (h[1] - h[0]) % 24 < 12)
        .map(lambda h: QuietHours(start=time(h[0]), end=time(h[1]))),
    ),
    within=st.one_of(st.none(), st.integers(12, 60).map(lambda n: Offset(seconds=n * HOUR))),
    if_late=st.sampled_from(["next_day", "skip"]),
    cap=st.one_of(st.none(), st.integers(10, 60)),
    cap_zone=st.sampled_from(["UTC", "Asia/Tokyo"]),
)
@settings(deadline=None, max_examples=200)
def test_a_plan_is_what_filling_slot_by_slot_gives(
    steps: list[int],
    where: list[str],
    quiet: QuietHours | None,
    within: Offset | None,
    if_late: str,
    cap: int | None,
    cap_zone: str,
) -> None:
    """No place stays empty while somebody waits who is awake and in time: a model of twenty lines agrees."""
    start = MONDAY + 6 * DAY
    wanted = request(
        [start + n * STEP for n in steps],
        start,
        limits(None, 0.0025, None if cap is None else (lambda _: cap), cap_zone),
        where[: len(steps)],
        quiet_hours=quiet,
        within=within,
        if_late=if_late,
    )
    assert plan(wanted).slots.tolist() == model(wanted)
