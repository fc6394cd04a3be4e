"""The tasks of one generation in DuckDB: made from a list's recipients, or taken over from an earlier generation.

Everything that a plan depends on is asked for column by column, as arrays in the order of ``n``.
"""

# ruff: noqa: S608  (SQL is put together from our own names; every value goes through `sql.text`)
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from carillon import keys
from carillon.launch.batches import LARGEST_SCHEDULE, direct_size_sql, size_sql
from carillon.recipients.columns import HASH, MOMENT, ORDER
from carillon.recipients.lists import RecipientList
from carillon.shapes import ColumnDate, LocalTime, OrderBy, Rule
from carillon.sql import blank, text
from carillon.timing import dates, planning, rules
from carillon.timing.curve import Ints

_LARGEST_LINE = 2 * 2**20


@dataclass(frozen=True)
class Draft:
    """What a step's tasks are made of, as SQL over a list's cells."""

    step: int
    data: Mapping[str, str]
    """By placeholder: everything that the step's template uses, and those of the steps that wait for it."""
    moment: str | None
    """When, where the list says so: a wall time as it is written, or a date as `carillon.timing.dates.canonical` has
    it."""
    order: str | None
    """The cell that says who goes first."""
    waits: bool
    """For the step before to be Finished."""
    direct: bool = False
    """Whether its schedule calls SES by itself, with all data in SES's form."""

    def size_sql(self, input_json: str, address: str) -> str:
        """An SQL expression: bytes of a task in EnrolBatch's result, its overhead left out."""
        return (direct_size_sql if self.direct else size_sql)(input_json, address, len(self.data))


