"""JSONata as Step Functions evaluates it: what its engine refuses is refused here, when the machine is created.

``jsonata-python`` is the reference. It needs about 100 µs for a path, so paths, literals, ``&``, comparisons,
``and``/``or``, ``? :``, ``$exists`` and object and array constructors over them are also compiled to Python
closures. A closure that meets a case whose answer is not obvious (a path through a list, a float in a string)
gives up, and the reference evaluates: ``tests/local/stepfunctions/test_expression.py`` holds both to the same
answers.

JSON null is ``None``; "returned nothing" is ``UNDEFINED``. Values are shared, never changed.
"""

from __future__ import annotations

import hashlib
import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonata.functions import Functions  # type: ignore[import-untyped]
from jsonata.jexception import JException  # type: ignore[import-untyped]
from jsonata.jsonata import Jsonata  # type: ignore[import-untyped]
from jsonata.utils import Utils  # type: ignore[import-untyped]

type Bindings = Mapping[str, Any]
type Native = Callable[[Bindings], Any]
type Node = Any  # jsonata-python's Symbol, which is untyped

STATES = "states"
STATES_MEMBERS = frozenset({"input", "result", "errorOutput", "context"})


class _Undefined:
    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED = _Undefined()


class InvalidExpression(ValueError):
    """An expression that Step Functions refuses in a definition; ``code`` is its diagnostic's code."""

    def __init__(self, message: str, code: str = "INVALID_JSONATA_EXPRESSION") -> None:
        super().__init__(message)
        self.code = code


class QueryError(Exception):
    """An expression that failed while it was evaluated: ``T2001: The left side of the "+" operator …``."""


class Expression:
    """One parsed and checked expression, safe to evaluate from any thread.

    ``variables`` are the names it refers to (functions and names bound inside it left out),
    ``states`` the members of ``$states`` among them.
    """

    def __init__(self, source: str) -> None:
        """Parse ``source``, the text between ``{%`` and ``%}``.

        Raises:
            InvalidExpression: it does not parse, or refers to what Step Functions does not offer.
        """
        self.source = source.strip()
        try:
            self._reference = _Reference(self.source)
        except JException as error:
            raise InvalidExpression(str(error)) from error
        except KeyError as error:
            raise InvalidExpression(f"Unknown operator: {error.args[0]}") from error
        except (IndexError, TypeError, AttributeError) as error:  # how the library's parser falls over
            raise InvalidExpression("Syntax error") from error
        references = _References(self._reference.ast)
        self.variables = frozenset(references.variables - {STATES})
        self.states = frozenset(references.states)
        self._named = references.named
        self._native = _native(self._reference.ast)

    def evaluate(self, bindings: Bindings, now: float) -> Any:
        """The value (``UNDEFINED`` when there is none); ``now`` (epoch seconds) is what ``$now()`` shows.

        Raises:
            QueryError: a type error, an error of a function, a result that JSON cannot hold.
        """
        if self._native is not None:
            try:
                return self._native(bindings)
            except _NotObvious:
                pass
        return self.evaluate_by_reference(bindings, now)

    def evaluate_by_reference(self, bindings: Bindings, now: float) -> Any:
        """As ``evaluate``, always by jsonata-python."""
        frame: dict[str, Any] = {name: _import(bindings[name]) for name in self.variables if name in bindings}
        if self.states:
            states = bindings[STATES]
            frame[STATES] = {member: _import(states[member]) for member in self.states if member in states}
        if "now" in self._named or "millis" in self._named:
            frame.update(_clock_functions(int(now * 1000)))
        try:
            # The library keeps its evaluator in a thread-local and would use another expression's.
            Jsonata.CURRENT.jsonata = self._reference
            return _export(self._reference.evaluate(None, frame))
        except JException as error:
            raise QueryError(f"{error.error}: {error}") from error
        except RecursionError as error:
            raise QueryError("D1011: Stack overflow") from error
        except QueryError:
            raise
        except Exception as error:  # the library raises bare ValueError, TypeError … for bad arguments
            raise QueryError(f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=4096)
def parse(source: str) -> Expression:
    """``Expression(source)``, parsed once."""
    return Expression(source)


