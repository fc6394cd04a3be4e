"""Slots for targets: one function for every rule and pace (DESIGN section 3).

Nobody is early, no second, window or day carries more than its capacity, and the order of targets is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np

from carillon import zones
from carillon.curve import UNIT, Curve, Ints
from carillon.errors import PlanRefused

LONGEST_DAYS = 400
"""A plan that reaches further is refused: it is a pace set wrongly, not a campaign."""

HANDLING = 30
"""Seconds between planning and the fan-out's first row: a million batch lines are written and stored in about 20,
and the table, the group and the Map take a few more (each one call)."""


@dataclass(frozen=True)
class Limits:
    """What bounds a plan beside its targets."""

    curve: Callable[[int, int], Curve]
    """The curve from an epoch second on, for so many days: `carillon.curve.build` with everything else given."""
    cap_on: Callable[[date], int] | None
    """How many may go on a day of ``cap_zone``; None: any number."""
    cap_zone: str


def fan_out_ready(now: int, tasks: int, creations_per_second: int, creation_lead: int) -> int:
    """The first epoch second at which every schedule can be there, launched ``now``.

    ``creation_lead`` is how long before its minute EnrolBatch wants a schedule to be asked for: a slot before this
    instant would be moved by it, and the plan would not be what happens.
    """
    return now + HANDLING + -(-tasks // creations_per_second) + creation_lead


def plan(targets: Ints, earliest: int, limits: Limits, end: int | None = None) -> Ints:
    """The slot (epoch second) of each of ``targets`` (epoch seconds, in any order).

    Equal targets keep their order. Day by day the cap admits in order of target, and the rest goes to the next day:
    from its first open second on. Nothing lies before ``earliest``. A slot that would lie after ``end`` is -1:
    planned nowhere, and so are all that come after it, for order is kept.

    Raises:
        PlanRefused: the plan would need more than `LONGEST_DAYS` days.
    """
    order = np.argsort(targets, kind="stable")
    due = np.maximum(targets[order], earliest)
    slots = np.full(len(due), -1, dtype=np.int64)
    if len(due):
        days = (int(due[-1]) - earliest) // 86_400 + LONGEST_DAYS
        done = _assign(due, slots, limits, limits.curve(earliest, days), end)
        if end is not None:
            slots[slots > end] = -1
        elif done < len(due):
            raise PlanRefused(
                f"the pace leaves {len(due) - done:,} of {len(due):,} e-mails without a slot within {LONGEST_DAYS} "
                "days: raise per_day, the rate or the daily cap"
            )
    planned = np.empty_like(slots)
    planned[order] = slots
    return planned


def _assign(due: Ints, slots: Ints, limits: Limits, c: Curve, end: int | None) -> int:
    """Fill ``slots`` for ``due`` (sorted); how many got one before the curve, or ``end``, was over."""
    done, taken = 0, 0
    if limits.cap_on is None:
        return _fill(due, slots, 0, len(due), c, c.end, taken)[0]
    day = datetime.fromtimestamp(int(due[0]), UTC).astimezone(zones.get(limits.cap_zone)).date()
    start = int(due[0])
    while done < len(due) and start < c.end and (end is None or start <= end):
        close = min(zones.to_utc(limits.cap_zone, day + timedelta(days=1), datetime.min.time()), c.end)
        waiting = int(np.searchsorted(due, close, side="left"))
        stop = min(waiting, done + max(limits.cap_on(day), 0))
        if stop > done:
            np.maximum(due[done:stop], start, out=due[done:stop])
            done, taken = _fill(due, slots, done, stop, c, close, taken)
        start = close
        if done < len(due) and int(due[done]) >= close:
            start = int(due[done])
        day = datetime.fromtimestamp(start, UTC).astimezone(zones.get(limits.cap_zone)).date()
    return done


def _fill(due: Ints, slots: Ints, first: int, stop: int, c: Curve, close: int, taken: int) -> tuple[int, int]:
    """Slots for ``due[first:stop]``, as far as they lie before ``close``.

    ``taken`` is the capacity used so far: the next e-mail is one unit further at least. Returns how far it got, and
    the capacity used by then.
    """
    behind = int(np.searchsorted(due, c.end, side="left"))
    stop = min(stop, behind)
    if stop <= first:
        return first, taken
    rank = np.arange(stop - first, dtype=np.int64) * UNIT
    reached = rank + np.maximum(np.maximum.accumulate(c.capacity(due[first:stop]) - rank), taken)
    fitting = int(np.searchsorted(reached, c.total, side="left"))
    moments = c.moment(reached[:fitting])
    fitting = int(np.searchsorted(moments, close, side="left"))
    slots[first : first + fitting] = moments[:fitting]
    if fitting:
        taken = int(reached[fitting - 1]) + UNIT
    return first + fitting, taken
