"""Faults that a test switches on: Scheduler refusing what it would otherwise take."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from local.contract import contract


@dataclass
class Fault:
    """Answer ``operation`` on resources whose name matches ``name`` with error ``code``, ``times`` times
    (None: until it is cleared)."""

    code: str
    operation: str = "CreateSchedule"
    name: str = "*"
    times: int | None = None


class Faults:
    """The faults that are switched on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def set(self, *faults: Fault) -> None:
        """Switch on ``faults`` and no others; none switches all off."""
        with self._lock:
            self._faults = list(faults)

    def check(self, operation: str, name: str) -> None:
        """Raise what is switched on for this call.

        Raises:
            AwsError: with the fault's code and the status its model gives it.
        """
        if not self._faults:
            return
        with self._lock:
            for fault in self._faults:
                if fault.operation == operation and fault.times != 0 and fnmatchcase(name, fault.name):
                    if fault.times is not None:
                        fault.times -= 1
                    raise contract("scheduler").error(fault.code, f"{fault.code}: switched on for a test")
