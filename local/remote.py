"""A local cloud that runs in another process, found by its directory's state file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests

CONTROL_PATH = "/_carillon/"


class Remote:
    """A running cloud. ``environment`` holds its operator's keys and endpoint.

    Raises:
        FileNotFoundError: nothing is up in ``directory``.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mailbox = directory / "mailbox"
        state = json.loads((directory / "cloud.json").read_text())
        self.endpoint: str = state["endpoint"]
        self.environment: dict[str, str] = state["environment"]
        self._token: str = state["token"]

    @classmethod
    def start(cls, directory: Path) -> Remote:
        """Start an empty cloud in ``directory``, ending the one that a former run may have left there."""
        if (directory / "cloud.json").exists():
            cls._run(directory, "down")
        shutil.rmtree(directory, ignore_errors=True)
        cls._run(directory, "up")
        return cls(directory)

    def stop(self) -> None:
        """End it."""
        self._run(self.directory, "down")

    def advance(self, seconds: float) -> datetime:
        """Move its clock forward; the new time (UTC)."""
        return datetime.fromisoformat(self.control("clock/advance", {"seconds": seconds})["now"])

    def now(self) -> datetime:
        """What its clock shows (UTC)."""
        return self.advance(0).astimezone(UTC)

    def control(self, path: str, options: dict[str, Any]) -> dict[str, Any]:
        """Call one of the cloud's own switches (`local.cloud.CONTROLS`)."""
        answer = requests.post(
            self.endpoint + CONTROL_PATH + path, json=options, headers={"x-carillon-token": self._token}, timeout=60
        )
        document: dict[str, Any] = answer.json()
        if not answer.ok:
            raise ValueError(document["message"])
        return document

    @staticmethod
    def _run(directory: Path, command: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "local", command, "--directory", str(directory)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