class TaskTable:
    """Table ``tasks``, one row an e-mail. ``n`` counts from 0 and is the order among equals; ``input`` is JSON text.

    A task that ``waits`` has no schedule; ``released`` is the slot of one that does not wait any more.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self.database = database
        database.execute(
            "CREATE TABLE tasks (n BIGINT, step INTEGER, task VARCHAR, address VARCHAR, timezone VARCHAR, "
            "moment VARCHAR, ranking VARCHAR, waits BOOLEAN, released BIGINT, input VARCHAR, size BIGINT)"
        )

    def count(self) -> int:
        """How many tasks there are."""
        row = self.database.execute("SELECT count(*) FROM tasks").fetchone()
        assert row is not None
        return int(row[0])

    def add(self, draft: Draft) -> None:
        """One task of a step for each accepted recipient, in the list's order, after what is there already."""
        # They lie in the list's order (`RecipientList.read`), so they are counted as they come, and never sorted.
        self.database.execute(
            f"""
            INSERT INTO tasks
            WITH filled AS (
                SELECT {self.count()} + row_number() OVER () - 1 AS n, digest, address, timezone,
                    {draft.moment or "NULL"} AS moment, {draft.order or "NULL"} AS ranking,
                    {data_sql(draft.data)} AS input
                FROM accepted
            )
            SELECT n, {draft.step}, '{draft.step}-' || left(digest, {keys.DIGITS}), address, timezone, moment, ranking,
                {draft.waits}, NULL, input, {draft.size_sql("input", "address")}
            FROM filled
            """
        )

    def take_over(self, lines: Path, settled: Path, released: Path) -> None:
        """Fill the table with batch lines (`BatchLine` as JSON) of an earlier generation, in their order.

        Args:
            lines: their number, a unit separator and the line, one below the other.
            settled: ids of tasks that stay out.
            released: id and, after a unit separator, slot of tasks that wait no more.
        """

        def read(file: Path, columns: str) -> str:
            return (
                f"read_csv({text(str(file))}, delim = '\x1f', quote = '', escape = '', header = false, "
                f"auto_detect = false, new_line = '\\n', max_line_size = {_LARGEST_LINE}, columns = {{{columns}}})"
            )

        self.database.execute(
            f"""
            INSERT INTO tasks
            WITH lines AS (
                SELECT n, line->>'task' AS task, (line->>'step')::INTEGER AS step, line->>'address' AS address,
                    line->>'timezone' AS timezone, coalesce((line->>'waits')::BOOLEAN, false) AS waits,
                    (line->'input')::VARCHAR AS input
                FROM {read(lines, "'n': 'BIGINT', 'line': 'JSON'")}
            ), settled AS (FROM {read(settled, "'task': 'VARCHAR'")}),
            released AS (FROM {read(released, "'task': 'VARCHAR', 'slot': 'BIGINT'")})
            SELECT row_number() OVER (ORDER BY n) - 1, step, task, address, timezone, NULL, NULL,
                waits AND slot IS NULL, slot, input, {size_sql("input", "address")}
            FROM lines LEFT JOIN released USING (task) WHERE task NOT IN (FROM settled)
            """
        )

    def remember(self, step: int, recipients: Path, own: Iterable[str]) -> None:
        """Give the tasks of ``step`` what the ``own`` columns of ``recipients`` (`lists`' Parquet) remember."""
        target = {f"{MOMENT}{step}": "moment", ORDER: "ranking"}
        sets = ", ".join(f"{target[name]} = r.{name}" for name in own if name in target)
        if sets:
            self.database.execute(
                f"UPDATE tasks SET {sets} FROM read_parquet({text(str(recipients))}) r "
                f"WHERE step = {step} AND task = '{step}-' || left(r.{HASH}, {keys.DIGITS})"
            )

    def of_step(self, step: int) -> Ints:
        """The ``n`` of one step's tasks, in order."""
        return self._column("n", f"step = {step}")

    def zones(self) -> tuple[list[str | None], Ints]:
        """The different zones, and by ``n`` which one each task has."""
        self.database.execute(
            "CREATE OR REPLACE TEMP TABLE zones_used AS SELECT timezone, row_number() OVER (ORDER BY timezone) - 1 "
            "AS code FROM (SELECT DISTINCT timezone FROM tasks)"
        )
        names = [name for (name,) in self.database.execute("SELECT timezone FROM zones_used ORDER BY code").fetchall()]
        codes = self._column("code", source="tasks JOIN zones_used z ON tasks.timezone IS NOT DISTINCT FROM z.timezone")
        return names, codes

    def cells(self, step: int, rule: Rule) -> rules.Cells | None:
        """What the list says about when, for a step whose rule takes it from there."""
        where = f"step = {step}"
        if isinstance(rule, ColumnDate):
            return rules.Cells(self._column(dates.seconds("moment"), where), self._column("length(moment)", where))
        if isinstance(rule, LocalTime) and rule.time_column is not None:
            parts = f"regexp_extract(moment, {text(f'^{rules.WALL}$')}, ['h', 'm', 's'])"
            return rules.Cells(
                self._column(
                    "p.h::BIGINT * 3600 + p.m::BIGINT * 60 + coalesce(try_cast(p.s AS BIGINT), 0)",
                    source=f"(SELECT n, {parts} AS p FROM tasks WHERE {where})",
                )
            )
        return None

    def rank(self, order: OrderBy | None) -> Ints:
        """Who goes first among equal targets, by number (`planning.Request.rank`)."""
        if order is None:
            return planning.interleave(self._column("(hash(lower(split_part(address, '@', -1))) >> 1)::BIGINT"))
        filled = f"NOT ({blank('ranking')})"
        row = self.database.execute(
            f"SELECT count(*) FROM tasks WHERE {filled} AND try_cast(ranking AS DOUBLE) IS NULL"
        ).fetchone()
        assert row is not None
        # "NaN" is how some tools write an empty cell; as a number it would be the largest of all.
        key = "ranking" if row[0] else "nullif(try_cast(ranking AS DOUBLE), 'NaN'::DOUBLE)"
        direction = "DESC" if order.direction == "descending" else "ASC"
        return self._column(
            "rank",
            source=f"(SELECT n, dense_rank() OVER (ORDER BY CASE WHEN {filled} THEN {key} END {direction} NULLS LAST) "
            "AS rank FROM tasks)",
        )

    def waiting(self, step: int) -> tuple[Ints, Ints]:
        """The tasks of ``step`` that wait, and the task of the step before for each: -1 where that is settled."""
        found = self.database.execute(
            "SELECT later.n AS n, coalesce(earlier.n, -1) AS previous FROM tasks later LEFT JOIN tasks earlier "
            f"ON earlier.step = {step - 1} AND right(earlier.task, {keys.DIGITS}) = right(later.task, {keys.DIGITS}) "
            f"WHERE later.step = {step} AND later.waits ORDER BY later.n"
        ).fetchnumpy()
        return found["n"], found["previous"]

    def released(self) -> tuple[Ints, Ints]:
        """The tasks that wait no more, and the slot of each."""
        where = "released IS NOT NULL"
        return self._column("n", where), self._column("released", where)

    def planned(self, slots: Ints) -> tuple[int, int]:
        """Of the tasks with a slot (-1: none): how many are scheduled at once, and how many wait."""
        waiting = self._column("waits::BIGINT").astype(np.bool_)
        return int(((slots >= 0) & ~waiting).sum()), int(((slots >= 0) & waiting).sum())

    def named(self, some: NDArray[np.bool_]) -> set[str]:
        """The ids of ``some`` tasks, by ``n``."""
        cursor = self.database.cursor()
        cursor.register("these", {"n": np.flatnonzero(some)})
        return {task for (task,) in cursor.execute("SELECT task FROM tasks JOIN these USING (n)").fetchall()}

    def sizes(self) -> Ints:
        """By ``n``: bytes that a task takes in EnrolBatch's result, `batches.schedule_overhead` left out."""
        return self._column("size")

    def _column(self, expression: str, where: str = "true", source: str = "tasks") -> Ints:
        found: Any = self.database.execute(
            f"SELECT {expression} AS found FROM {source} WHERE {where} ORDER BY n"
        ).fetchnumpy()["found"]
        return np.asarray(found, dtype=np.int64)


def data_sql(placeholders: Mapping[str, str]) -> str:
    """An SQL expression: a task's data as JSON text, for ``placeholders`` (name → column); empty cells left out."""
    if not placeholders:
        return "'{}'"
    members = [
        f"CASE WHEN NOT ({blank(column)}) "
        f"THEN {text(json.dumps(name, ensure_ascii=False) + ':')} || to_json({column}) END"
        for name, column in placeholders.items()
    ]
    # Most people lack nothing, and one call for all members takes half the time.
    lacking = " OR ".join(f"({blank(column)})" for column in placeholders.values())
    everything = ", ".join(f"{text(name)}, {column}" for name, column in placeholders.items())
    return (
        f"CASE WHEN {lacking} THEN concat('{{', concat_ws(',', {', '.join(members)}), '}}') "
        f"ELSE json_object({everything})::VARCHAR END"
    )


def refuse_oversized(recipients: RecipientList, draft: Draft, overhead: int) -> None:
    """Refuse (``value_too_long``) whoever's values do not fit into one schedule."""
    if not draft.data:
        return
    cells = " + ".join(f"coalesce(strlen({cell}), 0)" for cell in draft.data.values())
    recipients.refuse_where(
        f"12 * ({cells}) > {LARGEST_SCHEDULE // 2} AND {overhead} + (SELECT {draft.size_sql('input', 'address')} "
        f"FROM (SELECT {data_sql(draft.data)} AS input)) > {LARGEST_SCHEDULE}",
        "value_too_long",
    )
