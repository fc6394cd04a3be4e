"""Cells of a list are shown as people write dates, numbers and amounts where the recipient lives."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon.content.filters import find_locale, read_number
from carillon.content.templates import Renderer, TemplateError
from carillon.content.typesetting import prepare
from carillon.errors import TemplateRejected
from carillon.shapes import Step
from carillon.sql import text
from carillon.timing import dates

FUNCTIONS = Path(__file__).resolve().parents[3] / "functions"


def step(subject: str = "Hello") -> Step:
    return Step.model_validate({"template": "news.html", "subject": subject, "rule": {"kind": "asap"}})


def shown(expression: str, value: str, locale: str = "de_DE", zone: str = "Europe/Berlin") -> str:
    renderer = Renderer(prepare(step(), f"<p>{{{{ v | {expression} }}}}</p>"))
    text = renderer.render({"v": value, "recipient_locale": locale, "recipient_timezone": zone}).text
    return text.strip().replace("\u202f", " ").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("expression", "value", "locale", "expected"),
    [
        ("date", "2026-12-31", "de_DE", "31.12.2026"),
        ("date('long')", "2026-12-31", "de-AT", "31. Dezember 2026"),
        ("date('long')", "31.12.2026", "en_US", "December 31, 2026"),
        ("date('EEEE, d. MMMM')", "2026/12/31", "fr", "jeudi, 31. décembre"),
        ("date(input='%m/%d/%Y')", "12/31/2026", "en_GB", "31 Dec 2026"),
        ("date(locale='en_US')", "2026-12-31", "de", "Dec 31, 2026"),
        ("date", "2026-12-31T23:30:00Z", "de_DE", "01.01.2027"),
        ("datetime('short')", "2026-12-31T09:30:00", "de_DE", "31.12.26, 09:30"),
        ("datetime('short')", "2026-12-31 09:30:00-05:00", "de_DE", "31.12.26, 15:30"),
        ("time", "2026-07-01T09:30:00Z", "de_DE", "11:30"),
        ("time", "9:05", "en_US", "9:05 AM"),
        ("number", "1234567.5", "de_DE", "1.234.567,5"),
        ("number(2)", "1,234.5", "en_US", "1,234.50"),
        ("currency('EUR')", "1234.5", "de_DE", "1.234,50 €"),
        ("currency('EUR')", "19,90", "en_US", "€19.90"),
        ("percent", "0.195", "de_DE", "20 %"),
        ("percent(1)", "0.195", "en", "19.5%"),
        ("title", "anna maria", "de", "Anna Maria"),
        ("replace('a', 'o') | upper", "anna", "de", "ONNO"),
        ("split(',') | join(' + ')", "a, b,c", "de", "a + b + c"),
    ],
)
def test_values_are_written_for_the_recipient(expression: str, value: str, locale: str, expected: str) -> None:
    """Locale and zone are the recipient's, and cells may be written in the usual ways."""
    assert shown(expression, value, locale) == expected


def test_what_was_calculated_is_written_too() -> None:
    """Numbers may come from an expression."""
    renderer = Renderer(prepare(step(), "<p>{{ (v | float * 2) | currency('USD') }}</p>"))
    assert "$20.00" in renderer.render({"v": "10", "recipient_locale": "en_US"}).text


@pytest.mark.parametrize(
    ("expression", "value", "cause"),
    [
        ("date", "soon", "date finds no date in its value"),
        ("date", "03/04/2026", "date finds no date in its value"),
        ("datetime", "2026-12-31", "no time of day"),
        ("time", "2026-12-31", "no time of day"),
        ("number", "1,234", "number finds no number in its value"),
        ("currency('EUR')", "free", "currency finds no number in its value"),
    ],
)
def test_a_value_that_cannot_be_read_fails_its_task_by_filter_and_place(
    expression: str, value: str, cause: str
) -> None:
    """The task says which filter and which part; never the value, which is somebody's."""
    with pytest.raises(TemplateError, match=cause) as caught:
        shown(expression, value)
    assert "(html)" in str(caught.value)
    assert value not in str(caught.value).replace("2026-12-31, or", "")


@pytest.mark.parametrize(
    ("expression", "cause"),
    [
        ("date('YYYY')", 'takes short, medium, long, full or a pattern such as "d. MMMM y"'),
        ("date('lng')", "takes short, medium, long, full"),
        ("time('d. MMMM')", "takes short, medium, long, full"),
        ("currency", 'currency needs the currency\'s code: currency("EUR")'),
        ("currency('EURO')", "currency needs the currency's code"),
        ("number(50)", "decimals between 0 and 20"),
        ("date(locale='klingon')", "locale= names none that is known"),
        ("date('short', 'x', 'y', 'z')", "wrong arguments"),
        ("replace('', 'x')", "replace needs something to look for"),
    ],
)
def test_wrong_arguments_of_a_filter_are_found_at_preparation(expression: str, cause: str) -> None:
    """What is wrong for everybody never becomes a failed task for everybody."""
    with pytest.raises(TemplateRejected, match=r"'news\.html'") as caught:
        prepare(step(), f"<p>{{{{ v | {expression} }}}}</p>")
    assert cause in str(caught.value)


