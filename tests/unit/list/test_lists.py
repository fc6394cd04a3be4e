"""People's real files: what is made of each, and what is said about every row that is not written to."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carillon.errors import ListRejected
from carillon.recipients.columns import columns
from carillon.recipients.lists import RecipientList
from carillon.recipients.reading import Records
from carillon.shapes import ListSpec


def opened(path: Path, work: Path, **spec: Any) -> RecipientList:
    recipients = RecipientList(path, ListSpec.model_validate(spec), work)
    recipients.read()
    return recipients


def accepted(recipients: RecipientList, work: Path) -> list[tuple[int, str, str | None]]:
    """Line, canonical address and zone of everybody accepted, from the file that reports join."""
    recipients.write_recipients(work / "out.parquet")
    return (
        duckdb.connect()
        .sql(
            f"SELECT carillon_line, lower(carillon_address), carillon_timezone FROM '{work / 'out.parquet'}' ORDER BY 1"
        )
        .fetchall()
    )


def rejects(recipients: RecipientList, work: Path) -> list[dict[str, str]]:
    recipients.write_rejects(work / "rejects.csv")
    with (work / "rejects.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Any]:
    """A function that opens a list with the given text."""

    def write(text: str | bytes, **spec: Any) -> RecipientList:
        path = tmp_path / "list.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return opened(path, work, **spec)

    return write


def test_two_columns_with_addresses_are_a_persons_choice(tmp_path: Path) -> None:
    """Nobody is written to at an address that was guessed."""
    path = tmp_path / "two.csv"
    path.write_text("work email,private email\na@example.com,a@example.net\n")
    with pytest.raises(ListRejected, match=r"column_not_chosen: .*'work email', 'private email'.*address_column"):
        opened(path, tmp_path)


def test_two_columns_with_zones_are_a_persons_choice(tmp_path: Path) -> None:
    """Home or office: the list cannot say."""
    path = tmp_path / "two.csv"
    path.write_text("email,home zone,office zone\na@example.com,Europe/Berlin,Asia/Tokyo\n")
    with pytest.raises(ListRejected, match=r"list\.timezone_column"):
        RecipientList(path, ListSpec(), tmp_path, zones_matter=True)


def test_a_column_that_is_not_there_is_named(written: Any) -> None:
    """The message lists what there is."""
    with pytest.raises(ListRejected, match=r"no_such_column: .*'mail'.*'email', 'name'"):
        written("email,name\na@example.com,A\n", address_column="mail")


def test_without_zones_a_local_time_needs_a_fallback(tmp_path: Path) -> None:
    """Refused before anybody is planned at somebody else's nine o'clock."""
    path = tmp_path / "none.csv"
    path.write_text("email\na@example.com\n")
    with pytest.raises(ListRejected, match="fallback_timezone"):
        RecipientList(path, ListSpec(), tmp_path, zones_matter=True)


def test_without_zones_everybody_has_the_fallback(written: Any, tmp_path: Path) -> None:
    """One zone for all is what the campaign says, and no reason for a warning."""
    recipients = written("email\na@example.com\nb@example.com\n", fallback_timezone="Asia/Tokyo")
    assert [zone for _, _, zone in accepted(recipients, tmp_path / "work")] == ["Asia/Tokyo"] * 2
    assert recipients.warnings() == {}


def test_a_list_may_have_columns_called_like_the_reject_files_own(written: Any, tmp_path: Path) -> None:
    """Ours come first, the list's follow in its order."""
    recipients = written("line,reason,email,surplus cells\n7,because,nobody,x\n")
    recipients.write_rejects(tmp_path / "work" / "rejects.csv")
    header, row = csv.reader((tmp_path / "work" / "rejects.csv").read_text().splitlines())
    assert row == ["2", "invalid_address", "", "7", "because", "nobody", "x", ""]
    assert header[:3] == ["line", "reason", "detail"]
    assert len(header) == 8


def test_a_record_with_broken_quotes_takes_nobody_with_it(written: Any, tmp_path: Path) -> None:
    """It is rejected by itself, in the words of the file, and reading goes on with the next line."""
    recipients = written('email,name\na@example.com,"A" B\nb@example.com,B\n"c@example.com,C\nd@example.com,D\n')
    assert recipients.rejected() == {"unclosed_quote": 2}
    assert [line for line, _, _ in accepted(recipients, tmp_path / "work")] == [3, 5]
    assert [(r["line"], r["surplus cells"]) for r in rejects(recipients, tmp_path / "work")] == [
        ("2", 'a@example.com,"A" B'),
        ("4", '"c@example.com,C'),
    ]


def test_broken_quotes_all_over_are_a_refusal(written: Any) -> None:
    """A hundred of them are not a hundred accidents."""
    with pytest.raises(ListRejected, match="unclosed_quote: 100 records"):
        written("email,name\n" + 'a@example.com,"A" B\n' * 200)


