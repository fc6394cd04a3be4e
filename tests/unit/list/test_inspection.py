"""People's real files, through the same door as ``carillon inspect``: what is made of each, row by row."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from carillon.recipients.inspection import Inspection, inspect
from carillon.shapes import ListSpec
from cli.__main__ import app

LISTS = Path(__file__).parents[2] / "fixtures" / "lists"
SAMPLES = json.loads((LISTS / "expected.json").read_text(encoding="utf-8"))
EXPECTED: dict[str, dict[str, Any]] = SAMPLES["files"]
REASONS = set(SAMPLES["vocabulary"]["reject"])
WARNINGS = set(SAMPLES["vocabulary"]["warning"])


def look(name: str, work: Path) -> Inspection:
    asked = EXPECTED[name].get("settings", {})
    spec = ListSpec(
        address_column=asked.get("address_column"),
        timezone_column=asked.get("timezone_column"),
        fallback_timezone=asked.get("fallback_zone"),
    )
    return inspect(LISTS / name, spec, work, addresses=True)


def is_one_of(value: Any, expected: Any) -> bool:
    """Whether ``value`` is ``expected``, which may be a choice (``{"either": […]}``)."""
    return value in expected["either"] if isinstance(expected, dict) and "either" in expected else value == expected


def shows(label: str, expected: Any) -> bool:
    if isinstance(expected, str):
        return label == expected
    return bool(label) and label.startswith(expected.get("repeat", ""))


def fits(found: Inspection, option: dict[str, Any], line: int) -> bool:
    """Whether what became of ``line`` is this ``option`` of the samples."""
    reasons = [reject["reason"] for reject in found.rejects if reject["line"] == line]
    if "skip" in option:
        return line not in found.valid.lines and not reasons
    if "reject" in option:
        wanted = [option["reject"]] if isinstance(option["reject"], str) else option["reject"]
        return len(reasons) == 1 and reasons[0] in wanted
    if "valid" not in option or line not in found.valid.lines:
        return False
    at = found.valid.lines.index(line)
    warned = {warning["warning"] for warning in found.warnings if warning["line"] == line}
    return (
        found.valid.addresses[at] == option["valid"]
        and ("zone" not in option or is_one_of(found.valid.timezones[at], option["zone"]))
        and ("warning" not in option or option["warning"] in warned)
    )


@pytest.mark.parametrize("name", [name for name, facts in EXPECTED.items() if not facts["file_error"]])
def test_each_sample_is_read_as_its_facts_say(name: str, tmp_path: Path) -> None:
    """Encoding, delimiter, header, columns; each row's address, zone, reason, warnings: as expected.json has them."""
    facts, found = EXPECTED[name], look(name, tmp_path)
    assert found.file_error is None
    assert is_one_of(found.encoding, facts["encoding"])
    assert found.bom == facts["bom"]
    assert facts["delimiter"] is None or found.delimiter == facts["delimiter"]
    assert found.header_line == facts["header_line"]
    assert all(shows(label, wanted) for label, wanted in zip(found.columns, facts["columns"], strict=True))
    assert len({label.lower() for label in found.columns}) == len(found.columns)
    assert is_one_of(found.address_column, facts["address_column"])
    assert is_one_of(found.rows_total, facts["rows_total"])

    low, high = facts["valid"].get("count_range", [facts["valid"]["count"]] * 2)
    assert low <= found.valid.count <= high
    assert found.valid.count == len(found.valid.lines) == len(found.valid.addresses)
    assert found.valid.count + len(found.rejects) == found.rows_total
    choices = {choice["line"]: choice["options"] for choice in facts["either"]}
    wanted: dict[int, list[dict[str, Any]]] = {
        line: [{"valid": address}]
        for line, address in zip(facts["valid"]["lines"], facts["valid"]["addresses"], strict=True)
    }
    for reject in facts["rejects"]:
        reason = reject["reason"]
        wanted[reject["line"]] = [{"reject": reason["either"] if isinstance(reason, dict) else reason}]
    wanted |= choices
    for line, options in wanted.items():
        assert any(fits(found, option, line) for option in options), (line, options)
    assert {*found.valid.lines, *(reject["line"] for reject in found.rejects)} <= set(wanted), "nobody else turns up"
    assert {reject["reason"] for reject in found.rejects} <= REASONS

    warned = {(warning["line"], warning["warning"]) for warning in found.warnings}
    rejected = {reject["line"] for reject in found.rejects}
    for warning in facts["warnings"]:
        assert (warning["line"], warning["warning"]) in warned or warning["line"] in choices
    assert not {line for line, _ in warned} & rejected, "a warning is of somebody accepted"
    assert {what for _, what in warned} <= WARNINGS
    for zone in facts.get("zones", []):
        if zone["line"] not in choices or zone["line"] in found.valid.lines:
            assert is_one_of(found.valid.timezones[found.valid.lines.index(zone["line"])], zone["zone"])