class _Reference(Jsonata):  # type: ignore[misc]
    """jsonata-python with the six functions that Step Functions adds and its strict ``and`` and ``or``."""

    def __init__(self, source: str) -> None:
        # Step Functions speaks JSONata 2.0.6, which has neither of these operators.
        for operator in ("??", "?:"):
            Jsonata.get_parser().symbol_table.pop(operator, None)
        super().__init__(source)
        for name, function in _ADDED_FUNCTIONS.items():
            self.register_lambda(name, function)
        self.set_output_convert_nulls(False)

    def evaluate_binary(self, expr: Node, input: Any, environment: Any) -> Any:
        operator = str(expr.value)
        if operator not in ("and", "or"):
            return super().evaluate_binary(expr, input, environment)
        left = _strict_boolean(self.eval(expr.lhs, input, environment), 1, operator)
        if left is (operator == "or"):
            return left
        return _strict_boolean(self.eval(expr.rhs, input, environment), 2, operator)


def _strict_boolean(value: Any, index: int, op: str) -> bool:
    # Step Functions' engine answers T0410 where JSONata's would cast; seen in reports, not in its documentation.
    if not isinstance(value, bool):
        raise QueryError(f'T0410: Argument {index} of function "{op}" does not match function signature')
    return value


def _import(value: Any) -> Any:
    """A private copy in the library's terms: null is its own object, and nothing of ours can be changed."""
    if value is None:
        return Utils.NULL_VALUE
    if isinstance(value, dict):
        return {key: _import(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_import(item) for item in value]
    return value


def _export(value: Any) -> Any:
    if value is None:
        return UNDEFINED
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is Utils.NULL_VALUE or value is None:
        return None
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, bool | int | float | str):
        return value
    raise QueryError("the result is a function, which JSON cannot hold")


# The functions of Step Functions


def _partition(array: Any = None, size: Any = None) -> Any:
    if array is None:
        return None
    if not isinstance(array, list) or isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise QueryError('T0410: function "partition" takes an array and a positive integer')
    return [array[start : start + size] for start in range(0, len(array), size)]


def _range(start: Any = None, end: Any = None, step: Any = None) -> Any:
    numbers = (start, end, step)
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise QueryError('T0410: function "range" takes three numbers: start, end, step')
    if step == 0:
        raise QueryError('function "range" cannot take a step of 0')
    count = max(0, int((end - start) / step) + 1) if (end - start) * step >= 0 else 0
    return [start + index * step for index in range(count)]


def _hash(data: Any = None, algorithm: Any = None) -> Any:
    names = {"MD5": "md5", "SHA-1": "sha1", "SHA-256": "sha256", "SHA-384": "sha384", "SHA-512": "sha512"}
    if data is None:
        return None
    if algorithm not in names:
        raise QueryError(f'function "hash" takes one of {", ".join(names)}')
    text = data if isinstance(data, str) else json.dumps(_plain(data), separators=(",", ":"), ensure_ascii=False)
    return hashlib.new(names[algorithm], text.encode(), usedforsecurity=False).hexdigest()


def _random(seed: Any = None) -> float:
    return random.Random(seed).random()  # noqa: S311 - the language's $random, not a secret


def _uuid() -> str:
    return str(uuid.uuid4())


def _parse_json(text: Any = None) -> Any:
    if text is None:
        return None
    if not isinstance(text, str):
        raise QueryError('T0410: Argument 1 of function "parse" does not match function signature')
    try:
        return _import(json.loads(text))
    except ValueError as error:
        raise QueryError(f'function "parse" was given invalid JSON: {error}') from error


_ADDED_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "partition": _partition,
    "range": _range,
    "hash": _hash,
    "random": _random,
    "uuid": _uuid,
    "parse": _parse_json,
}
_FUNCTIONS = (frozenset(Jsonata.static_frame.bindings) | frozenset(_ADDED_FUNCTIONS)) - {"eval"}


def _clock_functions(millis: int) -> dict[str, Any]:
    def now(picture: Any = None, timezone: Any = None) -> Any:
        return Functions.datetime_from_millis(millis, picture, timezone)

    return {"now": Jsonata.JLambda(now), "millis": Jsonata.JLambda(lambda: millis)}


# What an expression refers to


