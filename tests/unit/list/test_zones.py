"""A wall time in a zone is one instant, whatever the clocks do that night."""

from __future__ import annotations

import json
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones

CASES = json.loads((Path(__file__).parents[2] / "fixtures" / "zones.json").read_text())["cases"]

CHANGING = [
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "America/St_Johns",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Pacific/Apia",
    "America/Nuuk",
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_known_wall_times_mean_known_instants(case: dict[str, str]) -> None:
    """Gap: the first valid instant after it. Fold: the first. Checked elsewhere with three independent readers."""
    local = datetime.fromisoformat(case["local"])
    answer = datetime.fromtimestamp(zones.to_utc(case["zone"], local.date(), local.time()), UTC)
    assert answer.strftime("%Y-%m-%dT%H:%M:%SZ") == case["utc"]


@given(
    zone=st.sampled_from(CHANGING),
    day=st.dates(date(2011, 1, 1), date(2037, 12, 31)),
    wall=st.times().map(lambda t: t.replace(second=0, microsecond=0)),
)
@settings(deadline=None, max_examples=60)
def test_a_scan_of_utc_minutes_finds_the_same_instant(zone: str, day: date, wall: time) -> None:
    """The first minute of UTC whose wall clock shows the wanted time, or has just jumped over it."""
    local = datetime.combine(day, wall)
    tz = zones.get(zone)
    minute = datetime.combine(day, wall, UTC) - timedelta(hours=27)
    showing = [minute + timedelta(minutes=n) for n in range(54 * 60)]
    walls = [m.astimezone(tz).replace(tzinfo=None) for m in showing]
    if local in walls:
        expected = showing[walls.index(local)]
    else:
        expected = next(m for m, w in zip(showing, walls, strict=True) if w > local)
    assert zones.to_utc(zone, day, wall) == expected.timestamp()


def test_names_come_from_the_pinned_tz_database() -> None:
    """The machine's own zone files are out of the way: they may be years old."""
    assert zoneinfo.TZPATH == ()
    assert {"Europe/Kyiv", "Europe/Kiev", "Asia/Calcutta", "US/Eastern", "UTC"} <= zones.names()
    assert "Factory" not in zones.names()


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("PST", "Europe/Berlin"),
        ("+02:00", "Europe/Berlin"),
        ("GMT+3", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("new york", "America/New_York"),
    ],
)
def test_abbreviations_offsets_and_misspellings_are_refused_with_a_suggestion(written: str, suggested: str) -> None:
    """Nobody guesses which of the world's PSTs was meant."""
    assert zones.find(written) is None
    with pytest.raises(zones.UnknownZone, match="unknown time zone") as refusal:
        zones.known(written)
    assert suggested in str(refusal.value)


def test_a_name_in_another_case_is_the_same_name() -> None:
    """``europe/paris`` is what people write."""
    assert zones.find("europe/paris") == "Europe/Paris"
