"""Retry and Catch.

Sources: "Handling errors in Step Functions workflows" (names, States.ALL's exceptions, retrier fields), the contract
sheet's section 2 (Integrations and errors), executions recorded against AWS that it cites as [L].
"""

import time
from typing import Any

import pytest

from local.ports import AwsError
from local.stepfunctions.definition import Retrier
from local.stepfunctions.errors import matches
from local.stepfunctions.interpreter import _retry_delay

World = Any

LAMBDA = "arn:aws:states:::lambda:invoke"


def task(**more: Any) -> dict[str, Any]:
    return {
        "Type": "Task",
        "Resource": LAMBDA,
        "Arguments": {"FunctionName": "f", "Payload": "{% $states.input %}"},
        "Output": "{% $states.result.Payload %}",
        "End": True,
        **more,
    }


class Failing:
    """A Lambda function that raises ``errors`` one after the other, then answers ``done``."""

    def __init__(self, world: World, *errors: str) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.times: list[float] = []
        world.caller.answers["lambda", "Invoke"] = self
        self._clock = world.clock

    def __call__(self, params: Any) -> Any:
        self.calls += 1
        self.times.append(self._clock.time())
        if self.errors:
            error = self.errors.pop(0)
            body = f'{{"errorType":"{error}","errorMessage":"no"}}'
            return {"StatusCode": 200, "FunctionError": "Unhandled", "Payload": body.encode()}
        return {"StatusCode": 200, "Payload": b'"done"'}


@pytest.mark.parametrize(
    ("error", "error_equals", "caught"),
    [
        ("Mine", ("Mine",), True),
        ("Mine", ("Other",), False),
        ("Mine", ("States.ALL",), True),
        ("Mine", ("States.TaskFailed",), True),
        ("States.Timeout", ("States.TaskFailed",), False),
        ("States.Timeout", ("States.ALL",), True),
        ("States.QueryEvaluationError", ("States.ALL",), True),
        ("States.DataLimitExceeded", ("States.ALL",), False),
        ("States.DataLimitExceeded", ("States.TaskFailed",), False),
        ("States.DataLimitExceeded", ("States.DataLimitExceeded",), True),
        ("States.Runtime", ("States.ALL",), False),
        ("States.Runtime", ("States.Runtime",), False),
    ],
)
def test_which_names_cover_which_error(error: str, error_equals: tuple[str, ...], caught: bool) -> None:
    """States.ALL "can't catch the States.DataLimitExceeded terminal error or Runtime error types"."""
    assert matches(error, error_equals) is caught


def test_a_retry_waits_its_interval_and_backs_off(world: World) -> None:
    """IntervalSeconds 1, BackoffRate 2: about 1 s, then 2 s, then done; MaxAttempts counts retries."""
    function = Failing(world, "Busy", "Busy")
    retry = [{"ErrorEquals": ["Busy"], "IntervalSeconds": 1, "BackoffRate": 2, "MaxAttempts": 2}]
    assert world.output({"A": task(Retry=retry)}) == "done"
    first, second = function.times[1] - function.times[0], function.times[2] - function.times[1]
    assert 1 <= first < 1.8
    assert 2 <= second < 2.8


def test_retries_end_with_max_attempts(world: World) -> None:
    """MaxAttempts 1 is one retry, then the error counts."""
    function = Failing(world, "Busy", "Busy", "Busy")
    arn = world.start({"A": task(Retry=[{"ErrorEquals": ["States.ALL"], "MaxAttempts": 1}])})
    assert world.wait(arn)["error"] == "Busy"
    assert function.calls == 2


def test_max_attempts_0_never_retries(world: World) -> None:
    """ "A value of 0 specifies that the error is never retried.\""""
    function = Failing(world, "Busy")
    world.run({"A": task(Retry=[{"ErrorEquals": ["Busy"], "MaxAttempts": 0}, {"ErrorEquals": ["States.ALL"]}])})
    assert function.calls == 1


def test_a_moved_clock_shortens_a_retry(world: World) -> None:
    """Retries wait on the movable clock."""
    function = Failing(world, "Busy")
    arn = world.start({"A": task(Retry=[{"ErrorEquals": ["Busy"], "IntervalSeconds": 600}])})
    world.eventually(lambda: function.calls == 1)
    time.sleep(0.05)
    world.clock.advance(600)
    assert world.wait(arn, 3)["status"] == "SUCCEEDED"


