"""When a schedule is due."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from local.contract import contract
from local.ports import AwsError

_AT = re.compile(r"at\((\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})\)")


def due_at(expression: str, zone_name: str) -> float:
    """The instant of ``at(yyyy-mm-ddThh:mm:ss)`` in ``zone_name``, as seconds since the epoch.

    What AWS does with a wall time in a gap or a fold is not documented; here it is Python's first
    reading of it. The product sends UTC, which has neither.

    Raises:
        AwsError: ``ValidationException`` for any other text. ``rate()`` and ``cron()`` exist on AWS,
            not here, and are refused by name.
    """
    zone = _zone(zone_name)
    if (match := _AT.fullmatch(expression)) is None:
        if expression.startswith(("rate(", "cron(")):
            raise _invalid("The local cloud's Scheduler has one-time schedules only, no rate() or cron().")
        raise _invalid(f"Invalid Schedule Expression {expression}.")
    try:
        year, month, day, hour, minute, second = map(int, match.groups())
        return datetime(year, month, day, hour, minute, second, tzinfo=zone).timestamp()
    except ValueError as reason:
        raise _invalid(f"Invalid Schedule Expression {expression}.") from reason


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as reason:
        raise _invalid(f"Invalid ScheduleExpressionTimezone {name}.") from reason


def _invalid(message: str) -> AwsError:
    return contract("scheduler").error("ValidationException", message)
