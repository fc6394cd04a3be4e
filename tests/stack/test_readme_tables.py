"""The README's tables are those of the machines and of the API."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.stack.handlers import handler_module
from tools.definitions import state_machines, states
from tools.state_tables import README, main, table, updated


def test_the_readme_shows_every_state_as_it_is() -> None:
    """A state that was added, renamed or given another purpose turns this red: python -m tools.state_tables."""
    text = README.read_text()
    assert updated(text) == text


def test_a_table_names_every_state() -> None:
    """Inner states too."""
    for machine in state_machines():
        rows = table(machine).splitlines()[2:]
        assert [row.split("`")[1] for row in rows] == [name for name, _, _ in states(machine.definition)]


def test_a_stale_table_is_noticed_and_mended(tmp_path: Path) -> None:
    """--check says so, and writing puts it right."""
    stale = tmp_path / "README.md"
    stale.write_text(updated(README.read_text()).replace("`ClaimCampaign`", "`TakeCampaign`"))
    assert main(["--check"], stale) == 1
    assert main([], stale) == 0
    assert main(["--check"], stale) == 0
    assert "`ClaimCampaign`" in stale.read_text()


def test_a_missing_table_is_an_error() -> None:
    """Markers that went missing are not silently left out."""
    with pytest.raises(ValueError, match="states:"):
        updated("# Carillon")


def test_the_readme_lists_every_route_of_the_api() -> None:
    """And none that is not there."""
    schema = json.loads(handler_module("campaign_api").openapi().body)
    routes = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    listed = README.read_text().partition("<!-- api -->")[2].partition("<!-- /api -->")[0]
    assert set(re.findall(r"^\| `([A-Z]+ \S+)` \|", listed, re.MULTILINE)) == routes
