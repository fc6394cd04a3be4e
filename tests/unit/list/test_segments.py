"""A segment is one condition over the columns; whatever is written, it is refused in words or DuckDB runs it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones
from carillon.errors import ListRejected
from carillon.recipients.columns import columns
from carillon.recipients.lists import open_database
from carillon.recipients.segments import MACROS, condition
from carillon.sql import text

NOW = datetime(2026, 11, 29, 23, 30, tzinfo=UTC)
COLUMNS = columns(["country", "Last Login", "age", "vip", "note"])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    opened = open_database(tmp_path_factory.mktemp("segment"))
    opened.execute(MACROS)
    opened.execute("CREATE TABLE cells (c0 VARCHAR, c1 VARCHAR, c2 VARCHAR, c3 VARCHAR, c4 VARCHAR)")
    return opened


def inside(
    database: duckdb.DuckDBPyConnection,
    segment: str,
    *,
    country: str | None = None,
    login: str | None = None,
    age: str | None = None,
    vip: str | None = None,
    note: str | None = None,
    now: datetime = NOW,
) -> bool:
    row = ", ".join("NULL" if cell is None else text(cell) for cell in (country, login, age, vip, note))
    found = database.execute(
        f"SELECT {condition(segment, COLUMNS, now)} FROM (VALUES ({row})) AS cells (c0, c1, c2, c3, c4)"
    ).fetchone()
    assert found is not None
    assert isinstance(found[0], bool)
    return found[0]


def test_the_segment_of_the_readme_means_what_it_says(database: duckdb.DuckDBPyConnection) -> None:
    """Germans whose last log-in is more than thirty days ago."""
    segment = "country = 'DE' AND CAST(\"Last Login\" AS DATE) < current_date - 30"
    assert inside(database, segment, country="DE", login="2026-10-29")
    assert not inside(database, segment, country="DE", login="2026-10-30")
    assert not inside(database, segment, country="AT", login="2026-10-29")
    assert inside(database, segment, country=" DE ", login="29.10.2026")
    assert inside(database, segment, country="DE", login="2026-10-29 08:00:00")


def test_columns_go_by_label_or_plain_name_and_an_unknown_one_is_refused_by_name(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """As everywhere where a spec names a column."""
    assert inside(database, "last_login = '2026-01-01'", login="2026-01-01")
    assert inside(database, "\"last login\" = '2026-01-01'", login="2026-01-01")
    with pytest.raises(ListRejected, match="no_such_column") as caught:
        condition("contry = 'DE'", COLUMNS, NOW)
    assert "'contry'" in str(caught.value)
    assert "'country'" in str(caught.value)


def test_beside_a_number_a_cell_is_a_number(database: duckdb.DuckDBPyConnection) -> None:
    """9 is less than 10, as a text it would be more; what is no number is outside and breaks nothing."""
    assert inside(database, "age < 10", age="9")
    assert inside(database, "age = 19.9", age="19,90")
    assert inside(database, "age BETWEEN 18 AND 30", age=" 18 ")
    assert inside(database, "age IN (1, 2)", age="2.0")
    assert inside(database, "age * 2 + 1 > 12", age="6")
    for cell in ("", "n/a", "nan", "inf", "1,234", "0x10", None):
        assert not inside(database, "age < 10 OR age >= 10", age=cell)
    assert inside(database, "age > '10'", age="9"), "a quoted number is a text, and so is the comparison"


def test_an_empty_cell_is_null_and_null_is_outside(database: duckdb.DuckDBPyConnection) -> None:
    """As in SQL: neither equal nor different, and findable by IS NULL."""
    assert not inside(database, "country <> 'DE'", country="  ")
    assert not inside(database, "NOT country = 'DE'", country="")
    assert inside(database, "country IS NULL", country=" ")
    assert inside(database, "coalesce(country, 'DE') = 'DE'")
    assert inside(database, "country IS DISTINCT FROM 'DE'")
    assert not inside(database, "country IS NOT NULL AND vip", country="DE", vip="")


def test_a_cell_that_cannot_be_cast_leaves_its_row_outside_and_the_others_alone(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """One odd cell never costs the whole list."""
    for cell in ("yesterday", "2026-13-01", "2026-02-30", "31/12/2026", "infinity", "9999999-01-01"):
        assert not inside(database, "CAST(last_login AS DATE) < current_date", login=cell)
        assert not inside(database, "CAST(last_login AS DATE) >= current_date", login=cell)
    assert not inside(database, "current_date - CAST(age AS INTEGER) < current_date", age="99999999999")
    assert not inside(database, "age / 0 > 1", age="5")


def test_now_is_pinned_and_in_utc(database: duckdb.DuckDBPyConnection) -> None:
    """The same list, spec and now give the same people, whatever the clock and the machine's zone say."""
    assert inside(database, "CAST(last_login AS DATE) = current_date", login="2026-11-29")
    tokyo = NOW.astimezone(zones.get("Asia/Tokyo"))
    assert inside(database, "CAST(last_login AS DATE) = today()", login="2026-11-29", now=tokyo)
    assert inside(database, "CAST(last_login AS TIMESTAMP) = now()", login="2026-11-30T01:30:00+02:00")
    assert inside(database, "CAST(last_login AS TIMESTAMP) = now()", login="2026-11-29 14:00:00-0930")
    assert inside(database, "CAST(last_login AS TIMESTAMP) = now()", login="2026-11-29T23:30:00Z")
    assert inside(database, "last_login > now() - INTERVAL 1 HOUR", login="2026-11-29 23:00:00")
    assert condition("last_login < now()", COLUMNS, NOW) == condition("last_login < now()", COLUMNS, tokyo)


