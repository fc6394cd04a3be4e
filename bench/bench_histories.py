"""Random histories of senders, reconcilers and people, in which everything that can go wrong does.

    python bench/bench_histories.py [histories] [-j processes] [--seed first]

Each is one campaign of three people and one to three steps (`tests.unit.sending.simulation`): senders and reconcilers
killed before and after any call, replies lost, SES answering everything that botocore's model knows, messages twice and
late, beside people who pause, resume, cancel, suppress and change the pace. Prints how many e-mails SES accepted, twice
above all (the issue's goal: none in 10,000 histories), the faults by kind, and why tasks were unfinished.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import batched

from tests.unit.sending.simulation import history, random_fate

type Found = tuple[int, int, Counter[str], Counter[str], list[str]]
"""E-mails accepted, and more than once; faults; reasons; laws broken."""


def main(count: int, processes: int, first: int) -> int:
    """Run them and print what happened; how many broke a law."""
    began = time.perf_counter()
    accepted = twice = 0
    faults: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    broken: list[str] = []
    with ProcessPoolExecutor(processes) as pool:
        for found in pool.map(play, batched(range(first, first + count), 250, strict=False)):
            accepted, twice = accepted + found[0], twice + found[1]
            faults += found[2]
            reasons += found[3]
            broken += found[4]
    seconds = time.perf_counter() - began
    print(f"histories                {count}, seeds {first} to {first + count - 1}")
    print(f"a second                 {count / seconds:.0f}, {processes} at a time")
    print(f"e-mails accepted         {accepted}")
    print(f"accepted more than once  {twice}")
    print(f"laws broken, unexplained {len(broken)}")
    for law in broken[:5]:
        print(f"  {law}")
    print(f"faults                   {faults.total()}")
    kinds: Counter[str] = Counter()
    for fault, times in faults.items():
        kind, _, what = fault.partition(": ")
        kinds[f"SES, {kind}: {what}" if "taken" in kind else kind] += times
    for kind, times in kinds.most_common():
        print(f"  {kind:<70} {times:>7}")
    print(f"unfinished, and why      {reasons.total()}; all were finished after a pass of the reconciler, or in doubt")
    for reason, times in reasons.most_common():
        print(f"  {reason:<70} {times:>7}")
    return len(broken) + twice


def play(seeds: Sequence[int]) -> Found:
    """Some of the histories, in one process."""
    logging.disable(logging.CRITICAL)
    accepted = twice = 0
    faults: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    broken: list[str] = []
    for seed in seeds:
        try:
            played = history(random_fate(seed))
        except AssertionError as error:
            broken.append(f"seed {seed}: {str(error)[:200]}")
            continue
        accepted += len(played.taken)
        twice += sum(times > 1 for times in played.accepted_by_task().values())
        faults += played.faults
        reasons += played.explained
    return accepted, twice, faults, reasons, broken


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("histories", type=int, nargs="?", default=10_000)
    arguments.add_argument("-j", type=int, default=1, dest="processes")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    raise SystemExit(1 if main(given.histories, given.processes, given.seed) else 0)
