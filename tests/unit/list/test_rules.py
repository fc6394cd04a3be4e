"""When an e-mail is due, whatever the list writes and the clocks do; no pace yet."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones
from carillon.shapes import AfterPrevious, Asap, At, ColumnDate, Event, LocalTime
from carillon.timing import dates, rules
from carillon.timing.clocks import Clocks
from carillon.timing.rules import DATE, EXACT, WALL_TIME, Cells, Targets

MONDAY = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())
HOUR = 3600
DAY = 24 * HOUR
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]


def at(day: str, clock: str, zone: str = "UTC") -> int:
    return zones.to_utc(zone, date.fromisoformat(day), time.fromisoformat(clock))


def due(
    rule: dict[str, Any], where: list[str], cells: Cells | None = None, now: int = MONDAY, stack_zone: str = "UTC"
) -> Targets:
    clocks = Clocks()
    kinds = {"asap": Asap, "at": At, "local_time": LocalTime, "column": ColumnDate, "event": Event}
    return rules.targets(
        kinds[rule["kind"]].model_validate(rule),
        clocks.numbers(where),
        clocks,
        now=now,
        stack_zone=stack_zone,
        cells=cells,
    )


def read(*cells: str) -> list[tuple[str | None, int | None]]:
    """What the list's cells are read as: the canonical text, and its seconds."""
    database = duckdb.connect()
    database.execute("CREATE TABLE list (n INTEGER, cell VARCHAR)")
    database.executemany("INSERT INTO list VALUES (?, ?)", list(enumerate(cells)))
    return database.execute(
        f"SELECT written, {dates.seconds('written')} "
        f"FROM (SELECT n, {dates.canonical('cell')} AS written FROM list) ORDER BY n"
    ).fetchall()


def cells(*written: str) -> Cells:
    """A column of dates as the planner gets it."""
    found = read(*written)
    return Cells(
        np.array([seconds for _, seconds in found]), np.array([len(text or "") for text, _ in found], dtype=np.int64)
    )


def test_asap_is_now_and_one_instant_is_everybodys() -> None:
    """A fraction of a second is not cut off early. The days of ``at``, which names no zone, have 24 hours."""
    assert due({"kind": "asap"}, ZONES).at.tolist() == [MONDAY] * 4
    found = due({"kind": "at", "at": "2026-11-30T09:00:00.500+01:00"}, ZONES[:2])
    assert found.at.tolist() == found.wall.tolist() == [MONDAY + 8 * HOUR + 1] * 2


def test_a_wall_time_is_each_recipients_own() -> None:
    """Nine o'clock, four times; and half past two on the night when Berlin has none, with a time from the list."""
    found = due({"kind": "local_time", "date": "2026-12-01", "time": "09:00"}, ZONES)
    assert found.at.tolist() == [at("2026-12-01", "09:00", zone) for zone in ZONES]
    rule = {"kind": "local_time", "date": "2026-03-29", "time_column": "best"}
    found = due(rule, ["Europe/Berlin"] * 2, Cells(np.array([9000, 9 * HOUR + 5])), now=MONDAY - 300 * DAY)
    assert found.at.tolist() == [
        at("2026-03-29", "03:00", "Europe/Berlin"),
        at("2026-03-29", "09:00:05", "Europe/Berlin"),
    ]
    assert found.wall.tolist() == [at("2026-03-29", "02:30"), at("2026-03-29", "09:00:05")], "its next day is 02:30"


def test_three_days_before_a_date_of_the_list_at_nine_in_each_zone() -> None:
    """DESIGN's own example."""
    rule = {"kind": "column", "column": "renewal_date", "offset": "-P3D", "time": "09:00"}
    found = due(rule, ZONES, cells("2026-12-24", "24.12.2026", "24 Dec 2026", "20261224"))
    assert found.at.tolist() == [at("2026-12-21", "09:00", zone) for zone in ZONES]


