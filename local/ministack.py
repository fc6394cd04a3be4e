"""The one door to MiniStack, whose modules have no types and read their settings when first imported."""

from __future__ import annotations

import importlib
from typing import Any


def private(module: str) -> Any:
    """MiniStack's module ``module`` (e.g. ``core.iam_evaluator``), imported when first needed: by then
    ``Cloud`` has put its settings into the environment."""
    return importlib.import_module(f"ministack.{module}")
