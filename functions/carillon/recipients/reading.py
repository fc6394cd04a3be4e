"""Reading a list's file: what it is, how it is written, and its records with the physical line of each.

There are two ways in. A clean file (UTF-8, one kind of line end, each record on its own line) goes straight into
DuckDB's CSV reader, where `direct` and a count afterwards prove that its answer is ours. Every other file is read
here: RFC 4180 by Python's csv module, which (unlike faster readers) knows each record's line, takes a backslash and a
quote inside an unquoted cell for what they are, and keeps CR, LF and CRLF apart from each other inside quotes; or one
JSON object a line. What comes out of that is a plain file for DuckDB: one record a line, no quotes, separated by
characters that the list does not use.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

from carillon import addresses
from carillon.errors import ListRejected
from carillon.recipients import encoding
from carillon.recipients.encoding import BAD, BLOCK, HEAD
from carillon.shapes import ListSpec
from carillon.sql import text as literal

DELIMITERS = ",;\t|"
SAMPLE = 500
"""Records by which delimiter and columns are judged."""
LONGEST = 500_000
"""Characters of a cell or a record. More is a quote that never closes or no list at all, and must not take memory;
what an e-mail may use is limited to a fifth of that (`carillon.launch.batches.LARGEST_SCHEDULE`)."""
SHOWN = 1_000
"""Characters of a cell by which its column is judged."""
MOST_COLUMNS = 1_000
MOST_FAULTS = 100
"""Records that cannot be read; more, and the file is not what we take it for."""
MOST_UNPACKED = 4 * 2**30
"""Bytes that a gzip may unpack to: with what is made of it, that fits the 10 GB of a Lambda's /tmp."""

csv.field_size_limit(LONGEST)

_SEPARATORS = "\x1f\x1e\x1d\x1c\x1a\x19\x18\x17\x16\x15\x14\x13\x12\x11\x10\x0f\x0e\x07\x06\x05\x04\x03\x02\x01"
_SEP_LINE = re.compile(r'"?sep=([^"\x00])"?\s*\Z', re.IGNORECASE)
_LOOKS_LIKE_ADDRESS = re.compile(r"\s*[^\s;,|@]+@[^\s;,|@]+\s*\Z")
_LINE_END = re.compile(r"\r\n|\r|\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON can spell and UTF-8 cannot."""
_GZIP = b"\x1f\x8b"
_BINARY = {
    b"PK\x03\x04": "a workbook (.xlsx) or another zip archive",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook (.xls)",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
    b"SQLite format 3\x00": "a SQLite database",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"{\\rtf": "a rich text document",
}
_PATTERN = re.compile(r"[*?\[\]{}]")
"""What makes a path a pattern for DuckDB."""
_JSON_ENDINGS = (".jsonl", ".ndjson")


def refusal(reason: str, cause: str, fix: str) -> ListRejected:
    """A `ListRejected` that begins with the reason's name in the samples' vocabulary."""
    return ListRejected(f"{reason}: {cause}. {fix}.")


@dataclass(frozen=True)
class Format:
    """How a file is written, and where its text is."""

    encoding: str
    bom: bool
    delimiter: str | None
    """None: the file is JSON, one object a line."""
    header_line: int | None
    """Physical, counted from 1; None as above."""
    header: tuple[str, ...]
    """The cells as they are; of JSON, the keys in the order in which they first turn up."""
    sample: tuple[tuple[str, ...], ...]
    """The first records after the header."""
    text: Path
    """The file in UTF-8: the list itself, or a copy."""
    clean: bool
    """Whether all of its bytes were text; else some of ``text`` is `BAD`."""


class Record(NamedTuple):
    """Cells, and the physical line where they start; ``fault``: it cannot be read and ``cells`` is the raw text."""

    line: int
    cells: list[str]
    fault: str = ""


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

    def query(self, width: int) -> str:
        """SQL: ``line``, ``note``, ``surplus`` and the cells ``c0``, ``c1``, … of every record, in order."""
        cells = [f"c{n}" for n in range(width)]
        typed = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in ("note", "surplus", *cells))
        kept = ", ".join(("surplus", *cells))
        if self.breaks:
            lf, cr = literal(self.line_feed), literal(self.carriage_return)
            kept = ", ".join(f"replace(replace({c}, {lf}, chr(10)), {cr}, chr(13)) AS {c}" for c in ("surplus", *cells))
        return (
            f"SELECT line, note, {kept} FROM read_csv({literal(str(self.path))}, delim = {literal(self.separator)}, "  # noqa: S608
            "quote = '', escape = '', header = false, auto_detect = false, new_line = '\\n', "
            f"max_line_size = {10 * 2**20}, columns = {{'line': 'BIGINT', {typed}}})"
        )


