"""What each state does with its input, its variables and its output.

Sources: the Developer Guide's pages on Pass, Choice, Wait, Map, Fail and Succeed, "Passing data between states with
variables", "Accessing execution data from the Context object"; the contract sheet's section 2.
"""

import json
import time
from typing import Any

import pytest

# mypy cannot see a conftest's classes; the fixture's type is told by its name.
World = Any

LAMBDA = "arn:aws:states:::lambda:invoke"


def test_assign_and_output_do_not_see_each_other(world: World) -> None:
    """ "Assigning variable values will not affect state Output"; the next state sees them."""
    output = world.output(
        {
            "First": {"Type": "Pass", "Assign": {"x": 1}, "Next": "Second"},
            "Second": {
                "Type": "Pass",
                "Assign": {"x": "{% $x + 1 %}", "previous": "{% $x %}"},
                "Output": {"seen": "{% $x %}"},
                "Next": "Third",
            },
            "Third": {
                "Type": "Pass",
                "Output": ["{% $states.input.seen %}", "{% $x %}", "{% $previous %}"],
                "End": True,
            },
        }
    )
    assert output == [1, 2, 1]


def test_without_output_a_pass_hands_its_input_on(world: World) -> None:
    """The default output of Pass is its input."""
    assert world.output({"A": {"Type": "Pass", "End": True}}, {"a": None}) == {"a": None}


def test_succeed_ends_the_machine_with_its_output(world: World) -> None:
    """Succeed may have an Output."""
    assert world.output({"A": {"Type": "Succeed", "Output": "{% $states.input.a %}"}}, {"a": [1]}) == [1]


def test_fail_gives_error_and_cause_which_may_be_expressions(world: World) -> None:
    """Fail's Error and Cause take JSONata."""
    execution = world.run(
        {"A": {"Type": "Fail", "Error": "ListRejected", "Cause": "{% 'no ' & $states.input.what %}"}}, {"what": "rows"}
    )
    assert (execution["status"], execution["error"], execution["cause"]) == ("FAILED", "ListRejected", "no rows")


