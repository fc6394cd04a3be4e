"""The Step Functions API of the local cloud.

STANDARD machines with JSONata run in process, on one thread of their own (``runtime``). Machines are those that
CloudFormation or CreateStateMachine stored in MiniStack; each is checked when it is stored and again, if need be,
when it is first used.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from local.clock import Clock
from local.contract import contract
from local.ports import AwsError, Caller
from local.stepfunctions import errors
from local.stepfunctions import execution as status
from local.stepfunctions.definition import FORBIDDEN_IN_NAMES, Machine, State, compile_definition
from local.stepfunctions.errors import StateError
from local.stepfunctions.execution import Execution
from local.stepfunctions.integration import iso
from local.stepfunctions.interpreter import Interpreter, Moment
from local.stepfunctions.map_run import MapRun
from local.stepfunctions.runtime import DeadlinePassed, Runtime

log = logging.getLogger(__name__)

# EventBridge: an input or output longer than this is left out of the status event.
_EVENT_DATA = 248 * 1024
_REDRIVABLE = (status.FAILED, status.TIMED_OUT, status.ABORTED)


class StepFunctions:
    """A ``seams.Service``: ``handle`` answers one API operation."""

    name = "stepfunctions"

    def __init__(
        self,
        clock: Clock,
        caller: Caller,
        definitions: Callable[[], Mapping[str, Mapping[str, Any]]],
        emit: Callable[[dict[str, Any]], None],
        account_id: str,
        region: str,
    ) -> None:
        """``definitions()`` are the stored machines by ARN: ``definition`` (JSON or YAML text), ``roleArn``,
        ``type``, ``name``, ``creationDate``. ``emit`` publishes an EventBridge event {source, detail-type,
        detail, time, resources}; it is called in order, from one thread."""
        self._clock = clock
        self._caller = caller
        self._definitions = definitions
        self._emit = emit
        self._account_id = account_id
        self._region = region
        self._runtime = Runtime(clock)
        self._events = ThreadPoolExecutor(1, thread_name_prefix="carillon-states-events")
        self._lock = threading.Lock()
        self._executions: dict[str, Execution] = {}
        self._map_runs: dict[str, MapRun] = {}
        self._compiled: dict[str, Machine] = {}
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "StartExecution": self._start_execution,
            "StopExecution": self._stop_execution,
            "DescribeExecution": self._describe_execution,
            "ListExecutions": self._list_executions,
            "GetExecutionHistory": self._get_execution_history,
            "DescribeStateMachine": self._describe_state_machine,
            "ListStateMachines": self._list_state_machines,
            "DescribeMapRun": self._describe_map_run,
            "ListMapRuns": self._list_map_runs,
            "UpdateMapRun": self._update_map_run,
            "ValidateStateMachineDefinition": self._validate_definition,
        }

    def handle(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one operation (members as in botocore's model, times aware).

        Raises:
            AwsError: what AWS would answer; ``UnknownOperationException`` for what is not built.
        """
        answer = self._operations.get(operation)
        if answer is None:
            raise AwsError("UnknownOperationException", f"{operation} is not built into the local cloud")
        contract(self.name).operation(operation).validate(params)
        return answer(params)

    def reset(self) -> None:
        """Drop every execution and Map Run."""
        self._runtime.submit(self._runtime.cancel_all)
        with self._lock:
            self._executions.clear()
            self._map_runs.clear()
            self._compiled.clear()

    def close(self) -> None:
        """Stop the threads."""
        self._runtime.close()
        self._events.shutdown(wait=False, cancel_futures=True)

    # Executions

    def _start_execution(self, params: Mapping[str, Any]) -> dict[str, Any]:
        machine_arn, stored = self._stored(params["stateMachineArn"])
        machine = self._machine(stored)
        name, text = params.get("name") or str(uuid.uuid4()), params.get("input", "{}")
        if FORBIDDEN_IN_NAMES.search(name):
            raise self._error("InvalidName", f"Invalid Name: '{name}'")
        value = _json_input(text)
        arn = f"arn:aws:states:{self._region}:{self._account_id}:execution:{stored['name']}:{name}"
        with self._lock:
            if (existing := self._executions.get(arn)) is not None:
                if existing.status == status.RUNNING and existing.input == text:
                    return {"executionArn": arn, "startDate": _moment(existing.started)}
                raise self._error("ExecutionAlreadyExists", f"Execution Already Exists: '{arn}'")
            execution = Execution(arn, machine_arn, name, text, self._clock, self._status_changed)
            self._executions[arn] = execution
        execution.history.add("ExecutionStarted", 0, input=value, roleArn=stored["roleArn"])
        self._status_changed(execution)
        self._runtime.submit(lambda: self._begin(execution, machine, stored, value))
        return {"executionArn": arn, "startDate": _moment(execution.started)}

    def _begin(self, execution: Execution, machine: Machine, stored: Mapping[str, Any], value: Any) -> None:
        if execution.status == status.RUNNING:  # not stopped in the meantime
            execution.task = self._runtime.start(self._execute(execution, machine, stored, value))

    async def _execute(self, execution: Execution, machine: Machine, stored: Mapping[str, Any], value: Any) -> None:
        context = {
            "Execution": {
                "Id": execution.arn,
                "Input": value,
                "Name": execution.name,
                "RoleArn": stored["roleArn"],
                "StartTime": iso(_moment(execution.started)),
                "RedriveCount": 0,
            },
            "StateMachine": {"Id": execution.machine_arn, "Name": stored["name"]},
        }

        async def distributed(parent: Interpreter, state: State, value: Any, moment: Moment) -> Any:
            return await self._distributed_map(execution, stored["name"], parent, state, value, moment)

        interpreter = Interpreter(
            self._runtime,
            self._caller,
            stored["roleArn"],
            execution.machine_arn,
            self._region,
            context,
            execution.history,
            distributed,
        )
        deadline = None if machine.timeout is None else execution.started + machine.timeout
        try:
            work = interpreter.run(machine, value, {}, 0)
            execution.succeed(await self._runtime.within(work, deadline))
        except StateError as failure:
            execution.end(status.FAILED, failure.error, failure.cause)
        except DeadlinePassed:
            execution.end(status.TIMED_OUT, None, None)
        except Exception as fault:
            log.exception("The interpreter broke in %s", execution.arn)
            execution.end(status.FAILED, errors.RUNTIME, f"{type(fault).__name__} in the local cloud")

    async def _distributed_map(
        self,
        execution: Execution,
        machine_name: str,
        parent: Interpreter,
        state: State,
        value: Any,
        moment: Moment,
    ) -> Any:
        run = MapRun(parent, execution.arn, machine_name, self._account_id, state, moment, self._register)
        with self._lock:
            self._map_runs[run.arn] = run
        begun = parent.history.add("MapRunStarted", moment.entered, mapRunArn=run.arn)
        task = self._runtime.start(run.run(value))
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            run.abort()
            raise
        except StateError as failure:
            parent.history.add("MapRunFailed", begun, error=failure.error, cause=failure.cause)
            raise
        parent.history.add("MapRunSucceeded", begun)
        return result

    def _register(self, child: Execution) -> None:
        with self._lock:
            self._executions[child.arn] = child

    def _stop_execution(self, params: Mapping[str, Any]) -> dict[str, Any]:
        execution = self._execution(params["executionArn"])
        if execution.end(status.ABORTED, params.get("error"), params.get("cause")):
            self._runtime.submit(lambda: execution.task.cancel() if execution.task else None)
        # Stopping what has ended changes nothing and is answered with the end it had.
        return {"stopDate": _moment(execution.stopped)}

    def _describe_execution(self, params: Mapping[str, Any]) -> dict[str, Any]:
        execution = self._execution(params["executionArn"])
        described = {
            **_listed(execution),
            "input": execution.input,
            "inputDetails": {"included": True},
            "output": execution.output,
            "outputDetails": {"included": True} if execution.output is not None else None,
            "error": execution.error,
            "cause": execution.cause,
            "redriveCount": 0,
            **_redrive(execution),
        }
        return {member: value for member, value in described.items() if value is not None}

    def _list_executions(self, params: Mapping[str, Any]) -> dict[str, Any]:
        machine_arn, run_arn = params.get("stateMachineArn"), params.get("mapRunArn")
        if (machine_arn is None) == (run_arn is None):
            raise self._error("ValidationException", "Provide either stateMachineArn or mapRunArn, not both")
        if run_arn is not None and self._map_run(run_arn).express:
            raise self._error(
                "StateMachineTypeNotSupported", "This operation is not supported by this type of state machine"
            )
        if machine_arn is not None:
            self._stored(machine_arn)
        with self._lock:
            found = [
                execution
                for execution in self._executions.values()
                if execution.map_run_arn == run_arn
                and machine_arn in (None, execution.machine_arn)
                and params.get("statusFilter") in (None, execution.status)
            ]
        found.sort(key=lambda execution: execution.stopped or execution.started, reverse=True)
        page, token = self._page(found, params, 100)
        listed = [
            {member: value for member, value in _listed(execution).items() if value is not None} for execution in page
        ]
        return {"executions": listed, **token}

    def _get_execution_history(self, params: Mapping[str, Any]) -> dict[str, Any]:
        execution = self._execution(params["executionArn"])
        events = execution.history.events(params.get("includeExecutionData", True))
        if params.get("reverseOrder"):
            events.reverse()
        page, token = self._page(events, params, 100)
        return {"events": page, **token}

    # Map Runs

    def _describe_map_run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return self._map_run(params["mapRunArn"]).describe()

    def _list_map_runs(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._execution(params["executionArn"])
        with self._lock:
            runs = [run for run in self._map_runs.values() if run.execution_arn == params["executionArn"]]
        page, token = self._page(runs, params, 100)
        listed = [
            {
                "executionArn": run.execution_arn,
                "mapRunArn": run.arn,
                "stateMachineArn": run.machine_arn,
                "startDate": _moment(run.started),
                **({"stopDate": _moment(run.stopped)} if run.stopped else {}),
            }
            for run in page
        ]
        return {"mapRuns": listed, **token}

    def _update_map_run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        run = self._map_run(params["mapRunArn"])
        if run.status != status.RUNNING:
            raise self._error("ValidationException", f"Map Run is not running: '{run.arn}'")
        limits = [
            params.get(limit) for limit in ("maxConcurrency", "toleratedFailureCount", "toleratedFailurePercentage")
        ]
        self._runtime.submit(lambda: run.update(*limits))
        return {}

    # Machines

    def _describe_state_machine(self, params: Mapping[str, Any]) -> dict[str, Any]:
        arn, stored = self._stored(params["stateMachineArn"])
        return {
            "stateMachineArn": arn,
            "name": stored["name"],
            "status": "ACTIVE",
            "definition": json.dumps(self._machine(stored).source),
            "roleArn": stored["roleArn"],
            "type": stored.get("type", "STANDARD"),
            "creationDate": _created(stored),
            "loggingConfiguration": stored.get("loggingConfiguration", {"level": "OFF"}),
        }

    def _list_state_machines(self, params: Mapping[str, Any]) -> dict[str, Any]:
        listed = [
            {
                "stateMachineArn": arn,
                "name": stored["name"],
                "type": stored.get("type", "STANDARD"),
                "creationDate": _created(stored),
            }
            for arn, stored in self._definitions().items()
        ]
        page, token = self._page(listed, params, 100)
        return {"stateMachines": page, **token}

    def _validate_definition(self, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            compile_definition(params["definition"], params.get("type", "STANDARD"))
        except AwsError as refused:
            diagnostic = {"severity": "ERROR", "code": "SCHEMA_VALIDATION_FAILED", "message": refused.message}
            return {"result": "FAIL", "diagnostics": [diagnostic], "truncated": False}
        return {"result": "OK", "diagnostics": [], "truncated": False}

    def _machine(self, stored: Mapping[str, Any]) -> Machine:
        text = stored["definition"]
        if (machine := self._compiled.get(text)) is None:
            machine = self._compiled[text] = compile_definition(text, stored.get("type", "STANDARD"))
        return machine

    # Look-ups

    def _stored(self, arn: str) -> tuple[str, Mapping[str, Any]]:
        if (stored := self._definitions().get(arn)) is None:
            raise self._error("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
        return arn, stored

    def _execution(self, arn: str) -> Execution:
        with self._lock:
            if (execution := self._executions.get(arn)) is None:
                raise self._error("ExecutionDoesNotExist", f"Execution Does Not Exist: '{arn}'")
        return execution

    def _map_run(self, arn: str) -> MapRun:
        with self._lock:
            if (run := self._map_runs.get(arn)) is None:
                raise self._error("ResourceNotFound", f"Map Run Does Not Exist: '{arn}'")
        return run

    def _page[T](self, found: list[T], params: Mapping[str, Any], default: int) -> tuple[list[T], dict[str, str]]:
        start = 0
        if token := params.get("nextToken"):
            if not token.isdecimal():
                raise self._error("InvalidToken", "Invalid Token: 'Invalid token'")
            start = int(token)
        end = start + (params.get("maxResults") or default)
        return found[start:end], {"nextToken": str(end)} if end < len(found) else {}

    def _error(self, code: str, message: str) -> AwsError:
        return contract(self.name).error(code, message)

    # Events

    def _status_changed(self, execution: Execution) -> None:
        """Publish "Step Functions Execution Status Change", best effort as on AWS, never in the way."""
        event = self._status_event(execution)

        def publish() -> None:
            try:
                self._emit(event)
            except Exception:
                log.exception("The status change of %s was not published", execution.arn)

        self._events.submit(publish)

    def _status_event(self, execution: Execution) -> dict[str, Any]:
        ended = execution.stopped
        return {
            "source": "aws.states",
            "detail-type": "Step Functions Execution Status Change",
            "time": _moment(ended or execution.started).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "resources": [execution.arn],
            "detail": {
                "executionArn": execution.arn,
                "stateMachineArn": execution.machine_arn,
                "name": execution.name,
                "status": execution.status,
                "startDate": int(execution.started * 1000),
                "stopDate": None if ended is None else int(ended * 1000),
                **_event_data("input", execution.input),
                **_event_data("output", execution.output),
                "error": execution.error,
                "cause": execution.cause,
                "stateMachineVersionArn": None,
                "stateMachineAliasArn": None,
                "redriveCount": 0,
                "redriveDate": None,
                **_redrive(execution),
            },
        }


def _json_input(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise contract("stepfunctions").error(
            "InvalidExecutionInput", "Invalid State Machine Execution Input: 'not JSON'"
        ) from error


def _event_data(name: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {name: None, f"{name}Details": None}
    included = len(text.encode()) <= _EVENT_DATA
    return {name: text if included else None, f"{name}Details": {"included": included}}


def _redrive(execution: Execution) -> dict[str, Any]:
    if execution.status in _REDRIVABLE:
        return {"redriveStatus": "REDRIVABLE", "redriveStatusReason": None}
    return {
        "redriveStatus": "NOT_REDRIVABLE",
        "redriveStatusReason": f"Execution is {execution.status} and cannot be redriven",
    }


def _listed(execution: Execution) -> dict[str, Any]:
    return {
        "executionArn": execution.arn,
        "stateMachineArn": execution.machine_arn,
        "name": execution.name,
        "status": execution.status,
        "startDate": _moment(execution.started),
        "stopDate": None if execution.stopped is None else _moment(execution.stopped),
        "mapRunArn": execution.map_run_arn,
    }


def _moment(epoch: float | None) -> datetime:
    assert epoch is not None, "an execution that ended has an end"
    return datetime.fromtimestamp(epoch, UTC)


def _created(stored: Mapping[str, Any]) -> datetime:
    created = stored.get("creationDate")
    if isinstance(created, int | float):
        return _moment(created)
    return datetime.fromisoformat(str(created).replace("Z", "+00:00")) if created else _moment(0)
