"""A list in DuckDB: read once, judged row by row, with the reason of everybody who is not written to.

Memory stays flat: what is over DuckDB's limit spills into the working directory. DuckDB may touch nothing outside
that directory once the list is open.
"""

# ruff: noqa: S608  (SQL is put together from our own names; every value of a list or a spec goes through sql.text)
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from carillon import addresses, zones
from carillon.content import syntax
from carillon.content.filters import FALLBACK_LOCALE, STAND_IN, find_locale
from carillon.content.templates import Prepared, Renderer, TemplateError
from carillon.errors import ListRejected
from carillon.recipients import segments
from carillon.recipients.columns import HASH, OWN, Column, choose_address, choose_zone, columns, find
from carillon.recipients.reading import Direct, Format, direct, refusal, sniff, write_plain
from carillon.shapes import ListSpec
from carillon.sql import blank, name, text, trimmed
from carillon.timing import dates
from carillon.timing.curve import Ints

_PAGE = 10_000
MOST_LOCALES = 10_000
"""Different values of a column of locales; CLDR knows fewer than a thousand, and people write each in some ways."""
LONGEST_CELL = 40
"""Characters of a bad cell that a person is shown."""
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
    # A list's length is not known while it is read: the list itself became the hash table, in memory and out of order.
    database.execute("SET disabled_optimizers = 'build_side_probe_side'")
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
        self,
        source: Path,
        spec: ListSpec,
        work: Path,
        *,
        zones_matter: bool = False,
        zones_help: bool = False,
        memory_limit: str = "1GB",
        now: datetime | None = None,
    ) -> None:
        """Look at ``source``; ``work`` is an empty directory for everything that is written on the way.

        ``zones_matter``: some rule needs each recipient's zone, so a bad one is a reason to reject. It also does
        when ``spec`` names the column. ``zones_help``: a column of zones is looked for, and that is all.
        ``now``: the plan's, for a segment.

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
        elif zones_matter or zones_help:
            self.zone_column = choose_zone(self.columns, sample)
            if zones_matter and self.zone_column is None and spec.fallback_timezone is None:
                raise refusal(
                    "no_timezone_column",
                    "a step goes out at the recipient's local time, and no column holds time zones",
                    "Name the column in list.timezone_column, or give list.fallback_timezone",
                )
        self.rows: int = 0
        """Data records; known once the list is read."""
        self._source = source
        self._work = work
        self._zones_matter = zones_matter
        self._fallback = spec.fallback_timezone
        self._fallback_locale = _known_locale(spec.fallback_locale)
        self._locale_written = "NULL"
        if spec.locale_column:
            self._locale_written = trimmed(f"c{find(spec.locale_column, self.columns, 'list.locale_column').index}")
        self._inside = "true"
        if spec.segment is not None:
            assert now is not None, "a segment may ask for the date"
            self._inside = segments.condition(spec.segment, self.columns, now)
        self.database = open_database(work, memory_limit, self.format.text)

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
        db = self.database
        db.create_function("judge", lambda written: addresses.judge(written) or "", ["VARCHAR"], "VARCHAR")
        db.create_function("fault", addresses.fault, ["VARCHAR"], "VARCHAR")
        db.execute(segments.MACROS)
        self._learn_zones()
        way = direct(self.format)
        if way is None or not self._judge_directly(way):
            plain = write_plain(self.format, self._work / "records.txt")
            self._judge(plain.query(len(self.columns)))
            plain.path.unlink()
        if self.format.text != self._source:
            self.format.text.unlink()  # a copy, and the disk is as small as a Lambda's
        self._put_in_order()
        self._refuse_duplicates()
        db.execute(
            "CREATE VIEW accepted AS SELECT * EXCLUDE (reason, detail, surplus) FROM records WHERE reason IS NULL"
        )

    def close(self) -> None:
        """Let go of the database; the files stay in the working directory."""
        self.database.close()

    def _learn_zones(self) -> None:
        """Table ``zones``: each name, and what it is in lower case."""
        self.database.execute("CREATE TABLE zones (lower VARCHAR PRIMARY KEY, name VARCHAR)")
        self.database.register("known", {"name": np.array(sorted(zones.names()), dtype=object)})
        self.database.execute("INSERT INTO zones SELECT lower(name), name FROM known")
        self.database.unregister("known")

    def _judge_directly(self, way: Direct) -> bool:
        """Whether DuckDB's own reader found a record in each line; then it is what has been judged."""
        try:
            self._judge(way.query(len(self.columns)))
        except (duckdb.InvalidInputException, ListRejected):
            return False  # what is wrong with the list itself will be found again
        return self.rows == way.rows

    def _judge(self, cells: str) -> None:
        """Table ``records``: what is known of each record; ``reason`` says why nobody is written to.

        ``cells``: SQL for line, note, surplus and the cells ``c0``, ``c1``, … of every record. The file is read by the
        same statement that judges it, for two copies of a list take twice the memory.
        """
        fallback = self._fallback
        db = self.database
        db.execute(f"CREATE OR REPLACE VIEW cells AS {cells}")
        self._learn_locales()
        zone = trimmed(f"c{self.zone_column.index}") if self.zone_column else "NULL"
        zone_reason = "NULL"
        if self.zone_column and self._zones_matter and fallback is None:
            zone_reason = (
                "CASE WHEN coalesce(zone_written, '') = '' THEN 'missing_timezone' "
                "WHEN zones.name IS NULL THEN 'invalid_timezone' END"
            )
        details = " ".join(f"WHEN {text(fault)} THEN {text(why)}" for fault, why in _DETAILS.items())
        counted = db.execute(
            f"""
            CREATE OR REPLACE TABLE records AS
            WITH cleaned AS (
                SELECT *, coalesce({trimmed(f"c{self.address_column.index}")}, '') AS written,
                    {zone} AS zone_written, {self._locale_written} AS locale_written, {self._inside} AS inside
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
            SELECT line, note, surplus, {", ".join(f"c{column.index}" for column in self.columns)},
                address, sha256(lower(address)) AS digest,
                coalesce(locales.name, {text(self._fallback_locale)}) AS locale,
                locales.name IS NULL AND coalesce(locale_written, '') <> '' AS locale_unknown,
                coalesce(zones.name, {text(fallback) if fallback else "NULL"}) AS timezone,
                zones.name IS NULL AND coalesce(zone_written, '') <> '' AS zone_unknown,
                CASE WHEN fault = 'needs_smtputf8' THEN 'invalid_address' WHEN fault IS NOT NULL THEN fault
                    WHEN NOT inside THEN {text(NOT_REJECTED)} ELSE {zone_reason} END AS reason,
                CASE fault {details} END AS detail
            FROM faulted LEFT JOIN zones ON zones.lower = lower(zone_written)
                LEFT JOIN locales ON locales.written = locale_written
            """
        ).fetchone()
        assert counted is not None
        self.rows = int(counted[0])
        db.execute("DROP VIEW cells")

    def _put_in_order(self) -> None:
        """See that the records lie in the list's order: a join of a short list may have turned them round."""
        lines = self.database.execute("SELECT line FROM records").fetchnumpy()["line"]
        if (np.diff(lines) < 0).any():
            self.database.execute("CREATE TABLE sorted AS FROM records ORDER BY line")
            self.database.execute("DROP TABLE records")
            self.database.execute("ALTER TABLE sorted RENAME TO records")

    def _refuse_duplicates(self) -> None:
        """The first accepted record of a person stays; a rejected one never makes a later one a duplicate."""
        self.database.execute(
            """
            UPDATE records SET reason = 'duplicate', detail = 'the same person as line ' || first.line
            FROM (
                SELECT digest, min(line) AS line FROM records
                WHERE reason IS NULL AND hash(digest) IN (
                    SELECT hash(digest) FROM records WHERE reason IS NULL GROUP BY ALL HAVING count(*) > 1
                )
                GROUP BY digest HAVING count(*) > 1
            ) AS first
            WHERE records.digest = first.digest AND records.reason IS NULL AND records.line <> first.line
            """
        )

    def _learn_locales(self) -> None:
        """Table ``locales``: what is written in the column of locales, and the one of CLDR that it is."""
        db, cell = self.database, self._locale_written
        db.execute("CREATE OR REPLACE TABLE locales (written VARCHAR PRIMARY KEY, name VARCHAR)")
        if cell == "NULL":
            return
        different = db.execute(f"SELECT DISTINCT {cell} FROM cells LIMIT {MOST_LOCALES + 1}").fetchall()
        if len(different) > MOST_LOCALES:
            raise refusal(
                "no_locales",
                f"list.locale_column names a column with more than {MOST_LOCALES:,} different values",
                "Name the column that says de, de-AT or pt_BR, or leave it out and give list.fallback_locale",
            )
        for (written,) in different:
            if written and (found := find_locale(written)):
                db.execute("INSERT INTO locales VALUES (?, ?)", [written, found])

    def refuse(self, lines: Sequence[int], reason: str, details: Sequence[str] | None = None) -> None:
        """Take accepted recipients out again, with the reason why."""
        if not lines:
            return
        said = np.array(details if details is not None else [None] * len(lines), dtype=object)
        self.database.register("these", {"line": np.array(lines, dtype=np.int64), "detail": said})
        self._refuse_lines("SELECT line, detail FROM these", reason)
        self.database.unregister("these")

    def refuse_hashes(self, hashes: Collection[str], reason: str) -> None:
        """Take out the accepted whose address hash is one of ``hashes``."""
        if not hashes:
            return
        self.database.register("these", {"digest": np.array([*hashes], dtype=object)})
        self._refuse_lines("SELECT line, NULL AS detail FROM accepted JOIN these USING (digest)", reason)
        self.database.unregister("these")

    def refuse_where(self, condition: str, reason: str, detail: str = "NULL") -> None:
        """Take out the accepted of whom ``condition`` is true; it and ``detail`` are SQL over `accepted`, which has
        the cells ``c0``, ``c1``, … too."""
        self._refuse_lines(f"SELECT line, {detail} AS detail FROM accepted WHERE {condition}", reason)

    def _refuse_lines(self, query: str, reason: str) -> None:
        self.database.execute(
            f"UPDATE records SET reason = {text(reason)}, detail = found.detail FROM ({query}) AS found "
            "WHERE records.line = found.line AND records.reason IS NULL"
        )

    def refuse_incomplete(self, prepared: Prepared) -> None:
        """Refuse whoever lacks a value that ``prepared`` needs and has no default for (``missing_value``), or has one
        that a filter cannot read (``invalid_value``)."""
        suspects = [self._unreadable(name, kind) for name, kind in prepared.formatted.items()]
        if prepared.required is None:
            suspects += [self._blank(name) for name in prepared.placeholders]
        elif prepared.required:
            named = [f"CASE WHEN {self._blank(name)} THEN {text(name)} END" for name in prepared.required]
            self.refuse_where(
                " OR ".join(map(self._blank, prepared.required)),
                "missing_value",
                f"'empty: ' || concat_ws(', ', {', '.join(named)})",
            )
        if not suspects:
            return
        # The template decides what it needs of whom, so those are rendered who could fail.
        renderer, given = Renderer(prepared), dict.fromkeys(prepared.given, STAND_IN)
        wanted = ", ".join(self.cell(name) for name in prepared.placeholders)
        refused: dict[str, list[tuple[int, str]]] = {"missing_value": [], "invalid_value": []}
        for line, *values in self._pages(
            f"SELECT line, {wanted} FROM accepted WHERE {' OR '.join(suspects)} ORDER BY line"
        ):
            try:
                renderer.render(dict(zip(prepared.placeholders, values, strict=True)), given)
            except TemplateError as error:
                refused["missing_value" if error.missing else "invalid_value"].append((line, str(error)))
        for reason, found in refused.items():
            self.refuse([line for line, _ in found], reason, [why for _, why in found])

    def _unreadable(self, placeholder: str, kind: str) -> str:
        """Whether a cell has something in it that may not be a ``date`` or a ``number``, as SQL."""
        cell = trimmed(self.cell(placeholder))
        reads = f"{dates.canonical(cell)} IS NOT NULL"
        if kind == "number":
            reads = f"regexp_full_match({cell}, '[+-]?[0-9]{{1,30}}([.][0-9]{{1,30}})?')"
        return f"(NOT {self._blank(placeholder)} AND NOT coalesce({reads}, false))"

    def _blank(self, placeholder: str) -> str:
        return f"({blank(self.cell(placeholder))})"

    def cell(self, placeholder: str) -> str:
        """What fills ``placeholder``, as SQL over `accepted`."""
        if placeholder in (syntax.LOCALE, syntax.ZONE):
            return "locale" if placeholder == syntax.LOCALE else "timezone"
        return next(f"c{c.index}" for c in self.columns if placeholder in c.placeholders)

    def hashes(self) -> Iterator[list[str]]:
        """Pages of address hashes of the accepted, in the list's order."""
        cursor = self.database.cursor()
        cursor.execute("SELECT digest FROM accepted ORDER BY line")
        while page := cursor.fetchmany(_PAGE):
            yield [digest for (digest,) in page]

    def _pages(self, query: str) -> Iterator[tuple[Any, ...]]:
        cursor = self.database.cursor()
        cursor.execute(query)
        while page := cursor.fetchmany(_PAGE):
            yield from page

    def count(self) -> int:
        """How many are accepted now."""
        [(count,)] = self.database.execute("SELECT count(*) FROM accepted").fetchall()
        return int(count)

    def accepted(self) -> Iterator[tuple[int, str, str | None]]:
        """``(line, canonical address, zone)`` of the accepted, in the list's order."""
        return self._pages("SELECT line, lower(address), timezone FROM accepted ORDER BY line")

    def refused(self) -> Iterator[tuple[int, str, str | None]]:
        """``(line, reason, detail)`` of everybody refused, in the list's order."""
        return self._pages("SELECT line, reason, detail FROM records WHERE reason IS NOT NULL ORDER BY line")

    def bad_cells(self) -> Iterator[tuple[int, str]]:
        """``(line, cell)`` of everybody whose address or zone is the fault, in the list's order: cleaned, and cut."""
        address = trimmed(f"c{self.address_column.index}")
        zone = trimmed(f"c{self.zone_column.index}") if self.zone_column else "NULL"
        return self._pages(
            f"SELECT line, left(cell, {LONGEST_CELL}) || CASE WHEN length(cell) > {LONGEST_CELL} THEN '…' ELSE '' END "
            f"FROM (SELECT line, CASE reason WHEN 'invalid_timezone' THEN {zone} ELSE {address} END AS cell "
            "FROM records WHERE reason IN ('invalid_address', 'multiple_addresses', 'invalid_timezone')) ORDER BY line"
        )

    def rejected(self) -> dict[str, int]:
        """How many are refused, by reason."""
        return dict(
            self.database.execute(
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
            "nullif(note, ''), CASE WHEN zone_unknown AND timezone IS NOT NULL THEN 'timezone_fallback' END, "
            "CASE WHEN locale_unknown THEN 'locale_fallback' END], "
            "lambda w: w IS NOT NULL)) AS warning FROM accepted "
            "WHERE coalesce(note, '') <> '' OR zone_unknown OR locale_unknown) ORDER BY line, warning"
        )

    def lines(self) -> Ints:
        """The accepted, in the list's order."""
        found: Ints = self.database.execute("SELECT line FROM accepted ORDER BY line").fetchnumpy()["line"]
        return found

    def write_recipients(self, target: Path, also: Mapping[str, str] = {}) -> list[dict[str, str]]:
        """The accepted with all their columns as Parquet, an empty cell as null; the Glue columns of it.

        ``also``: more columns of Carillon's own, with what is in them as SQL; a resume plans by these again.
        """
        own = [
            (f"{OWN}line", "bigint", "line"),
            (f"{OWN}address", "string", "address"),
            (HASH, "string", "digest"),
            (f"{OWN}timezone", "string", "timezone"),
        ]
        own += [(name, "string", expression) for name, expression in also.items()]
        described = [(c.name, "string", f"c{c.index}") for c in self.columns] + own
        selected = ", ".join(f'{expression} AS "{name}"' for name, _, expression in described)
        # A dictionary of values that nearly all differ is given up sooner than by default.
        self.database.execute(
            f"COPY (SELECT {selected} FROM accepted) TO {text(str(target))} "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, DICTIONARY_SIZE_LIMIT 10_000)"
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
        self.database.execute(
            f"COPY (SELECT line, records.reason, records.detail, {defused} FROM records "
            f"WHERE records.reason <> {text(NOT_REJECTED)} ORDER BY line) "
            f"TO {text(str(target))} (FORMAT csv, HEADER true, NULL '')"
        )


def _defused(label: str) -> str:
    """``label`` as a column's name, defused like a cell: headers are the list's too."""
    if label[:1] in "=+-@＝＋－＠":
        label = "'" + label
    return name(label)


def _known_locale(written: str) -> str:
    if written == FALLBACK_LOCALE:  # the default, which needs no look into CLDR
        return written
    found = find_locale(written)
    if found is None:
        raise refusal(
            "unknown_locale",
            f"list.fallback_locale is {written!r}, which is no locale",
            "Write a language, and a region if it matters: de, de-AT, pt_BR",
        )
    return found
