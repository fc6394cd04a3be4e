"""The one port for time: handlers take ``now`` from here and pass it on."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime


def now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.fromtimestamp(epoch(), UTC)


def epoch() -> float:
    """Now, in seconds since the epoch.

    On one machine the local cloud's clock can be moved: it leaves its offset in a file. On AWS the
    variable does not exist.
    """
    offset_file = os.environ.get("CARILLON_CLOCK_FILE")
    if offset_file is None:
        return time.time()
    with open(offset_file, encoding="ascii") as f:
        return time.time() + float(f.read())


def sleep(seconds: float) -> None:
    """Wait in place."""
    time.sleep(seconds)