@pytest.mark.parametrize(
    ("segment", "cells"),
    [
        ("country LIKE 'D_'", {"country": "DE"}),
        ("country NOT LIKE 'A%' AND country ILIKE '%e'", {"country": "DE"}),
        ("note LIKE '100\\%.*'", {"note": "100\\x.*"}),
        ("country IN ('DE', 'AT') AND country NOT IN ('CH')", {"country": "AT"}),
        ("lower(country) || '-x' = 'de-x'", {"country": "DE"}),
        ("starts_with(note, 'a') AND contains(note, 'b') AND length(note) = 3", {"note": "abc"}),
        ("left(note, 2) = 'ab' AND right(note, 1) = 'c' AND substring(note, 2, 1) = 'b'", {"note": "abc"}),
        ("regexp_matches(note, '^a.c$')", {"note": "abc"}),
        ("vip", {"vip": "Yes"}),
        ("vip = true AND vip IS TRUE", {"vip": "1"}),
        ("NOT vip", {"vip": "false"}),
        ("date_diff('day', last_login, current_date) > 30", {"login": "2026-10-01"}),
        ("current_date - CAST(last_login AS DATE) = 29", {"login": "2026-10-31"}),
        ("month(last_login) = 10 AND extract(year FROM last_login) = 2026", {"login": "2026-10-31"}),
        ("\"Last Login\"::date >= DATE '2026-10-31'", {"login": "2026-10-31"}),
        ("last_login > DATE '2026-10-31'", {"login": "2026-10-31 00:00:01"}),
        ("round(abs(-age)) = 3 AND age % 2 = 1", {"age": "3"}),
        ("country = 'it''s' -- said", {"country": "it's"}),
        ("country == 'DE' OR 1 = 2", {"country": "DE"}),
        (" OR ".join(f"age = {n}" for n in range(300)), {"age": "299"}),
    ],
)
def test_what_people_write_works(database: duckdb.DuckDBPyConnection, segment: str, cells: dict[str, str]) -> None:
    """The operators and functions that a condition over cells needs."""
    assert inside(database, segment, **cells)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("segment", "cause"),
    [
        ("country = 'DE'; DROP TABLE records", "line 1, column 20"),
        ("country = 'DE", "is no condition"),
        ("", "is no condition"),
        ("country =", "line 1, column"),
        ("SELECT 1", "line 1, column 6"),
        ("(SELECT true)", "a subquery is not allowed"),
        ("country IN (SELECT c0 FROM records)", "not allowed"),
        ("EXISTS (SELECT 1)", "a subquery is not allowed"),
        ("read_csv('/etc/passwd') = 'x'", "the function read_csv() is not allowed"),
        ("getenv('HOME') = 'x'", "the function getenv() is not allowed"),
        ("current_setting('memory_limit') = 'x'", "the function current_setting() is not allowed"),
        ("count(*) > 1", "an aggregate or window function is not allowed"),
        ("row_number() OVER () = 1", "an aggregate or window function is not allowed"),
        ("random() < 0.5", "the function rand() is not allowed"),
        ("t.country = 'DE'", "with table"),
        ("*", "Star is not allowed"),
        ("? = 1", "Placeholder is not allowed"),
        ("'DE'", "'DE' is neither true nor false"),
        ("age + 1", "a number is neither true nor false"),
        ("country = NULL", "write IS NULL"),
        ("age > 'ten' + 1", "'ten' is no number"),
        ("CAST(last_login AS DATE) > 'soon'", "'soon' is no date"),
        ("current_date - last_login > 30", "CAST(x AS DATE)"),
        ("age = 12345678901234567890", "compare it as text"),
        ("current_date - 99999999 < last_login", "leave the calendar"),
        ("country::JSON = 'x'", "CAST goes to"),
        ("regexp_matches(note, country)", "a pattern is a text in quotes"),
        ("regexp_matches(note, '(')", "'(' is no regular expression"),
        ("regexp_matches(note, '((a{1000}){1000}){1000}')", "is no regular expression"),
        ("repeat(country, 1000000) = 'x'", "is not allowed"),
        ("(" * 100 + "vip" + ")" * 100, "nested too deeply"),
        ("NOT " * 900 + "vip", "nested too deeply"),
        ("-" * 1 + " -" * 900 + "age > 1", "nested too deeply"),
        ("age" + " + age" * 600 + " > 1", "nested too deeply"),
        ("note" + " || note" * 11 + " = ''", "more than 10 times"),
        ("age" + ", age" * 1000, "words and signs"),
        ("country = 'a\x00b'", "NUL"),
    ],
)
def test_what_reaches_further_or_means_nothing_is_refused_with_the_cause(segment: str, cause: str) -> None:
    """Deny by default: no subquery, file, setting, aggregate, or function that is not on the list."""
    with pytest.raises(ListRejected, match="invalid_segment") as caught:
        condition(segment, COLUMNS, NOW)
    assert cause in str(caught.value)