def sniff(source: Path, spec: ListSpec, work: Path) -> Format:
    """What ``source`` is; its name's ending says whether it is JSON. Copies of it go to ``work``.

    Raises:
        ListRejected: empty_file, no_records, no_header, not_csv, unknown_encoding, unclosed_quote, wrong_delimiter.
    """
    name = source.name.lower().removesuffix(".gz")
    with source.open("rb") as file:
        packed = file.read(2) == _GZIP
    if packed:
        source = _unpack(source, work / "unpacked")
    with source.open("rb") as file:
        head = file.read(HEAD)
    for magic, what in _BINARY.items():
        if head.startswith(magic):
            raise refusal("not_csv", f"the file is {what}, not text", "Save or unpack it as CSV (UTF-8)")
    if head.startswith(_GZIP):
        raise refusal("not_csv", "the file is gzip inside gzip", "Pack it once, or not at all")
    found = encoding.detect(source, spec.encoding)
    path, clean = _as_utf_8(source, found, spec.encoding is not None, work / "text")
    if packed and path != source:
        source.unlink()
    with path.open("rb") as file:
        head = file.read(HEAD)
    text = head.decode("utf-8-sig", errors="ignore")
    if not text.strip(addresses.INVISIBLE):
        if len(head) == HEAD:
            raise refusal("not_csv", "the file begins with 64 KB of blanks", "Take them out")
        raise refusal("empty_file", "there is no text in the file", "Upload a list with a header and one row a person")
    start = text.lstrip()
    if re.match(r"<(!doctype|html|\?xml)\b", start, re.IGNORECASE):
        raise refusal("not_csv", "the file is HTML or XML", "Save it as CSV, with a header")
    if name.endswith(_JSON_ENDINGS):
        return _json_format(found, path, clean)
    if re.match(r'[{\[]\s*(["{\[]|\Z)', start):
        raise refusal(
            "not_csv", "the file is JSON", "Save it as CSV, with a header; or, one object a line, name it .jsonl"
        )
    return _csv_format(found, path, clean, text, spec.delimiter)


def _csv_format(found: encoding.Encoding, path: Path, clean: bool, text: str, override: str | None) -> Format:
    given = _SEP_LINE.match(_LINE_END.split(text, maxsplit=1)[0])
    sniffed = given[1] if given else _delimiter(text)
    delimiter = override or sniffed
    records = iter(Records(path, delimiter))
    header = next(islice(records, bool(given), None), None)
    if header is None:
        raise refusal("empty_file", "there is no header", "Upload a list with a header and one row a person")
    if header.fault:
        raise refusal("unclosed_quote", f"the header (line {header.line}) has a quote that does not close", "Close it")
    if any(BAD in cell or "\x00" in cell for cell in header.cells):
        raise encoding.refused(f"the header (line {header.line}) has bytes that are not {found.name}")
    if len(header.cells) > MOST_COLUMNS:
        raise refusal(
            "not_csv",
            f"the header (line {header.line}) has {len(header.cells):,} columns, and {MOST_COLUMNS:,} is the most",
            "Leave out what the e-mails do not need",
        )
    if override and len(header.cells) == 1 and override != sniffed and sniffed in header.cells[0]:
        raise refusal(
            "wrong_delimiter",
            f"list.delimiter is {override!r}, which the header (line {header.line}) does not have; it has {sniffed!r}",
            "Correct list.delimiter, or leave it out",
        )
    if any(addresses.judge(cell) for cell in header.cells):
        raise refusal(
            "no_header", f"line {header.line} is data: it holds an address", "Add a first line with the columns' names"
        )
    first = [_shown(record.cells) for record in islice(records, SAMPLE)]
    if not first:
        raise refusal("no_records", "the file has a header and nothing else", "Add one row a person")
    return Format(found.name, found.bom, delimiter, header.line, tuple(header.cells), tuple(first), path, clean)


