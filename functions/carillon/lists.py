"""A list in DuckDB: read once, judged row by row, with the reason of everybody who is not written to.

Memory stays flat: what is over DuckDB's limit spills into the working directory. DuckDB may touch nothing outside
that directory once the list is open.
"""

# ruff: noqa: S608  (SQL is put together from our own names; every value of a list or a spec goes through sql.text)
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from carillon import addresses, keys, rules, zones
from carillon.batches import LARGEST_SCHEDULE, TaskTable, data_sql, size_sql
from carillon.columns import HASH, OWN, TIME, Column, choose_address, choose_zone, columns, find
from carillon.curve import Ints
from carillon.reading import Direct, Format, Plain, direct, refusal, sniff, write_plain
from carillon.shapes import ListSpec
from carillon.sql import blank, name, text, trimmed
from carillon.templates import Prepared, Renderer, lacks

_PAGE = 10_000
_FORMULA = r"^\s*[=+\-@＝＋－＠]|^[\t\r\n]"
"""What a spreadsheet would run when it opens the reject file."""


def open_database(work: Path, memory_limit: str = "1GB", *readable: Path) -> duckdb.DuckDBPyConnection:
    """A database that can reach nothing outside ``work`` but the ``readable`` files.

    It lives in memory up to ``memory_limit`` and spills the rest to ``work``: nobody needs it afterwards, so nothing
    is compressed or logged.
    """
    database = duckdb.connect(config={"memory_limit": memory_limit})
    database.execute(f"SET temp_directory = {text(str(work / 'spill'))}")
    database.execute(f"SET allowed_directories = [{text(str(work))}]")
    database.execute(f"SET allowed_paths = [{', '.join(text(str(path)) for path in readable)}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


REJECTED_ALREADY = ("undecodable", "too_many_fields", "unclosed_quote", "invalid_json")
NOT_REJECTED = "outside_segment"
"""Counted, but nobody's fault: not in the reject file."""
_DETAILS = {
    "needs_smtputf8": "letters beyond ASCII before the @ need SMTPUTF8, which SES does not offer",
    "multiple_addresses": "several addresses in one cell: give each a row of its own",
}


class RecipientList:
    """One list, opened. ``line`` (physical, of the record's first line) identifies a recipient throughout."""

    def __init__(
        self, source: Path, spec: ListSpec, work: Path, *, zones_matter: bool = False, memory_limit: str = "1GB"
    ) -> None:
        """Look at ``source``; ``work`` is an empty directory for everything that is written on the way.

        ``zones_matter``: some rule needs each recipient's zone, so a bad one is a reason to reject. It also does
        when ``spec`` names the column.

        Raises:
            ListRejected: the file cannot be used at all; the message begins with a reason of the samples' vocabulary.
        """
        self.format: Format = sniff(source, spec, work)
        self.columns: tuple[Column, ...] = columns(self.format.header)
        sample = self.format.sample
        self.address_column: Column = (
            find(spec.address_column, self.columns, "list.address_column")
            if spec.address_column
            else choose_address(self.columns, sample)
        )
        zones_matter = zones_matter or spec.timezone_column is not None
        self.zone_column: Column | None = None
        if spec.timezone_column:
            self.zone_column = find(spec.timezone_column, self.columns, "list.timezone_column")
        elif zones_matter:
            self.zone_column = choose_zone(self.columns, sample)
            if self.zone_column is None and spec.fallback_timezone is None:
                raise refusal(
                    "no_timezone_column",
                    "a step goes out at the recipient's local time, and no column holds time zones",
                    "Name the column in list.timezone_column, or give list.fallback_timezone",
                )
        self.rows: int = 0
        """Data records; known once the list is read."""
        self._work = work
        self._fallback = spec.fallback_timezone
        self._database = open_database(work, memory_limit, self.format.text)

    def decisions(self) -> dict[str, Any]:
        """How the file is written and which column holds what: what was found, or what the spec says."""
        return {
            "encoding": self.format.encoding,
            "bom": self.format.bom,
            "delimiter": self.format.delimiter,
            "header_line": self.format.header_line,
            "columns": [column.label for column in self.columns],
            "address_column": self.address_column.label,
            "timezone_column": self.zone_column.label if self.zone_column else None,
        }

    def read(self) -> None:
        """Read every record and judge it.

        Raises:
            ListRejected: as above, for what only the whole file tells.
        """
        way = direct(self.format)
        if way is None or not self._load_directly(way):
            plain = write_plain(self.format, self._work / "records.txt")
            self._load_plain(plain)
            plain.path.unlink()
        self._database.create_function("judge", lambda written: addresses.judge(written) or "", ["VARCHAR"], "VARCHAR")
        self._database.create_function("fault", addresses.fault, ["VARCHAR"], "VARCHAR")
        self._judge()

    def close(self) -> None:
        """Let go of the database; the files stay in the working directory."""
        self._database.close()

    def _load_directly(self, way: Direct) -> bool:
        """Whether DuckDB's own reader found a record in each line; then the view ``cells`` is what it read."""
        try:
            self.rows = self._load(way.query(len(self.columns)))
        except duckdb.InvalidInputException:
            return False
        if self.rows != way.rows:
            return False
        self._database.execute(
            "CREATE VIEW cells AS SELECT rowid + 2 AS line, NULL::VARCHAR AS note, NULL::VARCHAR AS surplus, * FROM loaded"
        )
        return True

    def _load_plain(self, plain: Plain) -> None:
        """The view ``cells``: line, note, surplus and the cells ``c0``, ``c1``, … of every record, in order."""
        self.rows = self._load(plain.query(len(self.columns)))
        self._database.execute("CREATE VIEW cells AS FROM loaded")

    def _load(self, query: str) -> int:
        """How many records are in table ``loaded`` now: in their order, which ``rowid`` keeps."""
        row = self._database.execute(f"CREATE OR REPLACE TABLE loaded AS {query}").fetchone()
        assert row is not None
        return int(row[0])

    def _judge(self) -> None:
        """Table ``records``: what is known of each record, in order; ``reason`` says why nobody is written to."""
        fallback = self._fallback
        db = self._database
        db.execute("CREATE TABLE zones (lower VARCHAR PRIMARY KEY, name VARCHAR)")
        db.register("known", {"name": np.array(sorted(zones.names()), dtype=object)})
        db.execute("INSERT INTO zones SELECT lower(name), name FROM known")
        db.unregister("known")
        zone = trimmed(f"c{self.zone_column.index}") if self.zone_column else "NULL"
        zone_reason = "NULL"
        if self.zone_column and fallback is None:
            zone_reason = (
                "CASE WHEN coalesce(zone_written, '') = '' THEN 'missing_timezone' "
                "WHEN zones.name IS NULL THEN 'invalid_timezone' END"
            )
        details = " ".join(f"WHEN {text(fault)} THEN {text(why)}" for fault, why in _DETAILS.items())
        db.execute(
            f"""
            CREATE TABLE records AS
            WITH cleaned AS (
                SELECT line, note, coalesce({trimmed(f"c{self.address_column.index}")}, '') AS written,
                    {zone} AS zone_written
                FROM cells
            ), judged AS (
                SELECT *, {addresses.verdict_sql("written")} AS address FROM cleaned
            ), faulted AS (
                SELECT *, CASE
                    WHEN note IN {REJECTED_ALREADY} THEN note
                    WHEN written = '' THEN 'missing_address'
                    WHEN address IS NULL THEN fault(written)
                END AS fault FROM judged
            )
            SELECT line, note, address, sha256(lower(address)) AS digest,
                coalesce(zones.name, {text(fallback) if fallback else "NULL"}) AS timezone,
                zones.name IS NULL AND coalesce(zone_written, '') <> '' AS zone_unknown,
                CASE WHEN fault = 'needs_smtputf8' THEN 'invalid_address' WHEN fault IS NOT NULL THEN fault
                    ELSE {zone_reason} END AS reason,
                CASE fault {details} END AS detail
            FROM faulted LEFT JOIN zones ON zones.lower = lower(zone_written)
            """
        )
        # The first accepted record of a person stays; a rejected one never makes a later one a duplicate.
        db.execute(
            """
            UPDATE records SET reason = 'duplicate', detail = 'the same person as line ' || first.line
            FROM (
                SELECT digest, min(line) AS line FROM records WHERE reason IS NULL GROUP BY digest HAVING count(*) > 1
            ) AS first
            WHERE records.digest = first.digest AND records.reason IS NULL AND records.line <> first.line
            """
        )
        db.execute(
            "CREATE VIEW accepted AS SELECT line, note, address, digest, timezone, zone_unknown FROM records "
            "WHERE reason IS NULL"
        )

    def refuse(self, lines: Sequence[int], reason: str) -> None:
        """Take accepted recipients out again, with the reason why."""
        if not lines:
            return
        self._database.register("these", {"line": np.array(lines, dtype=np.int64)})
        self._refuse_lines("SELECT line FROM these", reason)
        self._database.unregister("these")

    def refuse_where(self, condition: str, reason: str) -> None:
        """Take out the accepted of whom ``condition`` (SQL over the cells ``c0``, ``c1``, …) is true."""
        self._refuse_lines(f"SELECT line FROM cells WHERE {condition}", reason)

    def _refuse_lines(self, lines: str, reason: str) -> None:
        self._database.execute(f"UPDATE records SET reason = {text(reason)} WHERE reason IS NULL AND line IN ({lines})")

    def refuse_incomplete(self, prepared: Prepared) -> None:
        """Refuse (``missing_value``) whoever lacks a value that ``prepared`` needs and has no default for."""
        if prepared.required is not None:
            if prepared.required:
                empty = " OR ".join(self._blank(name) for name in prepared.required)
                self.refuse_where(empty, "missing_value")
            return
        if not prepared.placeholders:
            return
        renderer = Renderer(prepared)
        some_empty = " OR ".join(self._blank(name) for name in prepared.placeholders)
        wanted = ", ".join(self._cell(name) for name in prepared.placeholders)
        query = f"SELECT line, {wanted} FROM accepted JOIN cells USING (line) WHERE {some_empty} ORDER BY line"
        lacking = [
            line
            for line, *values in self._pages(query)
            if lacks(renderer, dict(zip(prepared.placeholders, values, strict=True)))
        ]
        self.refuse(lacking, "missing_value")

    def _blank(self, placeholder: str) -> str:
        return f"({blank(self._cell(placeholder))})"

    def _cell(self, placeholder: str) -> str:
        return next(f"c{c.index}" for c in self.columns if placeholder in c.placeholders)

    def hashes(self) -> Iterator[list[tuple[int, str]]]:
        """Pages of ``(line, address hash)`` of the accepted, in the list's order."""
        cursor = self._database.cursor()
        cursor.execute("SELECT line, digest FROM accepted ORDER BY line")
        while page := cursor.fetchmany(_PAGE):
            yield page

    def _pages(self, query: str) -> Iterator[tuple[Any, ...]]:
        cursor = self._database.cursor()
        cursor.execute(query)
        while page := cursor.fetchmany(_PAGE):
            yield from page

    def count(self) -> int:
        """How many are accepted now."""
        row = self._database.execute("SELECT count(*) FROM accepted").fetchone()
        assert row is not None
        return int(row[0])

    def accepted(self) -> Iterator[tuple[int, str, str | None]]:
        """``(line, canonical address, zone)`` of the accepted, in the list's order."""
        return self._pages("SELECT line, lower(address), timezone FROM accepted ORDER BY line")

    def refused(self) -> Iterator[tuple[int, str, str | None]]:
        """``(line, reason, detail)`` of everybody refused, in the list's order."""
        return self._pages("SELECT line, reason, detail FROM records WHERE reason IS NOT NULL ORDER BY line")

    def rejected(self) -> dict[str, int]:
        """How many are refused, by reason."""
        return dict(
            self._database.execute(
                "SELECT reason, count(*) FROM records WHERE reason IS NOT NULL GROUP BY reason ORDER BY reason"
            ).fetchall()
        )

    def warnings(self) -> dict[str, int]:
        """How many were accepted in spite of something, by what it was."""
        counts = Counter(warning for _, warning in self.warned())
        return dict(sorted(counts.items()))

    def warned(self) -> Iterator[tuple[int, str]]:
        """``(line, warning)`` of accepted recipients, in the list's order."""
        return self._pages(
            "SELECT line, warning FROM (SELECT line, unnest(list_filter(["
            "nullif(note, ''), CASE WHEN zone_unknown AND timezone IS NOT NULL THEN 'timezone_fallback' END], "
            "lambda w: w IS NOT NULL)) AS warning FROM accepted "
            "WHERE coalesce(note, '') <> '' OR zone_unknown) ORDER BY line, warning"
        )

    def lines(self) -> Ints:
        """The accepted, in the list's order."""
        found: Ints = self._database.execute("SELECT line FROM accepted ORDER BY line").fetchnumpy()["line"]
        return found

    def refuse_without_time(self, time_column: Column) -> None:
        """Refuse whoever's cell in ``time_column`` is empty (``missing_value``) or no HH:MM (``invalid_time``)."""
        self.refuse_where(f"({blank(f'c{time_column.index}')})", "missing_value")
        self.refuse_where(f"NOT regexp_full_match({self._wall(time_column)}, {text(rules.WALL)})", "invalid_time")

    @staticmethod
    def _wall(time_column: Column) -> str:
        return trimmed(f"c{time_column.index}")

    def _data(self, prepared: Prepared) -> str:
        columns_of = {name: self._cell(name) for name in prepared.placeholders}
        return data_sql(columns_of)

    def refuse_oversized(self, prepared: Prepared, overhead: int) -> None:
        """Refuse (``value_too_long``) whoever's values do not fit into one schedule."""
        if not prepared.placeholders:
            return
        cells = " + ".join(f"coalesce(strlen({self._cell(n)}), 0)" for n in prepared.placeholders)
        self.refuse_where(
            f"12 * ({cells}) > {LARGEST_SCHEDULE // 2} AND {overhead} + (SELECT {size_sql('input', 'address')} "
            f"FROM (SELECT {self._data(prepared)} AS input)) > {LARGEST_SCHEDULE}",
            "value_too_long",
        )

    def add_tasks(self, tasks: TaskTable, step: int, prepared: Prepared, time_column: Column | None) -> None:
        """One task for each accepted recipient, in the list's order, after what is in ``tasks`` already."""
        wall = self._wall(time_column) if time_column else "NULL"
        self._database.execute(
            f"""
            INSERT INTO tasks
            WITH ranked AS (SELECT *, row_number() OVER (ORDER BY line) - 1 AS rank FROM accepted),
            filled AS (
                SELECT {tasks.count()} + rank AS n, digest, address, timezone, {wall} AS wall,
                    {self._data(prepared)} AS input
                FROM ranked JOIN cells USING (line)
            )
            SELECT n, {step}, '{step}-' || left(digest, {keys.DIGITS}), address, timezone, wall, input,
                {size_sql("input", "address")}
            FROM filled
            """
        )

    def tasks(self) -> TaskTable:
        """An empty table of tasks beside the list."""
        return TaskTable(self._database)

    def write_recipients(self, target: Path, times: Sequence[Column | None] = ()) -> list[dict[str, str]]:
        """The accepted with all their columns as Parquet, an empty cell as null; the Glue columns of it.

        ``times``: each step's time column; a resume plans by it again.
        """
        own = [
            (f"{OWN}line", "bigint", "line"),
            (f"{OWN}address", "string", "address"),
            (HASH, "string", "digest"),
            (f"{OWN}timezone", "string", "timezone"),
        ]
        for step, column in enumerate(times, 1):
            if column is not None:
                own.append((f"{TIME}{step}", "string", self._wall(column)))
        described = [(c.name, "string", f"c{c.index}") for c in self.columns] + own
        selected = ", ".join(f'{expression} AS "{name}"' for name, _, expression in described)
        self._database.execute(
            f"COPY (SELECT {selected} FROM accepted JOIN cells USING (line) ORDER BY line) "
            f"TO {text(str(target))} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )
        return [{"Name": name, "Type": kind} for name, kind, _ in described]

    def write_rejects(self, target: Path) -> None:
        """Everybody refused as CSV: line, reason, detail, the row as it was; formulas are defused by an apostrophe.

        Who is outside the segment was not refused, only not meant.
        """
        defused = ", ".join(
            f"CASE WHEN regexp_matches({cell}, {text(_FORMULA)}) THEN '''' || {cell} ELSE {cell} END "
            f"AS {_defused(label)}"
            for cell, label in [*((f"c{c.index}", c.label) for c in self.columns), ("surplus", "surplus cells")]
        )
        self._database.execute(
            f"COPY (SELECT line, records.reason, records.detail, {defused} FROM records JOIN cells USING (line) "
            f"WHERE records.reason <> {text(NOT_REJECTED)} ORDER BY line) "
            f"TO {text(str(target))} (FORMAT csv, HEADER true, NULL '')"
        )


def _defused(label: str) -> str:
    """``label`` as a column's name, defused like a cell: headers are the list's too."""
    if label[:1] in "=+-@＝＋－＠":
        label = "'" + label
    return name(label)