def test_a_quote_that_never_closes_takes_no_memory(written: Any) -> None:
    """What lies behind one quote is given up after a megabyte, and the rest is read."""
    recipients = written('email,name\n"a@example.com,A\n' + "b@example.com,B\n" * 100_000)
    assert recipients.rejected()["unclosed_quote"] == 1
    assert recipients.count() == 1


def test_every_cell_is_kept_as_it_was(written: Any, tmp_path: Path) -> None:
    """Nothing is evaluated, unescaped or reformatted: control characters, both line breaks, leading noughts."""
    cells = [
        "007",
        "1e5",
        "\\N",
        "NULL",
        "=1+1",
        "line\none",
        "line\r\ntwo",
        "tab\there",
        "\x1f\x02",
        " pad ",
        'q"q',
        "é\u2028",
    ]
    with (tmp_path / "list.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["email", *(f"c{n}" for n in range(len(cells)))])
        writer.writerow(["a@example.com", *cells])
    recipients = written((tmp_path / "list.csv").read_bytes())
    recipients.write_recipients(tmp_path / "work" / "out.parquet")
    [row] = duckdb.connect().sql(f"SELECT * FROM '{tmp_path / 'work' / 'out.parquet'}'").fetchall()
    assert list(row[1 : len(cells) + 1]) == cells


def test_names_for_reports_are_safe_and_unique() -> None:
    """Glue and Athena take lower-case letters, digits and underscores; templates take the header where they can."""
    found = columns(["E-Mail", "Name", "name", "", "2nd", "Größe (cm)", "Пол", "if", "carillon_hash", "first_name"])
    assert [c.name for c in found] == [
        "e_mail", "name", "name_2", "column_4", "c_2nd", "grosse_cm", "column_7", "c_if", "c_carillon_hash",
        "first_name",
    ]  # fmt: skip
    assert [c.placeholders for c in found] == [
        ("e_mail",), ("Name",), ("name", "name_2"), ("column_4",), ("c_2nd",), ("grosse_cm",), ("Пол", "column_7"),
        ("c_if",), ("carillon_hash", "c_carillon_hash"), ("first_name",),
    ]  # fmt: skip
    assert len({c.label.lower() for c in found}) == len(found)


def test_formulas_are_defused_where_a_spreadsheet_would_open_them(written: Any, tmp_path: Path) -> None:
    """The reject file is what people open, with headers and rows that strangers wrote."""
    recipients = written('email,=cmd\nbad,"=1+1"\nworse,"\t=2"\nworst, @SUM(A1)\n+1@,-2\n')
    text = (rejects(recipients, tmp_path / "work"), (tmp_path / "work" / "rejects.csv").read_text())[1]
    cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    assert not [cell for cell in cells if re.match(r"\s*[=+\-@]", cell)]
    assert "'=cmd" in cells


def test_duckdb_reaches_nothing_outside_its_directory(written: Any) -> None:
    """No SQL that a list could ever smuggle in reads this machine's files or changes that."""
    database = written("email\na@example.com\n").database
    for attempt in ("SELECT * FROM read_csv('/etc/passwd')", "SET enable_external_access = true", "INSTALL httpfs"):
        with pytest.raises(duckdb.Error):
            database.execute(attempt)


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)


@given(rows=st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=8))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_csv_writer_wrote_is_read_back_with_its_lines(rows: list[list[str]], tmp_path: Path) -> None:
    """Cells as they were, and each record's physical line, whatever the cells hold."""
    path = tmp_path / "any.csv"
    lines = []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        for row in rows:
            before = path.read_text(encoding="utf-8", newline="") if not file.flush() else ""  # type: ignore[func-returns-value]
            lines.append(1 + len(re.findall(r"\r\n|\r|\n", before)))
            writer.writerow(row)
    found = list(Records(path, ","))
    assert [(r.line, r.cells, r.fault) for r in found] == [(n, row, "") for n, row in zip(lines, rows, strict=True)]


@given(text=st.text(st.sampled_from('ab@.,;"\r\n\t \ufeff'), max_size=120))
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_makes_the_reader_crash_or_lose_a_record(text: str, tmp_path: Path) -> None:
    """Whatever the file: a refusal with a reason, or every record either accepted or rejected."""
    path = tmp_path / "fuzz.csv"
    path.write_text("email,x\na@b.de,1\n" + text, encoding="utf-8", newline="")
    work = tmp_path / "fuzz"
    work.mkdir(exist_ok=True)
    for old in work.iterdir():
        old.unlink() if old.is_file() else None
    try:
        recipients = opened(path, work)
    except ListRejected:
        return
    assert recipients.count() + sum(recipients.rejected().values()) == recipients.rows
    recipients.close()
