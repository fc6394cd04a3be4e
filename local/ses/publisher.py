"""Hands SES's events to the event destinations of their configuration set, when their time has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from local.background import Background
from local.clock import Clock
from local.ports import AwsError, Caller
from local.ses.events import EVENT_TYPES, Happening, bus_event, record

# PutRecordBatch's limits (botocore firehose).
_MAX_RECORDS, _MAX_BYTES = 500, 4 * 1024 * 1024
_RETRY_SECONDS, _MAX_ATTEMPTS = 1.0, 5

type Emit = Callable[[dict[str, Any]], None]
type Destinations = Callable[[str | None], Iterable[Mapping[str, Any]]]
type _Entry = tuple[float, int, int, Happening, _Target | None]


class _Target(NamedTuple):
    """A stream, the role to write to it as, and the configuration set for which that is done."""

    stream_arn: str
    role_arn: str
    source_arn: str


logger = logging.getLogger(__name__)


class Publisher:
    """A queue of happenings ordered by time, and a thread that publishes those that are due.

    ``destinations`` gives the event destinations of a configuration set as they are at that moment (members
    as in botocore's ``EventDestination``); ``happened`` is told of each happening before it is published;
    ``emit`` puts an event on the default event bus.
    """

    def __init__(
        self,
        clock: Clock,
        caller: Caller,
        destinations: Destinations,
        happened: Callable[[Happening], None],
        emit: Emit | None,
    ) -> None:
        self._clock = clock
        self._caller = caller
        self._destinations = destinations
        self._happened = happened
        self._emit = emit
        self._queue: list[_Entry] = []
        self._order = itertools.count()
        self._changed = threading.Lock()
        self._publishing = threading.Lock()
        self._background = Background("ses-events", clock, self.publish_due, self._next_due)
        self.dropped = 0

    def add(self, happenings: Iterable[Happening]) -> None:
        """Queue ``happenings`` for their times."""
        with self._changed:
            for happening in happenings:
                heapq.heappush(self._queue, (happening.at, next(self._order), 0, happening, None))
        self._background.wake()

    def publish_due(self) -> int:
        """Publish whatever is due by now; how many happenings that were."""
        with self._publishing:
            due = self._take_due()
            batches: dict[_Target, list[tuple[bytes, Happening, int]]] = defaultdict(list)
            for _, _, attempts, happening, stream in due:
                if stream is not None:
                    batches[stream].append((record(happening), happening, attempts))
                    continue
                self._happened(happening)
                for destination in self._matching(happening):
                    if firehose := destination.get("KinesisFirehoseDestination"):
                        source = happening.message.configuration_set_arn
                        target = _Target(firehose["DeliveryStreamArn"], firehose["IamRoleArn"], source)
                        batches[target].append((record(happening), happening, 0))
                    elif self._emit is not None:
                        self._emit(bus_event(happening))
            for target, entries in batches.items():
                for chunk in _chunks(entries):
                    self._put(target, chunk)
            return len(due)

    def start(self) -> None:
        """Publish in the background from now on."""
        self._background.start()

    def stop(self) -> None:
        """End the background thread; what is still queued stays unpublished."""
        self._background.stop()

    def clear(self) -> None:
        """Forget everything that is still queued."""
        with self._changed:
            self._queue.clear()

    def _next_due(self) -> float:
        with self._changed:
            return self._queue[0][0] if self._queue else float("inf")

    def _take_due(self) -> list[_Entry]:
        now, due = self._clock.time(), []
        with self._changed:
            while self._queue and self._queue[0][0] <= now:
                due.append(heapq.heappop(self._queue))
        return due

    def _matching(self, happening: Happening) -> Iterator[Mapping[str, Any]]:
        wanted = EVENT_TYPES[happening.event_type].matching
        for destination in self._destinations(happening.message.configuration_set):
            if destination.get("Enabled") and wanted in destination["MatchingEventTypes"]:
                yield destination

    def _put(self, target: _Target, chunk: list[tuple[bytes, Happening, int]]) -> None:
        params = {
            "DeliveryStreamName": target.stream_arn.rpartition("/")[2],
            "Records": [{"Data": data} for data, _, _ in chunk],
        }
        try:
            answer = self._caller.call("firehose", "PutRecordBatch", params, target.role_arn, target.source_arn)
            failed = [
                entry
                for entry, response in zip(chunk, answer["RequestResponses"], strict=True)
                if "ErrorCode" in response
            ]
            reason = "ServiceUnavailableException"
        except AwsError as error:
            failed, reason = chunk, error.code
        if failed:
            self._retry(target, failed, reason)

    def _retry(self, target: _Target, failed: list[tuple[bytes, Happening, int]], reason: str) -> None:
        again = self._clock.time() + _RETRY_SECONDS
        lost = 0
        with self._changed:
            for _, happening, attempts in failed:
                if attempts + 1 >= _MAX_ATTEMPTS:
                    lost += 1
                else:
                    entry = (again, next(self._order), attempts + 1, happening, target)
                    heapq.heappush(self._queue, entry)
        if lost:
            self.dropped += lost
            logger.warning("%d events could not be given to %s: %s", lost, target.stream_arn, reason)


def _chunks(
    entries: list[tuple[bytes, Happening, int]],
) -> Iterator[list[tuple[bytes, Happening, int]]]:
    chunk: list[tuple[bytes, Happening, int]] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == _MAX_RECORDS or size + len(entry[0]) > _MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry[0])
    if chunk:
        yield chunk
