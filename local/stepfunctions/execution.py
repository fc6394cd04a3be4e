"""One execution: its record, its status and its history."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from local.clock import Clock
from local.stepfunctions import errors
from local.stepfunctions.errors import StateError

# A STANDARD execution that writes more events than this fails.
MAX_EVENTS = 25_000
_JSON_DETAILS = ("input", "output", "parameters")

RUNNING = "RUNNING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
TIMED_OUT = "TIMED_OUT"
ABORTED = "ABORTED"


def dumps(value: Any) -> str:
    """JSON as Step Functions measures and shows it: compact, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class History:
    """The events of a STANDARD execution. Values are kept as they are and become JSON text when read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: list[tuple[str, float, int, dict[str, Any]]] = []
        self._closed = False
        self._lock = threading.Lock()

    def add(self, kind: str, previous: int, **details: Any) -> int:
        """Record an event; its id. ``previous`` is the id of the event that led to it.

        Raises:
            StateError: ``States.Runtime`` when only the last event would still fit.
        """
        with self._lock:
            if not self._closed:
                if len(self._events) >= MAX_EVENTS - 1:
                    raise StateError(
                        errors.RUNTIME, f"The execution reached the maximum number of history events ({MAX_EVENTS})."
                    )
                self._events.append((kind, self._clock.time(), previous, details))
            return len(self._events)

    def close(self, kind: str, **details: Any) -> None:
        """Record the last event, for which there is always room: what was under way leaves no trace after it."""
        with self._lock:
            self._events.append((kind, self._clock.time(), len(self._events), details))
            self._closed = True

    def __len__(self) -> int:
        return len(self._events)

    def events(self, with_data: bool) -> list[dict[str, Any]]:
        """All events in the API's shape; without inputs and outputs unless ``with_data``."""
        return [self._shown(index, with_data) for index in range(len(self._events))]

    def _shown(self, index: int, with_data: bool) -> dict[str, Any]:
        kind, time, previous, details = self._events[index]
        shown: dict[str, Any] = {}
        for name, value in details.items():
            if name in _JSON_DETAILS:
                if with_data:
                    shown[name] = dumps(value)
                    if name != "parameters":
                        shown[f"{name}Details"] = {"truncated": False}
            elif name == "assignedVariables":
                if with_data:
                    shown[name] = {variable: dumps(assigned) for variable, assigned in value.items()}
                    shown["assignedVariablesDetails"] = {"truncated": False}
            elif value is not None:
                shown[name] = value
        event = {
            "timestamp": datetime.fromtimestamp(time, UTC),
            "type": kind,
            "id": index + 1,
            "previousEventId": previous,
        }
        if details:
            event[_details_key(kind)] = shown
        return event


class NoHistory(History):
    """EXPRESS children keep none that an API shows."""

    def add(self, kind: str, previous: int, **details: Any) -> int:
        """Record nothing."""
        return 0


def _details_key(kind: str) -> str:
    for suffix in ("StateEntered", "StateExited"):
        if kind.endswith(suffix):
            kind = suffix
    return f"{kind[0].lower()}{kind[1:]}EventDetails"


class Execution:
    """The record of a STANDARD execution; its status leaves RUNNING once."""

    def __init__(
        self,
        arn: str,
        machine_arn: str,
        name: str,
        input_text: str,
        clock: Clock,
        changed: Callable[[Execution], None],
        map_run_arn: str | None = None,
    ) -> None:
        self.arn = arn
        self.machine_arn = machine_arn
        self.name = name
        self.input = input_text
        self.map_run_arn = map_run_arn
        self.status = RUNNING
        self.started = clock.time()
        self.stopped: float | None = None
        self.output: str | None = None
        self.error: str | None = None
        self.cause: str | None = None
        self.history = History(clock)
        self.task: asyncio.Task[Any] | None = None
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()

    def succeed(self, output: Any) -> None:
        """RUNNING → SUCCEEDED, unless it had ended before."""
        self._leave(SUCCEEDED, "ExecutionSucceeded", output=output)

    def end(self, status: str, error: str | None, cause: str | None) -> bool:
        """RUNNING → FAILED, TIMED_OUT or ABORTED; False when it had ended before."""
        kind = {FAILED: "ExecutionFailed", TIMED_OUT: "ExecutionTimedOut", ABORTED: "ExecutionAborted"}[status]
        return self._leave(status, kind, error=error or None, cause=cause or None)

    def _leave(self, status: str, kind: str, **details: Any) -> bool:
        with self._lock:
            if self.status != RUNNING:
                return False
            self.output = dumps(details["output"]) if status == SUCCEEDED else None
            self.error, self.cause = details.get("error"), details.get("cause")
            self.stopped = self._clock.time()
            self.history.close(kind, **details)
            self.status = status  # last: whoever sees it finds the rest
        self._changed(self)
        return True
