"""Amazon States Language in: checked and compiled, or refused with every problem named by state and field.

A definition is refused for what AWS refuses (``SCHEMA_VALIDATION_FAILED``, ``MISSING_TRANSITION_TARGET``,
``INVALID_JSONATA_EXPRESSION`` … at ``/States/Name/Field``) and, as ``NOT_BUILT_LOCALLY``, for what AWS would run
but this local cloud has not built. Nothing is ignored.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from botocore.utils import parse_timestamp

from local.ports import AwsError
from local.stepfunctions import errors
from local.stepfunctions.errors import QueryFailure
from local.stepfunctions.expression import UNDEFINED, Bindings, InvalidExpression, QueryError, parse
from local.stepfunctions.integration import Integration, UnsupportedResource, integration

type Render = Callable[[Bindings, float], Any]

SCHEMA = "SCHEMA_VALIDATION_FAILED"
TARGET = "MISSING_TRANSITION_TARGET"
NOT_BUILT = "NOT_BUILT_LOCALLY"

MAX_DEFINITION = 1_048_576
_MAX_SECONDS = 99_999_999
_MAX_DELAY = 31_622_400
_COMMON = frozenset({"Type", "Comment", "QueryLanguage"})
_FLOW = frozenset({"Next", "End"})
_FIELDS: dict[str, frozenset[str]] = {
    "Pass": _COMMON | _FLOW | {"Output", "Assign"},
    "Task": _COMMON
    | _FLOW
    | {"Resource", "Arguments", "TimeoutSeconds", "HeartbeatSeconds", "Credentials", "Output", "Assign", "Retry"}
    | {"Catch"},
    "Choice": _COMMON | {"Choices", "Default", "Output", "Assign"},
    "Wait": _COMMON | _FLOW | {"Seconds", "Timestamp", "Output", "Assign"},
    "Succeed": _COMMON | {"Output"},
    "Fail": _COMMON | {"Error", "Cause"},
    "Map": _COMMON
    | _FLOW
    | {"Items", "ItemSelector", "ItemReader", "ItemBatcher", "ItemProcessor", "MaxConcurrency", "ResultWriter"}
    | {"ToleratedFailureCount", "ToleratedFailurePercentage", "Label", "Output", "Assign", "Retry", "Catch"},
}
_NOT_BUILT_FIELDS = frozenset({"HeartbeatSeconds", "Credentials", "ItemBatcher"})
_DISTRIBUTED_ONLY = (
    "ItemReader",
    "ItemBatcher",
    "ResultWriter",
    "Label",
    "ToleratedFailureCount",
    "ToleratedFailurePercentage",
)
# Names of executions, Map labels: what "Limits related to state machine executions" forbids.
FORBIDDEN_IN_NAMES = re.compile(r"[\s?*<>{}\[\]\"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Retrier:
    """One entry of Retry; seconds, ``max_delay`` None = unlimited."""

    error_equals: tuple[str, ...]
    interval: float
    max_attempts: int
    backoff: float
    max_delay: float | None
    full_jitter: bool


@dataclass(frozen=True, slots=True)
class Catcher:
    """One entry of Catch."""

    error_equals: tuple[str, ...]
    next: str
    assign: Render | None
    output: Render | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of Choices."""

    condition: Render
    next: str
    assign: Render | None
    output: Render | None


@dataclass(frozen=True, slots=True)
class Reader:
    """An ItemReader: one JSON Lines object in S3."""

    arguments: Render


@dataclass(slots=True)
class State:
    """One compiled state; which fields are set depends on ``type``. ``next`` None ends the machine."""

    name: str
    type: str
    next: str | None = None
    assign: Render | None = None
    output: Render | None = None
    # Task
    task: Integration | None = None
    arguments: Render | None = None
    timeout: Render | None = None
    retry: tuple[Retrier, ...] = ()
    catch: tuple[Catcher, ...] = ()
    # Choice, Wait, Fail
    choices: tuple[Rule, ...] = ()
    default: str | None = None
    seconds: Render | None = None
    timestamp: Render | None = None
    error: Render | None = None
    cause: Render | None = None
    # Map
    processor: Machine | None = None
    distributed: bool = False
    express: bool = False
    items: Render | None = None
    reader: Reader | None = None
    item_selector: Render | None = None
    max_concurrency: Render | None = None
    tolerated_count: Render | None = None
    tolerated_percentage: Render | None = None
    label: str | None = None
    result_writer: Render | None = None


