"""A Distributed Map: one child execution per item, counted, tolerated, written to S3.

A Map Run may outlive its parent: when that is stopped or times out, nothing new starts, STANDARD children are
stopped, EXPRESS children that already run go on to their end, and then the results are written.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from local.ports import AwsError
from local.stepfunctions import errors
from local.stepfunctions import execution as status
from local.stepfunctions.definition import State
from local.stepfunctions.errors import DATA_LIMIT, QueryFailure, StateError
from local.stepfunctions.execution import Execution, NoHistory, dumps
from local.stepfunctions.integration import iso
from local.stepfunctions.interpreter import Interpreter, Moment
from local.stepfunctions.runtime import DeadlinePassed

# Children at once on one machine, whatever MaxConcurrency allows.
_CHILDREN = 40
# How long an EXPRESS execution may run.
_EXPRESS_SECONDS = 300
_OUTCOMES = {
    status.SUCCEEDED: "succeeded",
    status.FAILED: "failed",
    status.TIMED_OUT: "timedOut",
    status.ABORTED: "aborted",
}
_COUNTS = ("pending", "running", "succeeded", "failed", "timedOut", "aborted", "total", "resultsWritten")


@dataclass(slots=True)
class Child:
    """One child execution, as the result files show it."""

    arn: str
    name: str
    input: str
    started: float
    status: str = status.RUNNING
    stopped: float = 0.0
    output: Any = None
    error: str = ""
    cause: str = ""


class MapRun:
    """One run of a Distributed Map state."""

    def __init__(
        self,
        parent: Interpreter,
        execution_arn: str,
        machine_name: str,
        account_id: str,
        state: State,
        moment: Moment,
        register: Callable[[Execution], None],
    ) -> None:
        """``register`` takes the record of a STANDARD child."""
        self._parent = parent
        self._state = state
        self._moment = moment
        self._register = register
        self._clock = parent.runtime.clock
        self.execution_arn = execution_arn
        self._id = str(uuid.uuid4())
        self._arns = f"arn:aws:states:{parent.region}:{account_id}"
        self._qualified = f"{machine_name}/{state.label or uuid.uuid4()}"
        self.machine_arn = f"{self._arns}:stateMachine:{self._qualified}"
        self.arn = f"{self._arns}:mapRun:{self._qualified}:{self._id}"
        self.express = state.express
        self.status = status.RUNNING
        self.started = self._clock.time()
        self.stopped: float | None = None
        self.max_concurrency: int = parent.number(state.max_concurrency, moment, 0)
        count, percentage = state.tolerated_count, state.tolerated_percentage
        # With neither given nothing is tolerated; with one given the other sets no limit.
        self.tolerated_count: int | None = parent.number(count, moment, None if percentage else 0)
        self.tolerated_percentage: float | None = parent.number(percentage, moment, None)
        self.counts = dict.fromkeys(_COUNTS, 0)
        self._children: list[Child] = []
        self._executions: list[Execution] = []
        self._pending: deque[tuple[int, Any]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = False
        self._exceeded = False
        self._aborted = False

    # What the API shows and changes

    def describe(self) -> dict[str, Any]:
        """DescribeMapRun."""
        counts = {**self.counts, "failuresNotRedrivable": 0, "pendingRedrive": 0}
        return {
            "mapRunArn": self.arn,
            "executionArn": self.execution_arn,
            "status": self.status,
            "startDate": datetime.fromtimestamp(self.started, UTC),
            **({"stopDate": datetime.fromtimestamp(self.stopped, UTC)} if self.stopped else {}),
            "maxConcurrency": self.max_concurrency,
            "toleratedFailurePercentage": self.tolerated_percentage or 0.0,
            "toleratedFailureCount": self.tolerated_count or 0,
            "itemCounts": counts,
            "executionCounts": dict(counts),
            "redriveCount": 0,
        }

    def update(self, max_concurrency: int | None, count: int | None, percentage: float | None) -> None:
        """UpdateMapRun; on the loop's thread."""
        if max_concurrency is not None:
            self.max_concurrency = max_concurrency
        if count is not None:
            self.tolerated_count = count
        if percentage is not None:
            self.tolerated_percentage = percentage
        self._changed.set()

    def abort(self) -> None:
        """The parent is over: start nothing more."""
        self._aborted = True
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._changed.set()
        for execution in self._executions:  # STANDARD children; none for EXPRESS
            if execution.end(status.ABORTED, None, None) and execution.task is not None:
                execution.task.cancel()

    # The run

    async def run(self, value: Any) -> Any:
        """Run all children; the Map state's result.

        Raises:
            StateError: the items cannot be read, too many failed, the results cannot be written.
        """
        try:
            self._pending.extend(enumerate(await self._items(value)))
            self.counts["pending"] = self.counts["total"] = len(self._pending)
            await self._run_children()
            result = await self._results()
            if self._exceeded:
                raise StateError(
                    errors.EXCEED_TOLERATED_FAILURE_THRESHOLD,
                    "The specified tolerated failure threshold was exceeded",
                )
        except (StateError, QueryFailure):
            self._close(status.FAILED)
            raise
        except BaseException:
            self._close(status.ABORTED)
            raise
        self._close(status.SUCCEEDED)
        return result

    def _close(self, ended: str) -> None:
        self.stopped = self._clock.time()
        self.status = status.ABORTED if self._aborted else ended

    async def _run_children(self) -> None:
        while True:
            while self._pending and not self._stopping and len(self._running) < self._limit():
                self._start(*self._pending.popleft())
            if not self._running:
                return
            self._changed.clear()
            woken = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait({*self._running, woken}, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()

    def _limit(self) -> int:
        return min(self.max_concurrency or _CHILDREN, _CHILDREN)

    def _start(self, index: int, item: Any) -> None:
        selected, _ = self._parent.selected(self._state, self._moment, index, item)
        name = str(uuid.uuid4())
        named = f"{self._qualified}:{name}"
        kind = f"express:{named}:{uuid.uuid4()}" if self.express else f"execution:{named}"
        child = Child(f"{self._arns}:{kind}", name, dumps(selected), self._clock.time())
        self._children.append(child)
        self.counts["pending"] -= 1
        self.counts["running"] += 1
        task = self._parent.runtime.start(self._child(child, selected))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _child(self, child: Child, value: Any) -> None:
        try:
            await (self._run_express(child, value) if self.express else self._run_standard(child, value))
        finally:
            child.stopped = self._clock.time()
            self.counts["running"] -= 1
            self.counts[_OUTCOMES[child.status]] += 1
            self._check_threshold()

    async def _run_express(self, child: Child, value: Any) -> None:
        interpreter = self._interpreter(child, value, NoHistory(self._clock))
        try:
            child.output = await self._parent.runtime.within(
                self._processed(interpreter, child, value), child.started + _EXPRESS_SECONDS
            )
            child.status = status.SUCCEEDED
        except DeadlinePassed:
            child.status, child.error = status.TIMED_OUT, errors.TIMEOUT
        except StateError as failure:
            child.status, child.error, child.cause = status.FAILED, failure.error, failure.cause
        except asyncio.CancelledError:
            child.status = status.ABORTED
            raise

    async def _run_standard(self, child: Child, value: Any) -> None:
        execution = Execution(
            child.arn, self.machine_arn, child.name, child.input, self._clock, lambda changed: None, self.arn
        )
        execution.task = asyncio.current_task()
        self._executions.append(execution)
        self._register(execution)
        interpreter = self._interpreter(child, value, execution.history)
        execution.history.add("ExecutionStarted", 0, input=value, roleArn=interpreter.role_arn)
        try:
            child.output = await self._processed(interpreter, child, value)
            execution.succeed(child.output)
        except StateError as failure:
            execution.end(status.FAILED, failure.error, failure.cause)
        except asyncio.CancelledError:
            execution.end(status.ABORTED, None, None)
        child.status = execution.status
        child.error, child.cause = execution.error or "", execution.cause or ""

    async def _processed(self, interpreter: Interpreter, child: Child, value: Any) -> Any:
        assert self._state.processor is not None, "a compiled Map has a processor"
        if len(child.input.encode()) > DATA_LIMIT:
            raise StateError(errors.DATA_LIMIT_EXCEEDED, f"The item exceeds the maximum of {DATA_LIMIT} bytes.")
        return await interpreter.run(self._state.processor, value, {}, 0)

    def _interpreter(self, child: Child, value: Any, history: Any) -> Interpreter:
        parent = self._parent
        context = {
            "Execution": {
                "Id": child.arn,
                "Input": value,
                "Name": child.name,
                "RoleArn": parent.role_arn,
                "StartTime": iso(datetime.fromtimestamp(child.started, UTC)),
            },
            "StateMachine": {"Id": self.machine_arn, "Name": self._qualified},
        }
        return Interpreter(
            parent.runtime,
            parent.caller,
            parent.role_arn,
            parent.machine_arn,
            parent.region,
            context,
            history,
            parent.distributed_map,
        )

    def _check_threshold(self) -> None:
        failed = self.counts["failed"] + self.counts["timedOut"]
        over_count = self.tolerated_count is not None and failed > self.tolerated_count
        over_percentage = (
            self.tolerated_percentage is not None and failed * 100 > self.tolerated_percentage * self.counts["total"]
        )
        if (over_count or over_percentage) and not self._exceeded:
            self._exceeded = True
            self._stop()

    # Items in, results out

    async def _items(self, value: Any) -> list[Any]:
        if self._state.reader is None:
            return self._parent.items(self._state, value, self._moment)
        arguments = self._state.reader.arguments(self._moment.bindings, self._clock.time())
        try:
            answer = await self._parent.runtime.in_thread(lambda: self._s3("GetObject", arguments))
            body = answer["Body"]
            text = (body.read() if hasattr(body, "read") else body).decode("utf-8")
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        except AwsError as refused:
            raise StateError(errors.ITEM_READER_FAILED, f"{refused.code}: {refused.message}") from refused
        except ValueError as error:
            raise StateError(errors.ITEM_READER_FAILED, "The object is not JSON Lines in UTF-8") from error

    async def _results(self) -> Any:
        if self._state.result_writer is None:
            outputs = [
                child.output if child.status == status.SUCCEEDED else self._record(child) for child in self._children
            ]
            if len(dumps(outputs).encode()) > DATA_LIMIT:
                raise StateError(
                    errors.DATA_LIMIT_EXCEEDED,
                    f"The state/task '{self._state.name}' returned a result with a size exceeding the maximum number "
                    "of bytes service limit.",
                )
            return outputs
        arguments = self._state.result_writer(self._moment.bindings, self._clock.time())
        prefix = str(arguments.get("Prefix", "")).rstrip("/")
        directory = f"{prefix}/{self._id}" if prefix else self._id
        try:
            await self._parent.runtime.in_thread(lambda: self._write(arguments["Bucket"], directory))
        except AwsError as refused:
            raise StateError(errors.RESULT_WRITER_FAILED, f"{refused.code}: {refused.message}") from refused
        return {
            "MapRunArn": self.arn,
            "ResultWriterDetails": {"Bucket": arguments["Bucket"], "Key": f"{directory}/manifest.json"},
        }

    def _write(self, bucket: str, directory: str) -> None:
        groups: dict[str, list[dict[str, Any]]] = {"FAILED": [], "PENDING": [], "SUCCEEDED": []}
        for child in self._children:
            groups["SUCCEEDED" if child.status == status.SUCCEEDED else "FAILED"].append(self._record(child))
        for index, item in self._pending:
            selected, _ = self._parent.selected(self._state, self._moment, index, item)
            groups["PENDING"].append(
                {"Input": dumps(selected), "InputDetails": {"Included": True}, "Status": "PENDING"}
            )
        files: dict[str, list[dict[str, Any]]] = {}
        for group, records in groups.items():
            files[group] = []
            if records:
                key, body = f"{directory}/{group}_0.json", dumps(records).encode()
                self._s3("PutObject", {"Bucket": bucket, "Key": key, "Body": body})
                files[group].append({"Key": key, "Size": len(body)})
        manifest = {"DestinationBucket": bucket, "MapRunArn": self.arn, "ResultFiles": files}
        key, body = f"{directory}/manifest.json", dumps(manifest).encode()
        self._s3("PutObject", {"Bucket": bucket, "Key": key, "Body": body})
        self.counts["resultsWritten"] = len(self._children)

    def _record(self, child: Child) -> dict[str, Any]:
        """A child in a result file, every field in the documented order (the alphabet's)."""
        redrivable = child.status in (status.FAILED, status.TIMED_OUT, status.ABORTED)
        record = {
            "Cause": child.cause or None,
            "Error": child.error or None,
            "ExecutionArn": child.arn,
            "Input": child.input,
            "InputDetails": {"Included": True},
            "Name": child.name,
            "Output": dumps(child.output) if child.status == status.SUCCEEDED else None,
            "OutputDetails": {"Included": True},
            "RedriveCount": 0,
            "RedriveStatus": "REDRIVABLE_BY_MAP_RUN" if redrivable else "NOT_REDRIVABLE",
            "RedriveStatusReason": None if redrivable else f"Execution is {child.status} and cannot be redriven",
            "StartDate": iso(datetime.fromtimestamp(child.started, UTC)),
            "StateMachineArn": self.machine_arn,
            "Status": child.status,
            "StopDate": iso(datetime.fromtimestamp(child.stopped, UTC)),
        }
        return {name: value for name, value in record.items() if value is not None}

    def _s3(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        parent = self._parent
        return parent.caller.call("s3", operation, params, parent.role_arn, parent.machine_arn)
