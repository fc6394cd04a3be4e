"""The tasks of one generation in DuckDB: planned together, then cut into batches for the Distributed Map."""

# ruff: noqa: S608  (SQL is put together from our own names; every value goes through `sql.text`)
from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import time
from pathlib import Path

import duckdb
import numpy as np

from carillon import enrolment, keys, rules
from carillon.columns import HASH, TIME
from carillon.curve import Ints
from carillon.shapes import BatchLine, ManifestLine
from carillon.sql import blank, text

LARGEST_RESULT = 199_000
"""Bytes of EnrolBatch's schedules: its result stays under 200 KB with what is around them (a state takes 256 KiB)."""

LARGEST_SCHEDULE = 100_000
"""Bytes of one: Scheduler's own limit for a target's input is 256 KB, and a recipient who needs more is refused."""

LARGEST_LINE = 2 * 2**20

_PAGE = 5_000


def schedule_overhead(campaign_id: str, generation: int, queue_url: str) -> int:
    """Bytes that a task takes in EnrolBatch's result at most, its address and its data left out."""
    line = BatchLine(
        task=keys.task_id(99, "anyone"),
        step=99,
        address="",
        timezone=None,
        slot=9_999_999_999,
        revision=99_999,
        input={},
    )
    return enrolment.schedule_size(enrolment.schedule_for(campaign_id, generation, line, queue_url))


def size_sql(input_json: str, address: str) -> str:
    """An SQL expression: what `schedule_overhead` left out, at most.

    The data are JSON in a message that is a string in a call that is a string in the result: a quote or backslash
    becomes four characters, ``<`` seven and DEL six. A character beyond ASCII becomes at most six if it has two
    bytes, nine if three, twelve if four. Control characters are escapes in JSON text already.
    """

    def count(character: str) -> str:
        return f"(length({input_json}) - length(replace({input_json}, {text(character)}, '')))"

    rare = f"({count('<')} + {count(chr(127))})"
    more_bytes = f"(strlen({input_json}) - length({input_json}))"
    quotes = f"({count(chr(34))} + {count(chr(92))})"
    return f"(length({address}) + length({input_json}) + 3 * {quotes} + 6 * {rare} + 5 * {more_bytes})"


@dataclass(frozen=True)
class Cut:
    """The batches of a generation, each in a local file."""

    manifest: list[ManifestLine]
    files: list[Path]


