"""How fast a list is prepared, beside DuckDB's bare copy of the same file to Parquet, in one run.

    python bench/bench_list.py [ROWS] [--memory LIMIT] [--odd]

Everything that PrepareList does for one step is done and timed: reading and judging, tasks, slots, recipients, rejects
and batches; S3 is a directory, and 10,000 are suppressed. ``--odd`` mixes in what DuckDB's own reader may not read, so
that every row goes through ours. Figures of a shared machine are noisy, so each part is a multiple of the bare copy.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functions"))

from carillon import keys
from carillon.launch import batches, publishing, roster, timetable
from carillon.launch.tasks import TaskTable
from carillon.shapes import CampaignSpec
from carillon.timing import planning
from carillon.timing.pace import Pace

NOW = 1_796_000_000
CAMPAIGN = "bench"
ATTEMPT = "g1-bench"
SPEC = CampaignSpec.model_validate(
    {
        "name": "Bench",
        "from": "Shop <shop@example.com>",
        "topic": "offers",
        "list": {"timezone_column": "zone"},
        "steps": [{"template": "t.html", "subject": "Hello {{ first_name }}", "rule": {"kind": "asap"}}],
    }
)
TEMPLATE = (
    "<p>Dear {{ first_name }} {{ last_name }} in {{ city }}, your plan {{ plan }} ends.</p>"
    '<p>{{ postal_address }} <a href="{{ unsubscribe_url }}">Unsubscribe</a></p>'
)


class Folder:
    """The bucket as a directory (`carillon.adapters.objects.Objects`)."""

    bucket = "bench"

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, key: str) -> Path:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def version(self, key: str) -> str | None:
        """Files have one version."""
        return "null" if self._path(key).exists() else None

    def read(self, key: str) -> bytes | None:
        """The file."""
        return self._path(key).read_bytes() if self._path(key).exists() else None

    def fetch(self, key: str, version: str, target: Path) -> None:
        """Link the file: what a download takes is not measured."""
        target.hardlink_to(self._path(key))

    def copy(self, key: str, version: str, target: str) -> None:
        """S3 does this by itself."""

    def put(self, key: str, content: bytes, content_type: str) -> str:
        """Write a file."""
        self._path(key).write_bytes(content)
        return "null"

    def put_all(self, contents: Iterable[tuple[str, bytes]], content_type: str) -> None:
        """Write files."""
        for key, content in contents:
            self.put(key, content, content_type)

    def upload(self, source: Path, key: str, content_type: str) -> None:
        """Link a file."""
        self._path(key).hardlink_to(source)


def write_list(path: Path, rows: int, odd: bool) -> None:
    """A list of eight columns; one address in a hundred is bad, one a duplicate, and ``odd``: one row is short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as database:
        database.execute(
            f"""
            COPY (
                SELECT CASE WHEN i % 100 = 7 THEN 'person' || i WHEN i % 100 = 8 THEN 'PERSON' || (i - 2) || '@mail1.de'
                    ELSE 'person' || i || '@mail' || (i % 5) || '.de' END AS email,
                    ['Anna', 'Björn', 'Chloé', 'David', 'Eva'][1 + i % 5] AS first_name,
                    'Surname' || (i * 7919 % 50000) AS last_name, ['Berlin', 'München', 'Oslo'][1 + i % 3] AS city,
                    ['DE', 'FR', 'NO', 'US'][1 + i % 4] AS country, 'plan-' || (i % 3) AS plan,
                    DATE '2026-01-01' + (i % 300)::INTEGER AS last_login,
                    ['Europe/Berlin', 'Europe/Paris', 'America/New_York', 'Asia/Tokyo'][1 + i % 4] AS zone
                FROM range({rows}) list(i)
            ) TO '{path}' (FORMAT csv, HEADER true)
            """  # noqa: S608  (numbers and a path of our own)
        )
    if odd:
        with path.open("a") as file:
            file.write("short@mail1.de,Too few\n")


