"""Dates and date-times as people write them, read in SQL: a list has a million, and most are different.

Only what means one thing is read. ``03/04/2026`` is a day in March to some and in April to others, and a column may
hold both kinds, so the year comes first, or the month has a name, or dots say that the day comes first.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone

from carillon.sql import text

_MONTH = r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"  # fmt: skip # noqa: E501
_SHORT_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTHS = str(_SHORT_MONTHS)
_DATES = {
    ("y1", "m1", "d1"): r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})",
    ("y2", "m2", "d2"): r"([0-9]{4})/([0-9]{1,2})/([0-9]{1,2})",
    ("y3", "m3", "d3"): r"([0-9]{4})\.([0-9]{1,2})\.([0-9]{1,2})",
    ("y4", "m4", "d4"): r"([0-9]{4})([0-9]{2})([0-9]{2})",
    ("d5", "m5", "y5"): r"([0-9]{1,2})\. ?([0-9]{1,2})\. ?([0-9]{4})",
    ("d6", "n6", "y6"): rf"([0-9]{{1,2}})\.?[ -]{_MONTH}[ -]([0-9]{{4}})",
    ("n7", "d7", "y7"): rf"{_MONTH} ([0-9]{{1,2}}),? ([0-9]{{4}})",
}
_TIME = r"(?:(?:[t ]|, ?| +)([0-9]{1,2}):?([0-9]{2})(?::?([0-9]{2})(?:[.,]([0-9]{1,9}))?)? ?(z|utc|[+-](?:0[0-9]|1[0-4])(?::?[0-5][0-9])?)?)?"  # fmt: skip # noqa: E501

WRITTEN = f"(?i)(?:{'|'.join(_DATES.values())}){_TIME}"
"""For RE2: 2026-12-24, 2026/12/24, 20261224, 24.12.2026, 24 Dec 2026, December 24, 2026; with 9:30, T09:30:00,
093000.5; with Z or an offset."""

_NAMES = [name for names in _DATES for name in names] + ["hour", "minute", "second", "fraction", "zone"]


def canonical(cell: str) -> str:
    """An SQL expression for what ``cell`` (an expression, trimmed) says, or NULL where that is no date of 1900–2099.

    A date is ``2026-12-24``, a date-time on a wall clock ``2026-12-24T09:30:00``, and one that names its offset is
    UTC, ``2026-12-24T08:30:00Z``. A part of a second is a whole one: nobody is early.
    """
    year, day = (" || ".join(f"p.{name}" for name in _NAMES if name[0] == part and name[1:].isdigit()) for part in "yd")
    named = " || ".join(f"p.{name}" for name in _NAMES if name[0] == "n")
    month = " || ".join(f"p.{name}" for name in _NAMES if name[0] == "m" and name[1:].isdigit())
    number = f"CASE WHEN {named} = '' THEN {month} ELSE list_position({_MONTHS}, lower(left({named}, 3)))::VARCHAR END"
    date = f"try_cast({year} || '-' || {number} || '-' || {day} AS DATE)"
    clock = "try_cast(p.hour || ':' || p.minute || ':' || CASE p.second WHEN '' THEN '00' ELSE p.second END AS TIME)"
    up = "CASE WHEN p.fraction SIMILAR TO '0*' THEN 0 ELSE 1 END"
    shift = (
        "CASE WHEN lower(p.zone) IN ('z', 'utc') THEN 0 ELSE (p.zone[1] || '1')::INTEGER * "
        "(p.zone[2:3]::INTEGER * 60 + CASE WHEN length(p.zone) > 3 THEN p.zone[-2:]::INTEGER ELSE 0 END) END"
    )
    names = ", ".join(text(name) for name in _NAMES)
    said = f"""CASE
        WHEN NOT year({date}) BETWEEN 1900 AND 2099 THEN NULL
        WHEN p.hour = '' THEN strftime({date}, '%Y-%m-%d')
        WHEN p.zone = '' THEN strftime({date} + {clock} + to_seconds({up}), '%Y-%m-%dT%H:%M:%S')
        ELSE strftime({date} + {clock} + to_seconds({up}) - to_minutes({shift}), '%Y-%m-%dT%H:%M:%SZ')
    END"""
    parts = f"regexp_extract({cell}, {text(f'^{WRITTEN}$')}, [{names}])"
    # A list of one gives the parts a name without a subquery for every row.
    any_form = f"list_transform([{parts}], lambda p: {said})[1]"
    # Most lists have one of these two, and DuckDB's own cast reads them in a tenth of the time.
    return f"""CASE
        WHEN regexp_full_match({cell}, '(19|20)[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}')
            THEN strftime(try_cast({cell} AS DATE), '%Y-%m-%d')
        WHEN regexp_full_match({cell}, '(19|20)[0-9]{{2}}-[0-9]{{2}}-[0-9]{{2}}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}')
            THEN strftime(try_cast({cell} AS TIMESTAMP), '%Y-%m-%dT%H:%M:%S')
        ELSE {any_form}
    END"""


def seconds(canonical: str) -> str:
    """An SQL expression: `canonical`'s text as `carillon.timing.rules.Cells` has it; its ``form`` is the text's
    length."""
    return f"epoch(left({canonical}, 19)::TIMESTAMP)::BIGINT"


def read(written: str) -> date | datetime | None:
    """What `canonical` says of one cell: a date, a date-time on a wall clock, or one in UTC."""
    found = re.fullmatch(WRITTEN, written.strip(), re.ASCII)
    if found is None:
        return None
    said = {name: part for name, part in zip(_NAMES, found.groups(), strict=True) if part is not None}
    parts = {name[0]: part for name, part in said.items() if name[1:].isdigit()}
    month = _SHORT_MONTHS.index(parts["n"][:3].lower()) + 1 if "n" in parts else int(parts["m"])
    try:
        day = date(int(parts["y"]), month, int(parts["d"]))
        if not 1900 <= day.year <= 2099:
            return None
        if "hour" not in said:
            return day
        clock = time(int(said["hour"]), int(said["minute"]), int(said.get("second", 0)))
        up = timedelta(seconds=1) if said.get("fraction", "").strip("0") else timedelta()
        moment = datetime.combine(day, clock) + up
        if "zone" not in said:
            return moment
        return moment.replace(tzinfo=_offset(said["zone"])).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _offset(zone: str) -> timezone:
    if zone.lower() in ("z", "utc"):
        return UTC
    minutes = int(zone[1:3]) * 60 + (int(zone[-2:]) if len(zone) > 3 else 0)
    return timezone(timedelta(minutes=minutes if zone[0] == "+" else -minutes))
