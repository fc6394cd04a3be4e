"""What a list's rows have for a template is found at preparation, row by row, with the reason."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from carillon.content.templates import Prepared
from carillon.content.typesetting import prepare
from carillon.errors import ListRejected
from carillon.recipients.lists import MOST_LOCALES, RecipientList
from carillon.shapes import ListSpec, Step

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def opened(rows: str, work: Path, **spec: Any) -> RecipientList:
    path = work / "list.csv"
    path.write_text(rows)
    (work / "work").mkdir()
    recipients = RecipientList(path, ListSpec.model_validate(spec), work / "work", now=NOW)
    recipients.read()
    return recipients


def template(html: str) -> Prepared:
    step = Step.model_validate({"template": "t.html", "subject": "Hi", "rule": {"kind": "asap"}})
    return prepare(step, f"<p>{html}</p>", provided=("points",))


def rejects(recipients: RecipientList, work: Path) -> list[tuple[int, str, str]]:
    recipients.write_rejects(work / "work" / "rejects.csv")
    with (work / "work" / "rejects.csv").open(newline="", encoding="utf-8") as file:
        return [(int(row["line"]), row["reason"], row["detail"]) for row in csv.DictReader(file)]


def test_a_missing_value_is_refused_with_the_names_of_what_is_empty(tmp_path: Path) -> None:
    """Whoever mends the list sees what to fill in."""
    rows = "email,first,city,note\na@example.com,Ann,Ulm,\nb@example.com,,Ulm,x\nc@example.com,,  ,\n"
    recipients = opened(rows, tmp_path)
    recipients.refuse_incomplete(template("{{ first }} {{ city }} {{ note | default('-') }}"))
    assert rejects(recipients, tmp_path) == [
        (3, "missing_value", "empty: first"),
        (4, "missing_value", "empty: city, first"),
    ]
    assert recipients.count() == 1


def test_where_the_template_decides_it_says_what_it_missed_of_whom(tmp_path: Path) -> None:
    """Only those who are shown it need a gift."""
    rows = "email,tier,gift\na@example.com,gold,\nb@example.com,iron,\nc@example.com,gold,bell\n"
    recipients = opened(rows, tmp_path)
    recipients.refuse_incomplete(template("{% if tier == 'gold' %}{{ gift }}{% endif %} {{ points }}"))
    ((line, reason, detail),) = rejects(recipients, tmp_path)
    assert (line, reason) == (2, "missing_value")
    assert detail.endswith("empty here: gift")


def test_a_value_that_a_filter_cannot_read_is_refused_before_anything_is_enrolled(tmp_path: Path) -> None:
    """Not e-mail by e-mail in the middle of a campaign; what is written otherwise but legibly stays."""
    rows = (
        'email,due,sum\na@example.com,2026-12-31,9.90\nb@example.com,31.12.2026,"1.234,50"\n'
        "c@example.com,03/04/2026,1\nd@example.com,2026-12-31,free\ne@example.com,2026-02-30,1\nf@example.com,,1\n"
    )
    recipients = opened(rows, tmp_path)
    recipients.refuse_incomplete(template("{{ due | date('long') }} {{ sum | currency('EUR') }}"))
    found = rejects(recipients, tmp_path)
    assert [(line, reason) for line, reason, _ in found] == [
        (4, "invalid_value"), (5, "invalid_value"), (6, "invalid_value"), (7, "missing_value")
    ]  # fmt: skip
    assert "date finds no date in its value" in found[0][2]
    assert "currency finds no number in its value" in found[1][2]
    assert recipients.count() == 2


def test_an_optional_date_may_be_empty_but_not_odd(tmp_path: Path) -> None:
    """A condition lets the empty through and nothing else."""
    rows = "email,due\na@example.com,\nb@example.com,soon\nc@example.com,2026-12-31\n"
    recipients = opened(rows, tmp_path)
    recipients.refuse_incomplete(template("{% if due %}{{ due | date }}{% endif %}"))
    assert [(line, reason) for line, reason, _ in rejects(recipients, tmp_path)] == [(3, "invalid_value")]


def test_a_locale_is_known_or_falls_back_with_a_warning(tmp_path: Path) -> None:
    """As people write them; what CLDR does not know is written to all the same, in the fallback."""
    rows = "email,lang\na@example.com,de-AT\nb@example.com,PT_br\nc@example.com,German\nd@example.com,\n"
    recipients = opened(rows, tmp_path, locale_column="lang", fallback_locale="fr")
    found = recipients.database.execute("SELECT locale FROM accepted ORDER BY line").fetchall()
    assert [locale for (locale,) in found] == ["de_AT", "pt_BR", "fr", "fr"]
    assert list(recipients.warned()) == [(4, "locale_fallback")]


def test_a_fallback_locale_that_is_none_and_a_column_without_locales_are_refused(tmp_path: Path) -> None:
    """Nobody wants a million mails in English because of a typo."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(ListRejected, match=r"unknown_locale: .*'xx'"):
        opened("email\na@example.com\n", tmp_path / "a", fallback_locale="xx")
    rows = "email,lang\n" + "".join(f"p{n}@example.com,l{n}\n" for n in range(MOST_LOCALES + 1))
    with pytest.raises(ListRejected, match=r"no_locales: list\.locale_column"):
        opened(rows, tmp_path / "b", locale_column="lang")


def test_who_is_outside_the_segment_is_counted_and_not_rejected(tmp_path: Path) -> None:
    """They were not meant: the reject file is about those who were. What cannot be an address is still told."""
    rows = (
        "email,country,seen\na@example.com,DE,2026-10-01\nb@example.com,AT,2026-10-01\nc@example.com,DE,2026-11-28\n"
        "no address,DE,2026-10-01\nd@example.com,DE,n/a\ne@example.com,DE,01.10.2026\n"
    )
    segment = "country = 'DE' AND CAST(seen AS DATE) < current_date - 30"
    recipients = opened(rows, tmp_path, segment=segment)
    assert recipients.rejected() == {"invalid_address": 1, "outside_segment": 3}
    assert recipients.count() == 2
    assert [reason for _, reason, _ in rejects(recipients, tmp_path)] == ["invalid_address"]


def test_the_segment_comes_before_duplicates(tmp_path: Path) -> None:
    """A person with two rows is written to if one of them is meant."""
    rows = "email,product\na@example.com,bell\na@example.com,rope\nb@example.com,rope\nb@example.com,rope\n"
    recipients = opened(rows, tmp_path, segment="product = 'rope'")
    assert recipients.rejected() == {"duplicate": 1, "outside_segment": 1}
    assert [line for line, _, _ in recipients.accepted()] == [3, 4]


def test_a_segment_that_nobody_is_in_leaves_nobody(tmp_path: Path) -> None:
    """Counted, so that the refusal can say why."""
    recipients = opened("email,c\na@example.com,x\n", tmp_path, segment="c = 'y'")
    assert (recipients.count(), recipients.rejected()) == (0, {"outside_segment": 1})
