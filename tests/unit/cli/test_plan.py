"""``carillon plan`` says from files alone what a launch would do."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from carillon.content.typesetting import FOOTING
from carillon.shapes import CampaignSpec, Plan
from cli.__main__ import app

SPEC = {
    "name": "Spring",
    "from": "Ringer <ringer@news.example.com>",
    "topic": "news",
    "steps": [
        {"template": "one.html", "subject": "Hi {{ name }}",
         "rule": {"kind": "local_time", "date": "2026-12-01", "time": "09:00"}},
        {"template": "two.html", "subject": "Again", "rule": {"kind": "after_previous", "offset": "P2D"}},
    ],
}  # fmt: skip
LIST = (
    "email;name;zone\nann@example.com;Ann;Europe/Berlin\nben@example.org;Ben;America/New_York\nnope;N;Europe/Berlin\n"
)
NOW = "2026-11-30T10:00:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A list, a spec and two templates."""
    (tmp_path / "list.csv").write_text(LIST)
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    for name in ("one.html", "two.html"):
        (tmp_path / name).write_text(f"<p>{{{{ name }}}}</p>{FOOTING}")
    return tmp_path


def run(folder: Path, *more: str, now: str = NOW) -> Result:
    return CliRunner().invoke(
        app, ["plan", str(folder / "list.csv"), "--campaign", str(folder / "spec.json"), "--now", now, *more]
    )


def planned(folder: Path, *more: str) -> Plan:
    done = run(folder, "--json", *more)
    assert done.exit_code == 0, done.output
    return Plan.model_validate_json(done.stdout)


def test_the_json_is_the_plan(folder: Path) -> None:
    """Counts, hours in UTC and in each recipient's own day, first and last, and what was decided about the file."""
    plan = planned(folder)
    assert (plan.rows, plan.valid, plan.rejected, plan.planned, plan.forecast) == (3, 2, {"invalid_address": 1}, 4, 2)
    assert plan.reading["delimiter"] == ";"
    assert (plan.first_slot, plan.last_slot) == ("2026-12-01T08:00:00Z", "2026-12-03T14:00:00Z")
    nine = [0] * 9 + [2] + [0] * 14
    assert plan.histogram.local == {"2026-12-01": nine, "2026-12-03": nine}
    assert [hour for hour, n in enumerate(plan.histogram.utc["2026-12-01"]) if n] == [8, 14]


def test_slots_are_written_with_the_targets_on_each_wall_clock(folder: Path) -> None:
    """Address, step, target with its zone, slot in UTC."""
    planned(folder, "--slots", str(folder / "slots.csv"))
    rows = list(csv.DictReader((folder / "slots.csv").open()))
    assert [(r["address"][:3], r["step"], r["target"], r["timezone"], r["slot"]) for r in rows] == [
        ("ann", "1", "2026-12-01T09:00:00+01:00", "Europe/Berlin", "2026-12-01T08:00:00Z"),
        ("ben", "1", "2026-12-01T09:00:00-05:00", "America/New_York", "2026-12-01T14:00:00Z"),
        ("ann", "2", "2026-12-03T09:00:00+01:00", "Europe/Berlin", "2026-12-03T08:00:00Z"),
        ("ben", "2", "2026-12-03T09:00:00-05:00", "America/New_York", "2026-12-03T14:00:00Z"),
    ]


def test_the_hash_is_the_same_until_list_template_or_spec_changes(folder: Path) -> None:
    """Whenever it is made: what a launch is bound to is what goes out, not when it was looked at."""
    before = planned(folder).hash
    assert json.loads(run(folder, "--json", now="2026-11-30T11:00:00Z").stdout)["hash"] == before
    (folder / "one.html").write_text((folder / "one.html").read_text() + " ")
    assert planned(folder).hash != before


def test_people_get_bars_costs_and_quotas(folder: Path) -> None:
    """And what was assumed of the account, with the options that change it."""
    done = run(folder)
    assert done.exit_code == 0
    for shown in (
        "assumed: 14 e-mails a second",
        "invalid_address 1",
        "2026-12-01 08:00",
        "█",
        "SES",
        "CreateSchedule",
    ):
        assert shown in done.stdout


def test_the_pace_is_the_one_that_is_given(folder: Path) -> None:
    """One e-mail a day: Ben's has to wait for midnight in Tokyo, which is at 15:00 UTC."""
    plan = planned(folder, "--daily-cap", "1", "--timezone", "Asia/Tokyo")
    assert [hour for hour, n in enumerate(plan.histogram.utc["2026-12-01"]) if n] == [8, 15]


def test_templates_may_be_elsewhere_and_called_otherwise(folder: Path) -> None:
    """A file under a name of its own, or a directory."""
    other = folder / "other"
    other.mkdir()
    for name in ("one.html", "two.html"):
        (folder / name).rename(other / name)
    assert planned(folder, "--template", str(other)).planned == 4
    (other / "one.html").rename(other / "eins.html")
    more = ("--template", str(other), "--template", f"one.html={other / 'eins.html'}")
    assert planned(folder, *more).planned == 4


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda f: (f / "list.csv").write_text(""), "empty_file"),
        (lambda f: (f / "two.html").unlink(), "'two.html' has not been uploaded"),
        (lambda f: (f / "one.html").write_text(f"{{{{ nmae }}}}{FOOTING}"), "{{ nmae }}"),
        (lambda f: (f / "one.html").write_text("Hi"), "unsubscribe_url"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_with_the_cause(folder: Path, change: Any, cause: str) -> None:
    """Exit code 1, for people and as JSON."""
    change(folder)
    done = run(folder)
    assert done.exit_code == 1
    assert cause in " ".join(done.stdout.split())
    assert cause in json.loads(run(folder, "--json").stdout)["message"]


def test_the_rejects_are_written_even_if_nobody_is_left(folder: Path) -> None:
    """That is when they are needed most, and the refusal says where they are."""
    (folder / "list.csv").write_text("email;name;zone\nnope;N;UTC\nann@example.com;;UTC\n")
    rejects = folder / "rejects.csv"
    done = run(folder, "--json", "--rejects", str(rejects))
    assert done.exit_code == 1
    assert json.loads(done.stdout)["message"].endswith(f"Each row and why: {rejects}")
    assert [(r["line"], r["reason"], r["detail"]) for r in csv.DictReader(rejects.open())] == [
        ("2", "invalid_address", ""),
        ("3", "missing_value", "empty: name"),
    ]
    (folder / "two.html").unlink()
    assert str(rejects) not in json.loads(run(folder, "--json", "--rejects", str(rejects)).stdout)["message"]


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        (["--now", "tomorrow"], "write an instant"),
        (["--timezone", "PST"], "PST"),
        (["--template", "nowhere"], "neither a file"),
        (["--rate", "0"], "0"),
    ],
)
def test_a_wrong_option_is_a_usage_error(folder: Path, more: list[str], cause: str) -> None:
    """Exit code 2, naming it."""
    done = run(folder, *more)
    assert (done.exit_code, cause in done.output) == (2, True)


def test_a_spec_that_cannot_be_meant_is_a_usage_error(folder: Path) -> None:
    """It names the field."""
    (folder / "spec.json").write_text(json.dumps(SPEC | {"topic": "two words"}))
    done = run(folder)
    assert (done.exit_code, "topic" in done.output) == (2, True)
    CampaignSpec.model_validate(SPEC)
    (folder / "spec.json").write_text(json.dumps(SPEC | {"holidays": "DE"}))
    assert "there is no such field" in " ".join(run(folder).output.replace("│", "").split())
