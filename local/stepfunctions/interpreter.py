"""Runs the states of one machine: input in, output out, with Assign, Retry, Catch and inline Maps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.utils import parse_timestamp

from local.ports import Caller
from local.stepfunctions import errors
from local.stepfunctions.definition import Machine, Render, Retrier, State
from local.stepfunctions.errors import DATA_LIMIT, VARIABLES_LIMIT, QueryFailure, StateError, matches
from local.stepfunctions.execution import History, dumps
from local.stepfunctions.integration import iso
from local.stepfunctions.runtime import DeadlinePassed, Runtime

# What AWS allows an inline Map at once.
_INLINE_CONCURRENCY = 40

type Variables = dict[str, Any]
type DistributedMap = Callable[["Interpreter", State, Any, "Moment"], Awaitable[Any]]


@dataclass(slots=True)
class Moment:
    """One visit of a state: what its expressions can see, and the id of the event that entered it."""

    bindings: dict[str, Any]
    entered: int

    def seeing(self, **members: Any) -> dict[str, Any]:
        """The bindings with more members of ``$states``."""
        return {**self.bindings, "states": {**self.bindings["states"], **members}}


@dataclass(slots=True)
class _Outcome:
    """How a visit ends: the next state (None = the machine ends), its input, the variables that change."""

    next: str | None
    output: Any
    assigned: dict[str, Any]


class Interpreter:
    """Runs machines for one execution (or one child of a Distributed Map)."""

    def __init__(
        self,
        runtime: Runtime,
        caller: Caller,
        role_arn: str,
        machine_arn: str,
        region: str,
        context: dict[str, Any],
        history: History,
        distributed_map: DistributedMap,
    ) -> None:
        """``machine_arn`` is the machine that holds the role; ``context`` has the Context Object's ``Execution``
        and ``StateMachine``."""
        self.runtime = runtime
        self.caller = caller
        self.role_arn = role_arn
        self.machine_arn = machine_arn
        self.region = region
        self.context = context
        self.history = history
        self.distributed_map = distributed_map

    async def run(self, machine: Machine, value: Any, variables: Variables, previous: int, item: Any = None) -> Any:
        """Run ``machine`` on input ``value``; ``item`` is the Context Object's ``Map`` inside an inline Map.

        Raises:
            StateError: what no Catch took.
        """
        name: str | None = machine.start_at
        while name is not None:
            state = machine.states[name]
            outcome, previous = await self._visit(state, value, variables, previous, item)
            variables.update(outcome.assigned)
            name, value = outcome.next, outcome.output
        return value

    async def _visit(
        self, state: State, value: Any, variables: Variables, previous: int, item: Any
    ) -> tuple[_Outcome, int]:
        entered = self.history.add(f"{state.type}StateEntered", previous, name=state.name, input=value)
        now = self.runtime.clock.time()
        context = {
            **self.context,
            "State": {"Name": state.name, "EnteredTime": iso(datetime.fromtimestamp(now, UTC)), "RetryCount": 0},
        }
        if item is not None:
            context["Map"] = item
        moment = Moment({**variables, "states": {"input": value, "context": context}}, entered)
        if state.type in ("Task", "Map"):
            outcome = await self._attempt(state, value, moment, context)
        else:
            try:
                outcome = await self._pass_through(state, value, moment)
            except QueryFailure as failure:
                raise self._evaluation_failed(state, moment, failure) from failure
        exited = self.history.add(
            f"{state.type}StateExited",
            max(entered, len(self.history)),
            name=state.name,
            output=outcome.output,
            **({"assignedVariables": outcome.assigned} if outcome.assigned else {}),
        )
        return outcome, exited

    # States that call nothing

    async def _pass_through(self, state: State, value: Any, moment: Moment) -> _Outcome:
        now = self.runtime.clock.time()
        match state.type:
            case "Choice":
                for rule in state.choices:
                    if rule.condition(moment.bindings, now):
                        return self._finish(rule.next, rule.assign, rule.output, moment.bindings, value)
                if state.default is None:
                    raise StateError(errors.NO_CHOICE_MATCHED, f"No choice rule of '{state.name}' matched")
                return self._finish(state.default, state.assign, state.output, moment.bindings, value)
            case "Wait":
                await self.runtime.wait_until(self._wait_end(state, moment, now))
            case "Fail":
                error = state.error(moment.bindings, now) if state.error else ""
                raise StateError(error, state.cause(moment.bindings, now) if state.cause else "")
        return self._finish(state.next, state.assign, state.output, moment.bindings, value)

    def _wait_end(self, state: State, moment: Moment, now: float) -> float:
        if state.seconds is not None:
            return now + float(state.seconds(moment.bindings, now))
        assert state.timestamp is not None, "the definition has exactly one of Seconds and Timestamp"
        end: float = parse_timestamp(state.timestamp(moment.bindings, now)).timestamp()
        return end

    # Task and Map: Retry and Catch

    async def _attempt(self, state: State, value: Any, moment: Moment, context: dict[str, Any]) -> _Outcome:
        attempts = [0] * len(state.retry)
        while True:
            try:
                result = await (self._task if state.type == "Task" else self._map)(state, value, moment)
                return self._finish(state.next, state.assign, state.output, moment.seeing(result=result), result)
            except QueryFailure as failure:
                error = self._evaluation_failed(state, moment, failure)
            except StateError as failure:
                error = failure
            delay = _retry_delay(state.retry, attempts, error.error)
            if delay is None:
                return self._catch(state, error, moment)
            context["State"] = {**context["State"], "RetryCount": sum(attempts)}
            await self.runtime.wait_until(self.runtime.clock.time() + delay)

    def _catch(self, state: State, error: StateError, moment: Moment) -> _Outcome:
        for catcher in state.catch:
            if matches(error.error, catcher.error_equals):
                bindings = moment.seeing(errorOutput=error.output)
                try:
                    return self._finish(catcher.next, catcher.assign, catcher.output, bindings, error.output)
                except QueryFailure as failure:
                    raise self._evaluation_failed(state, moment, failure) from failure
        raise error

    async def _task(self, state: State, value: Any, moment: Moment) -> Any:
        task, now = state.task, self.runtime.clock.time()
        assert task is not None, "a compiled Task has an integration"
        arguments = state.arguments(moment.bindings, now) if state.arguments else value
        _limit(arguments, "The Arguments of the state/task")
        seconds = state.timeout(moment.bindings, now) if state.timeout else None
        what = {"resourceType": task.resource_type, "resource": task.action}
        scheduled = self.history.add(
            "TaskScheduled",
            moment.entered,
            **what,
            region=self.region,
            parameters=arguments,
            timeoutInSeconds=seconds,
        )
        started = self.history.add("TaskStarted", scheduled, **what)
        try:
            if task.in_process:
                result = task.call(self.caller, arguments, self.role_arn, self.machine_arn)
            else:
                call = self.runtime.in_thread(
                    lambda: task.call(self.caller, arguments, self.role_arn, self.machine_arn)
                )
                result = await self.runtime.within(call, None if seconds is None else now + seconds)
            if len(dumps(result).encode()) > DATA_LIMIT:
                raise StateError(
                    errors.DATA_LIMIT_EXCEEDED,
                    f"The state/task '{task.resource_type}' returned a result with a size exceeding the maximum "
                    "number of bytes service limit.",
                )
        except DeadlinePassed:
            self.history.add("TaskTimedOut", started, **what, error=errors.TIMEOUT)
            raise StateError(errors.TIMEOUT) from None
        except StateError as failure:
            if failure.error == errors.RUNTIME:
                failure = StateError(failure.error, _told(state, moment, failure.cause))
            self.history.add("TaskFailed", started, **what, error=failure.error, cause=failure.cause)
            raise failure from None
        self.history.add("TaskSucceeded", started, **what, output=result)
        return result

    # Map

    async def _map(self, state: State, value: Any, moment: Moment) -> Any:
        if state.distributed:
            return await self.distributed_map(self, state, value, moment)
        items = self.items(state, value, moment)
        limit = self.number(state.max_concurrency, moment, 0)
        started = self.history.add("MapStateStarted", moment.entered, length=len(items))
        results: list[Any] = [None] * len(items)
        numbered = iter(enumerate(items))

        async def work() -> None:
            for index, item in numbered:
                results[index] = await self._iteration(state, moment, index, item, started)
                await asyncio.sleep(0)  # calls answered in process would keep everyone else waiting

        concurrency = min(limit or _INLINE_CONCURRENCY, _INLINE_CONCURRENCY, len(items))
        await _all_or_first_error([work() for _ in range(concurrency)])
        _limit(results, f"The state/task '{state.name}'")
        self.history.add("MapStateSucceeded", len(self.history))
        return results

    async def _iteration(self, state: State, moment: Moment, index: int, item: Any, previous: int) -> Any:
        what = {"name": state.name, "index": index}
        begun = self.history.add("MapIterationStarted", previous, **what)
        assert state.processor is not None, "a compiled Map has a processor"
        try:
            selected, here = self.selected(state, moment, index, item)
            variables = {name: held for name, held in moment.bindings.items() if name != "states"}
            result = await self.run(state.processor, selected, variables, begun, here)
        except asyncio.CancelledError:
            self.history.add("MapIterationAborted", begun, **what)
            raise
        except (StateError, QueryFailure):
            self.history.add("MapIterationFailed", len(self.history), **what)
            raise
        self.history.add("MapIterationSucceeded", len(self.history), **what)
        return result

    def items(self, state: State, value: Any, moment: Moment) -> list[Any]:
        """The array that a Map works on: Items, else its input."""
        items = state.items(moment.bindings, self.runtime.clock.time()) if state.items else value
        if not isinstance(items, list):
            raise QueryFailure("Items", "The Map state's input, which stands for Items, must be an array.")
        return items

    def selected(self, state: State, moment: Moment, index: int, item: Any) -> tuple[Any, dict[str, Any]]:
        """An iteration's input, and the Context Object's ``Map`` that it sees."""
        here = {"Item": {"Index": index, "Value": item}}
        if state.item_selector is None:
            return item, here
        context = {**moment.bindings["states"]["context"], "Map": here}
        return state.item_selector(moment.seeing(context=context), self.runtime.clock.time()), here

    def number(self, field: Render | None, moment: Moment, absent: Any) -> Any:
        """A numeric field's value, ``absent`` when the definition has none."""
        return absent if field is None else field(moment.bindings, self.runtime.clock.time())

    # Ends

    def _finish(
        self,
        following: str | None,
        assign: Render | None,
        output: Render | None,
        bindings: dict[str, Any],
        default: Any,
    ) -> _Outcome:
        """Evaluate Assign and Output side by side: neither sees what the other gives."""
        now = self.runtime.clock.time()
        assigned: dict[str, Any] = {}
        if assign is not None:
            assigned = assign(bindings, now)
            _limit(assigned, "The Assign field")
            stored = {**bindings, **assigned, "states": None}
            _limit(stored, "The variables of the execution together", VARIABLES_LIMIT)
        value = default
        if output is not None:
            value = output(bindings, now)
            _limit(value, "The Output field")
        return _Outcome(following, value, assigned)

    def _evaluation_failed(self, state: State, moment: Moment, failure: QueryFailure) -> StateError:
        cause = _told(state, moment, failure.sentence)
        self.history.add(
            "EvaluationFailed",
            moment.entered,
            error=errors.QUERY_EVALUATION,
            cause=cause,
            location=failure.location,
            state=state.name,
        )
        return StateError(errors.QUERY_EVALUATION, cause)


def _told(state: State, moment: Moment, sentence: str) -> str:
    where = f"the state '{state.name}' (entered at the event id #{moment.entered})"
    return f"An error occurred while executing {where}. {sentence}"


def _retry_delay(retriers: tuple[Retrier, ...], attempts: list[int], error: str) -> float | None:
    """Seconds until the next attempt, None when there is none; counts it in ``attempts``."""
    for index, retrier in enumerate(retriers):
        if matches(error, retrier.error_equals):
            if attempts[index] >= retrier.max_attempts:
                return None
            delay = retrier.interval * retrier.backoff ** attempts[index]
            if retrier.max_delay is not None:
                delay = min(delay, retrier.max_delay)
            attempts[index] += 1
            return random.uniform(0, delay) if retrier.full_jitter else delay  # noqa: S311 - jitter, not a secret
    return None


def _limit(value: Any, what: str, most: int = DATA_LIMIT) -> None:
    if (size := len(dumps(value).encode())) > most:
        raise StateError(
            errors.DATA_LIMIT_EXCEEDED, f"{what} has a size of {size} bytes, exceeding the maximum of {most} bytes."
        )


async def _all_or_first_error(work: list[Awaitable[None]]) -> None:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