def test_a_date_time_of_the_list_is_wall_time_unless_it_names_its_offset() -> None:
    """16:00 in Kathmandu is Kathmandu's; 16:00Z is one instant, and PT26H are not P1DT2H."""
    where = ["Asia/Kathmandu"] * 2
    found = due({"kind": "column", "column": "at"}, where, cells("2026-12-24T16:00", "2026-12-24T16:00Z"))
    assert found.at.tolist() == [at("2026-12-24", "16:00", "Asia/Kathmandu"), at("2026-12-24", "16:00")]
    where = ["Europe/Berlin"] * 2
    before = cells("2026-03-28 12:00:00", "2026-03-28T12:00:00+01:00")
    for offset, clock in (("PT26H", "15:00"), ("P1DT2H", "14:00"), ("P1D", "12:00")):
        found = due({"kind": "column", "column": "at", "offset": offset}, where, before, now=MONDAY - 300 * DAY)
        assert found.at.tolist() == [at("2026-03-29", clock, "Europe/Berlin")] * 2
        assert found.wall.tolist() == [at("2026-03-29", clock)] * 2


def test_the_rules_own_time_of_day_comes_before_the_lists() -> None:
    """An instant is first read in the recipient's zone: 23:30Z is tomorrow in Berlin."""
    rule = {"kind": "column", "column": "at", "time": "09:00"}
    found = due(rule, ["Europe/Berlin"] * 2, cells("2026-12-24 16:45:01", "2026-12-24T23:30:00Z"))
    assert found.at.tolist() == [
        at("2026-12-24", "09:00", "Europe/Berlin"), at("2026-12-25", "09:00", "Europe/Berlin")
    ]  # fmt: skip


def test_a_date_long_ago_is_past_and_keeps_its_wall_time() -> None:
    """Nobody reads a century of clock changes for a date of birth."""
    found = due({"kind": "column", "column": "born", "time": "09:00"}, ["Europe/Berlin"], cells("1931-05-02"))
    assert MONDAY - 5 * DAY < found.at[0] < MONDAY
    assert found.wall[0] % DAY == 9 * HOUR


@pytest.mark.parametrize(
    ("offset", "stack_zone", "expected"),
    [
        ("-PT24H", "Europe/Berlin", ("2026-03-28", "09:00")),
        ("-P1D", "Europe/Berlin", ("2026-03-28", "10:00")),
        ("-P1D", "UTC", ("2026-03-28", "09:00")),
        ("P1DT30M", "Europe/Berlin", ("2026-03-30", "10:30")),
    ],
)
def test_days_around_an_event_are_the_stacks(offset: str, stack_zone: str, expected: tuple[str, str]) -> None:
    """The clocks go forward in the night before: 24 hours earlier is nine o'clock, and a day earlier is ten."""
    rule = {"kind": "event", "at": "2026-03-29T10:00:00+02:00", "offset": offset}
    found = due(rule, ["Asia/Kathmandu"] * 2, now=MONDAY - 300 * DAY, stack_zone=stack_zone)
    assert found.at.tolist() == [at(*expected, "Europe/Berlin")] * 2


def test_the_next_step_keeps_the_recipients_wall_clock() -> None:
    """Three days after Friday noon is Monday noon, an hour sooner where the clocks have gone forward."""
    clocks = Clocks()
    zone = clocks.numbers(["Europe/Berlin", "UTC"])
    friday = at("2026-03-27", "12:00", "Europe/Berlin")
    rule = AfterPrevious.model_validate({"kind": "after_previous", "offset": "P3D"})
    found = rules.follow(rule, np.array([friday, friday]), zone, clocks)
    assert found.at.tolist() == [friday + 3 * DAY - HOUR, friday + 3 * DAY]