def test_locale_and_zone_travel_only_where_a_filter_needs_them() -> None:
    """Batches carry what templates use and nothing else."""
    assert prepare(step(), "<p>{{ v | upper }}</p>").placeholders == ("v",)
    assert prepare(step(), "<p>{{ v | number }}</p>").placeholders == ("recipient_locale", "v")
    assert prepare(step("{{ v | date }}"), "<p>x</p>").placeholders == ("recipient_locale", "recipient_timezone", "v")


def test_what_a_filter_reads_as_it_is_can_be_checked_in_the_list() -> None:
    """Preparation looks for cells that no filter could read; behind another filter or form only rendering can tell."""
    prepared = prepare(
        step(), "<p>{{ a | date }}{{ b | number(2) }}{{ c | default('1') | number }}{{ d | date(input='%y') }}</p>"
    )
    assert prepared.formatted == {"a": "date", "b": "number"}
    assert prepared.required == ("a", "b", "d")


def test_a_missing_value_is_missing_for_these_filters_too() -> None:
    """An empty cell is not the word None."""
    renderer = Renderer(prepare(step(), "<p>{{ v | date }}</p>"))
    with pytest.raises(TemplateError, match=r"a value without default is missing .*: recipient_.*v"):
        renderer.render({"v": " "})


def test_an_unknown_locale_falls_back_to_its_language_and_then_to_none() -> None:
    """``de_XX`` is German still; ``deutsch`` is nothing."""
    known = {"de-AT": "de_AT", "pt_BR": "pt_BR", "de_XX": "de", "EN": "en", "zh-Hant-TW": "zh_Hant_TW"}
    assert {written: find_locale(written) for written in known} == known
    assert {find_locale(written) for written in ("deutsch", "", "12")} == {None}


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("12", "12"), ("-1.5", "-1.5"), ("1,234.50", "1234.50"), ("1.234,50", "1234.50"), ("1 234,5", "1234.5"),
        ("19,9", "19.9"), ("1.234.567", "1234567"), ("1,234,567", "1234567"), ("1'234.5", "1234.5"), ("1.234", "1.234"),
        ("1,234", None), ("1.2.3", None), ("1e5", None), ("nan", None), ("", None), ("12 %", None), ("٣", None),
        ("9" * 40, None),
    ],
)  # fmt: skip
def test_a_number_is_read_where_it_means_one_thing(written: str, number: str | None) -> None:
    """A lone comma before three digits is a thousand to some and a fraction to others."""
    assert read_number(written) == (None if number is None else Decimal(number))


_DATES = st.one_of(
    st.dates(date(1850, 1, 1), date(2150, 1, 1)).map(lambda day: day.strftime("%d.%m.%Y")),
    st.datetimes().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.replace(microsecond=0).isoformat()),
    st.from_regex(
        r"(19|20)\d\d[-/.]?[0-3]?\d[-/.]?[0-3]?\d([T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:?\d\d)?)?", fullmatch=True
    ),
    st.from_regex(r"\d{1,2}\.? (jan|Feb|MARCH|sept) \d{4}", fullmatch=True),
    st.text(alphabet="0123456789-.:TZ+/ ", max_size=25),
)


@settings(max_examples=25, deadline=None)  # each is a query of its own, which DuckDB takes long to plan
@given(st.lists(_DATES, min_size=20, max_size=60))
def test_a_date_reads_the_same_in_sql_and_in_an_email(cells: list[str]) -> None:
    """What preparation lets through, the sender can show."""
    cells = [cell.strip() for cell in cells]
    rows = ", ".join(f"({text(cell)})" for cell in cells)
    found = duckdb.connect().execute(f"SELECT {dates.canonical('x')} FROM (VALUES {rows}) AS t(x)").fetchall()
    for cell, (canonical,) in zip(cells, found, strict=True):
        read = dates.read(cell)
        if isinstance(read, datetime):
            expected = read.strftime("%Y-%m-%dT%H:%M:%S") + ("Z" if read.tzinfo == UTC else "")
        else:
            expected = None if read is None else read.strftime("%Y-%m-%d")
        assert canonical == expected, cell


def test_babel_is_imported_only_where_a_template_uses_it() -> None:
    """It takes a tenth of a second of every cold start that does not need it."""
    program = (
        "import sys; from carillon.content.templates import Prepared, Renderer\n"
        "def made(*names):\n"
        "    return Renderer(Prepared(subject='x', html='x', text='x', placeholders=names, required=()))\n"
        "made('v').render({'v': 'x'}); assert 'babel' not in sys.modules\n"
        "made('recipient_locale'); assert 'babel.dates' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(FUNCTIONS)})
