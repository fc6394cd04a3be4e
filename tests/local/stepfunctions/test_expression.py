"""JSONata as Step Functions has it.

Sources: "Transforming data with JSONata in Step Functions" (the six functions, no ``$eval``, no ``$`` or bare names at
the top level), "Passing data between states with variables", the contract sheet's section 2 (JSONata).
"""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.stepfunctions.expression import UNDEFINED, InvalidExpression, QueryError, parse

NOW = 1_795_968_000.0  # 2026-11-29T16:00:00Z


def evaluate(source: str, **variables: Any) -> Any:
    states = {"input": variables.pop("input", {}), "context": {"Execution": {"Name": "one"}}}
    return parse(source).evaluate({**variables, "states": states}, NOW)


# The native fast path answers as jsonata-python does

KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(-1000, 1000).map(lambda number: round(number, 3)).filter(lambda number: not number.is_integer()),
    st.text("xyz'é ", max_size=4),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
PATHS = st.tuples(
    st.sampled_from(["$states.input", "$states.context", "$x", "$y", "$missing"]), st.lists(KEYS, max_size=3)
).map(lambda parts: ".".join([parts[0], *parts[1]]))
LITERALS = st.sampled_from(["1", "-2.5", "0", "'x'", "'at('", "true", "false", "null", "''"])
EXPRESSIONS = st.recursive(
    st.one_of(PATHS, LITERALS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&", "=", "!=", "<", "<=", ">", ">=", "and", "or"]), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
        st.tuples(inner, st.sampled_from(["&", "=", "<"]), inner).map(" ".join),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]}) ? {parts[1]} : {parts[2]}"),
        st.tuples(inner, inner).map(lambda parts: f"{{'k': {parts[0]}, 'l': {parts[1]}}}"),
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        PATHS.map(lambda path: f"$exists({path})"),
    ),
    max_leaves=5,
)


def outcome(call: Any) -> Any:
    try:
        return "value", call()
    except QueryError as error:
        return "error", type(error)


@given(source=EXPRESSIONS, data=VALUES, x=VALUES, y=VALUES)
@settings(max_examples=600, deadline=None)
def test_the_fast_path_answers_as_the_reference_does(source: str, data: Any, x: Any, y: Any) -> None:
    """Whatever the expression and the data, evaluating natively and by jsonata-python give one answer."""
    expression = parse(source)
    bindings = {"x": x, "y": y, "states": {"input": data, "context": {"a": {"b": 1}}}}
    native = outcome(lambda: expression.evaluate(bindings, NOW))
    reference = outcome(lambda: expression.evaluate_by_reference(bindings, NOW))
    assert native == reference
    assert repr(native) == repr(reference)  # 1 and True, 1 and 1.0 are not the same JSON


@pytest.mark.parametrize(
    "source",
    [
        "$states.input.a.b",
        "'at(' & $states.input.at & ')'",
        "$x = 'hi'",
        "$x != 'hi'",
        "$exists($states.input.a) and $x = 'hi'",
        "{'a': $x, 'b': $states.input.missing}",
        "[$x, $states.input.list]",
        "$x = 'hi' ? 1 : 2",
        "5 > 3",
    ],
)
def test_the_expressions_of_a_fan_out_are_native(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, concatenation, comparison and templates never reach the slow evaluator."""
    expression = parse(source)

    def slow(*_: Any) -> Any:
        raise AssertionError("evaluated by the reference")

    monkeypatch.setattr(expression, "evaluate_by_reference", slow)
    data = {"a": {"b": 1}, "at": "2027-01-01T09:00:00", "list": [1, 2]}
    expression.evaluate({"x": "hi", "states": {"input": data, "context": {}}}, NOW)


# Values


def test_a_missing_member_is_undefined_and_null_is_null() -> None:
    """JSON null is a value; a path that finds nothing has none."""
    assert evaluate("$states.input.missing", input={"there": None}) is UNDEFINED
    assert evaluate("$states.input.there", input={"there": None}) is None
    assert evaluate("$exists($states.input.there)", input={"there": None}) is True


def test_a_filter_that_matches_one_item_yields_the_item_unless_it_is_wrapped() -> None:
    """The contract sheet: filters matching one element return the element; ``[…]`` keeps the array."""
    rows = [{"id": 1}, {"id": 2}]
    assert evaluate("$states.input[id=1]", input=rows) == {"id": 1}
    assert evaluate("[$states.input[id=1]]", input=rows) == [{"id": 1}]
    assert evaluate("[$states.input[id=9]]", input=rows) == []


def test_evaluating_changes_nothing_of_what_it_reads() -> None:
    """Values are shared between states, so grouping an empty list must not grow it."""
    data: dict[str, Any] = {"rows": [], "nested": {"null": None}}
    evaluate("$states.input.rows{$string(a): b}", input=data)
    evaluate("$merge([$states.input.nested, {'x': 1}])", input=data)
    assert data == {"rows": [], "nested": {"null": None}}


def test_a_result_that_is_a_function_is_an_error() -> None:
    """JSON cannot hold a function."""
    with pytest.raises(QueryError):
        evaluate("function($a) { $a }")


def test_a_type_error_is_a_query_error_with_its_code() -> None:
    """AWS's cause ends with the JSONata code and message."""
    with pytest.raises(QueryError, match="T2001"):
        evaluate("'a' + 1")


@pytest.mark.parametrize("source", ["'x' and true", "true and $missing", "false or 'x'", "$states.input.n or false"])
def test_and_and_or_take_booleans_only(source: str) -> None:
    """Step Functions' engine answers T0410 where JSONata would cast."""
    with pytest.raises(QueryError, match="T0410"):
        evaluate(source, input={"n": 1})


def test_and_and_or_stop_at_the_first_answer() -> None:
    """``$exists`` guards what follows it."""
    assert evaluate("$exists($states.input.a) and $states.input.a > 1") is False
    assert evaluate("true or $states.input.a > 1") is True


# The functions of Step Functions


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("$partition([1,2,3,4,5], 2)", [[1, 2], [3, 4], [5]]),
        ("$range(0, 10, 2)", [0, 2, 4, 6, 8, 10]),
        ("$range(3, 1, -1)", [3, 2, 1]),
        ("$hash('input data', 'SHA-1')", "aaff4a450a104cd177d28d18d74485e8cae074b7"),
        ("$hash('', 'MD5')", "d41d8cd98f00b204e9800998ecf8427e"),
        ("$parse('{\"a\": [1, null]}')", {"a": [1, None]}),
    ],
)
def test_the_functions_that_step_functions_adds(source: str, expected: Any) -> None:
    """``$partition $range $hash $parse`` give what "JSONata functions provided by Step Functions" shows."""
    assert evaluate(source) == expected