def test_delays_grow_to_max_delay_and_jitter_fully() -> None:
    """MaxDelaySeconds caps the growth; FULL jitter takes anything from 0 to the delay; defaults 1, 3, 2.0."""
    plain = Retrier(("E",), 2, 10, 3.0, 20, full_jitter=False)
    attempts = [0]
    assert [_retry_delay((plain,), attempts, "E") for _ in range(4)] == [2, 6, 18, 20]
    jittered = Retrier(("E",), 10, 1000, 1.0, None, full_jitter=True)
    attempts = [0]
    delays = [_retry_delay((jittered,), attempts, "E") or 0 for _ in range(300)]
    assert all(0 <= delay <= 10 for delay in delays)
    assert min(delays) < 2
    assert max(delays) > 8


def test_each_retrier_counts_for_itself() -> None:
    """ "Each retrier tracks its own number of attempts.\""""
    retriers = (
        Retrier(("A",), 1, 1, 2.0, None, full_jitter=False),
        Retrier(("States.ALL",), 5, 1, 2.0, None, full_jitter=False),
    )
    attempts = [0, 0]
    assert _retry_delay(retriers, attempts, "A") == 1
    assert _retry_delay(retriers, attempts, "B") == 5
    assert _retry_delay(retriers, attempts, "A") is None
    assert _retry_delay(retriers, attempts, "B") is None


def test_the_retry_count_is_in_the_context(world: World) -> None:
    """``$states.context.State.RetryCount``: 0 at first."""
    Failing(world, "Busy")
    seen: list[Any] = []
    answer = world.caller.answers["lambda", "Invoke"]
    world.caller.answers["lambda", "Invoke"] = lambda params: seen.append(params["Payload"]) or answer(params)
    arguments = {"FunctionName": "f", "Payload": "{% $states.context.State.RetryCount %}"}
    world.output({"A": task(Arguments=arguments, Retry=[{"ErrorEquals": ["Busy"]}])})
    assert seen == [b"0", b"1"]


# Catch


def test_a_catch_takes_the_error_and_the_states_own_assign_is_skipped(world: World) -> None:
    """ "When a Catcher matches, the state's own Assign is skipped; only the Catcher's runs" (contract sheet)."""
    Failing(world, "ListRejected")
    states = {
        "A": {"Type": "Pass", "Assign": {"x": 0, "problem": ""}, "Next": "B"},
        "B": task(
            Assign={"x": 1},
            Catch=[
                {
                    "ErrorEquals": ["ListRejected"],
                    "Assign": {"problem": "{% $states.errorOutput.Error %}"},
                    "Output": {"in": "{% $states.input %}"},
                    "Next": "C",
                }
            ],
        ),
        "C": {"Type": "Pass", "Output": ["{% $x %}", "{% $problem %}", "{% $states.input %}"], "End": True},
    }
    assert world.output(states, {"n": 1}) == [0, "ListRejected", {"in": {"n": 1}}]


def test_the_default_output_of_a_catch_is_the_error_output(world: World) -> None:
    """``{"Error", "Cause"}``; of a function the cause is its whole error document."""
    Failing(world, "ListRejected")
    states = {"A": task(Catch=[{"ErrorEquals": ["States.ALL"], "Next": "B"}]), "B": {"Type": "Pass", "End": True}}
    assert world.output(states) == {
        "Error": "ListRejected",
        "Cause": '{"errorType":"ListRejected","errorMessage":"no"}',
    }


def test_catchers_are_tried_in_order_after_the_retries(world: World) -> None:
    """Retry first, then the first Catch that matches."""
    function = Failing(world, "Busy", "Busy")
    states = {
        "A": task(
            Retry=[{"ErrorEquals": ["Busy"], "MaxAttempts": 1}],
            Catch=[{"ErrorEquals": ["Busy"], "Next": "B"}, {"ErrorEquals": ["States.ALL"], "Next": "C"}],
        ),
        "B": {"Type": "Pass", "Output": "B", "End": True},
        "C": {"Type": "Pass", "Output": "C", "End": True},
    }
    assert world.output(states) == "B"
    assert function.calls == 2


def test_a_query_that_fails_in_a_task_can_be_caught(world: World) -> None:
    """States.QueryEvaluationError is an error like another; the call was never made."""
    function = Failing(world)
    states = {
        "A": task(
            Arguments={"FunctionName": "{% $states.input.missing %}"},
            Catch=[{"ErrorEquals": ["States.QueryEvaluationError"], "Output": "caught", "Next": "B"}],
        ),
        "B": {"Type": "Pass", "End": True},
    }
    assert world.output(states) == "caught"
    assert function.calls == 0


def test_a_query_that_fails_inside_a_catch_fails_the_execution(world: World) -> None:
    """A Catch cannot catch itself."""
    Failing(world, "Busy")
    states = {
        "A": task(Catch=[{"ErrorEquals": ["States.ALL"], "Output": "{% $states.errorOutput.Nothing %}", "Next": "B"}]),
        "B": {"Type": "Pass", "End": True},
    }
    execution = world.run(states)
    assert execution["error"] == "States.QueryEvaluationError"
    assert "'Catch[0]/Output'" in execution["cause"]