def _shown(cells: Iterable[str]) -> tuple[str, ...]:
    return tuple(cell[:SHOWN] for cell in islice(cells, MOST_COLUMNS))


def _json_format(found: encoding.Encoding, path: Path, clean: bool) -> Format:
    keys: dict[str, None] = {}
    sample: list[dict[str, str]] = []
    rows = faults = 0
    for line, cells in _objects(path):
        rows += 1
        if cells is None:
            if rows == 1:
                raise refusal(
                    "not_csv",
                    f"the file is called .jsonl, but line {line} is no JSON object",
                    'Write one object a line ({"email": …}), or name a CSV .csv',
                )
            faults += 1
            if faults > MOST_FAULTS:
                raise refusal(
                    "not_csv",
                    f"over {MOST_FAULTS} lines are no JSON objects, the last at line {line}",
                    "Mend the export",
                )
            continue
        keys.update(dict.fromkeys(cells))
        if len(keys) > MOST_COLUMNS or sum(map(len, keys)) > LONGEST:
            raise refusal(
                "not_csv",
                f"the objects up to line {line} have over {MOST_COLUMNS:,} different keys, or very long ones",
                "Leave out what the e-mails do not need",
            )
        if len(sample) < SAMPLE:
            sample.append({key: cell[:SHOWN] for key, cell in cells.items()})
    if not rows:
        raise refusal("no_records", "the file has no objects", "Add one line a person")
    if any(BAD in key or "\x00" in key for key in keys):
        raise encoding.refused("a key has characters that are no text")
    header = tuple(keys)
    return Format(
        found.name,
        found.bom,
        None,
        None,
        header,
        tuple(tuple(c.get(k, "") for k in header) for c in sample),
        path,
        clean,
    )


def _unpack(source: Path, target: Path) -> Path:
    size = 0
    try:
        with gzip.open(source) as packed, target.open("wb") as out:
            while block := packed.read(BLOCK):
                size += len(block)
                if size > MOST_UNPACKED:
                    raise refusal(
                        "not_csv", f"unpacked, the file has over {MOST_UNPACKED // 2**30} GiB", "Split the list"
                    )
                out.write(block)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # this machine's disk, not the file
        raise refusal("not_csv", "the file begins like a gzip but cannot be unpacked", "Pack it anew") from None
    return target


def _as_utf_8(source: Path, found: encoding.Encoding, overridden: bool, target: Path) -> tuple[Path, bool]:
    """``source`` itself where it is clean UTF-8, else a copy; and whether nothing in it is `BAD`."""
    if found.clean:
        return source, True
    damage = proper = 0
    lines = _LineCounter()
    bad_line = None
    with target.open("w", encoding="utf-8", newline="") as out:
        for text in encoding.decoded(source, found):
            if BAD in text:
                damage += text.count(BAD)
                bad_line = bad_line or lines.at(text, text.index(BAD))
            proper += overridden and len(text) - len(text.encode("ascii", "ignore"))
            lines.add(text)
            out.write(text)
    if bad_line and (damage > MOST_FAULTS or (overridden and damage * 10 > proper - damage)):
        said = f"list.encoding is {found.name}, but " if overridden else ""
        raise encoding.refused(f"{said}line {bad_line} has bytes that are not {found.name}")
    return target, damage == 0


class _LineCounter:
    """Physical lines of a text that comes in blocks."""

    def __init__(self) -> None:
        self._ends = 0
        self._after_return = False

    def at(self, block: str, index: int) -> int:
        """The line of ``block[index]``, where ``block`` comes next."""
        return 1 + self._ends + self._count(block[:index])

    def add(self, block: str) -> None:
        """``block`` has gone by."""
        self._ends += self._count(block)
        self._after_return = block.endswith("\r")

    def _count(self, block: str) -> int:
        ends = block.count("\n") + block.count("\r") - block.count("\r\n")
        return ends - (self._after_return and block.startswith("\n"))


