"""Handlers as modules: every one is called app.py."""

from __future__ import annotations

import importlib.util
from typing import Any

from tools.definitions import ROOT


def handler_module(folder: str) -> Any:
    """``functions/<folder>/app.py``, loaded by its path."""
    spec = importlib.util.spec_from_file_location(f"{folder}_app", ROOT / "functions" / folder / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