def choice(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    ends = {name: {"Type": "Succeed", "Output": {"at": name, "in": "{% $states.input %}"}} for name in ("X", "Y", "Z")}
    used = {rule["Next"] for rule in rules} | {more.get("Default")}
    return {
        "A": {"Type": "Choice", "Choices": list(rules), **more},
        **{name: end for name, end in ends.items() if name in used},
    }


def test_the_first_rule_that_holds_wins_with_its_own_output(world: World) -> None:
    """Choice rules are tried in order; a rule may have Assign and Output of its own."""
    states = choice(
        {"Condition": "{% $states.input.n > 10 %}", "Next": "X"},
        {"Condition": "{% $states.input.n > 5 %}", "Next": "Y", "Output": {"big": True}},
        Default="Z",
        Output={"default": True},
    )
    assert world.output(states, {"n": 7}) == {"at": "Y", "in": {"big": True}}
    assert world.output(states, {"n": 20}) == {"at": "X", "in": {"n": 20}}
    assert world.output(states, {"n": 1}) == {"at": "Z", "in": {"default": True}}


def test_no_rule_and_no_default_fails(world: World) -> None:
    """States.NoChoiceMatched."""
    execution = world.run(choice({"Condition": "{% false %}", "Next": "X"}))
    assert execution["error"] == "States.NoChoiceMatched"


def test_a_condition_must_be_a_boolean(world: World) -> None:
    """ "Condition: a JSONata expression that evaluates to a boolean", else States.QueryEvaluationError."""
    execution = world.run(choice({"Condition": "{% $states.input.n %}", "Next": "X"}, Default="Z"), {"n": 1})
    assert execution["error"] == "States.QueryEvaluationError"
    assert "for the field 'Choices[0]/Condition' returned an unexpected result type" in execution["cause"]


def test_an_undefined_path_fails_the_state_with_aws_words(world: World) -> None:
    """The cause names state, event, expression and field, as AWS words it."""
    execution = world.run({"A": {"Type": "Pass", "Output": {"v": "{% $states.input.missing %}"}, "End": True}})
    assert execution["error"] == "States.QueryEvaluationError"
    assert execution["cause"] == (
        "An error occurred while executing the state 'A' (entered at the event id #2). The JSONata expression "
        "'$states.input.missing' specified for the field 'Output/v' returned nothing (undefined)."
    )
    failed = [event for event in world.history(execution["executionArn"]) if event["type"] == "EvaluationFailed"]
    assert failed[0]["evaluationFailedEventDetails"]["location"] == "Output/v"


# Wait


def test_wait_waits_on_the_movable_clock(world: World) -> None:
    """An hour passes when the clock is moved, not before."""
    arn = world.start({"A": {"Type": "Wait", "Seconds": 3600, "End": True}})
    time.sleep(0.1)
    assert world.api("DescribeExecution", executionArn=arn)["status"] == "RUNNING"
    world.clock.advance(3599)
    time.sleep(0.1)
    assert world.api("DescribeExecution", executionArn=arn)["status"] == "RUNNING"
    world.clock.advance(1)
    assert world.wait(arn)["status"] == "SUCCEEDED"


def test_wait_really_waits_when_nobody_moves_the_clock(world: World) -> None:
    """Seconds are seconds."""
    begun = time.monotonic()
    world.output({"A": {"Type": "Wait", "Seconds": "{% $states.input.s %}", "End": True}}, {"s": 1})
    assert 1 <= time.monotonic() - begun < 3


def test_wait_until_a_timestamp(world: World) -> None:
    """Timestamp is RFC 3339; a past one does not wait."""
    begun = time.monotonic()
    world.output(
        {"A": {"Type": "Wait", "Timestamp": "{% $states.input.t %}", "End": True}}, {"t": "2020-01-01T00:00:00Z"}
    )
    assert time.monotonic() - begun < 1
    failed = world.run({"A": {"Type": "Wait", "Timestamp": "{% $states.input.t %}", "End": True}}, {"t": "tomorrow"})
    assert failed["error"] == "States.QueryEvaluationError"


# Map, inline


def inline(processor: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"M": {"Type": "Map", "ItemProcessor": {"StartAt": next(iter(processor)), "States": processor}, **more}}


ECHO = {"I": {"Type": "Pass", "End": True}}


def test_an_inline_map_gives_the_results_in_the_order_of_the_items(world: World) -> None:
    """One result an item, in order, whatever finishes first."""
    world.caller.function(lambda n: time.sleep(0.05 if n == 1 else 0) or n * 10)
    task = {
        "I": {
            "Type": "Task",
            "Resource": LAMBDA,
            "Arguments": {"FunctionName": "f", "Payload": "{% $states.input %}"},
            "Output": "{% $states.result.Payload %}",
            "End": True,
        }
    }
    assert world.output(inline(task, Items="{% $states.input.ns %}", End=True), {"ns": [1, 2, 3]}) == [10, 20, 30]


def test_without_items_a_map_takes_its_input(world: World) -> None:
    """The default of Items is the state's input."""
    assert world.output(inline(ECHO, End=True), [1, 2]) == [1, 2]
    assert world.output(inline(ECHO, End=True), []) == []


def test_item_selector_sees_item_and_index_in_the_context(world: World) -> None:
    """``$states.context.Map.Item.Index`` and ``.Value``."""
    output = world.output(
        inline(
            ECHO,
            ItemSelector={
                "i": "{% $states.context.Map.Item.Index %}",
                "v": "{% $states.context.Map.Item.Value %}",
                "all": "{% $states.input %}",
            },
            End=True,
        ),
        ["a", "b"],
    )
    assert output == [{"i": 0, "v": "a", "all": ["a", "b"]}, {"i": 1, "v": "b", "all": ["a", "b"]}]


def test_a_filter_of_one_match_is_no_array_for_items(world: World) -> None:
    """The contract sheet: wrap a filter in ``[…]`` before a Map."""
    states = inline(ECHO, Items="{% $states.input.rows[id=1] %}", End=True)
    execution = world.run(states, {"rows": [{"id": 1}, {"id": 2}]})
    assert execution["error"] == "States.QueryEvaluationError"
    assert "Expected 'array', but was 'object'" in execution["cause"]


def test_iterations_see_outer_variables_and_keep_their_own(world: World) -> None:
    """Iterations "maintain their own separate workflow-local variables", which end with the Map."""
    processor = {
        "I": {"Type": "Pass", "Assign": {"mine": "{% $states.input * $factor %}"}, "Next": "J"},
        "J": {"Type": "Pass", "Output": "{% $mine %}", "End": True},
    }
    output = world.output(
        {
            "A": {"Type": "Pass", "Assign": {"factor": 3}, "Next": "M"},
            **inline(processor, Items=[1, 2], Next="Z"),
            "Z": {"Type": "Pass", "Output": ["{% $states.input %}", "{% $factor %}"], "End": True},
        }
    )
    assert output == [[3, 6], 3]


def test_a_failing_iteration_fails_the_map_under_its_error(world: World) -> None:
    """An inline Map has no tolerance: the iteration's error is the Map's, and its Catch sees it."""
    processor = {
        "I": {
            "Type": "Choice",
            "Choices": [{"Condition": "{% $states.input = 2 %}", "Next": "Bad"}],
            "Default": "Good",
        },
        "Bad": {"Type": "Fail", "Error": "Refused", "Cause": "two"},
        "Good": {"Type": "Pass", "End": True},
    }
    states = inline(processor, Catch=[{"ErrorEquals": ["Refused"], "Next": "Z"}], End=True)
    states["Z"] = {"Type": "Pass", "End": True}
    assert world.output(states, [1, 2, 3]) == {"Error": "Refused", "Cause": "two"}


def test_max_concurrency_bounds_the_iterations_in_flight(world: World) -> None:
    """MaxConcurrency 2: never three at once."""
    running: list[int] = []
    most: list[int] = []

    def work(n: int) -> int:
        running.append(n)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(n)
        return n

    world.caller.function(work)
    task = {
        "I": {
            "Type": "Task",
            "Resource": LAMBDA,
            "Arguments": {"FunctionName": "f", "Payload": "{% $states.input %}"},
            "End": True,
        }
    }
    world.output(inline(task, MaxConcurrency=2, End=True), list(range(8)))
    assert max(most) == 2


# The Context object


def test_the_context_object_tells_execution_machine_and_state(world: World) -> None:
    """Execution.Id, .Input, .Name, .RoleArn, .StartTime; StateMachine.Id, .Name; State.Name, .RetryCount."""
    arn = world.machine({"A": {"Type": "Pass", "Output": "{% $states.context %}", "End": True}})
    started = world.api("StartExecution", stateMachineArn=arn, name="run-1", input='{"a":1}')
    context = json.loads(world.wait(started["executionArn"])["output"])
    assert context["Execution"]["Id"] == started["executionArn"]
    assert context["Execution"]["Input"] == {"a": 1}
    assert context["Execution"]["Name"] == "run-1"
    assert context["Execution"]["RoleArn"].startswith("arn:aws:iam::")
    assert context["Execution"]["StartTime"].endswith("Z")
    assert context["StateMachine"] == {"Id": arn, "Name": "machine"}
    assert context["State"]["Name"] == "A"
    assert context["State"]["RetryCount"] == 0


# 256 KiB


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Output", "{% $states.input.s & $states.input.s %}"),
        ("Assign", {"x": "{% $states.input.s %}", "y": "{% $states.input.s %}"}),
    ],
)
def test_more_than_256_kib_fails_with_data_limit_exceeded(world: World, field: str, value: Any) -> None:
    """botocore: 262,144 for data; the variables of one Assign count together."""
    execution = world.run({"A": {"Type": "Pass", field: value, "End": True}}, {"s": "x" * 140_000})
    assert execution["error"] == "States.DataLimitExceeded"


def test_all_variables_together_have_10_mib(world: World) -> None:
    """ "The total size of all stored variables cannot exceed 10 MiB per execution.\""""
    names = [f"v{number}" for number in range(50)]
    states: dict[str, Any] = {
        f"A{name}": {"Type": "Pass", "Assign": {name: "{% $states.input %}"}, "Next": f"A{after}"}
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    states["Aend"] = {"Type": "Succeed"}
    execution = world.run(states, "x" * 250_000)
    assert execution["error"] == "States.DataLimitExceeded"
    passed = [event for event in world.history(execution["executionArn"]) if event["type"] == "PassStateExited"]
    assert len(passed) == 10_485_760 // 250_000


def test_the_limit_is_in_bytes_of_utf_8(world: World) -> None:
    """262,144 bytes "in UTF-8 encoding": an é counts twice, however it is escaped in JSON."""
    three = {"A": {"Type": "Pass", "Output": "{% $states.input.s & $states.input.s & $states.input.s %}", "End": True}}
    assert world.run(three, {"s": "é" * 40_000})["status"] == "SUCCEEDED"  # 240,002 bytes
    assert world.run(three, {"s": "é" * 43_691})["error"] == "States.DataLimitExceeded"  # 262,148 bytes
