"""A thread that does what is due, and sleeps on the cloud's clock until more is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from local.clock import Clock

log = logging.getLogger(__name__)


class Background:
    """``work`` whenever the clock shows what ``due`` says (epoch seconds; infinity: not yet known), until stopped."""

    def __init__(self, name: str, clock: Clock, work: Callable[[], object], due: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._work = work
        self._due = due
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Work from now on."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something has changed: ask again what is due."""
        self._woken.set()

    def stop(self) -> None:
        """Finish what is being done and end; what is not due yet stays undone."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            try:
                self._work()
            except Exception:
                # What fails once must not end all that comes after it.
                log.exception("%s: something was lost", self._name)
            self._clock.wait_until(self._due(), self._woken)
