"""What every state machine of ours keeps to, read from its definition and the template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from jsonata.jsonata import Jsonata

from carillon import keys
from local.stepfunctions.definition import compile_definition
from tools import definitions
from tools.definitions import ROOT, StateMachine, scopes, state_machines, states, successors

MACHINES = state_machines()
IGNORED_ON_PURPOSE = {
    ("launch_campaign", "DeletePriorScheduleGroup"): "what is left there is dropped by the sender",
    ("cancel_campaign", "StopLaunch"): "a launch that goes on finds the campaign cancelling and stops by itself",
    ("cancel_campaign", "DeleteTemplate"): "what is gone is told by the error's last word; all else is a TemplateStays",
}
"""States whose every error leads on, and why."""

TRANSIENT = re.compile(
    r"States\.Timeout|Sandbox\.Timedout|SweepUnfinished|\w+\.(SdkClientException|ServiceException|ClientExecutionTimeoutException"
    r"|TooManyRequestsException|ThrottlingException|ProvisionedThroughputExceededException"
    r"|RequestLimitExceededException|Internal\w*Exception|OperationTimeoutException"
    r"|ConcurrentModificationException|AWSLambdaException|SchedulerException|GlueException|SfnException|SesV2Exception)"
)
"""Errors that may be gone the next time; the last ones are the SDK's names for what a model does not list."""

each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