def test_a_result_over_256_kib_is_caught_by_its_name_only(world: World) -> None:
    """Recorded on AWS: "The state/task 'lambda' returned a result with a size exceeding …"."""
    world.caller.function(lambda _: "x" * 262_145)
    told = "The state/task 'lambda' returned a result with a size exceeding the maximum number of bytes service limit."
    by_all = {"A": task(Catch=[{"ErrorEquals": ["States.ALL"], "Next": "B"}]), "B": {"Type": "Pass", "End": True}}
    assert world.run(by_all)["cause"] == told
    by_name = {
        "A": task(Catch=[{"ErrorEquals": ["States.DataLimitExceeded"], "Next": "B"}]),
        "B": {"Type": "Pass", "End": True},
    }
    assert world.output(by_name) == {"Error": "States.DataLimitExceeded", "Cause": told}


# Timeouts


def test_a_task_that_takes_too_long_times_out(world: World, gate: Any) -> None:
    """Recorded on AWS: TaskTimedOut, error States.Timeout, no cause; uncaught the execution is FAILED."""
    world.caller.function(gate)
    arn = world.start({"A": task(TimeoutSeconds=60)})
    world.eventually(lambda: gate.entered)
    world.clock.advance(60)
    execution = world.wait(arn, 3)
    assert (execution["status"], execution["error"], execution.get("cause")) == ("FAILED", "States.Timeout", None)
    assert [event["type"] for event in world.history(arn)][-2:] == ["TaskTimedOut", "ExecutionFailed"]


def test_a_timeout_can_be_caught_by_its_name(world: World, gate: Any) -> None:
    """``$states.errorOutput`` is ``{"Error": "States.Timeout"}``; TimeoutSeconds may be an expression."""
    world.caller.function(gate)
    states = {
        "A": task(TimeoutSeconds="{% $states.input.limit %}", Catch=[{"ErrorEquals": ["States.Timeout"], "Next": "B"}]),
        "B": {"Type": "Pass", "End": True},
    }
    arn = world.start(states, {"limit": 30})
    world.eventually(lambda: gate.entered)
    world.clock.advance(30)
    assert world.wait(arn, 3)["output"] == '{"Error":"States.Timeout"}'


def test_the_machines_timeout_ends_it_without_a_catch(world: World, gate: Any) -> None:
    """TimeoutSeconds of the machine: TIMED_OUT, and no Catch runs."""
    world.caller.function(gate)
    states = {"A": task(Catch=[{"ErrorEquals": ["States.ALL"], "Next": "B"}]), "B": {"Type": "Pass", "End": True}}
    arn = world.start(states, TimeoutSeconds=3600)
    world.eventually(lambda: gate.entered)
    world.clock.advance(3600)
    assert world.wait(arn, 3)["status"] == "TIMED_OUT"
    gate.open()
    time.sleep(0.1)
    types = [event["type"] for event in world.history(arn)]
    assert types[-1] == "ExecutionTimedOut"
    assert "PassStateEntered" not in types


def test_a_broken_caller_fails_the_execution_and_nothing_else(world: World) -> None:
    """A fault of ours is States.Runtime, not a machine that hangs."""

    def broken(params: Any) -> Any:
        raise ZeroDivisionError

    world.caller.answers["lambda", "Invoke"] = broken
    assert world.run({"A": task()})["error"] == "States.Runtime"
    world.caller.function(lambda payload: payload)
    assert world.output({"A": task()}, 5) == 5


def test_throttling_is_retried_by_the_name_aws_gives_it(world: World) -> None:
    """``Scheduler.ThrottlingException`` and ``Scheduler.ConflictException`` (contract sheet, section 1)."""
    answers = iter(["ThrottlingException", "ConflictException"])

    def refuse(params: Any) -> Any:
        raise AwsError(next(answers), "no", 429)

    world.caller.answers["scheduler", "CreateSchedule"] = refuse
    states = {
        "A": {
            "Type": "Task",
            "Resource": "arn:aws:states:::aws-sdk:scheduler:createSchedule",
            "Arguments": {"Name": "n"},
            "Retry": [{"ErrorEquals": ["Scheduler.ThrottlingException"], "JitterStrategy": "FULL"}],
            "Catch": [{"ErrorEquals": ["Scheduler.ConflictException"], "Output": "there", "Next": "B"}],
            "End": True,
        },
        "B": {"Type": "Pass", "End": True},
    }
    assert world.output(states) == "there"
