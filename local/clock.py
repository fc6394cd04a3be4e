"""The one clock of the local cloud, which tests can move.

Everything that stands for AWS here (Scheduler, Step Functions, SES) asks this clock. Lambda workers
are other processes: they read the same offset from the file named by ``CARILLON_CLOCK_FILE``
(see ``functions/carillon/adapters/clock.py``), so one ``advance`` moves all of them together.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

ENVIRONMENT_VARIABLE = "CARILLON_CLOCK_FILE"


class Clock:
    """Wall time plus an offset in seconds. The offset only grows: AWS's time never runs backwards."""

    def __init__(self, offset_file: Path | None = None) -> None:
        self._offset = 0.0
        self._file = offset_file
        self._moved = threading.Condition()
        self._write()

    def time(self) -> float:
        """Now, as seconds since the epoch (UTC)."""
        return time.time() + self._offset

    def now(self) -> datetime:
        """Now, as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    @property
    def offset(self) -> float:
        """How many seconds this clock is ahead of the machine's."""
        return self._offset

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds`` (>= 0) and wake whoever waits."""
        if seconds < 0:
            raise ValueError(f"the clock cannot run backwards: {seconds} s")
        with self._moved:
            self._offset += seconds
            self._write()
            self._moved.notify_all()

    def advance_to(self, instant: datetime) -> None:
        """Move forward to ``instant`` (aware); an instant already past leaves the clock as it is."""
        self.advance(max(0.0, instant.timestamp() - self.time()))

    def wait_until(self, epoch: float, interrupted: threading.Event | None = None) -> bool:
        """Block until the clock shows ``epoch``; False when ``interrupted`` was set before that."""
        with self._moved:
            while (left := epoch - self.time()) > 0:
                if interrupted is not None and interrupted.is_set():
                    return False
                # An Event cannot wake a Condition, so an interruptible wait looks up every 50 ms.
                self._moved.wait(left if interrupted is None else min(left, 0.05))
        return True

    def sleep(self, seconds: float, interrupted: threading.Event | None = None) -> bool:
        """Block for ``seconds`` of this clock's time; False when interrupted."""
        return self.wait_until(self.time() + seconds, interrupted)

    def _write(self) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(repr(self._offset))
        os.replace(fresh, self._file)
