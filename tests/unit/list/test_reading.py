"""Whatever the file: it is read with the right letters on the right lines, or refused with a reason and a fix."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings

from bench.bench_fuzz_reading import files, is_read_or_refused, is_the_same_directly, tables
from carillon.errors import ListRejected
from carillon.recipients import reading
from carillon.recipients.lists import RecipientList
from carillon.recipients.reading import direct, sniff
from carillon.shapes import ListSpec

GERMAN = ["Jörg Müller", "Änne Groß", "Zoë", "Søren Kierkegård", "Núñez", "François"]
RUSSIAN = ["Иван Петров", "Анна Смирнова", "Мария Кузнецова", "Пётр Волков"]
FOREIGN = {
    "windows-1250": ["Jiří Dvořák", "Růžena Nováková", "Tomáš Černý", "Paweł Wiśniewski", "Łódź"],
    "iso8859-2": ["Małgorzata Kwaśniewska", "Gdańsk", "Łódź"],
    "windows-1254": ["Ayşe Yılmaz", "Gülşen Şahin", "Muğla"],
    "cp850": ["Jörg Müller", "Änne Groß", "Köln"],
    "shift_jis": ["山田太郎", "佐藤花子", "鈴木一郎"],
}


def table(names: list[str], end: str = "\r\n") -> str:
    return end.join(["email;name", *(f"n{number}@example.com;{name}" for number, name in enumerate(names)), ""])


def read(path: Path, work: Path, **spec: Any) -> tuple[RecipientList, list[tuple[Any, ...]]]:
    """The list, and the cells of everybody accepted."""
    work.mkdir(exist_ok=True)
    recipients = RecipientList(path, ListSpec.model_validate(spec), work)
    recipients.read()
    recipients.write_recipients(work / "out.parquet")
    names = ", ".join(f'"{column.name}"' for column in recipients.columns)
    cells = duckdb.connect().sql(f"SELECT {names} FROM '{work / 'out.parquet'}' ORDER BY carillon_line").fetchall()
    return recipients, cells


def refusal(path: Path, work: Path, **spec: Any) -> str:
    with pytest.raises(ListRejected) as refused:
        read(path, work, **spec)
    return str(refused.value)


@pytest.fixture
def upload(tmp_path: Path) -> Any:
    """A function that writes a list under a name."""

    def write(content: bytes | str, name: str = "list.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize(
    ("written", "names", "shown", "bom"),
    [
        ("utf-8", GERMAN, "utf-8", False),
        ("utf-8-sig", RUSSIAN, "utf-8", True),
        ("utf-16", RUSSIAN, "utf-16le", True),
        ("utf-16-le", GERMAN, "utf-16le", False),
        ("utf-16-be", FOREIGN["shift_jis"], "utf-16be", False),
        ("utf-32", GERMAN, "utf-32le", True),
        ("cp1252", GERMAN, "windows-1252", False),
        ("iso8859-1", GERMAN, "windows-1252", False),
        ("cp1252", ["5 € – „gut“", "Noël"], "windows-1252", False),
        ("cp1251", RUSSIAN, "windows-1251", False),
        ("koi8-r", RUSSIAN, "koi8-r", False),
    ],
)
def test_an_encoding_that_can_be_told_is_read_with_its_letters(
    written: str, names: list[str], shown: str, bom: bool, upload: Any, tmp_path: Path
) -> None:
    """And what was decided is shown."""
    recipients, cells = read(upload(table(names).encode(written)), tmp_path / "work")
    assert [name for _, name in cells] == names
    assert (recipients.decisions()["encoding"], recipients.decisions()["bom"]) == (shown, bom)


def test_a_lone_carriage_return_is_the_mark_of_an_old_mac(upload: Any, tmp_path: Path) -> None:
    """Excel's "CSV (Macintosh)" is MacRoman."""
    recipients, cells = read(upload(table(GERMAN, "\r").encode("mac_roman")), tmp_path / "work")
    assert [name for _, name in cells] == GERMAN
    assert recipients.decisions()["encoding"] == "macintosh"


@pytest.mark.parametrize(("name", "words"), FOREIGN.items())
def test_an_encoding_that_is_not_sure_is_refused_and_can_be_named(
    name: str, words: list[str], upload: Any, tmp_path: Path
) -> None:
    """Letters read wrongly are worse than a list not read; list.encoding says what it is."""
    path = upload(table(words).encode(name))
    answer = refusal(path, tmp_path / "work")
    assert answer.startswith("unknown_encoding: ")
    assert "list.encoding" in answer
    assert "example.com" not in answer
    _, cells = read(path, tmp_path / "again", encoding=name)
    assert [cell for _, cell in cells] == words