class _References:
    """Walks an expression once: its variables, and what Step Functions refuses because it has no context item."""

    def __init__(self, ast: Node) -> None:
        self.named: set[str] = set()
        self.states: set[str] = set()
        self._local: set[str] = set()
        self._called: set[str] = set()
        self._walk(ast, has_context=False)
        self.variables = self.named - self._local - _FUNCTIONS
        if "eval" in self.named:
            raise InvalidExpression("Function $eval is not available: use $parse", "UNSUPPORTED_JSONATA_EXPRESSION")
        if unknown := self._called - self._local - _FUNCTIONS:
            raise InvalidExpression(f"Function ${min(unknown)} does not exist", "UNSUPPORTED_JSONATA_EXPRESSION")

    def _walk(self, node: Node, has_context: bool) -> None:
        match node.type:
            case "name" | "wildcard" | "descendant" | "parent" if not has_context:
                shown = node.value if node.type == "name" else {"wildcard": "*", "descendant": "**"}.get(node.type, "%")
                raise InvalidExpression(
                    f"Reference to '{shown}' at the top level is not supported.", "UNSUPPORTED_JSONATA_EXPRESSION"
                )
            case "variable":
                self._variable(node, has_context)
            case "path":
                self._path(node, has_context)
                return
            case "bind":
                self._local.add(node.lhs.value)
                self._walk(node.rhs, has_context)
            case "lambda":
                self._local.update(argument.value for argument in node.arguments)
                self._walk(node.body, has_context)
            case "function" | "partial":
                if node.procedure.type == "variable":
                    self._called.add(node.procedure.value)
                for child in (node.procedure, *node.arguments):
                    self._walk(child, has_context)
            case "transform":
                for child in (node.pattern, node.update, node.delete):
                    if child is not None:
                        self._walk(child, has_context=True)
            case _:
                for child in _operands(node):
                    self._walk(child, has_context)
        self._attached(node)

    def _attached(self, node: Node) -> None:
        """What follows a node in brackets or braces has that node as its context."""
        for stage in (*(node.stages or ()), *(node.predicate or ())):
            if stage.type == "filter":
                self._walk(stage.expr, has_context=True)
        for name in (node.focus, node.index):
            if isinstance(name, str):
                self._local.add(name)
        if node.type != "unary" and node.group is not None:
            for pair in node.group.lhs_object:
                for child in pair:
                    self._walk(child, has_context=True)

    def _path(self, node: Node, has_context: bool) -> None:
        first = node.steps[0]
        if first.type == "variable" and first.value == STATES:
            member = node.steps[1]
            if member.type != "name" or member.value not in STATES_MEMBERS:
                shown = member.value if member.type == "name" else "…"
                raise InvalidExpression(
                    f"Reference to '$states.{shown}' is not supported.", "UNSUPPORTED_JSONATA_EXPRESSION"
                )
            self.states.add(member.value)
            self.named.add(STATES)
            self._attached(first)
        else:
            self._walk(first, has_context)
        for step in node.steps[1:]:
            if step.type == "sort":
                for term in step.terms:
                    self._walk(term.expression, has_context=True)
                self._attached(step)
            else:
                self._walk(step, has_context=True)
        self._attached(node)

    def _variable(self, node: Node, has_context: bool) -> None:
        if node.value == "$" or (node.value == "" and not has_context):
            shown = "$$" if node.value == "$" else "$"
            raise InvalidExpression(
                f"Reference to '{shown}' at the top level is not supported.", "UNSUPPORTED_JSONATA_EXPRESSION"
            )
        if node.value == STATES:
            raise InvalidExpression(
                "Reference to '$states' must name input, result, errorOutput or context.",
                "UNSUPPORTED_JSONATA_EXPRESSION",
            )
        if node.value:
            self.named.add(node.value)


def _operands(node: Node) -> Iterator[Node]:
    for name in ("lhs", "rhs", "expression", "condition", "then", "_else"):
        child = getattr(node, name, None)
        if child is not None and hasattr(child, "type"):
            yield child
    yield from getattr(node, "expressions", None) or ()
    for pair in getattr(node, "lhs_object", None) or ():
        yield from pair


# The native fast path


class _NotObvious(Exception):
    """The native code cannot be sure to answer as the reference would."""


def _native(node: Node) -> Native | None:
    """A closure that answers as the reference does or raises ``_NotObvious``; None where none is written."""
    if node.predicate or node.stages or node.keep_array or (node.type != "unary" and node.group is not None):
        return None
    match node.type:
        case "string" | "number" | "value":
            literal = node.value
            return lambda bindings: literal
        case "variable":
            return _native_variable(node.value)
        case "path":
            return _native_path(node)
        case "condition":
            return _native_condition(node)
        case "unary" if node.value == "{":
            return _native_object(node)
        case "unary" if node.value == "[":
            return _native_array(node)
        case "function" if node.procedure.type == "variable" and node.procedure.value == "exists":
            return _native_exists(node)
        case "binary":
            left, right = _native(node.lhs), _native(node.rhs)
            if left is not None and right is not None:
                return _native_operator(str(node.value), left, right)
    return None