def _delimiter(text: str) -> str:
    """The delimiter under which a column holds addresses, the rows are as long as the header, and that is longest."""

    def score(delimiter: str) -> tuple[bool, float, int]:
        reader = csv.reader(re.split(r"(?<=\n)|(?<=\r)(?!\n)", text), delimiter=delimiter)
        try:
            rows = [row for row in islice(reader, 200) if row]
        except csv.Error:
            return False, 0.0, 0
        width = len(rows[0]) if rows else 1
        if width == 1:
            return False, 0.0, 1
        addressed = any(_LOOKS_LIKE_ADDRESS.match(cell) for row in rows[1:] for cell in row[:width])
        return addressed, sum(len(row) == width for row in rows) / len(rows), width

    return max(DELIMITERS, key=score)


def _lines(file: IO[str]) -> Iterator[str]:
    """Physical lines with their ends; one that is too long is refused before it takes memory."""
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise refusal(
                "not_csv",
                f"line {number} has over {LONGEST:,} characters, and no list has such rows",
                "Break it into one row a person",
            )
        yield line


class Records:
    """The records of a CSV file, blank lines left out, the header and a ``sep=`` line included.

    A record whose quotes are broken ends at its first line, and reading goes on with the next: nobody below it
    vanishes. Raises `ListRejected` where quotes are broken all over.
    """

    def __init__(self, path: Path, delimiter: str) -> None:
        self._path = path
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[Record]:
        taken: list[str] = []
        again: list[str] = []
        with self._path.open(encoding="utf-8-sig", newline="") as file:
            physical = _lines(file)

            def lines() -> Iterator[str]:
                size = 0
                while again:
                    taken.append(again.pop())
                    yield taken[-1]
                for line in physical:
                    size = size + len(line) if taken else len(line)
                    taken.append(line)
                    if size > LONGEST:
                        raise csv.Error
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
                    yield Record(line, [taken[0].rstrip("\r\n")], fault="unclosed_quote")
                    line += 1
                    again.extend(reversed(taken[1:]))
                    taken.clear()
                    reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)


def _objects(path: Path) -> Iterator[tuple[int, dict[str, str] | None]]:
    """Line and cells of every object of a JSON-lines file; None: the line is no object. Numbers stay as written."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(_lines(file), 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
                cells = (
                    {_SURROGATE.sub(BAD, key): _cell(value, key, line) for key, value in found.items()}
                    if type(found) is dict
                    else None
                )
            except (ValueError, RecursionError):
                cells = None
            yield number, cells


def _cell(value: object, key: str, line: str) -> str:
    if isinstance(value, str):
        return _SURROGATE.sub(BAD, value)
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return _SURROGATE.sub(BAD, json.dumps(json.loads(line)[key], ensure_ascii=False))


def _rows(layout: Format) -> Iterator[tuple[int, str, str, list[str]]]:
    """``line, note, surplus, cells`` of every record after the header, each with as many cells as the header."""
    width = len(layout.header)
    if layout.delimiter is None or layout.header_line is None:
        for line, found in _objects(layout.text):
            if found is None:
                yield line, "invalid_json", "", [""] * width
            else:
                yield line, "", "", [found.get(key, "") for key in layout.header]
        return
    for record in Records(layout.text, layout.delimiter):
        if record.line <= layout.header_line:
            continue
        cells = record.cells
        if record.fault:
            yield record.line, record.fault, cells[0], [""] * width
        elif len(cells) == width:
            yield record.line, "", "", cells
        elif len(cells) < width:
            yield record.line, "too_few_fields_padded", "", cells + [""] * (width - len(cells))
        else:
            extra = cells[width:]
            note = "too_many_fields" if any(map(str.strip, extra)) else "extra_empty_fields"
            yield record.line, note, layout.delimiter.join(extra), cells[:width]


def write_plain(layout: Format, target: Path) -> Plain:
    """The records after the header as a `Plain` file at ``target``; memory does not grow with the file.

    Raises:
        ListRejected: as `Records`, and not_csv for a file that uses every control character there is.
    """
    separator, line_feed, carriage_return = ours = _unused(layout.text)
    stray = dict.fromkeys(map(ord, ours), "\ufffd")
    rows, breaks = 0, False
    separators = len(layout.header) + 2
    buffer: list[str] = []
    size = 0
    with target.open("w", encoding="utf-8", newline="") as out:
        for line, note, surplus, cells in _rows(layout):
            text = separator.join([str(line), note, surplus, *cells])
            if BAD in text or "\x00" in text or (layout.delimiter is None and _holds(text, ours, separators)):
                # JSON can spell any character, ours too; a NUL is nobody's letter.
                bare = [
                    cell.translate(stray).replace(BAD, "\ufffd").replace("\x00", "\ufffd") for cell in (surplus, *cells)
                ]
                text = separator.join([str(line), "undecodable", *bare])
            if "\n" in text or "\r" in text:
                breaks = True
                text = text.replace("\n", line_feed).replace("\r", carriage_return)
            buffer.append(text)
            rows += 1
            size += len(text)
            if size > BLOCK:
                out.write("\n".join(buffer) + "\n")
                buffer.clear()
                size = 0
        if buffer:
            out.write("\n".join(buffer) + "\n")
    return Plain(target, separator, line_feed, carriage_return, breaks, rows)


def _holds(text: str, ours: tuple[str, str, str], separators: int) -> bool:
    separator, line_feed, carriage_return = ours
    return text.count(separator) != separators or line_feed in text or carriage_return in text


def _unused(path: Path) -> tuple[str, str, str]:
    left = list(_SEPARATORS)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            left = [character for character in left if character.encode() not in block]
    if len(left) < 3:
        raise refusal("not_csv", "the file is full of control characters", "Save the list as CSV UTF-8")
    return left[0], left[1], left[2]


@dataclass(frozen=True)
class Direct:
    """A file that DuckDB's own CSV reader may read, if it finds ``rows`` records: then each is one physical line."""

    path: Path
    delimiter: str
    rows: int

    def query(self, width: int) -> str:
        """SQL: as `Plain.query`; an error where a row is not as the header."""
        typed = ", ".join(f"'c{n}': 'VARCHAR'" for n in range(width))
        return (
            "SELECT row_number() OVER () + 1 AS line, NULL::VARCHAR AS note, NULL::VARCHAR AS surplus, * "  # noqa: S608
            f"FROM read_csv({literal(str(self.path))}, delim = {literal(self.delimiter)}, quote = '\"', "
            f"escape = '\"', header = false, auto_detect = false, skip = 1, strict_mode = true, compression = 'none', "
            f"max_line_size = {LONGEST}, columns = {{{typed}}})"
        )