@pytest.mark.parametrize(
    ("content", "encoding", "cause"),
    [
        (table(GERMAN).encode(), "rot13", "no encoding of text files"),
        (table(GERMAN).encode(), "none-such", "no encoding of text files"),
        (table(GERMAN).encode(), "punycode", "no encoding of text files"),
        (table(GERMAN).encode("cp1252"), "utf-8", "line 2 has bytes that are not utf-8"),
        (table(GERMAN).encode("cp1252"), "ascii", "line 2 has bytes that are not ascii"),
        (table(GERMAN).encode(), "utf-16", "does not look it"),
        (table(GERMAN).encode(), "utf-16-le", "no NUL byte"),
        (table(GERMAN).encode("utf-16"), "utf-8", "the mark of utf-16le"),
        (table(GERMAN).encode("utf-16-le"), "windows-1252", "NUL bytes"),
    ],
)
def test_an_encoding_that_cannot_be_right_is_refused(
    content: bytes, encoding: str, cause: str, upload: Any, tmp_path: Path
) -> None:
    """With what speaks against it, and the field to correct."""
    answer = refusal(upload(content), tmp_path / "work", encoding=encoding)
    assert answer.startswith("unknown_encoding: ")
    assert cause in answer
    assert "list.encoding" in answer


def test_a_row_with_bytes_that_are_no_text_is_rejected_by_itself(upload: Any, tmp_path: Path) -> None:
    """Nobody is greeted as M?ller; the others are read, and the reject file shows where it was."""
    body = table(RUSSIAN * 3).encode().splitlines(keepends=True)
    recipients, cells = read(
        upload(b"".join([*body[:3], b"x@example.com;M\xfcller\r\n", *body[3:]])), tmp_path / "work"
    )
    assert len(cells) == 12
    assert list(recipients.refused()) == [(4, "undecodable", None)]
    recipients.write_rejects(tmp_path / "work" / "rejects.csv")
    assert "4,undecodable,,x@example.com,M\ufffdller," in (tmp_path / "work" / "rejects.csv").read_text()


def test_bytes_that_are_no_text_all_over_are_a_refusal(upload: Any, tmp_path: Path) -> None:
    """The first bad line is named, wherever it is."""
    body = table(RUSSIAN * 2000).encode() + b"y@example.com;M\xfcller\r\n" * 200
    assert "line 8002 has bytes that are not utf-8" in refusal(upload(body), tmp_path / "work")


def test_the_delimiter_can_be_given(upload: Any, tmp_path: Path) -> None:
    """Also one that nobody would guess."""
    recipients, cells = read(upload("email:n;a,m|e\na@example.com:x;y,z|\n"), tmp_path / "work", delimiter=":")
    assert cells == [("a@example.com", "x;y,z|")]
    assert recipients.decisions()["delimiter"] == ":"


def test_a_delimiter_that_the_header_does_not_have_is_refused(upload: Any, tmp_path: Path) -> None:
    """With the one that it has."""
    answer = refusal(upload(table(["Ann"])), tmp_path / "work", delimiter="|")
    assert answer.startswith("wrong_delimiter: list.delimiter is '|'")
    assert "';'" in answer