def _native_variable(name: str) -> Native | None:
    if name in _FUNCTIONS:
        return None
    return lambda bindings: bindings.get(name, UNDEFINED)


def _native_path(node: Node) -> Native | None:
    steps = node.steps
    plain = all(
        not (step.stages or step.predicate or step.tuple or step.keep_array or step.focus or step.index or step.group)
        for step in steps
    )
    named = steps[0].type == "variable" and all(step.type == "name" for step in steps[1:])
    if not plain or not named or node.keep_singleton_array or node.tuple or steps[0].value in _FUNCTIONS:
        return None
    first, names = steps[0].value, tuple(str(step.value) for step in steps[1:])

    def follow(bindings: Bindings) -> Any:
        value = bindings.get(first, UNDEFINED)
        for name in names:
            if isinstance(value, dict):
                value = value.get(name, UNDEFINED)
            elif isinstance(value, list):
                raise _NotObvious
            else:
                return UNDEFINED
        return value

    return follow


def _native_condition(node: Node) -> Native | None:
    condition, then = _native(node.condition), _native(node.then)
    otherwise: Native | None = (lambda bindings: UNDEFINED) if node._else is None else _native(node._else)
    if condition is None or then is None or otherwise is None:
        return None

    def choose(bindings: Bindings) -> Any:
        truth = condition(bindings)
        if not isinstance(truth, bool):
            raise _NotObvious
        return then(bindings) if truth else otherwise(bindings)

    return choose


def _native_object(node: Node) -> Native | None:
    keys = [pair[0].value for pair in node.lhs_object if pair[0].type == "string"]
    values = [_native(pair[1]) for pair in node.lhs_object]
    compiled = [value for value in values if value is not None]
    if not keys or len(set(keys)) != len(values) or len(compiled) != len(values):
        return None
    members = list(zip(keys, compiled, strict=True))

    def build(bindings: Bindings) -> Any:
        built = {key: value(bindings) for key, value in members}
        return {key: value for key, value in built.items() if value is not UNDEFINED}

    return build


def _native_array(node: Node) -> Native | None:
    items = [_native(item) for item in node.expressions]
    compiled = [item for item in items if item is not None]
    if len(compiled) != len(items) or node.consarray:
        return None
    members = list(zip([str(item.value) == "[" for item in node.expressions], compiled, strict=True))

    def build(bindings: Bindings) -> Any:
        built: list[Any] = []
        for nested, item in members:
            value = item(bindings)
            if isinstance(value, list) and not nested:
                built.extend(value)
            elif value is not UNDEFINED:
                built.append(value)
        return built

    return build


def _native_exists(node: Node) -> Native | None:
    if len(node.arguments) != 1 or node.arguments[0].type not in ("path", "variable"):
        return None
    argument = _native(node.arguments[0])
    if argument is None:
        return None
    return lambda bindings: argument(bindings) is not UNDEFINED


def _native_operator(operator: str, left: Native, right: Native) -> Native | None:
    match operator:
        case "&":
            return lambda bindings: _text(left(bindings)) + _text(right(bindings))
        case "=":
            return lambda bindings: _equal(left(bindings), right(bindings))
        case "!=":
            return lambda bindings: _unequal(left(bindings), right(bindings))
        case "and":
            return lambda bindings: _truth(left(bindings)) and _truth(right(bindings))
        case "or":
            return lambda bindings: _truth(left(bindings)) or _truth(right(bindings))
        case "<" | "<=" | ">" | ">=":
            return _native_comparison(operator, left, right)
    return None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is UNDEFINED:
        return ""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int) and abs(value) < 10**15:
        return str(value)
    raise _NotObvious


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _NotObvious
    return value


def _equal(left: Any, right: Any) -> bool:
    if left is UNDEFINED or right is UNDEFINED:
        return False
    if isinstance(left, dict | list) or isinstance(right, dict | list):
        raise _NotObvious
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _unequal(left: Any, right: Any) -> bool:
    return left is not UNDEFINED and right is not UNDEFINED and not _equal(left, right)


def _native_comparison(operator: str, left: Native, right: Native) -> Native:
    def compare(bindings: Bindings) -> Any:
        one, other = left(bindings), right(bindings)
        kinds = type(one), type(other)
        if kinds != (str, str) and (not set(kinds) <= {int, float}):
            raise _NotObvious
        match operator:
            case "<":
                return one < other
            case "<=":
                return one <= other
            case ">":
                return one > other
        return one >= other

    return compare