def direct(layout: Format) -> Direct | None:
    """How DuckDB may read the file by itself; None: only our reader is sure to be right.

    What DuckDB's reader takes otherwise than RFC 4180 is looked for here: NULs, lone and mixed line ends, blanks
    beside quotes, a delimiter too many at a line's end. Blank lines and quoted line breaks show in the count of rows.
    """
    width, delimiter = len(layout.header), (layout.delimiter or "").encode()
    if layout.header_line != 1 or len(delimiter) != 1 or width == 1 or _LINE_END.search("".join(layout.header)):
        return None
    if not layout.clean or _PATTERN.search(str(layout.text)):
        return None
    end = _end(layout.text)
    feeds = returns = pairs = delimiters = position = 0
    quotes = False
    seam = b""
    with layout.text.open("rb") as file:
        while block := file.read(min(BLOCK, end - position)):
            position += len(block)
            if b"\x00" in block:
                return None
            feeds += block.count(b"\n")
            delimiters += block.count(delimiter)
            part = seam + block
            if b"\r" in part:
                returns += block.count(b"\r")
                pairs += part.count(b"\r\n")
            if b'"' in part:
                quotes = True
                if any(beside in part for beside in (b'" ', b' "', b'"\t', b'\t"')):
                    return None
            seam = block[-1:]
    if returns != pairs or (pairs and pairs != feeds):
        return None
    if delimiters != (width - 1) * (feeds + 1) and (not quotes or _trails(layout.text, delimiter)):
        return None
    return Direct(layout.text, layout.delimiter or "", feeds)


def _trails(path: Path, delimiter: bytes) -> bool:
    """Whether any line ends in a delimiter."""
    seam = b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            part = seam + block
            if delimiter + b"\n" in part or delimiter + b"\r" in part:
                return True
            seam = block[-1:]
    return seam == delimiter


def _end(path: Path) -> int:
    """Where the file's text ends, the line ends after it left out (the last 64 KB of them)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - HEAD))
        tail = file.read()
    return size - len(tail) + len(tail.rstrip(b"\r\n"))
