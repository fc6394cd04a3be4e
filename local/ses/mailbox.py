"""The mailbox folder: every accepted e-mail as a file, and one line for each acceptance.

``YYYY-MM-DD/HHMMSS-<message id>.eml`` (UTC, when it was accepted) and ``accepted.jsonl``, append-only, one JSON
object a line: ``message_id``, ``accepted_at`` (epoch seconds), ``from``, ``destination`` (addresses),
``suppressed`` (those of them that the account's list held back), ``tags`` (name to value),
``configuration_set`` (or null), ``eml`` (path in the folder, or null when the template did not render).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOG_NAME = "accepted.jsonl"


class Mailbox:
    """Writes both; what ``keep`` returned from is on disk for every reader on the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._days: set[str] = set()

    def keep(self, message_id: str, at: float, raw: bytes | None, line: dict[str, Any]) -> None:
        """Keep one accepted message: the file first, so that a line never names a file that is not there."""
        name = None
        if raw is not None:
            accepted = datetime.fromtimestamp(at, UTC)
            day = f"{accepted:%Y-%m-%d}"
            if day not in self._days:
                (self.folder / day).mkdir(exist_ok=True)
                self._days.add(day)
            name = f"{day}/{accepted:%H%M%S}-{message_id}.eml"
            (self.folder / name).write_bytes(raw)
        text = json.dumps({"message_id": message_id, "accepted_at": at, **line, "eml": name})
        # One write to a file opened for appending: no reader sees half a line, no thread another's.
        os.write(self._log, text.encode() + b"\n")

    def close(self) -> None:
        """Close the log; nothing more can be kept."""
        os.close(self._log)


def accepted(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of the log in ``folder``, oldest first; none when nothing was accepted yet."""
    log = folder / LOG_NAME
    if log.exists():
        with log.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
