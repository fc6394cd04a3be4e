"""Throws bytes at the list reader for a minute (or the seconds given): it never crashes, hangs or loses a row.

Two laws. Any bytes under any name are refused with a reason, or each row is accepted or rejected by name. And where
DuckDB's own CSV reader is let near a file, it finds the cells that our reader finds, on the same lines.
tests/unit/list/test_reading.py runs a few hundred of the same examples.
"""

from __future__ import annotations

import gzip
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functions"))

from carillon.errors import ListRejected
from carillon.recipients.lists import RecipientList
from carillon.recipients.reading import direct, sniff, write_plain
from carillon.shapes import ListSpec

SECONDS = 60
REASONS = frozenset(
    {"empty_file", "no_records", "no_address_column", "no_header", "not_csv", "unknown_encoding", "unclosed_quote"}
    | {"column_not_chosen", "wrong_delimiter"}
)

_TOKENS = (
    *("a@b.de", "Zoë@x.org", ",", ",", ",", ";", "\t", "|", '"', '"', '""', "\n", "\n", "\r\n", "\r", " ", "\\", "'"),
    *("NULL", "0", "#", "é", "\ufeff", "\u2028", "\x0b", "\x0c", "\x1f", "\x1a", "\x00", "\ufdd0", "\ufffd", "{", "}"),
    *(":", "x" * 300),
)
_TEXT = st.lists(st.sampled_from(_TOKENS), max_size=40).map("".join)
_ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "mac_roman", "cp1251", "shift_jis")
_CELL = st.one_of(
    st.sampled_from(["", "a", "a@b.de", "M\udcfc", "x y", " ", " a ", "é", "\\", "'", "#", "NULL", "0", "-"]),
    st.sampled_from(['"a"', '""', '"a,b"', '"a""b"', '"a\nb"', '"a', 'a"b', '"a" ', ' "a"', '"a"b', "\t"]),
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes, ListSpec]:
    """Name, content and spec of something that might be a list."""
    text = draw(
        st.sampled_from(
            [
                "",
                "email,x\n",
                "email,x\na@b.de,1\n",
                "x;email\r\n;a@b.de\r\n",
                '{"email": "a@b.de"}\n',
                "sep=;\nx;email\n",
            ]
        )
    ) + draw(_TEXT)
    content = draw(
        st.one_of(
            st.sampled_from(_ENCODINGS).map(lambda name: text.encode(name, "replace")),
            st.binary(max_size=60).map(lambda noise: text.encode() + noise),
            st.binary(max_size=200),
        )
    )
    if draw(st.integers(0, 9)) == 0:
        content = gzip.compress(content)[: draw(st.integers(1, 10_000))]
    spec = ListSpec(
        encoding=draw(
            st.sampled_from([None, None, None, None, "utf-8", "utf-16", "windows-1252", "rot13", "utf-7", "none-such"])
        ),
        delimiter=draw(st.sampled_from([None, None, None, ",", ";", " "])),
    )
    return draw(st.sampled_from(["list.csv", "list.csv", "list.jsonl", "list.csv.gz"])), content, spec


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A CSV of two or three columns that is nearly clean: what DuckDB might be let read."""
    end = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    width = draw(st.integers(2, 3))
    rows = draw(st.lists(st.lists(_CELL, min_size=width, max_size=width), min_size=1, max_size=6))
    lines = [",".join(row) for row in rows]
    if draw(st.integers(0, 3)) == 0:  # a row is a little off
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] += draw(st.sampled_from([",", ",a", " ", '"', "\r", "\n", end + end]))
    header = [draw(st.sampled_from(["email", '"email"'])), "n", "m"]
    text = end.join([",".join(header[:width]), *lines])
    return (text + draw(st.sampled_from([end, end, "", end + end]))).encode(
        draw(st.sampled_from(["utf-8", "utf-8-sig"])), "surrogateescape"
    )


def is_read_or_refused(directory: Path, name: str, content: bytes, spec: ListSpec) -> str:
    """The first law; the answer is the reason of the refusal, or ``read``."""
    source = directory / name
    source.write_bytes(content)
    work = directory / "work"
    work.mkdir(exist_ok=True)
    refused = None
    try:
        recipients = RecipientList(source, spec, work)
        recipients.read()
    except ListRejected as error:
        refused = error
    if refused is not None:
        assert refused.reason in REASONS, refused
        assert str(refused).endswith("."), "cause and fix are sentences"
        return refused.reason
    assert recipients.count() + sum(recipients.rejected().values()) == recipients.rows
    recipients.close()
    return "read"


def is_the_same_directly(directory: Path, content: bytes, database: duckdb.DuckDBPyConnection) -> str:
    """The second law; the answer is who may read the file: ``duckdb``, ``ours``, or the reason of a refusal."""
    source = directory / "list.csv"
    source.write_bytes(content)
    try:
        layout = sniff(source, ListSpec(delimiter=","), directory)
        plain = write_plain(layout, directory / "plain")
    except ListRejected as error:
        return error.reason
    width = len(layout.header)
    ours: list[tuple[Any, ...]] = database.execute(plain.query(width)).fetchall()
    way = direct(layout)
    if way is None:
        return "ours"
    try:
        found = database.execute(way.query(width)).fetchall()
    except duckdb.InvalidInputException:
        return "ours"
    if len(found) != way.rows:
        return "ours"
    assert found == ours
    return "duckdb"


def main() -> None:
    """Run until the time is over and say what was seen."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    began, seen = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="carillon-") as name, duckdb.connect() as database:
        directory = Path(name)

        @given(files())
        @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def anything(example: tuple[str, bytes, ListSpec]) -> None:
            seen[f"any bytes: {is_read_or_refused(directory, *example)}"] += 1

        @given(tables())
        @settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def tidy(content: bytes) -> None:
            seen[f"tables: {is_the_same_directly(directory, content, database)}"] += 1

        turn = 0
        while time.monotonic() - began < seconds:
            turn += 1
            seed(turn)(anything)()
            seed(turn)(tidy)()
    for what, count in sorted(seen.items()):
        print(f"{count:8,}  {what}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{sum(seen.values()):8,}  examples in {time.monotonic() - began:.0f} s, none against the laws; peak {peak} MB"
    )


if __name__ == "__main__":
    main()