@dataclass(slots=True)
class Machine:
    """A compiled machine or ItemProcessor; ``timeout`` in seconds, None = no limit."""

    start_at: str
    states: dict[str, State]
    timeout: float | None = None
    source: dict[str, Any] = field(default_factory=dict)


def compile_definition(text: str, kind: str = "STANDARD") -> Machine:
    """Check and compile a definition of a machine of type ``kind``: JSON, or the YAML that CloudFormation takes.

    Raises:
        AwsError: ``InvalidDefinition``, every problem in its message.
    """
    source = _load(text)
    compiler = _Compiler()
    if kind != "STANDARD":
        compiler.problem(NOT_BUILT, f"A machine of type {kind}", "/")
    machine = compiler.machine(source, "", _Scope(), top=True)
    if compiler.problems:
        raise AwsError("InvalidDefinition", f"Invalid State Machine Definition: '{', '.join(compiler.problems)}'")
    machine.source = dict(source)
    return machine


class _YamlLoader(yaml.SafeLoader):
    """YAML as JSON: an unquoted time stays the text it is."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _load(text: str) -> Mapping[str, Any]:
    if len(text.encode()) > MAX_DEFINITION:
        raise AwsError("InvalidDefinition", f"Invalid State Machine Definition: longer than {MAX_DEFINITION} bytes")
    try:
        loaded = json.loads(text)
    except ValueError:
        try:
            loaded = yaml.load(text, _YamlLoader)  # noqa: S506 - a SafeLoader
        except yaml.YAMLError as error:
            raise AwsError(
                "InvalidDefinition", f"Invalid State Machine Definition: 'INVALID_JSON_DESCRIPTION: {error}'"
            ) from error
    if not isinstance(loaded, Mapping):
        raise AwsError("InvalidDefinition", "Invalid State Machine Definition: 'INVALID_JSON_DESCRIPTION'")
    return loaded


@dataclass(slots=True)
class _Scope:
    """The variables that states of one ``States`` field can see: ``own`` assigned here, ``outer`` outside."""

    own: frozenset[str] = frozenset()
    outer: frozenset[str] = frozenset()
    in_express: bool = False


class _Compiler:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self._names: set[str] = set()

    def problem(self, code: str, message: str, path: str) -> None:
        self.problems.append(f"{code}: {message} at {path or '/'}")

    # Machines

    def machine(self, source: Mapping[str, Any], path: str, outside: _Scope, top: bool) -> Machine:
        allowed = {"Comment", "StartAt", "States"}
        allowed |= {"QueryLanguage", "TimeoutSeconds", "Version"} if top else {"ProcessorConfig"}
        self._known(source, allowed, path)
        if top and source.get("QueryLanguage") != "JSONata":
            shown = source.get("QueryLanguage", "JSONPath")
            self.problem(NOT_BUILT, f"QueryLanguage '{shown}': only a top-level JSONata is built", "/QueryLanguage")
            return Machine("", {})
        states = source.get("States")
        if not isinstance(states, Mapping) or not states:
            self.problem(SCHEMA, "The field 'States' should not be null or empty", path)
            return Machine("", {})
        scope = _Scope(_assigned_in(states), outside.own | outside.outer, outside.in_express)
        for name in sorted(scope.own & scope.outer):
            self.problem(SCHEMA, f"Variable '{name}' is already assigned in an outer scope", f"{path}/States")
        compiled = {}
        for name, state in states.items():
            where = f"{path}/States/{name}"
            if not isinstance(name, str) or not 0 < len(name) <= 80:
                self.problem(SCHEMA, "A state's name has 1 to 80 characters", where)
            elif name in self._names:
                self.problem("DUPLICATE_STATE_NAME", f"Duplicate State name: {name}", where)
            elif not isinstance(state, Mapping):
                self.problem(SCHEMA, "Expected value of type Object", where)
            else:
                self._names.add(name)
                compiled[name] = self.state(name, state, where, scope)
        start = source.get("StartAt")
        self._transitions(start, compiled, states, path)
        timeout = self._integer(source, "TimeoutSeconds", path, 1, _MAX_SECONDS)
        return Machine(str(start), compiled, timeout)

    def _transitions(self, start: Any, compiled: Mapping[str, State], states: Mapping[str, Any], path: str) -> None:
        """Every target exists, every state can be reached, and an end can be."""
        if start not in states:
            self.problem(TARGET, f"Missing 'Next' target: {start}", f"{path}/StartAt")
            return
        reached, waiting = {start}, [start]
        ends = False
        while waiting:
            state = compiled.get(waiting.pop())
            if state is None:
                return  # already refused
            ends = ends or state.type in ("Succeed", "Fail") or (state.next is None and state.type != "Choice")
            for target, where in _targets(state, states[state.name], f"{path}/States/{state.name}"):
                if target not in states:
                    self.problem(TARGET, f"Missing 'Next' target: {target}", where)
                elif target not in reached:
                    reached.add(target)
                    waiting.append(target)
        for name in compiled:
            if name not in reached:
                self.problem(TARGET, f'State "{name}" is not reachable.', f"{path}/States/{name}")
        if not ends:
            self.problem("NO_TERMINAL_STATE", "No terminal state found in machine", f"{path}/States")

    # States

    def state(self, name: str, source: Mapping[str, Any], path: str, scope: _Scope) -> State:
        kind = source.get("Type")
        if kind == "Parallel":
            self.problem(NOT_BUILT, "Type 'Parallel'", f"{path}/Type")
            return State(name, "Parallel")
        if kind not in _FIELDS:
            self.problem(SCHEMA, f"Unsupported state type: {kind}", f"{path}/Type")
            return State(name, "Pass")
        self._known(source, _FIELDS[kind], path)
        if (language := source.get("QueryLanguage", "JSONata")) != "JSONata":
            self.problem(
                SCHEMA, f"'QueryLanguage' can not be '{language}' if set to 'JSONata' for whole state machine", path
            )
        for unbuilt in sorted(_NOT_BUILT_FIELDS & source.keys() & _FIELDS[kind]):
            self.problem(NOT_BUILT, f"Field '{unbuilt}'", f"{path}/{unbuilt}")
        state = State(name, kind)
        results = {"result"} if kind in ("Task", "Map") else set()
        state.assign = self._assign(source, path, scope, results)
        state.output = self._template(source, "Output", path, scope, results)
        if "Next" in _FIELDS[kind]:
            self._next(state, source, path)
        match kind:
            case "Task":
                self._task(state, source, path, scope)
            case "Choice":
                self._choice(state, source, path, scope)
            case "Wait":
                self._wait(state, source, path, scope)
            case "Fail":
                state.error = self._typed(source, "Error", path, scope, _is_text, "string")
                state.cause = self._typed(source, "Cause", path, scope, _is_text, "string")
            case "Map":
                self._map(state, source, path, scope)
        if kind in ("Task", "Map"):
            state.retry = tuple(self._retriers(source, path))
            state.catch = tuple(self._catchers(source, path, scope))
        return state

    def _next(self, state: State, source: Mapping[str, Any], path: str) -> None:
        if ("Next" in source) == ("End" in source):
            self.problem(SCHEMA, "These fields are required, exactly one of them: [Next, End]", path)
        if "End" in source and source["End"] is not True:
            self.problem(SCHEMA, "The value for the field 'End' must be true", f"{path}/End")
        if "Next" in source:
            state.next = str(source["Next"])

    def _task(self, state: State, source: Mapping[str, Any], path: str, scope: _Scope) -> None:
        resource = source.get("Resource")
        try:
            state.task = integration(str(resource))
        except UnsupportedResource as error:
            self.problem(NOT_BUILT, str(error), f"{path}/Resource")
        state.arguments = self._template(source, "Arguments", path, scope)
        state.timeout = self._number(source, "TimeoutSeconds", path, scope, 1, _MAX_SECONDS)
        if state.task is not None:
            for unknown in state.task.unknown_fields(source.get("Arguments")):
                self.problem(SCHEMA, f"The field '{unknown}' is not supported by Step Functions", f"{path}/Arguments")

    def _choice(self, state: State, source: Mapping[str, Any], path: str, scope: _Scope) -> None:
        if "Default" in source:
            state.default = str(source["Default"])
        rules = []
        for index, rule in enumerate(self._list(source, "Choices", path)):
            where = f"{path}/Choices[{index}]"
            self._known(rule, {"Condition", "Next", "Assign", "Output", "Comment"}, where)
            located = f"Choices[{index}]/"
            condition = self._typed(rule, "Condition", where, scope, _is_boolean, "boolean", located)
            if condition is None or "Next" not in rule:
                self.problem(SCHEMA, "These fields are required: [Condition, Next]", where)
                continue
            rules.append(
                Rule(
                    condition,
                    str(rule["Next"]),
                    self._assign(rule, where, scope, set(), located),
                    self._template(rule, "Output", where, scope, set(), located),
                )
            )
        state.choices = tuple(rules)

    def _wait(self, state: State, source: Mapping[str, Any], path: str, scope: _Scope) -> None:
        if ("Seconds" in source) == ("Timestamp" in source):
            self.problem(SCHEMA, "These fields are required, exactly one of them: [Seconds, Timestamp]", path)
        state.seconds = self._number(source, "Seconds", path, scope, 0, _MAX_SECONDS)
        state.timestamp = self._typed(source, "Timestamp", path, scope, _is_timestamp, "timestamp")

    def _map(self, state: State, source: Mapping[str, Any], path: str, scope: _Scope) -> None:
        processor = source.get("ItemProcessor")
        if not isinstance(processor, Mapping):
            self.problem(SCHEMA, "The field 'ItemProcessor' is required", path)
            return
        config = processor.get("ProcessorConfig", {})
        where = f"{path}/ItemProcessor/ProcessorConfig"
        self._known(config, {"Mode", "ExecutionType"}, where)
        mode, execution = config.get("Mode", "INLINE"), config.get("ExecutionType")
        state.distributed, state.express = mode == "DISTRIBUTED", execution == "EXPRESS"
        if mode not in ("INLINE", "DISTRIBUTED"):
            self.problem(SCHEMA, "Mode must be INLINE or DISTRIBUTED", where)
        if state.distributed and execution not in ("EXPRESS", "STANDARD"):
            self.problem(SCHEMA, "ExecutionType must be EXPRESS or STANDARD in mode DISTRIBUTED", where)
        if not state.distributed:
            if execution is not None:
                self.problem(SCHEMA, "ExecutionType is for mode DISTRIBUTED", where)
            for name in _DISTRIBUTED_ONLY:
                if name in source:
                    self.problem(SCHEMA, f"Field '{name}' is for mode DISTRIBUTED", path)
        elif scope.in_express:
            self.problem(SCHEMA, "A Distributed Map cannot run inside an EXPRESS child", path)
        # States of a Distributed Map's children cannot see the variables outside.
        inner = _Scope(in_express=state.express) if state.distributed else scope
        state.processor = self.machine(processor, f"{path}/ItemProcessor", inner, top=False)
        state.items = self._typed(source, "Items", path, scope, _is_array, "array")
        state.item_selector = self._template(source, "ItemSelector", path, scope)
        state.max_concurrency = self._number(source, "MaxConcurrency", path, scope, 0, 2**31 - 1)
        state.tolerated_count = self._number(source, "ToleratedFailureCount", path, scope, 0, 2**63 - 1)
        state.tolerated_percentage = self._number(
            source, "ToleratedFailurePercentage", path, scope, 0, 100, fractions=True
        )
        if "ItemReader" in source and "Items" in source:
            self.problem(SCHEMA, "ItemReader and Items exclude each other", path)
        self._label(state, source, path)
        self._reader(state, source, path, scope)
        self._writer(state, source, path, scope)

    def _label(self, state: State, source: Mapping[str, Any], path: str) -> None:
        if (label := source.get("Label")) is None:
            return
        if not isinstance(label, str) or not 0 < len(label) <= 40 or FORBIDDEN_IN_NAMES.search(label):
            self.problem(SCHEMA, "Label has 1 to 40 characters, none of them blank or special", f"{path}/Label")
        state.label = str(label)

    def _reader(self, state: State, source: Mapping[str, Any], path: str, scope: _Scope) -> None:
        if (reader := source.get("ItemReader")) is None:
            return
        where = f"{path}/ItemReader"
        self._known(reader, {"Resource", "Arguments", "ReaderConfig"}, where)
        if reader.get("Resource") != "arn:aws:states:::s3:getObject":
            self.problem(NOT_BUILT, f"Resource '{reader.get('Resource')}'", f"{where}/Resource")
        config = reader.get("ReaderConfig", {})
        self._known(config, {"InputType", "MaxItems", "CSVHeaderLocation", "CSVHeaders", "CSVDelimiter"}, where)
        if config.get("InputType") != "JSONL":
            self.problem(NOT_BUILT, f"InputType '{config.get('InputType')}': only JSONL", f"{where}/ReaderConfig")
        for name in sorted(config.keys() - {"InputType"}):
            self.problem(NOT_BUILT, f"Field '{name}'", f"{where}/ReaderConfig/{name}")
        self._object_location(reader, where, {"Bucket", "Key", "VersionId"}, {"Bucket", "Key"})
        arguments = self._template(reader, "Arguments", where, scope, set(), "ItemReader/")
        state.reader = Reader(arguments) if arguments is not None else None

    def _writer(self, state: State, source: Mapping[str, Any], path: str, scope: _Scope) -> None:
        if (writer := source.get("ResultWriter")) is None:
            return
        where = f"{path}/ResultWriter"
        self._known(writer, {"Resource", "Arguments", "WriterConfig"}, where)
        if writer.get("Resource") != "arn:aws:states:::s3:putObject":
            self.problem(NOT_BUILT, f"Resource '{writer.get('Resource')}'", f"{where}/Resource")
        for name, built in (("Transformation", "NONE"), ("OutputType", "JSON")):
            if writer.get("WriterConfig", {}).get(name, built) != built:
                self.problem(NOT_BUILT, f"{name} other than {built}", f"{where}/WriterConfig/{name}")
        self._object_location(writer, where, {"Bucket", "Prefix"}, {"Bucket"})
        state.result_writer = self._template(writer, "Arguments", where, scope, set(), "ResultWriter/")

    def _object_location(self, source: Mapping[str, Any], path: str, allowed: set[str], required: set[str]) -> None:
        arguments = source.get("Arguments")
        if not isinstance(arguments, Mapping):
            self.problem(SCHEMA, "The field 'Arguments' is required", path)
            return
        self._known(arguments, allowed, f"{path}/Arguments")
        for name in sorted(required - arguments.keys()):
            self.problem(SCHEMA, f"The field '{name}' is required", f"{path}/Arguments")

    # Retry and Catch

    def _retriers(self, source: Mapping[str, Any], path: str) -> Iterator[Retrier]:
        retriers = self._list(source, "Retry", path) if "Retry" in source else []
        for index, retrier in enumerate(retriers):
            where = f"{path}/Retry[{index}]"
            self._known(
                retrier,
                {
                    "ErrorEquals",
                    "IntervalSeconds",
                    "MaxAttempts",
                    "BackoffRate",
                    "MaxDelaySeconds",
                    "JitterStrategy",
                    "Comment",
                },
                where,
            )
            interval = self._integer(retrier, "IntervalSeconds", where, 1, _MAX_SECONDS)
            attempts = self._integer(retrier, "MaxAttempts", where, 0, _MAX_SECONDS)
            delay = self._integer(retrier, "MaxDelaySeconds", where, 1, _MAX_DELAY - 1)
            backoff = retrier.get("BackoffRate", 2.0)
            if isinstance(backoff, bool) or not isinstance(backoff, int | float) or backoff < 1:
                self.problem(SCHEMA, "BackoffRate must be a number of at least 1.0", f"{where}/BackoffRate")
                backoff = 2.0
            if delay is not None and delay <= (interval or 1):
                self.problem(SCHEMA, "MaxDelaySeconds must be greater than IntervalSeconds", where)
            if (jitter := retrier.get("JitterStrategy", "NONE")) not in ("NONE", "FULL"):
                self.problem(SCHEMA, "JitterStrategy must be FULL or NONE", f"{where}/JitterStrategy")
            yield Retrier(
                self._error_equals(retrier, where, index == len(retriers) - 1),
                interval or 1,
                3 if attempts is None else attempts,
                backoff,
                delay,
                jitter == "FULL",
            )

    def _catchers(self, source: Mapping[str, Any], path: str, scope: _Scope) -> Iterator[Catcher]:
        catchers = self._list(source, "Catch", path) if "Catch" in source else []
        for index, catcher in enumerate(catchers):
            where, located = f"{path}/Catch[{index}]", f"Catch[{index}]/"
            self._known(catcher, {"ErrorEquals", "Next", "Assign", "Output", "Comment"}, where)
            if "Next" not in catcher:
                self.problem(SCHEMA, "The field 'Next' is required", where)
            yield Catcher(
                self._error_equals(catcher, where, index == len(catchers) - 1),
                str(catcher.get("Next")),
                self._assign(catcher, where, scope, {"errorOutput"}, located),
                self._template(catcher, "Output", where, scope, {"errorOutput"}, located),
            )

    def _error_equals(self, source: Mapping[str, Any], path: str, last: bool) -> tuple[str, ...]:
        names = source.get("ErrorEquals")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self.problem(SCHEMA, "ErrorEquals must be a non-empty array of strings", path)
            return ()
        if errors.ALL in names and (len(names) > 1 or not last):
            self.problem(SCHEMA, "'States.ALL' must stand alone, in the last entry", f"{path}/ErrorEquals")
        return tuple(names)

    # Fields

    def _known(self, source: Any, allowed: Iterable[str], path: str) -> None:
        if not isinstance(source, Mapping):
            self.problem(SCHEMA, "Expected value of type Object", path)
            return
        for name in source:
            if name not in allowed:
                self.problem(SCHEMA, f"Field '{name}' is not supported", path)

    def _list(self, source: Mapping[str, Any], name: str, path: str) -> list[Mapping[str, Any]]:
        value = source.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
            self.problem(SCHEMA, f"The field '{name}' must be a non-empty array of objects", path)
            return []
        return value

    def _integer(self, source: Mapping[str, Any], name: str, path: str, least: int, most: int) -> int | None:
        value = source.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.problem(SCHEMA, f"{name} must be an integer from {least} to {most}", f"{path}/{name}")
            return None
        return value

    def _number(
        self,
        source: Mapping[str, Any],
        name: str,
        path: str,
        scope: _Scope,
        least: int,
        most: int,
        fractions: bool = False,
    ) -> Render | None:
        kinds = (int, float) if fractions else (int,)

        def acceptable(value: Any) -> bool:
            return type(value) in kinds and least <= value <= most

        return self._typed(source, name, path, scope, acceptable, "number")

    def _typed(
        self,
        source: Mapping[str, Any],
        name: str,
        path: str,
        scope: _Scope,
        acceptable: Callable[[Any], bool],
        expected: str,
        located: str = "",
    ) -> Render | None:
        """A field that must be, or must evaluate to, one kind of value."""
        if name not in source:
            return None
        value, location = source[name], located + name
        render = self._template(source, name, path, scope, None, located)
        if render is None:
            return None
        if not _is_expression(value):
            if not acceptable(value):
                self.problem(SCHEMA, f"The value for the field '{name}' must be a valid {expected}", path)
            return render
        inner = render

        def checked(bindings: Bindings, now: float) -> Any:
            result = inner(bindings, now)
            if not acceptable(result):
                raise QueryFailure(
                    location,
                    f"The JSONata expression '{value[2:-2].strip()}' specified for the field '{location}' returned an "
                    f"unexpected result type. Expected '{expected}', but was '{_type_of(result)}'.",
                )
            return result

        return checked

    def _assign(
        self, source: Mapping[str, Any], path: str, scope: _Scope, results: set[str], located: str = ""
    ) -> Render | None:
        if (assign := source.get("Assign")) is None:
            return None
        if not isinstance(assign, Mapping):
            self.problem(SCHEMA, "Expected value of type Object", f"{path}/Assign")
            return None
        for name in assign:
            if not _is_variable_name(name) or name == "states":
                self.problem(SCHEMA, f"'{name}' is not a valid variable name", f"{path}/Assign")
        return self._template(source, "Assign", path, scope, results, located)

    def _template(
        self,
        source: Mapping[str, Any],
        name: str,
        path: str,
        scope: _Scope,
        results: set[str] | None = None,
        located: str = "",
    ) -> Render | None:
        """Compile a field that may hold expressions at any depth; None when the field is absent.

        ``results`` are the members of ``$states`` that this field may use beside input and context.
        """
        if name not in source:
            return None
        members = {"input", "context"} | (results or set())
        compiled = self._value(source[name], f"{path}/{name}", located + name, scope, members)
        if isinstance(compiled, _Constant):
            constant = compiled.value
            return lambda bindings, now: constant
        return compiled

    def _value(self, value: Any, path: str, location: str, scope: _Scope, members: set[str]) -> Render | _Constant:
        if isinstance(value, str) and value.startswith("{%"):
            return self._expression(value, path, location, scope, members)
        if isinstance(value, Mapping):
            return _object(
                {
                    key: self._value(child, f"{path}/{key}", f"{location}/{key}", scope, members)
                    for key, child in value.items()
                }
            )
        if isinstance(value, list):
            return _array(
                [
                    self._value(child, f"{path}[{index}]", f"{location}[{index}]", scope, members)
                    for index, child in enumerate(value)
                ]
            )
        return _Constant(value)

    def _expression(self, text: str, path: str, location: str, scope: _Scope, members: set[str]) -> Render | _Constant:
        if not _is_expression(text):
            self.problem("INVALID_JSONATA_EXPRESSION", "An expression ends with %}", path)
            return _Constant(None)
        try:
            expression = parse(text[2:-2])
        except InvalidExpression as error:
            self.problem(error.code, str(error), path)
            return _Constant(None)
        for member in sorted(expression.states - members):
            self.problem("UNSUPPORTED_JSONATA_EXPRESSION", f"$states.{member} is not available here", path)
        for name in sorted(expression.variables - scope.own - scope.outer):
            self.problem(
                "UNSUPPORTED_JSONATA_EXPRESSION", f"Variable ${name} is not assigned by any state in scope", path
            )
        named = f"The JSONata expression '{expression.source}' specified for the field '{location}'"

        def render(bindings: Bindings, now: float) -> Any:
            try:
                value = expression.evaluate(bindings, now)
            except QueryError as error:
                raise QueryFailure(location, f"{named} threw an error during evaluation. {error}") from error
            if value is UNDEFINED:
                raise QueryFailure(location, f"{named} returned nothing (undefined).")
            return value

        return render


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Any


def _object(members: dict[str, Render | _Constant]) -> Render | _Constant:
    constant = {key: member.value for key, member in members.items() if isinstance(member, _Constant)}
    rendered = [(key, member) for key, member in members.items() if not isinstance(member, _Constant)]
    if not rendered:
        return _Constant(constant)
    blank = dict.fromkeys(members) | constant  # keeps the definition's order

    def render(bindings: Bindings, now: float) -> Any:
        built = blank.copy()
        for key, member in rendered:
            built[key] = member(bindings, now)
        return built

    return render


def _array(items: list[Render | _Constant]) -> Render | _Constant:
    if all(isinstance(item, _Constant) for item in items):
        return _Constant([item.value for item in items if isinstance(item, _Constant)])
    return lambda bindings, now: [item.value if isinstance(item, _Constant) else item(bindings, now) for item in items]


def _targets(state: State, source: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    if state.next is not None:
        yield state.next, f"{path}/Next"
    if state.default is not None:
        yield state.default, f"{path}/Default"
    for index, rule in enumerate(state.choices):
        yield rule.next, f"{path}/Choices[{index}]/Next"
    for index, catcher in enumerate(state.catch):
        yield catcher.next, f"{path}/Catch[{index}]/Next"


def _assigned_in(states: Mapping[str, Any]) -> frozenset[str]:
    """The variables that any state of one ``States`` field assigns, inner scopes left out."""
    names: set[str] = set()
    for state in states.values():
        if isinstance(state, Mapping):
            for holder in (state, *(state.get("Choices") or ()), *(state.get("Catch") or ())):
                if isinstance(holder, Mapping) and isinstance(holder.get("Assign"), Mapping):
                    names.update(str(name) for name in holder["Assign"])
    return frozenset(names)


def _is_expression(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("{%") and value.endswith("%}") and len(value) >= 4


def _is_variable_name(name: Any) -> bool:
    # Unicode's ID_Start leaves the underscore out, unlike Python's identifiers.
    return isinstance(name, str) and name.isidentifier() and len(name) <= 80 and unicodedata.category(name[0]) != "Pc"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_array(value: Any) -> bool:
    return isinstance(value, list)


def _is_timestamp(value: Any) -> bool:
    if not isinstance(value, str) or not re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value
    ):
        return False
    try:
        parse_timestamp(value)
    except ValueError:
        return False
    return True


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
