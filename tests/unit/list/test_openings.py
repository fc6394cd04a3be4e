"""When one e-mail may go, found without numpy: the same moments that a scan of the clock finds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones
from carillon.errors import PlanRefused
from carillon.shapes import CampaignPace, CampaignSpec, QuietHours, Window
from carillon.timing import openings
from carillon.timing.openings import first_opening

MONDAY = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())
HOUR = 3600
DAY = 24 * HOUR
ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Auckland"]


def at(day: str, clock: str, zone: str = "UTC") -> int:
    return zones.to_utc(zone, date.fromisoformat(day), time.fromisoformat(clock))


def spec(pace: CampaignPace | None = None, quiet: QuietHours | None = None) -> CampaignSpec:
    return CampaignSpec.model_validate(
        {
            "name": "Advent",
            "from": "shop@example.com",
            "topic": "offers",
            "steps": [{"template": "t.html", "subject": "Hi", "rule": {"kind": "asap"}}],
            "pace": pace and pace.model_dump(),
            "quiet_hours": quiet and quiet.model_dump(),
        }
    )


def office_hours(**changes: Any) -> CampaignPace:
    return CampaignPace.model_validate({"per_day": 8, "timezone": "Europe/Berlin"} | changes)


def test_an_open_moment_is_its_own_opening() -> None:
    """Without pace and quiet hours every moment is."""
    assert first_opening(spec(), None, MONDAY) == MONDAY
    ten = at("2026-11-30", "10:00", "Europe/Berlin")
    assert first_opening(spec(office_hours()), None, ten) == ten


def test_a_closed_moment_waits_for_the_window_the_weekday_and_the_end_of_the_holiday() -> None:
    """Friday the first of May, at noon: a holiday in Germany, and then a week-end."""
    noon = at("2026-05-01", "12:00", "Europe/Berlin")
    assert first_opening(spec(office_hours()), None, noon) == noon
    monday = at("2026-05-04", "09:00", "Europe/Berlin")
    assert first_opening(spec(office_hours(holidays="DE")), None, noon) == monday
    assert first_opening(spec(office_hours()), None, at("2026-05-01", "17:00", "Europe/Berlin")) == monday


def test_quiet_hours_are_the_recipients_and_the_window_is_the_paces() -> None:
    """Nine in Berlin is night in New York; eight o'clock there is an hour before Berlin closes."""
    quiet = QuietHours(start=time(21), end=time(8))
    nine = at("2026-11-30", "09:00", "Europe/Berlin")
    of = spec(office_hours(), quiet)
    assert first_opening(of, "America/New_York", nine) == at("2026-11-30", "08:00", "America/New_York")
    assert first_opening(of, None, nine) == nine, "who has no zone is where the pace is"
    # In Auckland it is evening when Berlin opens, and Berlin has closed again by eight.
    with pytest.raises(PlanRefused, match="outside quiet_hours"):
        first_opening(spec(office_hours(), QuietHours(start=time(18), end=time(8))), "Pacific/Auckland", nine)


def test_an_unknown_country_is_refused() -> None:
    """With the field's name."""
    for country in ("XX", "DE-XX"):
        with pytest.raises(PlanRefused, match=f"pace.holidays: nobody has listed the public holidays of {country}"):
            first_opening(spec(office_hours(holidays=country)), None, MONDAY)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=150)
def test_a_scan_of_the_clock_finds_the_same_opening(seed: int) -> None:
    """Minute by minute, over nights in which clocks change."""
    random = Random(seed)
    edges = sorted(random.sample(range(0, 1440, 15), 2 * random.randint(1, 2)))
    pace = CampaignPace(
        weekdays=tuple(sorted(random.sample(range(1, 8), random.randint(2, 7)))),
        windows=tuple(
            Window(start=time(a // 60, a % 60), end=time(b // 60, b % 60))
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ),
        timezone=random.choice(ZONES),
    )
    walls = random.sample(range(0, 1440, 15), 2)
    quiet = QuietHours(start=time(walls[0] // 60, walls[0] % 60), end=time(walls[1] // 60, walls[1] % 60))
    zone = random.choice(ZONES)
    around = random.choice(["2026-03-29", "2026-10-25", "2026-04-05", "2026-10-04", "2026-11-01", "2026-07-01"])
    after = at(around, "00:00") + random.randint(-20 * 60, 20 * 60) * 60
    of = spec(random.choice([pace, None]), random.choice([quiet, None]))

    days = [date.fromisoformat(around) + timedelta(days=n) for n in range(-3, 12)]
    bounds = [b for day in days for b in openings.open_on(pace, day)]

    def is_open(moment: int) -> bool:
        shown = datetime.fromtimestamp(moment, UTC).astimezone(zones.get(zone)).time()
        return (of.pace is None or any(begin <= moment < end for begin, end in bounds)) and not (
            of.quiet_hours and openings.is_quiet(of.quiet_hours, shown)
        )

    expected = next((m for m in range(after, after + 8 * DAY, 60) if is_open(m)), None)
    try:
        found = first_opening(of, zone, after)
    except PlanRefused:
        found = None
    assert found == expected or (expected is None and found is not None and found >= after + 8 * DAY)


def test_a_days_windows_are_apart_and_in_order() -> None:
    """Overlapping ones are one, midnight is the next day's, and one that a clock change swallows is none."""
    pace = CampaignPace(
        windows=(
            Window(start=time(22), end=time(0)),
            Window(start=time(2), end=time(3)),
            Window(start=time(21), end=time(23)),
        ),
        weekdays=(7,),
        timezone="Europe/Berlin",
    )
    evening = (at("2026-03-29", "21:00", "Europe/Berlin"), at("2026-03-30", "00:00", "Europe/Berlin"))
    assert openings.open_on(pace, date(2026, 3, 29)) == [evening]
    assert len(openings.open_on(pace, date(2026, 4, 5))) == 2
    assert openings.open_on(pace, date(2026, 3, 30)) == []


def test_what_is_planned_for_a_day_already_is_not_planned_on_top_of_it() -> None:
    """Eight a day, six of them there: two today, and eight tomorrow."""
    pace = office_hours()
    start = at("2026-11-30", "09:00", "Europe/Berlin")
    found = list(islice(openings.openings(pace, start, {date(2026, 11, 30): 6, date(2026, 12, 2): 8}), 18))
    zone = zones.get("Europe/Berlin")
    per_day = Counter(datetime.fromtimestamp(moment, UTC).astimezone(zone).date().day for moment in found)
    assert per_day == {30: 2, 1: 8, 3: 8}
    assert found[2:10] == [at("2026-12-01", f"{hour:02}:00", "Europe/Berlin") for hour in range(9, 17)]


def test_functions_without_numpy_can_find_openings_and_give_back() -> None:
    """Only PrepareList has it; the reconciler and the sender plan one task, and a cancel gives back."""
    code = "import sys; sys.modules['numpy'] = None; import carillon.timing.openings, carillon.adapters.ledger"
    functions = Path(__file__).parents[3] / "functions"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=functions)


def test_a_pace_without_room_ends_with_a_reason() -> None:
    """Every day has its eight already: nobody looks for ever."""
    full = {date(2026, 11, 30) + timedelta(days=n): 8 for n in range(900)}
    with pytest.raises(PlanRefused, match="more than a year"):
        next(openings.openings(office_hours(), MONDAY, full))
