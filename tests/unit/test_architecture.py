"""Imports point one way: app → domain ← adapters; only adapters know boto3, only app.py knows Lambda."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"
ADAPTERS = sorted((FUNCTIONS / "carillon" / "adapters").glob("*.py"))
DOMAIN = sorted(set((FUNCTIONS / "carillon").rglob("*.py")) - set(ADAPTERS))
LAYERS = ("timing", "content", "recipients", "consent", "launch", "delivery", "lifecycle")
"""The domain's packages; each knows those before it, and all know the modules beside them."""
APPS = sorted(FUNCTIONS.glob("*/app.py"))
AWS = {"boto3", "botocore"}


def imported(path: Path) -> set[str]:
    """Every module that ``path`` imports when it runs; imports for type checkers alone do not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("path", DOMAIN, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_domain_knows_neither_boto3_nor_lambda_nor_its_adapters(path):
    """A rule of sending can be tested with no account, no mock and no event."""
    assert not roots(path) & (AWS | {"aws_lambda_powertools"})
    assert not any(name.startswith("carillon.adapters") for name in imported(path))


@pytest.mark.parametrize("path", DOMAIN, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_domain_is_built_in_layers(path):
    """A package imports those below it alone, and what lies beside the packages imports none of them."""
    below = LAYERS.index(path.parent.name) + 1 if path.parent.name in LAYERS else 0
    assert not {name.split(".")[1] for name in imported(path) if name.startswith("carillon.")} & set(LAYERS[below:])


@pytest.mark.parametrize("path", APPS, ids=lambda p: p.parent.name)
def test_an_app_goes_through_adapters_to_reach_aws(path):
    """Handlers parse, call and answer; boto3 is behind a port."""
    assert not roots(path) & AWS


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda p: p.name)
def test_an_adapter_knows_no_handler(path):
    """Nothing points back at an app."""
    assert not roots(path) & {app.parent.name for app in APPS}


@pytest.mark.parametrize("path", [*DOMAIN, *ADAPTERS, *APPS], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_no_function_knows_the_local_cloud(path):
    """What runs on AWS never imports what stands in for AWS."""
    assert not roots(path) & {"local", "ministack", "moto"}


@pytest.mark.parametrize("path", [*DOMAIN, *ADAPTERS, *APPS], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_time_comes_from_one_port(path):
    """Only the clock asks the machine what time it is, so that tests move all clocks together."""
    if path.name == "clock.py":
        return
    calls = {ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)}
    assert not calls & {"datetime.now", "datetime.utcnow", "time.time", "date.today", "datetime.datetime.now"}