def test_random_takes_a_seed_and_uuid_is_a_version_4() -> None:
    """``$random(seed)`` repeats itself, ``$random()`` does not; ``$uuid()`` is a v4 UUID."""
    assert evaluate("$random(7)") == evaluate("$random(7)")
    assert 0 <= evaluate("$random()") < 1
    assert evaluate("$uuid()")[14] == "4"
    assert evaluate("$uuid()") != evaluate("$uuid()")


@pytest.mark.parametrize(
    "source", ["$partition([1], 0)", "$range(1, 2, 0)", "$hash('a', 'CRC32')", "$parse('{')", "$parse(1)"]
)
def test_wrong_arguments_fail_the_query(source: str) -> None:
    """A function that cannot answer fails the state."""
    with pytest.raises(QueryError):
        evaluate(source)


def test_now_and_millis_show_the_movable_clock() -> None:
    """Machines, Scheduler and functions live in one time."""
    assert evaluate("$millis()") == NOW * 1000
    assert evaluate("$now()") == "2026-11-29T16:00:00.000Z"
    assert evaluate("$fromMillis($millis(), '[Y0001]')") == "2026"


# What is refused in a definition


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("phone", "Reference to 'phone' at the top level is not supported."),
        ("phone.home", "Reference to 'phone' at the top level is not supported."),
        ("'a' & phone", "Reference to 'phone' at the top level is not supported."),
        ("$", r"Reference to '\$' at the top level is not supported."),
        ("$$.a", r"Reference to '\$\$' at the top level is not supported."),
        ("*", r"Reference to '\*' at the top level is not supported."),
        ("$map($x, function($v) { name })", "Reference to 'name' at the top level"),
        ("$eval('1')", r"\$eval is not available"),
        ("$x ~> $eval", r"\$eval is not available"),
        ("$concat('a')", r"Function \$concat does not exist"),
        ("$states", "must name input, result, errorOutput or context"),
        ("$states.inputs.a", r"Reference to '\$states.inputs' is not supported"),
        ("1 +", "Unexpected end of expression"),
        ("a[1,2)", "Expected"),
        ('"unterminated', "String literal must be terminated"),
        ("$x ?? 1", r"Unknown operator: \?\?"),
        ("$x ?: 1", r"Unknown operator: \?:"),
    ],
)
def test_what_aws_refuses_is_refused_when_it_is_parsed(source: str, message: str) -> None:
    """Step Functions has no context item, no ``$eval``, and speaks JSONata 2.0.6."""
    with pytest.raises(InvalidExpression, match=message):
        parse(source)


@pytest.mark.parametrize(
    "source",
    [
        "$x.(a & b)",
        "$x[a = 1].b",
        "$x^(>a).b",
        "$x{a: $sum(b)}",
        "$map($x, function($v, $i) { $v.a & $i })",
        "($f := function($a) { $a + 1 }; $f(1))",
        "$x ~> |a|{'b': 1}|",
        "$x#$i.{'n': $i}",
        "$x@$v.($v.a)",
        "$filter($x, function($v) { $v.a > 1 })[0]",
        "$x.*",
        "$x.$",
    ],
)
def test_names_inside_a_path_have_a_context(source: str) -> None:
    """After a step, in a predicate, a sort or a group, names and ``$`` are allowed."""
    assert parse(source).variables <= {"x"}


def test_an_expression_tells_what_it_refers_to() -> None:
    """The definition's checks need variables and members of ``$states``; functions and local names are neither."""
    expression = parse("($n := $count($rows); $states.input.a & $states.context.State.Name & $n & $other)")
    assert expression.variables == {"rows", "other"}
    assert expression.states == {"input", "context"}


def test_a_number_stays_a_json_number() -> None:
    """Whole results are integers, as JSON writes them."""
    assert evaluate("1 + 1") == 2
    assert isinstance(evaluate("4 / 2"), int)
    assert math.isclose(evaluate("0.1 + 0.2"), 0.3)
