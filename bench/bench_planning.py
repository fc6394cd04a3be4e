"""How fast a list is prepared and planned, beside DuckDB's bare copy of the same file to Parquet.

    python bench/bench_planning.py [ROWS] [--planning-only]

Prints seconds for each part, and the peak of memory. Figures of a shared machine are noisy: compare them with the
bare copy in the same run.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functions"))

from carillon import batches, curve, planning
from carillon.lists import RecipientList
from carillon.shapes import CampaignPace, ListSpec, Step
from carillon.typesetting import prepare

NOW = 1_796_000_000
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/carillon-send"


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the body took, and the peak of memory by then."""
    began = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<42}{time.perf_counter() - began:8.2f} s   peak {peak:6.0f} MB", flush=True)


def write_list(path: Path, rows: int) -> None:
    """A list of eight columns; every fiftieth row has a fault."""
    with path.open("w") as out:
        out.write("email,first_name,last_name,city,country,timezone,customer_no,renewal_date\n")
        for n in range(rows):
            address = f"user{n}" if n % 50 == 7 else f"user{n}@example{n % 1000}.com"
            out.write(f'{address},First{n % 997},Last{n % 9973},"City, {n % 101}",DE,Europe/Berlin,{n:09},2026-12-24\n')


def bench_planning(tasks: int) -> None:
    """Slots alone: bare rate, and windows with a daily cap."""
    targets = NOW + np.random.default_rng(1).integers(0, 86_400, tasks)
    cases = {
        "planning: a rate": planning.Limits(lambda s, d: curve.build(None, 100.0, s, d), None, "UTC"),
        "planning: windows, a rate and a daily cap": planning.Limits(
            lambda s, d: curve.build(CampaignPace(per_day=tasks // 10 or 1), 14.0, s, d),
            lambda day: tasks // 20 or 1,
            "UTC",
        ),
    }
    for what, limits in cases.items():
        with timed(what):
            planning.plan(targets, NOW, limits)


def bench_preparation(rows: int, work: Path) -> None:
    """The whole preparation of one list, S3 and DynamoDB left out."""
    source = work / "list.csv"
    write_list(source, rows)
    print(f"list: {rows:,} rows, {source.stat().st_size / 1e6:,.0f} MB")
    with timed("bare copy to Parquet by DuckDB"):
        duckdb.connect().execute(
            f"COPY (SELECT * FROM read_csv('{source}', all_varchar = true)) "  # noqa: S608  (a path of our own)
            f"TO '{work / 'bare.parquet'}' (FORMAT parquet, COMPRESSION zstd)"
        )
    step = Step.model_validate({"template": "t.html", "subject": "Hello {{ first_name }}", "rule": {"kind": "asap"}})
    prepared = prepare(step, "<p>Dear {{ first_name }} {{ last_name }} in {{ city }}, until {{ renewal_date }}</p>")
    began = time.perf_counter()
    directory = work / "own"
    directory.mkdir()
    recipients = RecipientList(source, ListSpec(), directory, memory_limit="1GB")
    with timed("read and judge"):
        recipients.read()
    overhead = batches.schedule_overhead("bench", 1, QUEUE)
    with timed("missing and oversized values"):
        recipients.refuse_incomplete(prepared)
        recipients.refuse_oversized(prepared, overhead)
    with timed("hashes, for suppressions"):
        for _ in recipients.hashes():
            pass
    tasks = recipients.tasks()
    with timed("tasks"):
        recipients.add_tasks(tasks, 1, prepared, None)
    limits = planning.Limits(lambda s, d: curve.build(None, 1000.0, s, d), lambda day: rows, "UTC")
    with timed("slots"):
        slots = planning.plan(np.full(tasks.count(), NOW), NOW, limits)
    with timed("recipients.parquet and rejects.csv"):
        recipients.write_recipients(directory / "recipients.parquet")
        recipients.write_rejects(directory / "rejects.csv")
    (directory / "batches").mkdir()
    with timed("batches"):
        cut = tasks.cut(slots, directory / "batches", "g1-bench", overhead)
    print(f"{recipients.count():,} valid, {len(cut.manifest):,} batches, in all {time.perf_counter() - began:.2f} s")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--planning-only", action="store_true")
    options = parser.parse_args()
    bench_planning(options.rows)
    if not options.planning_only:
        with tempfile.TemporaryDirectory() as work:
            bench_preparation(options.rows, Path(work))


if __name__ == "__main__":
    main()