def test_a_segment_takes_no_longer_than_its_cells_are_long(database: duckdb.DuckDBPyConnection) -> None:
    """Patterns that other engines try in every way end at once."""
    cell = "a" * 20_000
    began = time.monotonic()
    assert not inside(database, "note LIKE '" + "%a_" * 40 + "%b'", note=cell)
    assert not inside(database, "regexp_matches(note, '(a*)*(a*)*b')", note=cell)
    assert time.monotonic() - began < 5


def test_even_sql_of_its_own_could_reach_no_file(database: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """DuckDB is locked as well: what the parser let through would still meet a closed door."""
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        "SET enable_external_access = true",
        "SET memory_limit = '9GB'",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
    ):
        with pytest.raises(duckdb.Error):
            database.execute(query)


_WORDS = """
country | "Last Login" | age | vip | note | nope | AND | OR | NOT | = | <> | < | >= | + | - | * | / | % | ( | ) | ,
'DE' | '' | '2026-01-01' | '%a%' | 1 | 0.5 | 1e400 | NULL | TRUE | IS | IN | BETWEEN | LIKE | CAST( | AS DATE) | ::int
current_date | now() | INTERVAL 3 DAY | INTERVAL age DAY | lower( | coalesce( | extract(year FROM | date_diff('day',
regexp_matches( | '(' | SELECT | FROM records | ; | -- | /* | */ | [ | ] | { | } | ? | $1 | @ | ~ | CASE WHEN
THEN | END | COLLATE NOCASE | ESCAPE 'x' | \\ | \x00
"""
_SOUP = st.lists(st.sampled_from(_WORDS.replace("\n", " | ").split(" | ")), max_size=14).map(" ".join)
_ATOMS = st.sampled_from(
    [
        "country",
        "last_login",
        "age",
        "vip",
        "'DE'",
        "'2026-01-01'",
        "'7'",
        "1",
        "0",
        "2.5e3",
        "current_date",
        "now()",
        "TRUE",
        "NULL",
        "INTERVAL 3 DAY",
    ]
)
_PATTERNS = (
    """
({} AND {})|({} OR {})|(NOT {})|({} = {})|({} < {})|({} <> {})|({} + {})|({} - {})|({} * {})|({} / {})|({} % {})
({} IN ({}, {}))|({} BETWEEN {} AND {})|CAST({} AS DATE)|CAST({} AS INT)|CAST({} AS TEXT)|lower({})|year({})
({} IS NULL)|coalesce({}, {})|date_diff('day', {}, {})|({} IS DISTINCT FROM {})|({} LIKE '_%')|({} || {})|round({})
""".strip()
    .replace("\n", "|")
    .split("|")
)
_CONDITIONS = st.recursive(
    _ATOMS,
    lambda inner: st.builds(
        lambda pattern, parts: pattern.format(*parts),
        st.sampled_from(_PATTERNS),
        st.lists(inner, min_size=3, max_size=3),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.one_of(_CONDITIONS, _SOUP, st.text(max_size=60)))
def test_whatever_is_written_is_refused_in_words_or_runs(database: duckdb.DuckDBPyConnection, segment: str) -> None:
    """No input crashes: either ListRejected with a cause, or SQL that answers true or false for any row."""
    try:
        made = condition(segment, COLUMNS, NOW)
    except ListRejected as refused:
        made, cause = "true", str(refused)
    else:
        cause = "invalid_segment: "
    assert cause.startswith(("invalid_segment: ", "no_such_column: "))
    rows = database.execute(
        f"SELECT {made} FROM (VALUES ('DE', '2026-01-01', '7', 'yes', 'x'), (NULL, NULL, NULL, NULL, NULL), "
        "('', 'x', '1e999', '\U0001f600', '%')) AS cells (c0, c1, c2, c3, c4)"
    ).fetchall()
    assert {type(row[0]) for row in rows} == {bool}