def test_gzip_is_unpacked_whatever_its_name(upload: Any, tmp_path: Path) -> None:
    """CSV and JSON lines alike, and in any encoding."""
    _, cells = read(upload(gzip.compress(table(GERMAN).encode("cp1252"), mtime=0)), tmp_path / "one")
    assert len(cells) == len(GERMAN)
    _, cells = read(upload(gzip.compress(b'{"email": "a@example.com"}\n', mtime=0), "list.jsonl.gz"), tmp_path / "two")
    assert cells == [("a@example.com",)]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (gzip.compress(table(GERMAN).encode(), mtime=0)[:40], "cannot be unpacked"),
        (b"\x1f\x8bnothing", "cannot be unpacked"),
        (gzip.compress(gzip.compress(b"email\n", mtime=0), mtime=0), "gzip inside gzip"),
        (gzip.compress(b"PK\x03\x04...", mtime=0), "a workbook"),
        (gzip.compress(b"email,name\n" * 200_000, mtime=0), "unpacked, the file has over"),
        (b"%PDF-1.7", "a PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "an old Excel workbook"),
        (b"PAR1....", "a Parquet file"),
        (b"<!DOCTYPE html><table>", "HTML"),
        (b'[{"email": "a@example.com"}]', "JSON"),
    ],
)
def test_what_is_no_list_is_refused_as_what_it_is(
    content: bytes, cause: str, upload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gzip that unpacks to more than there is room for included."""
    monkeypatch.setattr(reading, "MOST_UNPACKED", 2**20)
    answer = refusal(upload(content), tmp_path / "work")
    assert answer.startswith("not_csv: ")
    assert cause in answer


def test_json_lines_are_read_by_their_keys(upload: Any, tmp_path: Path) -> None:
    """Numbers as they are written, null and missing keys empty, what is nested as JSON; a line keeps its number."""
    lines = [
        '{"email": "a@example.com", "n": 1.50, "big": 12345678901234567890, "ok": true}',
        "",
        '{"tags": ["x", 1.10], "email": "b@example.com", "n": null}',
        '{"email": "c@example.com", "name": "Zo\\u00eb\\nline"}',
    ]
    recipients, cells = read(upload("\n".join(lines), "list.ndjson"), tmp_path / "work")
    assert [column.label for column in recipients.columns] == ["email", "n", "big", "ok", "tags", "name"]
    assert cells == [
        ("a@example.com", "1.50", "12345678901234567890", "true", None, None),
        ("b@example.com", None, None, None, '["x", 1.1]', None),
        ("c@example.com", None, None, None, None, "Zoë\nline"),
    ]
    assert recipients.lines().tolist() == [1, 3, 4]


def test_a_line_that_is_no_object_is_rejected_by_itself(upload: Any, tmp_path: Path) -> None:
    """So is one with half a character, or with characters of our own."""
    lines = ['{"email": "a@example.com"}', '{"email": ', "[1]", '{"email": "\\ud800@example.com"}',
             '{"email": "b@example.com", "x": "\\u001f\\u0000"}', "[" * 100_000]  # fmt: skip
    recipients, cells = read(upload("\n".join(lines), "list.jsonl"), tmp_path / "work")
    assert len(cells) == 1
    assert [(line, reason) for line, reason, _ in recipients.refused()] == [
        (2, "invalid_json"), (3, "invalid_json"), (4, "undecodable"), (5, "undecodable"), (6, "invalid_json"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "email,name\na@example.com,A\n",
        json.dumps({"email": "a@example.com"}) + "\n" + "nothing\n" * 200,
        "".join(json.dumps({"email": "a@example.com", f"k{n}": 1}) + "\n" for n in range(1100)),
    ],
)
def test_what_is_no_json_lines_file_is_refused(content: str, upload: Any, tmp_path: Path) -> None:
    """CSV under that name, broken lines all over, and keys without end."""
    assert refusal(upload(content, "list.jsonl"), tmp_path / "work").startswith("not_csv: ")


def test_columns_without_end_are_refused(upload: Any, tmp_path: Path) -> None:
    """A table of them would take minutes to make."""
    header = ",".join(f"c{n}" for n in range(5000))
    assert "5,000 columns" in refusal(upload(f"{header}\na@example.com\n"), tmp_path / "work")


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])
@pytest.mark.parametrize(
    "start", ["email,name\na@example.com,A\nb@example.com,", '{"email": "a@example.com"}\n{"x": "']
)
def test_one_field_of_any_length_takes_no_memory(name: str, start: str, tmp_path: Path) -> None:
    """It is refused after half a megabyte of it."""
    path = tmp_path / name
    with path.open("w") as file:
        file.write(start)
        for _ in range(40):
            file.write("x" * 2**20)
    tracemalloc.start()
    answer = refusal(path, tmp_path / "work")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.startswith("not_csv: ")
    assert peak < 24 * 2**20


@pytest.mark.parametrize(
    "text",
    [
        "email,name\na@b.de,A\nb@b.de,\n",
        "email,name\r\na@b.de,A\r\nb@b.de,B",
        "\ufeffemail,name\na@b.de,A\n\n\n",
        '"email","name"\n"a@b.de","A,""1st"""\n',
        "email;name\na@b.de;\\\n;NULL\n",
    ],
)
def test_a_clean_file_is_read_by_duckdb_itself(text: str, upload: Any, tmp_path: Path) -> None:
    """That is what makes a million rows quick."""
    path = upload(text)
    way = direct(sniff(path, ListSpec(), tmp_path))
    assert way is not None
    found = duckdb.connect().execute(way.query(2)).fetchall()
    assert len(found) == way.rows


def test_a_name_that_is_a_pattern_is_a_file_all_the_same(upload: Any, tmp_path: Path) -> None:
    """Browsers call the second download list[1].csv."""
    upload("email,name\nsomebody@else.example,E\n", "list1.csv")
    _, cells = read(upload("email,name\na@b.de,A\n", "list[1].csv"), tmp_path / "work")
    assert cells == [("a@b.de", "A")]


FUZZ = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@given(example=files())
@settings(max_examples=60, **FUZZ)
def test_any_bytes_are_read_or_refused_with_a_reason(example: tuple[str, bytes, ListSpec], tmp_path: Path) -> None:
    """Nothing crashes, and no row is lost."""
    is_read_or_refused(tmp_path, *example)


@given(content=tables())
@settings(max_examples=200, **FUZZ)
def test_duckdb_finds_what_our_reader_finds(content: bytes, tmp_path: Path) -> None:
    """The law by which it may read a file: the same cells on the same lines."""
    with duckdb.connect() as database:
        is_the_same_directly(tmp_path, content, database)
