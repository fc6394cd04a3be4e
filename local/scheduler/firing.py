"""Invokes what is due: the schedule's target, as the schedule's role, with its retries and dead letters."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from local.clock import Clock
from local.ports import AwsError, Caller

if TYPE_CHECKING:
    from local.scheduler.service import Schedule

log = logging.getLogger(__name__)

WORKERS = 12
# Backoff between attempts, in seconds of the clock: AWS says exponential and no more.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 300.0
# Bodies of dead letters are cut at this size of the queue's quota.
_DEAD_LETTER_LIMIT = 1_048_576


@dataclass(slots=True)
class _Attempt:
    schedule: Schedule
    number: int  # 1 for the first
    due: float


class Firing:
    """A heap of what is due when, one thread that waits on the clock, and a bounded pool that calls."""

    def __init__(
        self,
        clock: Clock,
        caller: Caller,
        arn_prefix: str,
        account_id: str,
        region: str,
        completed: Callable[[Schedule], None],
    ) -> None:
        self._clock = clock
        self._caller = caller
        self._arn_prefix = arn_prefix
        self._account_id = account_id
        self._region = region
        self._completed = completed
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, _Attempt | Callable[[], None]]] = []
        self._planned: dict[str, Schedule] = {}
        self._sooner = threading.Event()
        self._closed = False
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="carillon-scheduler-fire")
        self._thread = threading.Thread(target=self._run, name="carillon-scheduler", daemon=True)
        self._thread.start()

    def plan(self, schedule: Schedule) -> None:
        """Fire ``schedule`` when it is due, instead of what was planned under its ARN.

        Precision is a minute: an instant of the minute that runs now is due, an earlier one never comes.
        """
        with self._lock:
            self._planned[schedule.arn] = schedule
        if schedule.params.get("State") == "DISABLED":
            return
        now = self._clock.time()
        if schedule.due < now - now % 60:
            return
        window = schedule.params["FlexibleTimeWindow"].get("MaximumWindowInMinutes", 0) * 60
        due = schedule.due + (zlib.crc32(schedule.arn.encode()) % window if window else 0)
        self._push(due, _Attempt(schedule, 1, due))

    def forget(self, schedule: Schedule) -> None:
        """Do not fire ``schedule`` any more; a call under way is not stopped."""
        with self._lock:
            if self._planned.get(schedule.arn) is schedule:
                del self._planned[schedule.arn]

    def at(self, epoch: float, action: Callable[[], None]) -> None:
        """Run ``action`` when the clock shows ``epoch``."""
        self._push(epoch, action)

    def reset(self) -> None:
        """Forget everything planned."""
        with self._lock:
            self._heap.clear()
            self._planned.clear()

    def close(self) -> None:
        """Stop; what is under way is finished."""
        self._closed = True
        self._sooner.set()
        self._thread.join(timeout=5)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _push(self, epoch: float, what: _Attempt | Callable[[], None]) -> None:
        with self._lock:
            entry = (epoch, next(self._order), what)
            heapq.heappush(self._heap, entry)
            first = self._heap[0] is entry
        if first:
            self._sooner.set()

    def _run(self) -> None:
        while not self._closed:
            self._sooner.clear()
            with self._lock:
                next_due = self._heap[0][0] if self._heap else None
            if next_due is None:
                self._sooner.wait()
            elif self._clock.wait_until(next_due, self._sooner):
                with self._lock:
                    if not self._heap or self._heap[0][0] > self._clock.time():
                        continue
                    what = heapq.heappop(self._heap)[2]
                self._pool.submit(self._fire, what) if isinstance(what, _Attempt) else what()

    def _fire(self, attempt: _Attempt) -> None:
        schedule = attempt.schedule
        with self._lock:
            if self._planned.get(schedule.arn) is not schedule:
                return  # deleted or replaced meanwhile
        try:
            self._invoke(attempt)
        except AwsError as refused:
            self._failed(attempt, refused)
        except Exception:
            log.exception("firing %s broke", schedule.arn)
            self._failed(attempt, AwsError("InternalServerException", "the local cloud's Scheduler broke", 500))
        else:
            self._completed(schedule)

    def _invoke(self, attempt: _Attempt) -> None:
        schedule = attempt.schedule
        target = schedule.params["Target"]
        event = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "Scheduled Event",
            "source": "aws.scheduler",
            "account": self._account_id,
            "time": _time(schedule.due),
            "region": self._region,
            "resources": [schedule.arn],
            "detail": "{}",
        }
        group = target.get("SqsParameters", {}).get("MessageGroupId")
        params = schedule.action.params(self._input(attempt), event, group)
        self._call(schedule, schedule.action.service, schedule.action.operation, params)

    def _input(self, attempt: _Attempt) -> str | None:
        text: str | None = attempt.schedule.params["Target"].get("Input")
        if text is not None and "<aws.scheduler." in text:
            for name, value in (
                ("schedule-arn", attempt.schedule.arn),
                ("scheduled-time", _time(attempt.schedule.due)),
                ("execution-id", str(uuid.uuid4())),
                ("attempt-number", str(attempt.number)),
            ):
                text = text.replace(f"<aws.scheduler.{name}>", value)
        return text

    def _call(self, schedule: Schedule, service: str, operation: str, params: dict[str, Any]) -> None:
        role = schedule.params["Target"]["RoleArn"]
        self._caller.call(service, operation, params, role, f"{self._arn_prefix}:schedule-group/{schedule.group}")

    def _failed(self, attempt: _Attempt, error: AwsError) -> None:
        schedule = attempt.schedule
        policy = schedule.params["Target"].get("RetryPolicy", {})
        again = self._clock.time() + min(_FIRST_BACKOFF * 2 ** (attempt.number - 1), _LONGEST_BACKOFF)
        exhausted = None
        if _retryable(error):
            if attempt.number > policy.get("MaximumRetryAttempts", 185):
                exhausted = "MaximumRetryAttempts"
            elif again > attempt.due + policy.get("MaximumEventAgeInSeconds", 86_400):
                exhausted = "MaximumEventAgeInSeconds"
            else:
                self._push(again, _Attempt(schedule, attempt.number + 1, attempt.due))
                return
        self._bury(attempt, error, exhausted)
        self._completed(schedule)

    def _bury(self, attempt: _Attempt, error: AwsError, exhausted: str | None) -> None:
        schedule = attempt.schedule
        queue = schedule.params["Target"].get("DeadLetterConfig", {}).get("Arn")
        if queue is None:
            log.warning("%s: %s, and no dead-letter queue", schedule.arn, error.code)
            return
        body = self._input(attempt) or "{}"
        cut = body.encode()[:_DEAD_LETTER_LIMIT].decode(errors="ignore")
        attributes = {
            "ERROR_CODE": error.code,
            "ERROR_MESSAGE": error.message[:1024] or error.code,
            "EXECUTION_ID": str(uuid.uuid4()),
            "IS_PAYLOAD_TRUNCATED": str(cut != body).lower(),
            "RETRY_ATTEMPTS": str(attempt.number - 1),
            "SCHEDULED_TIME": _time(schedule.due),
            "SCHEDULE_ARN": schedule.arn,
            "TARGET_ARN": schedule.params["Target"]["Arn"],
        } | ({"EXHAUSTED_RETRY_CONDITION": exhausted} if exhausted else {})
        account, name = queue.split(":")[4:6]
        letter = {
            "QueueUrl": f"https://sqs.amazonaws.com/{account}/{name}",
            "MessageBody": cut,
            "MessageAttributes": {
                key: {"DataType": "String", "StringValue": value} for key, value in attributes.items()
            },
        }
        try:
            self._call(schedule, "sqs", "SendMessage", letter)
        except AwsError as refused:
            log.warning("%s: its dead-letter queue refused too: %s", schedule.arn, refused.code)


def _retryable(error: AwsError) -> bool:
    """Faults of the service and throttling pass; what it refuses it will refuse again."""
    return error.status >= 500 or error.status == 429 or "Throttl" in error.code


def _time(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