class TaskTable:
    """Table ``tasks`` (n, step, task, address, timezone, wall, input, size) of a DuckDB database.

    ``n`` counts from 0 and is the order among equal targets; ``input`` is the data as JSON text.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        database.execute(
            "CREATE TABLE tasks (n BIGINT, step INTEGER, task VARCHAR, address VARCHAR, timezone VARCHAR, "
            "wall VARCHAR, input VARCHAR, size BIGINT)"
        )

    def count(self) -> int:
        """How many tasks there are."""
        row = self._database.execute("SELECT count(*) FROM tasks").fetchone()
        assert row is not None
        return int(row[0])

    def take_over(self, lines: Iterable[bytes], settled: Iterable[str], work: Path) -> None:
        """Fill the table with batch ``lines`` (`BatchLine` as JSON) of an earlier generation, in their order.

        Tasks whose id is in ``settled`` stay out.
        """
        with (work / "lines.txt").open("wb") as out:
            out.writelines(b"%d\x1f%s\n" % (n, line) for n, line in enumerate(lines))
        with (work / "settled.txt").open("w") as names:
            names.writelines(f"{task}\n" for task in settled)
        options = "delim = '\x1f', quote = '', escape = '', header = false, auto_detect = false, new_line = '\\n'"
        self._database.execute(
            f"""
            INSERT INTO tasks
            WITH lines AS (
                SELECT n, line->>'task' AS task, (line->>'step')::INTEGER AS step, line->>'address' AS address,
                    line->>'timezone' AS timezone, (line->'input')::VARCHAR AS input
                FROM read_csv({text(str(work / "lines.txt"))}, {options}, max_line_size = {LARGEST_LINE},
                    columns = {{'n': 'BIGINT', 'line': 'JSON'}})
            ), settled AS (
                SELECT task FROM read_csv({text(str(work / "settled.txt"))}, {options}, columns = {{'task': 'VARCHAR'}})
            )
            SELECT row_number() OVER (ORDER BY n) - 1, step, task, address, timezone, NULL, input,
                {size_sql("input", "address")}
            FROM lines WHERE task NOT IN (SELECT task FROM settled)
            """
        )

    def add_walls(self, step: int, recipients: Path) -> None:
        """Give the tasks of ``step`` the wall times that ``recipients`` (our own Parquet) remembers."""
        self._database.execute(
            f"UPDATE tasks SET wall = r.{TIME}{step} FROM read_parquet({text(str(recipients))}) r "
            f"WHERE step = {step} AND task = '{step}-' || left(r.{HASH}, {keys.DIGITS})"
        )

    def of_step(self, step: int) -> Ints:
        """The ``n`` of one step's tasks, in order."""
        found: Ints = self._database.execute("SELECT n FROM tasks WHERE step = ? ORDER BY n", [step]).fetchnumpy()["n"]
        return found

    def clocks(self, step: int) -> tuple[list[tuple[str, time | None]], Ints]:
        """The different zones and wall times of a step's tasks, and which one each has, in the order of `of_step`."""
        db = self._database
        db.execute(
            "CREATE OR REPLACE TEMP TABLE clocks AS SELECT row_number() OVER (ORDER BY timezone, wall) - 1 AS code, "
            "timezone, wall FROM (SELECT DISTINCT timezone, wall FROM tasks WHERE step = ?)",
            [step],
        )
        different = [
            (zone, rules.parse_wall(wall) if wall else None)
            for zone, wall in db.execute("SELECT timezone, wall FROM clocks ORDER BY code").fetchall()
        ]
        codes: Ints = db.execute(
            "SELECT code FROM tasks JOIN clocks ON tasks.timezone = clocks.timezone "
            "AND tasks.wall IS NOT DISTINCT FROM clocks.wall WHERE step = ? ORDER BY n",
            [step],
        ).fetchnumpy()["code"]
        return different, codes

    def cut(self, slots: Ints, directory: Path, attempt: str, overhead: int) -> Cut:
        """Batches in the order of ``slots`` (by ``n``; -1: left out), each as long as EnrolBatch's result allows."""
        planned = np.flatnonzero(slots >= 0)
        order = planned[np.argsort(slots[planned], kind="stable")]
        cursor = self._database.cursor()
        cursor.register("plan", {"n": order, "slot": slots[order], "position": np.arange(len(order), dtype=np.int64)})
        cursor.execute(
            "SELECT slot, size, '{\"task\":' || to_json(task) || ',\"step\":' || step || ',\"address\":' "
            "|| to_json(address) || ',\"timezone\":' || coalesce(to_json(timezone), 'null') || ',\"slot\":' || slot "
            "|| ',\"revision\":0,\"input\":' || input || '}' FROM plan JOIN tasks USING (n) ORDER BY position"
        )
        manifest: list[ManifestLine] = []
        files: list[Path] = []
        for first_slot, lines in _batches(cursor, overhead):
            number = len(manifest) + 1
            path = directory / f"{number:06d}.jsonl"
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            files.append(path)
            manifest.append(
                ManifestLine(
                    batch=f"{attempt}/{number}",
                    count=len(lines),
                    first_slot=first_slot,
                )
            )
        return Cut(manifest, files)


def _batches(cursor: duckdb.DuckDBPyConnection, overhead: int) -> Iterator[tuple[int, list[str]]]:
    """First slot and lines of each batch."""
    lines: list[str] = []
    first_slot, total = 0, 0
    while page := cursor.fetchmany(_PAGE):
        for slot, size, line in page:
            if lines and total + overhead + size > LARGEST_RESULT:
                yield first_slot, lines
                lines, total = [], 0
            if not lines:
                first_slot = slot
            lines.append(line)
            total += overhead + size
    if lines:
        yield first_slot, lines


def data_sql(placeholders: dict[str, str]) -> str:
    """An SQL expression: a task's data as JSON text, for ``placeholders`` (name → column); empty cells left out."""
    members = [
        f"CASE WHEN NOT ({blank(column)}) "
        f"THEN {text(json.dumps(name, ensure_ascii=False) + ':')} || to_json({column}) END"
        for name, column in placeholders.items()
    ]
    return f"'{{' || concat_ws(',', {', '.join(members)}) || '}}'" if members else "'{}'"
