"""Reading a list's file: what it is, how it is written, and its records with the physical line of each.

RFC 4180 by Python's csv module, which (unlike faster readers) knows each record's line, takes a backslash and a quote
inside an unquoted cell for what they are, and keeps CR, LF and CRLF apart from each other inside quotes. What comes
out is a plain file for DuckDB: one record a line, no quotes, separated by characters that the list does not use.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from carillon import addresses
from carillon.errors import ListRejected

DELIMITERS = ",;\t|"
HEAD = 65_536
"""Bytes by which a file is judged."""
SAMPLE = 500
"""Records by which delimiter and columns are judged."""
LONGEST_CELL = 1_000_000
LONGEST_RECORD = 2_000_000
"""Characters. More is a quote that never closes, and must not take memory."""
MOST_FAULTS = 100
"""Records with broken quotes; more, and the file is not what we take it for."""

csv.field_size_limit(LONGEST_CELL)

_SEPARATORS = "\x1f\x1e\x1d\x1c\x1a\x19\x18\x17\x16\x15\x14\x13\x12\x11\x10\x0f\x0e\x07\x06\x05\x04\x03\x02\x01"
_SEP_LINE = re.compile(r'"?sep=(.)"?\s*\Z', re.IGNORECASE)
_LOOKS_LIKE_ADDRESS = re.compile(r"\s*[^\s;,|@]+@[^\s;,|@]+\s*\Z")
_BINARY = {
    b"PK\x03\x04": "a workbook (.xlsx) or another zip archive",
    b"\x1f\x8b": "gzip",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls)",
    b"%PDF": "a PDF",
}


def refusal(reason: str, cause: str, fix: str) -> ListRejected:
    """A `ListRejected` that begins with the reason's name in the samples' vocabulary."""
    return ListRejected(f"{reason}: {cause}. {fix}.")


@dataclass(frozen=True)
class Format:
    """How a file is written."""

    bom: bool
    delimiter: str
    header_line: int
    header: tuple[str, ...]
    """The cells as they are."""
    sample: tuple[tuple[str, ...], ...]
    """The first records after the header."""


@dataclass(frozen=True)
class Plain:
    """The file that DuckDB reads: ``line, note, surplus, cells…``; what ``note`` says is in the samples' vocabulary."""

    path: Path
    separator: str
    line_feed: str
    carriage_return: str
    """What stands for a line break inside a cell."""
    breaks: bool
    """Whether there is any."""
    rows: int


def sniff(path: Path) -> Format:
    """What ``path`` is.

    Raises:
        ListRejected: empty_file, no_records, no_header, not_csv, unknown_encoding, unclosed_quote.
    """
    with path.open("rb") as file:
        head = file.read(HEAD)
    for magic, what in _BINARY.items():
        if head.startswith(magic):
            raise refusal("not_csv", f"the file is {what}, not text", "Save or unpack it as CSV (UTF-8)")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise refusal("unknown_encoding", "the file is UTF-16", "Save it as CSV UTF-8")
    if b"\x00" in head:
        raise refusal("unknown_encoding", "the file has NUL bytes: it is binary or UTF-16", "Save it as CSV UTF-8")
    bom = head.startswith(b"\xef\xbb\xbf")
    text = head.decode("utf-8-sig", errors="ignore")
    if not text.strip(addresses.INVISIBLE):
        if len(head) == HEAD:
            raise refusal("not_csv", "the file begins with 64 KB of blanks", "Take them out")
        raise refusal("empty_file", "there is no text in the file", "Upload a list with a header and one row a person")
    start = text.lstrip()
    if re.match(r'[{\[]\s*(["{\[]|\Z)', start):
        raise refusal("not_csv", "the file is JSON", "Save it as CSV, with a header")
    if re.match(r"<(!doctype|html|\?xml)\b", start, re.IGNORECASE):
        raise refusal("not_csv", "the file is HTML or XML", "Save it as CSV, with a header")
    given = _SEP_LINE.match(_first_line(text))
    delimiter = given[1] if given else _delimiter(text)
    records = [record for record in islice(Records(path, delimiter), SAMPLE + 1 + bool(given)) if record.cells]
    if given:
        records = records[1:]
    if not records:
        raise refusal("empty_file", "there is no header", "Upload a list with a header and one row a person")
    header = records[0]
    if header.fault:
        raise refusal("unclosed_quote", f"the header (line {header.line}) has a quote that does not close", "Close it")
    if any(addresses.judge(cell) for cell in header.cells):
        raise refusal(
            "no_header", f"line {header.line} is data: it holds an address", "Add a first line with the columns' names"
        )
    if len(records) == 1:
        raise refusal("no_records", "the file has a header and nothing else", "Add one row a person")
    return Format(bom, delimiter, header.line, tuple(header.cells), tuple(tuple(r.cells) for r in records[1:]))


def _first_line(text: str) -> str:
    return re.split(r"\r\n|\r|\n", text, maxsplit=1)[0]