class Clock:
    """Prints what each part took, by the clock on the wall and in processor time, as multiples of the bare copy."""

    def __init__(self) -> None:
        self.bare = (1.0, 1.0)
        self.total = (0.0, 0.0)

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Time one part."""
        began = (time.perf_counter(), time.process_time())
        yield
        took = (time.perf_counter() - began[0], time.process_time() - began[1])
        self.total = (self.total[0] + took[0], self.total[1] + took[1])
        self._say(what, took)

    def _say(self, what: str, took: tuple[float, float]) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall, processor = (f"{mine:7.2f} s {mine / bare:5.1f}x" for mine, bare in zip(took, self.bare, strict=True))
        print(f"{what:34} {wall}   processor {processor}   peak {peak:6,.0f} MB", flush=True)

    def copy(self, source: Path, target: Path, odd: bool) -> None:
        """The bare copy, in a process of its own: its memory is not ours. All is DuckDB's default but that a cell is
        text, as in ours, and that a short row is no error where the list has one."""
        command = [sys.executable, "-c", _BARE, source, target, str(odd).lower()]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        wall, processor = map(float, done.stdout.split())
        self.bare = (wall, processor)
        self._say("bare copy to Parquet (snappy)", self.bare)

    def all(self) -> None:
        """The sum of the parts."""
        self._say("in all", self.total)


_BARE = """
import duckdb, sys, time
database = duckdb.connect()
database.execute("SET enable_progress_bar = false")
wall, processor = time.perf_counter(), time.process_time()
database.execute(
    f"COPY (FROM read_csv('{sys.argv[1]}', all_varchar = true, null_padding = {sys.argv[3]})) "
    f"TO '{sys.argv[2]}' (FORMAT parquet)"
)
print(time.perf_counter() - wall, time.process_time() - processor)
"""


def main() -> None:
    """Prepare one list and say what each part took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--memory", default="1GB", help="DuckDB's limit")
    parser.add_argument("--odd", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carillon-") as name:
        root = Path(name)
        bucket, clock = Folder(root / "bucket"), Clock()
        source = root / "bucket" / keys.upload(CAMPAIGN, "list.csv")
        write_list(source, options.rows, options.odd)
        bucket.put(keys.upload(CAMPAIGN, "templates/t.html"), TEMPLATE.encode(), "text/html")
        print(f"{options.rows:,} rows, {source.stat().st_size / 1e6:,.0f} MB, {os.cpu_count()} threads")
        clock.copy(source, root / "bare.parquet", options.odd)
        (root / "bare.parquet").unlink()
        prepare(bucket, root / "work", clock, options.memory)


def prepare(bucket: Folder, work: Path, clock: Clock, memory: str) -> None:
    """What `carillon.launch.preparation` does, part by part."""
    work.mkdir()
    suppressed = {keys.address_hash(f"person{n * 50}@mail{n * 50 % 5}.de") for n in range(10_000)}
    overhead = batches.schedule_overhead(
        CAMPAIGN, 1, "https://sqs.eu-central-1.amazonaws.com/123456789012/carillon-send"
    )
    templates = roster.typeset(CAMPAIGN, SPEC, bucket)
    with clock.part("read, judge, find what is missing"):
        found = roster.read(CAMPAIGN, SPEC, bucket, templates, work, overhead=overhead, now=NOW, memory_limit=memory)
    with clock.part("10,000 suppressions"):
        found.recipients.refuse_hashes(suppressed, "suppressed")
    tasks = TaskTable(found.recipients.database)
    with clock.part("tasks"):
        for draft in found.drafts:
            tasks.add(draft)
    terms = timetable.Terms(Pace(rate_per_second=1000, daily_cap=10**9), -1, "UTC", 5000)
    with clock.part("slots"):
        slots = planning.plan(timetable.request(tasks, SPEC, terms, NOW)).slots
    with clock.part("recipients.parquet, rejects.csv"):
        publishing.write_roster(bucket, found, CAMPAIGN, ATTEMPT, work)
    with clock.part("batches"):
        written = publishing.write_batches(bucket, tasks, slots, CAMPAIGN, ATTEMPT, overhead)
    clock.all()
    print(f"{found.recipients.count():,} valid, {found.recipients.rejected()}, {written['batches']:,} batches")
    found.recipients.close()


if __name__ == "__main__":
    main()