@pytest.mark.parametrize("name", [name for name, facts in EXPECTED.items() if facts["file_error"]])
def test_a_file_that_is_no_list_is_refused_by_its_reason(name: str, tmp_path: Path) -> None:
    """Cause and fix, and a reason from the samples' vocabulary; the gzip is unpacked, as the samples allow."""
    facts, found = EXPECTED[name], look(name, tmp_path)
    if found.file_error is None:
        [other] = [other for other in facts["either_file"] if "valid" in other]
        assert found.rows_total == other["rows_total"]
        assert found.valid.model_dump(include={"count", "addresses", "lines"}) == other["valid"]
        assert found.rejects == other["rejects"]
        return
    assert found.file_error == facts["file_error"]
    assert found.message is not None
    assert re.search(r": .+\. [A-Z].+\.$", found.message), "the fix is a sentence of its own"


def test_only_the_gzip_takes_another_answer_than_the_first(tmp_path: Path) -> None:
    """The other files that cannot be used are refused, each with the reason that the samples prefer."""
    refused = {name for name, facts in EXPECTED.items() if facts["file_error"]}
    for name in refused:
        (tmp_path / name).mkdir()
    assert {name for name in refused if look(name, tmp_path / name).file_error is None} == {"24-gzip.csv"}


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["inspect", *arguments])
    return done.exit_code, done.stdout


def test_inspect_prints_json_of_the_agreed_shape(tmp_path: Path) -> None:
    """Every key, the two lists only where they are asked for, exit code 0."""
    code, printed = run(str(LISTS / "15-zones-fallback.csv"), "--json", "--timezone-column", "Zeitzone",
                        "--fallback-timezone", "Europe/Berlin")  # fmt: skip
    shown = json.loads(printed)
    assert code == 0
    assert {"encoding", "bom", "delimiter", "header_line", "columns", "address_column", "rows_total", "valid",
            "rejects", "warnings", "file_error"} <= set(shown)  # fmt: skip
    assert shown["valid"] == {"count": 8}
    assert {"line": 3, "warning": "timezone_fallback"} in shown["warnings"]
    code, printed = run(str(LISTS / "15-zones-fallback.csv"), "--json", "--addresses", "--fallback-timezone", "UTC")
    assert json.loads(printed)["valid"]["lines"] == EXPECTED["15-zones-fallback.csv"]["valid"]["lines"]


def test_a_file_error_is_exit_code_1_and_json_all_the_same() -> None:
    """A script can read why."""
    code, printed = run(str(LISTS / "19-no-address-column.csv"), "--json")
    assert code == 1
    assert json.loads(printed)["file_error"] == "no_address_column"
    code, printed = run(str(LISTS / "19-no-address-column.csv"))
    assert code == 1
    assert "no_address_column" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-file.csv"],
        [str(LISTS / "01-bom-quoted-header.csv"), "--fallback-timezone", "CET+1"],
        [str(LISTS / "01-bom-quoted-header.csv"), "--delimiter", ";;"],
        [],
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: list[str]) -> None:
    """Exit code 2, as everywhere on a command line."""
    assert run(*arguments)[0] == 2


def test_a_person_sees_columns_counts_and_the_first_rejects(tmp_path: Path) -> None:
    """What was decided, and for each reject the line and why."""
    path = tmp_path / "list.csv"
    path.write_text("name;email\nAnn;ann@example.com\nAnn;ANN@example.com\nBob;bob@\n" + "x;y\n" * 30)
    code, printed = run(str(path))
    assert code == 0
    assert "semicolon" in printed
    assert "the same person as line 2" in printed
    assert "32 rejected" in printed
    assert "and 12 more" in printed


def test_a_person_sees_what_the_bad_cell_says(tmp_path: Path) -> None:
    """Beside the reason, cleaned and cut, whatever it would do to a terminal; the JSON has line and reason."""
    path = tmp_path / "list.csv"
    path.write_text(
        "email,zone\n kaputt@@x ,UTC\nann@example.com,Europa/Berlin\n[/b]\x1b[2J@,UTC\n"
        f"{'y' * 50}@@,UTC\njürg@example.com,UTC\nbob@example.com,UTC\n"
    )
    code, printed = run(str(path), "--timezone-column", "zone")
    cells = {row[1]: row[3] for line in printed.splitlines() if len(row := [*map(str.strip, line.split("│"))]) > 3}
    assert code == 0
    assert (cells["2"], cells["3"], cells["4"]) == ("kaputt@@x", "Europa/Berlin", "[/b] [2J@")
    assert cells["5"] == "y" * 40 + "…"
    assert cells["6"].startswith("jürg@example.com: letters beyond ASCII")
    shown = json.loads(run(str(path), "--json", "--timezone-column", "zone")[1])
    assert shown["rejects"][:2] == [{"line": 2, "reason": "invalid_address"}, {"line": 3, "reason": "invalid_timezone"}]
    assert "bad_cells" not in shown


def test_inspect_reads_json_lines_by_their_ending(tmp_path: Path) -> None:
    """The same bytes are refused under a CSV's name."""
    path = tmp_path / "list.jsonl"
    path.write_text('{"email": "ann@example.com", "n": 1.50}\n{"email": "bob@", "city": "Ulm"}\n')
    shown = json.loads(run(str(path), "--json")[1])
    assert (shown["delimiter"], shown["header_line"]) == (None, None)
    assert shown["columns"] == ["email", "n", "city"]
    assert shown["rejects"] == [{"line": 2, "reason": "invalid_address"}]
    shutil.copy(path, tmp_path / "list.csv")
    assert json.loads(run(str(tmp_path / "list.csv"), "--json")[1])["file_error"] == "not_csv"