def _delimiter(text: str) -> str:
    """The delimiter under which a column holds addresses, the rows are as long as the header, and that is longest."""

    def score(delimiter: str) -> tuple[bool, float, int]:
        reader = csv.reader(re.split(r"(?<=\n)|(?<=\r)(?!\n)", text), delimiter=delimiter)
        try:
            rows = [row for row in islice(reader, 200) if row]
        except csv.Error:
            return False, 0.0, 0
        width = len(rows[0])
        if width == 1:
            return False, 0.0, 1
        addressed = any(_LOOKS_LIKE_ADDRESS.match(cell) for row in rows[1:] for cell in row[:width])
        return addressed, sum(len(row) == width for row in rows) / len(rows), width

    return max(DELIMITERS, key=score)


class Record(NamedTuple):
    """Cells, and the physical line where they start; ``fault``: its quotes are broken and ``cells`` is the raw text."""

    line: int
    cells: list[str]
    fault: bool = False


class Records:
    """The records of a file, blank lines left out, the header and a ``sep=`` line included.

    A record whose quotes are broken ends at its first line, and reading goes on with the next: nobody below it
    vanishes. Raises `ListRejected` where the bytes are not UTF-8 or quotes are broken all over.
    """

    def __init__(self, path: Path, delimiter: str) -> None:
        self._path = path
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[Record]:
        taken: list[str] = []
        again: list[str] = []
        with self._path.open(encoding="utf-8-sig", newline="") as file:

            def lines() -> Iterator[str]:
                while again:
                    taken.append(again.pop())
                    yield taken[-1]
                for line in file:
                    taken.append(line)
                    yield line

            line, faults = 1, 0
            reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
            while True:
                try:
                    for cells in reader:
                        if cells:
                            yield Record(line, cells)
                        line += len(taken)
                        taken.clear()
                    return
                except csv.Error:
                    faults += 1
                    if faults > MOST_FAULTS:
                        raise refusal(
                            "unclosed_quote",
                            f"{MOST_FAULTS} records have quotes that do not close as they should, the last at line "
                            f"{line}",
                            'Double each quote inside a quoted cell ("")',
                        ) from None
                    yield Record(line, [taken[0].rstrip("\r\n")], fault=True)
                    line += 1
                    again.extend(reversed(taken[1:]))
                    taken.clear()
                    reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
                except UnicodeDecodeError:
                    raise refusal(
                        "unknown_encoding",
                        f"line {_first_bad_line(self._path)} has bytes that are not UTF-8",
                        "Save the list as CSV UTF-8",
                    ) from None


def _first_bad_line(path: Path) -> int:
    line = 1
    with path.open("rb") as file:
        for raw in file:
            try:
                raw.decode()
            except UnicodeDecodeError as error:
                return line + len(re.findall(rb"\r\n|\r|\n", raw[: error.start]))
            line += len(re.findall(rb"\r\n|\r|\n", raw))
    return line


def write_plain(source: Path, layout: Format, target: Path) -> Plain:
    """The records after the header as a `Plain` file at ``target``; memory does not grow with the file.

    Raises:
        ListRejected: as `Records`, and not_csv for a file that uses every control character there is.
    """
    separator, line_feed, carriage_return = _unused(source)
    width, rows, breaks = len(layout.header), 0, False
    buffer: list[str] = []
    with target.open("w", encoding="utf-8", newline="") as out:
        for record in Records(source, layout.delimiter):
            if record.line <= layout.header_line:
                continue
            cells, note, surplus = record.cells, "", ""
            if record.fault:
                cells, note, surplus = [""] * width, "unclosed_quote", cells[0]
            elif len(cells) < width:
                cells, note = cells + [""] * (width - len(cells)), "too_few_fields_padded"
            elif len(cells) > width:
                extra = cells[width:]
                cells, surplus = cells[:width], layout.delimiter.join(extra)
                note = "too_many_fields" if any(map(str.strip, extra)) else "extra_empty_fields"
            text = separator.join([str(record.line), note, surplus, *cells])
            if "\n" in text or "\r" in text:
                breaks = True
                text = text.replace("\n", line_feed).replace("\r", carriage_return)
            if len(text) > LONGEST_RECORD:
                raise refusal(
                    "unclosed_quote",
                    f"the record at line {record.line} has over {LONGEST_RECORD:,} characters",
                    "Close the quotes of the rows above it",
                )
            buffer.append(text)
            rows += 1
            if len(buffer) == 5_000:
                out.write("\n".join(buffer) + "\n")
                buffer.clear()
        if buffer:
            out.write("\n".join(buffer) + "\n")
    return Plain(target, separator, line_feed, carriage_return, breaks, rows)


def _unused(path: Path) -> tuple[str, str, str]:
    left = list(_SEPARATORS)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            left = [character for character in left if character.encode() not in block]
    if len(left) < 3:
        raise refusal("not_csv", "the file is full of control characters", "Save the list as CSV UTF-8")
    return left[0], left[1], left[2]
