"""The one thread on which every execution runs, as asyncio tasks, with waits on the movable clock.

Interpreting is CPU work under one lock anyway; one loop gives cheap concurrency (10,000 waiting retries are
10,000 futures), and stopping an execution is cancelling its task. Calls that may block go to threads.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from local.clock import Clock

# How late a wait may see that the clock was moved, in seconds.
_TICK = 0.02
# Lambda calls in flight at most; beyond it they queue.
_CALL_THREADS = 64


class DeadlinePassed(Exception):
    """The clock reached a deadline before the work was done."""


class Runtime:
    """Runs coroutines on a thread of its own and calls out from a pool of threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._threads = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="carillon-task")
        self._heap: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._ticker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="carillon-stepfunctions", daemon=True).start()

    # From other threads

    def submit(self, work: Callable[[], Any]) -> None:
        """Run ``work()`` on the loop's thread, soon; returns at once."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Stop the thread. What still runs is dropped."""

        def stop() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(_TICK, self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # On the loop

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that lives until it ends, whoever holds it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_seen)
        return task

    def cancel_all(self) -> None:
        """Cancel every task that ``start`` started."""
        for task in list(self._tasks):
            task.cancel()

    async def wait_until(self, epoch: float) -> None:
        """Wait until the clock shows ``epoch``."""
        if self.clock.time() >= epoch:
            return
        due: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._heap, (epoch, next(self._order), due))
        if self._ticker is None:
            self._ticker = self._loop.create_task(self._tick())
        await due

    async def within[T](self, work: Awaitable[T], deadline: float | None) -> T:
        """The result of ``work``; cancelled when the clock reaches ``deadline`` (epoch seconds) first.

        Raises:
            DeadlinePassed: it did.
        """
        if deadline is None:
            return await work
        task = asyncio.ensure_future(work)
        alarm = asyncio.ensure_future(self.wait_until(deadline))
        try:
            await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise DeadlinePassed
        finally:
            alarm.cancel()
            task.cancel()

    def in_thread[T](self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run a blocking call; a caller that stops waiting leaves the call to its end, as AWS does."""
        future = self._loop.run_in_executor(self._threads, call)
        future.add_done_callback(_seen)
        return future

    async def _tick(self) -> None:
        while self._heap:
            now = self.clock.time()
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].done()):
                due = heapq.heappop(self._heap)[2]
                if not due.done():
                    due.set_result(None)
            await asyncio.sleep(_TICK)
        self._ticker = None


def _seen(done: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at an outcome; asyncio would complain."""
    if not done.cancelled():
        done.exception()
