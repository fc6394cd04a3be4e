"""How fast a campaign is planned, beside numpy's bare sort of as many targets.

    python bench/bench_planning.py [TASKS]

CPU seconds, for it is one thread. Figures of a shared machine are noisy all the same: what counts is the ratio to the
sort, which is timed before and after.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from datetime import time as wall_time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functions"))

from carillon import zones
from carillon.shapes import CampaignPace, ColumnDate, Offset, QuietHours
from carillon.timing import rules
from carillon.timing.clocks import Clocks
from carillon.timing.curve import Ints
from carillon.timing.ledger import NOTHING, Taken
from carillon.timing.planning import Limits, Request, interleave, plan
from carillon.timing.rules import EXACT, WALL_TIME, Cells

NOW = 1_796_000_000
RANDOM = np.random.default_rng(1)
ZONES = [name for name in sorted(zones.names()) if "/" in name and not name.startswith("Etc/")][::10][:40]


def timed[T](what: str, work: Callable[[], T], sort: float | None = None) -> tuple[T, float]:
    """What ``work`` gives, and the CPU seconds it took; prints them, and how many of ``sort`` they are."""
    began = time.process_time()
    result = work()
    took = time.process_time() - began
    ratio = f"{took / sort:8.1f} ×" if sort else " " * 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<62}{took:7.2f} s{ratio}   peak {peak:6.0f} MB", flush=True)
    return result, took


def due(tasks: int) -> tuple[Clocks, Ints, rules.Targets]:
    """Different date-times of a column, over a month and `ZONES`; each tenth names its offset."""
    clocks = Clocks()
    zone = clocks.numbers(ZONES)[RANDOM.integers(0, len(ZONES), tasks)]
    cells = Cells(
        NOW + RANDOM.permutation(np.arange(tasks) * 30 * 86_400 // tasks),
        np.where(RANDOM.integers(0, 10, tasks) == 0, EXACT, WALL_TIME),
    )
    rule = ColumnDate.model_validate({"kind": "column", "column": "at", "offset": "P1D"})
    return clocks, zone, rules.targets(rule, zone, clocks, now=NOW, stack_zone="UTC", cells=cells)


def main() -> None:
    """Run every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="?", type=int, default=1_000_000)
    tasks = parser.parse_args().tasks
    within_a_day = NOW + RANDOM.integers(0, 86_400, tasks)
    _, sort = timed("numpy: sort of the targets", lambda: np.argsort(within_a_day, kind="stable"))
    timed("mailbox domains interleaved", lambda: interleave(RANDOM.integers(0, 5_000, tasks)), sort)
    (clocks, zone, targets), _ = timed(f"targets: a column of date-times, {len(ZONES)} zones", lambda: due(tasks), sort)

    minutes = np.arange(NOW // 60, NOW // 60 + 60 * 1440)
    ledger = Taken(minutes, RANDOM.integers(1, 200, len(minutes)))
    office = CampaignPace(per_day=tasks // 10 or 1)
    night = QuietHours(start=wall_time(21), end=wall_time(8))
    blast = rules.Targets(within_a_day, zone, clocks.wall(zone, within_a_day))

    def case(what: str, of: rules.Targets, pace: CampaignPace | None, cap: int | None, **more: Any) -> None:
        taken = more.pop("taken", NOTHING)
        cap_on = None if cap is None else (lambda _: cap)
        limits = Limits(pace, 14.0, cap_on, "UTC", taken, quota=more.pop("quota", None))
        found, _ = timed(what, lambda: plan(Request(of, zone, clocks, NOW, NOW, limits, **more)), sort)
        assert (found.slots >= 0).all() or found.unplanned()

    case("plan: a day's targets at 14 a second", blast, None, None)
    case("plan: the same, a month's date-times", targets, None, None)
    case("plan: SES's quota of any 24 hours, 10 days", blast, None, None, quota=tasks // 10 or 1)
    case("plan: windows and a daily cap, 20 days", blast, office, tasks // 20 or 1)
    case("plan: the same, and other campaigns' minutes of 60 days", blast, office, tasks // 15 or 1, taken=ledger)
    case("plan: quiet hours", blast, None, None, quiet_hours=night)
    case("plan: quiet hours, windows, cap and ledger", blast, office, tasks // 15 or 1, taken=ledger, quiet_hours=night)
    case("plan: within 2 hours, others skipped", blast, None, None, within=Offset(seconds=7200), if_late="skip")
    case("plan: quiet hours, ledger, within a day, else the next day", blast, None, None,
         taken=ledger, quiet_hours=night, within=Offset(days=1))  # fmt: skip
    timed("numpy: sort of the targets, again", lambda: np.argsort(within_a_day, kind="stable"), sort)


if __name__ == "__main__":
    main()