@pytest.mark.parametrize(
    ("cell", "meant"),
    [
        ("2026-12-24", "2026-12-24"),
        ("2026/1/2", "2026-01-02"),
        ("2026.12.24", "2026-12-24"),
        ("20261224", "2026-12-24"),
        ("24.12.2026", "2026-12-24"),
        ("4. 1. 2026", "2026-01-04"),
        ("24 Dec 2026", "2026-12-24"),
        ("24. december 2026", "2026-12-24"),
        ("24-Dec-2026", "2026-12-24"),
        ("Sept 4, 2026", "2026-09-04"),
        ("May 4 2026", "2026-05-04"),
        ("2026-12-24T09:30", "2026-12-24T09:30:00"),
        ("2026-12-24 9:30:15", "2026-12-24T09:30:15"),
        ("24.12.2026, 09:30", "2026-12-24T09:30:00"),
        ("2026-12-24T09:30:00.000", "2026-12-24T09:30:00"),
        ("2026-12-24T23:59:59.5", "2026-12-25T00:00:00"),
        ("2026-12-24T24:00", "2026-12-25T00:00:00"),
        ("2026-12-24T09:30Z", "2026-12-24T09:30:00Z"),
        ("2026-12-24T09:30:00+01:00", "2026-12-24T08:30:00Z"),
        ("20261224T093000-0330", "2026-12-24T13:00:00Z"),
        ("2026-12-24 00:30 +01", "2026-12-23T23:30:00Z"),
        ("2026-12-24 09:30:00 UTC", "2026-12-24T09:30:00Z"),
    ],
)
def test_dates_are_read_as_people_write_them(cell: str, meant: str) -> None:
    """Year first, or dots and the day first, or a month with a name; a time after it, and perhaps an offset."""
    ((written, seconds),) = read(cell)
    assert written == meant
    assert seconds == int(datetime.fromisoformat(meant.removesuffix("Z")).replace(tzinfo=UTC).timestamp())
    assert len(meant) in (DATE, WALL_TIME, EXACT)


@pytest.mark.parametrize(
    "cell",
    ["03/04/2026", "24/12/2026", "24-12-2026", "2026-02-30", "2026-13-01", "26-12-24", "24.12.26", "46000", "", "soon",
     "2026-12-24T25:00", "2026-12-24T09:60", "2026-12-24 9", "2026-12-24 09:30 PST", "2026-12-24T09:30:00+1",
     "2026-12-24T09:30+25:00", "1850-01-01", "2126-01-01", "2026-12-24x", "٢٠٢٦-12-24", "2026-12-24\n2026-12-25"],
)  # fmt: skip
def test_what_could_mean_two_things_or_none_is_no_date(cell: str) -> None:
    """Day or month first, two digits of a year, a zone's abbreviation: nobody guesses."""
    assert read(cell) == [(None, None)]


@given(
    moments=st.lists(st.integers(at("1900-01-02", "00:00"), at("2099-12-30", "00:00")), min_size=20, max_size=20),
    offset=st.integers(-14 * 60, 14 * 60),
)
@settings(deadline=None, max_examples=15)
def test_what_python_writes_is_read_as_it_was(moments: list[int], offset: int) -> None:
    """ISO 8601, with and without an offset, by DuckDB's cast and by the long way."""
    texts = []
    for seconds in moments:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        aware, plain = moment.astimezone(timezone(timedelta(minutes=offset))), moment.replace(tzinfo=None)
        texts += [plain.isoformat(), plain.isoformat(" "), aware.isoformat(), plain.strftime("%Y%m%dT%H%M%S")]
    assert [found for _, found in read(*texts)] == [seconds for seconds in moments for _ in range(4)]


@pytest.mark.parametrize(
    ("written", "wall"),
    [("9:05", time(9, 5)), ("09.05", time(9, 5)), ("23:59:30", time(23, 59, 30)), ("24:00", None), ("9", None),
     ("9:5", None), ("9am", None), ("", None)],
)  # fmt: skip
def test_wall_times_are_read_as_people_write_them(written: str, wall: time | None) -> None:
    """Hours and minutes; anything that could mean two things means nothing."""
    assert rules.parse_wall(written) == wall
