"""The one door to MiniStack, whose modules have no types and read their settings when first imported."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

ACCOUNT_ID = "000000000000"
REGION = "eu-central-1"
HOST = "127.0.0.1"

_SETTINGS = {
    "AUTH": "true",
    "BIND_HOST": HOST,
    "IOT_MTLS_ENABLED": "0",
    "SFTP_ENABLED": "0",
    "MINISTACK_ACCOUNT_ID": ACCOUNT_ID,
    "MINISTACK_REGION": REGION,
}


def private(module: str) -> Any:
    """MiniStack's module ``module`` (e.g. ``core.iam_evaluator``), with the settings of the local cloud."""
    if "ministack" not in sys.modules:
        os.environ.update(_SETTINGS)
        os.environ.setdefault("LOG_LEVEL", "WARNING")
    return importlib.import_module(f"ministack.{module}")