def tasks(machine: StateMachine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every Task of a machine, inside its Maps too."""
    return ((name, state) for name, state, _ in states(machine.definition) if state["Type"] == "Task")


@each_machine
def test_step_functions_takes_the_definition(machine: StateMachine) -> None:
    """As CloudFormation hands it over: JSONata parses, every variable is assigned before, every field is known."""
    compile_definition(machine.substituted())


@each_machine
def test_substitutions_are_those_of_the_template(machine: StateMachine) -> None:
    """Nothing is left to substitute, and nothing is substituted for nobody."""
    assert set(definitions.SUBSTITUTION.findall(machine.text)) == set(machine.substitutions)


@each_machine
def test_a_verb_travels_from_the_state_to_the_folder(machine: StateMachine) -> None:
    """State EnrolBatch, resource EnrolBatchFunction, substitution EnrolBatchFunctionArn, folder enrol_batch."""
    unsubstituted = yaml.safe_load(machine.text)
    called = [
        (name, state["Arguments"]["FunctionName"])
        for name, state, _ in states(unsubstituted)
        if state.get("Resource", "").endswith("lambda:invoke")
    ]
    assert called
    for name, target in called:
        folder = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        assert target == f"${{{name}FunctionArn}}"
        assert machine.substitutions[f"{name}FunctionArn"] == {"Fn::GetAtt": [f"{name}Function", "Arn"]}
        handler = definitions.resources("AWS::Serverless::Function")[f"{name}Function"]["Properties"]["Handler"]
        assert handler == f"{folder}.app.handler"
        assert (ROOT / "functions" / folder / "app.py").exists()


@each_machine
def test_every_task_has_a_timeout(machine: StateMachine) -> None:
    """Without one, a lost answer would hold the machine for a year."""
    assert [name for name, state in tasks(machine) if not state.get("TimeoutSeconds")] == []
    assert machine.definition["TimeoutSeconds"] <= 86400


@each_machine
def test_a_functions_own_time_limit_comes_before_its_tasks(machine: StateMachine) -> None:
    """So a function that is too slow is ended by Lambda, and none goes on after the machine has given it up."""
    for name, state in tasks(machine):
        if state["Resource"].endswith("lambda:invoke"):
            limit = definitions.resources("AWS::Serverless::Function")[f"{name}Function"]["Properties"]["Timeout"]
            assert limit < state["TimeoutSeconds"] <= limit + 30


@each_machine
def test_every_task_retries_what_is_transient_with_jitter(machine: StateMachine) -> None:
    """And nothing else: a business error goes straight to its Catch."""
    for name, state in tasks(machine):
        assert state.get("Retry"), name
        for retrier in state["Retry"]:
            assert retrier["JitterStrategy"] == "FULL", name
            assert {"IntervalSeconds", "MaxAttempts", "BackoffRate", "MaxDelaySeconds"} <= set(retrier), name
            assert [error for error in retrier["ErrorEquals"] if not TRANSIENT.fullmatch(error)] == [], name


@each_machine
def test_every_catch_ends_in_states_all(machine: StateMachine) -> None:
    """Also that of a Map, but for one inside a child, whose error is the child's."""
    for name, state, depth in states(machine.definition):
        if state["Type"] == "Task" or (state["Type"] == "Map" and depth == 0):
            assert state["Catch"][-1]["ErrorEquals"] == ["States.ALL"], name
            for catcher in state["Catch"][:-1]:
                assert "States.ALL" not in catcher["ErrorEquals"], name


@each_machine
def test_what_nobody_expected_ends_in_a_fail(machine: StateMachine) -> None:
    """From a catch of States.ALL no way leads to success, but for the few whose reason is written down."""
    for scope in scopes(machine.definition):
        for name, state in scope["States"].items():
            if not state.get("Catch") or (machine.name, name) in IGNORED_ON_PURPOSE:
                continue
            ends = endings(scope, state["Catch"][-1]["Next"])
            assert ends
            assert {scope["States"][end]["Type"] for end in ends} == {"Fail"}, f"{name} → {ends}"


@each_machine
def test_every_fail_has_a_domain_error_and_a_cause(machine: StateMachine) -> None:
    """An error of the domain's is one CamelCase word; the cause names what happened and what to do."""
    fails = [(name, state) for name, state, _ in states(machine.definition) if state["Type"] == "Fail"]
    assert fails
    for name, state in fails:
        assert re.fullmatch(r"([A-Z][a-z]+)+", state["Error"]), name
        assert state["Cause"], name


@each_machine
def test_every_state_can_be_reached(machine: StateMachine) -> None:
    """From the start of its scope."""
    for scope in scopes(machine.definition):
        assert reachable(scope, scope["StartAt"]) == set(scope["States"])


@each_machine
def test_names_are_of_one_kind(machine: StateMachine) -> None:
    """Choices are questions without a question mark, everything is CamelCase, and every state says what it is for."""
    for name, state, _ in states(machine.definition):
        assert re.fullmatch(r"([A-Z][a-z]+)+", name)
        assert state.get("Comment") or not str(state.get("Cause", "{%")).startswith("{%"), name
        assert name.startswith(("Is", "Does", "Was")) == (state["Type"] == "Choice"), name


@each_machine
def test_fields_come_in_one_order(machine: StateMachine) -> None:
    """Type, Comment, Resource, TimeoutSeconds, Arguments, Assign, Output, Retry, Catch, Next (STYLE)."""
    order = ("Type", "Comment", "Resource", "TimeoutSeconds", "Arguments", "Assign", "Output", "Retry", "Catch", "Next")
    for name, state, _ in states(machine.definition):
        fields = [field for field in state if field in order]
        assert fields == sorted(fields, key=order.index), name


@each_machine
def test_no_variable_hides_a_function(machine: StateMachine) -> None:
    """``$round`` is JSONata's, whatever a state assigns to it."""
    added = {"partition", "range", "hash", "random", "uuid", "parse"}
    functions = {*Jsonata.static_frame.bindings, *added, "states"}
    for name, state, _ in states(machine.definition):
        assigned = set(state.get("Assign", {}))
        for rule in (*state.get("Choices", ()), *state.get("Catch", ())):
            assigned |= set(rule.get("Assign", {}))
        assert assigned & functions == set(), name


def test_the_sweep_covers_every_shard() -> None:
    """``[0..31]`` are carillon.keys's shards."""
    cancel = next(machine for machine in MACHINES if machine.name == "cancel_campaign")
    assert cancel.definition["States"]["SweepTasks"]["Items"] == f"{{% [0..{keys.SHARDS - 1}] %}}"


def test_the_cancel_waits_for_the_senders_time_limit() -> None:
    """The sender's timeout, what it is told, and what the cancel waits for are one number."""
    properties = definitions.resources("AWS::Serverless::Function")["SendBatchFunction"]["Properties"]
    cancel = next(machine for machine in MACHINES if machine.name == "cancel_campaign")
    assert (
        properties["Timeout"]
        == properties["Environment"]["Variables"]["SEND_TIME_LIMIT"]
        == cancel.definition["States"]["WaitForSenders"]["Seconds"]
    )


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("$exists($states.input.Item)", "$exists($states.input.Item"),
        ("$string($generation)", "$string($generations)"),
        ("Next: PrepareList", "Next: PrepareLists"),
        ("FlexibleTimeWindow:", "FlexibleTimeWindows:"),
        ("scheduler:createScheduleGroup", "scheduler:makeScheduleGroup"),
        ("MaxConcurrency: 10", "MaxConcurrency: ten"),
    ],
)
def test_a_broken_definition_is_noticed(part: str, broken: str) -> None:
    """The check that these tests lean on refuses a slip in an expression, a variable, a name, an argument."""
    launch = next(machine for machine in MACHINES if machine.name == "launch_campaign")
    text = launch.substituted()
    assert part in text
    with pytest.raises(Exception, match="Invalid State Machine Definition"):
        compile_definition(text.replace(part, broken))


def reachable(scope: Mapping[str, Any], start: str) -> set[str]:
    """Names of the states of ``scope`` that can follow ``start``, itself included."""
    found, left = {start}, [start]
    while left:
        for name in successors(scope["States"][left.pop()]):
            if name not in found:
                found.add(name)
                left.append(name)
    return found


def endings(scope: Mapping[str, Any], start: str) -> set[str]:
    """The states in which the ways from ``start`` end."""
    return {name for name in reachable(scope, start) if not list(successors(scope["States"][name]))}


@each_machine
def test_every_expression_is_one_line(machine: StateMachine) -> None:
    """asl-validator takes no line break inside ``{% … %}``, and YAML keeps one before a line that is indented more."""

    def texts(value: Any) -> Iterator[str]:
        match value:
            case dict():
                for member in value.values():
                    yield from texts(member)
            case list():
                for member in value:
                    yield from texts(member)
            case str():
                yield value

    assert [text for text in texts(machine.definition) if "\n" in text] == []
