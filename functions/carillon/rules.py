"""Rules: when each recipient's e-mail is due, before any pace.

A target that is past at planning takes the next day, at the same wall time; `asap` is never past.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
from numpy.typing import NDArray

from carillon import zones
from carillon.curve import Ints
from carillon.shapes import Asap, At, LocalTime

WALL = r"([01]?[0-9]|2[0-3])[:.]([0-5][0-9])(?::([0-5][0-9]))?"
"""``9:05``, ``09.05`` or ``09:05:30``; for DuckDB too."""


def parse_wall(written: str) -> time | None:
    """What is written like `WALL` as a wall time; None for all else."""
    match = re.fullmatch(WALL, written)
    return time(int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def same_for_all(rule: Asap | At, now: int) -> tuple[int, bool]:
    """The one target (epoch seconds) of a rule that is the same for everybody, and whether it had been past.

    ``at`` names an offset and no zone, so its next day is 24 hours later.
    """
    if isinstance(rule, Asap):
        return now, False
    target = -int(-rule.at.timestamp() // 1)
    late = max(0, -(-(now - target) // 86_400))
    return target + late * 86_400, late > 0


def local(rule: LocalTime, clocks: Sequence[tuple[str, time]], now: int) -> tuple[Ints, NDArray[np.bool_]]:
    """The target of each of ``clocks`` (zone, wall time), and whether it had been past."""
    answers = [_local(rule.date, zone, wall, now) for zone, wall in clocks]
    return (
        np.array([target for target, _ in answers], dtype=np.int64),
        np.array([past for _, past in answers], dtype=np.bool_),
    )


def _local(day: date, zone: str, wall: time, now: int) -> tuple[int, bool]:
    target = zones.to_utc(zone, day, wall)
    if target >= now:
        return target, False
    day = datetime.fromtimestamp(now, UTC).astimezone(zones.get(zone)).date()
    while (target := zones.to_utc(zone, day, wall)) < now:
        day += timedelta(days=1)
    return target, True
