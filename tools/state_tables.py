"""``python -m tools.state_tables [--check]``: the README's table of each machine's states, from the definitions.

A table stands between ``<!-- states:launch_campaign -->`` and ``<!-- /states -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.definitions import ROOT, SUBSTITUTION, StateMachine, state_machines, states

README = ROOT / "README.md"


def table(machine: StateMachine) -> str:
    """State, type, resource and purpose of every state, in the order of the file; inner states are indented."""
    lines = ["| State | Type | Resource | Purpose |", "|---|---|---|---|"]
    # Unsubstituted: a function is called what the definition calls it.
    definition = yaml.safe_load(machine.text)
    for name, state, depth in states(definition):
        indent = "&nbsp;&nbsp;" * depth
        lines.append(f"| {indent}`{name}` | {_kind(state)} | {_resource(state)} | {_purpose(state)} |")
    return "\n".join(lines)


def updated(text: str) -> str:
    """``text`` with every table between markers as it should be.

    Raises:
        ValueError: a machine has no markers.
    """
    for machine in state_machines():
        marked = re.compile(rf"(<!-- states:{machine.name} -->\n).*?(<!-- /states -->)", re.DOTALL)
        found = marked.search(text)
        if found is None:
            raise ValueError(f"README.md has no <!-- states:{machine.name} --> … <!-- /states -->")
        text = f"{text[: found.end(1)]}{table(machine)}\n{text[found.start(2) :]}"
    return text


def _kind(state: Mapping[str, Any]) -> str:
    mode = state.get("ItemProcessor", {}).get("ProcessorConfig", {}).get("Mode")
    return f"{state['Type']} ({mode.lower()})" if mode else str(state["Type"])


def _resource(state: Mapping[str, Any]) -> str:
    if state["Type"] == "Fail":
        return f"`{state['Error']}`"
    resource = state.get("Resource", "")
    if resource.endswith("lambda:invoke"):
        found = SUBSTITUTION.search(state["Arguments"]["FunctionName"])
        assert found is not None, "functions are called by substitution"
        return f"`{found[1].removesuffix('FunctionArn')}` (Lambda)"
    if resource:
        *_, service, action = resource.split(":")
        return f"`{service}:{action}`"
    return ""


def _purpose(state: Mapping[str, Any]) -> str:
    text = state.get("Comment") or ""
    if not text and state["Type"] == "Fail" and not state["Cause"].startswith("{%"):
        text = state["Cause"]
    return " ".join(str(text).split()).replace("|", "\\|")


def main(arguments: list[str], readme: Path = README) -> int:
    """Write the tables, or with ``--check`` say whether they are as they should be."""
    text = readme.read_text()
    wanted = updated(text)
    if arguments == ["--check"]:
        if text != wanted:
            print("README.md's state tables are not those of the machines: run python -m tools.state_tables")
        return int(text != wanted)
    readme.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
