"""Segments: a condition in SQL over a list's columns that says who of the list is meant.

What a person writes is parsed, and new SQL is written from the tree: nothing of the text itself reaches DuckDB, and a
node, function or argument that is not named here is refused. Cells are text, so what they are compared with decides
what they are read as: beside a number they are numbers, beside a date dates, otherwise text. An empty cell is NULL,
and so is one that cannot be read; as everywhere in SQL a comparison with NULL is not true, and whoever it leaves
undecided is outside. ``current_date`` and ``now()`` are the plan's now, in UTC, which is also what a time without an
offset is in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Literal, NoReturn

import duckdb
import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from carillon.recipients.columns import Column, find
from carillon.recipients.reading import refusal
from carillon.sql import text, trimmed
from carillon.timing import dates

MOST_TOKENS = 1500
DEEPEST = 60
LONGEST_PATTERN = 300
MOST_JOINED = 10
"""Times that ``||`` may stand in a segment: cells of half a megabyte, joined a hundred times, outgrow every memory."""

MACROS = f"""
CREATE OR REPLACE TEMP MACRO cell_number(x) AS CASE
    WHEN regexp_full_match(x, '[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]{{1,3}})?') THEN TRY_CAST(x AS DOUBLE)
    WHEN regexp_full_match(x, '[+-]?[0-9]+,[0-9]{{1,2}}') THEN TRY_CAST(replace(x, ',', '.') AS DOUBLE) END;
CREATE OR REPLACE TEMP MACRO cell_moment(x) AS TRY_CAST(left({dates.canonical("x")}, 19) AS TIMESTAMP);
CREATE OR REPLACE TEMP MACRO cell_truth(x) AS CASE
    WHEN lower(x) IN ('true', 't', 'yes', 'y', '1') THEN true
    WHEN lower(x) IN ('false', 'f', 'no', 'n', '0') THEN false END;
"""
"""What the conditions of `condition` call."""

Kind = Literal["text", "number", "day", "moment", "truth", "stretch", "null"]

_CASTS: dict[exp.DType, Kind] = {
    exp.DType.DATE: "day", exp.DType.BOOLEAN: "truth", exp.DType.TEXT: "text", exp.DType.VARCHAR: "text",
    exp.DType.TIMESTAMP: "moment", exp.DType.TIMESTAMPTZ: "moment", exp.DType.DATETIME: "moment",
    exp.DType.TIMESTAMPNTZ: "moment", exp.DType.DOUBLE: "number", exp.DType.FLOAT: "number",
    exp.DType.DECIMAL: "number",
}  # fmt: skip
_WHOLE = (exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT)
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM",
}  # fmt: skip
_UNITS = {"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"}
_PARTS = {"YEAR", "MONTH", "DAY", "HOUR", "DOW", "ISODOW", "WEEK", "QUARTER"}


@dataclass(frozen=True)
class _Value:
    """A piece of SQL and what it is; ``literal``: what a string or number in the text says."""

    sql: str
    kind: Kind
    literal: str | None = None


def condition(written: str, among: Sequence[Column], now: datetime) -> str:
    """The SQL condition over ``c0, c1 …`` (`carillon.recipients.lists`) that ``written`` means; true or false and
    never NULL.

    Raises:
        ListRejected: ``invalid_segment`` or ``no_such_column``, with what and where, and what to write instead.
    """
    try:
        _check_size(written)
        tree = sqlglot.parse_one(written, into=exp.Condition, dialect="duckdb")
        made = _Compiler(among, now.astimezone(UTC)).truth(tree)
    except SqlglotError as error:
        raise _refusal(_where(error)) from None
    except RecursionError:
        raise _refusal("it is nested too deeply") from None
    return f"coalesce(TRY({made}), false)"


def _refusal(cause: str) -> Exception:
    return refusal(
        "invalid_segment",
        f"list.segment cannot be used: {cause}",
        "Write one condition over the list's columns, such as country = 'DE' AND CAST(last_login AS DATE) < "
        "current_date - 30; a column with odd characters goes into double quotes",
    )


def _refuse(cause: str) -> NoReturn:
    raise _refusal(cause)


def _where(error: SqlglotError) -> str:
    found = getattr(error, "errors", None) or [{}]
    causes = [each for each in found if each.get("line")]
    while not causes and error.__cause__ is not None:
        error = error.__cause__  # type: ignore[assignment]  # what into= wraps
        causes = [each for each in getattr(error, "errors", None) or [] if each.get("line")]
    if not causes:
        return "it is no condition"
    return f"line {causes[0]['line']}, column {causes[0]['col']}: {causes[0]['description']}"


def _check_size(written: str) -> None:
    """Bound what the parser and this module recurse into."""
    if "\x00" in written:
        _refuse("it has a NUL character")
    tokens = sqlglot.tokenize(written, dialect="duckdb")
    if len(tokens) > MOST_TOKENS:
        _refuse(f"it has more than {MOST_TOKENS:,} words and signs")
    depth = run = 0
    for token in tokens:
        if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE):
            depth += 1
        elif token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE):
            depth -= 1
        run = run + 1 if token.token_type in (TokenType.NOT, TokenType.DASH, TokenType.PLUS) else 0
        if depth > DEEPEST or run > DEEPEST:
            _refuse("it is nested too deeply")


class _Compiler:
    def __init__(self, among: Sequence[Column], now: datetime) -> None:
        self._columns = among
        self._now = now
        self._depth = 0
        self._joins = 0
        comparison: tuple[set[str], Callable[..., _Value]] = ({"this", "expression"}, self._compare)
        self._rules: dict[type[exp.Expr], tuple[set[str], Callable[..., _Value]]] = {
            exp.Column: ({"this"}, self._column),
            exp.Literal: ({"this", "is_string"}, self._literal),
            exp.Boolean: ({"this"}, lambda node: _Value("true" if node.this else "false", "truth")),
            exp.Null: (set(), lambda _: _Value("NULL", "null")),
            exp.Paren: ({"this"}, lambda node: self._value(node.this)),
            exp.And: ({"this", "expression"}, self._chain),
            exp.Or: ({"this", "expression"}, self._chain),
            exp.Not: ({"this"}, lambda node: _Value(f"(NOT {self.truth(node.this)})", "truth")),
            exp.Is: ({"this", "expression"}, self._is),
            exp.In: ({"this", "expressions"}, self._in),
            exp.Between: ({"this", "low", "high"}, self._between),
            exp.Like: ({"this", "expression", "negate"}, self._like),
            exp.ILike: ({"this", "expression", "negate"}, self._like),
            exp.RegexpLike: ({"this", "expression"}, self._matches),
            exp.Add: ({"this", "expression"}, self._sum),
            exp.Sub: ({"this", "expression"}, self._sum),
            exp.Mul: ({"this", "expression"}, self._product),
            exp.Div: ({"this", "expression", "typed", "safe"}, self._product),
            exp.Mod: ({"this", "expression"}, self._product),
            exp.Neg: ({"this"}, lambda node: _Value(f"(-{self._number(node.this)})", "number")),
            exp.DPipe: ({"this", "expression", "safe"}, self._joined),
            exp.Cast: ({"this", "to"}, self._cast),
            exp.TryCast: ({"this", "to", "safe"}, self._cast),
            exp.Interval: ({"this", "unit"}, self._interval),
            exp.CurrentDate: (set(), lambda _: _Value(f"DATE '{self._now:%Y-%m-%d}'", "day")),
            exp.CurrentTimestamp: (set(), lambda _: self._moment_now()),
            exp.Anonymous: ({"this", "expressions"}, self._anonymous),
            exp.Lower: ({"this"}, lambda node: _Value(f"lower({self._text(node.this)})", "text")),
            exp.Upper: ({"this"}, lambda node: _Value(f"upper({self._text(node.this)})", "text")),
            exp.Trim: ({"this"}, lambda node: _Value(f"trim({self._text(node.this)})", "text")),
            exp.Length: ({"this"}, lambda node: _Value(f"CAST(length({self._text(node.this)}) AS DOUBLE)", "number")),
            exp.Left: ({"this", "expression"}, lambda node: self._cut("left", node.this, node.expression)),
            exp.Right: ({"this", "expression"}, lambda node: self._cut("right", node.this, node.expression)),
            exp.Substring: (
                {"this", "start", "length"},
                lambda node: self._cut("substring", node.this, node.args["start"], node.args.get("length")),
            ),
            exp.StartsWith: ({"this", "expression"}, lambda node: self._test("starts_with", node)),
            exp.EndsWith: ({"this", "expression"}, lambda node: self._test("suffix", node)),
            exp.Contains: ({"this", "expression"}, lambda node: self._test("contains", node)),
            exp.Coalesce: ({"this", "expressions"}, self._coalesce),
            exp.Abs: ({"this"}, lambda node: _Value(f"abs({self._number(node.this)})", "number")),
            exp.Round: ({"this", "decimals"}, self._round),
            exp.Year: ({"this"}, lambda node: self._part("YEAR", node.this)),
            exp.Month: ({"this"}, lambda node: self._part("MONTH", node.this)),
            exp.Day: ({"this"}, lambda node: self._part("DAY", node.this)),
            exp.Extract: ({"this", "expression"}, lambda node: self._part(node.name.upper(), node.expression)),
            exp.DateDiff: ({"this", "expression", "unit", "date_part_boundary"}, self._date_diff),
        }
        self._rules.update(dict.fromkeys(_COMPARISONS, comparison))

    def truth(self, node: exp.Expr) -> str:
        """The SQL of what has to be true or false."""
        return self._as_truth(self._value(node))

    def _value(self, node: exp.Expr) -> _Value:
        rule = self._rules.get(type(node))
        if rule is None:
            _refuse(f"{_called(node)} is not allowed here")
        allowed, make = rule
        odd = {name for name, value in node.args.items() if value not in (None, False, [], "")} - allowed
        if odd:
            _refuse(f"{_called(node)} is not allowed with {', '.join(sorted(odd))}")
        self._depth += 1
        if self._depth > DEEPEST * 2:
            _refuse("it is nested too deeply")
        made = make(node)
        self._depth -= 1
        return made

    # What a value is read as

    def _as_truth(self, value: _Value) -> str:
        if value.kind == "truth":
            return value.sql
        if value.kind == "text" and value.literal is None:
            return f"cell_truth({value.sql})"
        if value.kind == "text" and (value.literal or "").lower() in ("true", "false"):
            return (value.literal or "").lower()
        _refuse(f"{_shown(value)} is neither true nor false")

    def _as_number(self, value: _Value) -> str:
        if value.kind == "number":
            return value.sql
        if value.kind == "text":
            if value.literal is None:
                return f"cell_number({value.sql})"
            try:
                return _number(value.literal)
            except ValueError:
                pass
        _refuse(f"{_shown(value)} is no number, and is used as one")

    def _as_moment(self, value: _Value) -> str:
        if value.kind == "moment":
            return value.sql
        if value.kind == "day":
            return f"CAST({value.sql} AS TIMESTAMP)"
        if value.kind == "text":
            if value.literal is None:
                return f"cell_moment({value.sql})"
            read = dates.read(value.literal)
            if read is not None:
                return _moment(read if isinstance(read, datetime) else datetime.combine(read, time()))
        _refuse(f"{_shown(value)} is no date, and is used as one: write dates as 2026-12-31")

    @staticmethod
    def _as_text(value: _Value) -> str:
        if value.kind != "text":
            _refuse(f"{_shown(value)} is no text, and is used as one: CAST(… AS TEXT) makes it one")
        return value.sql

    def _number(self, node: exp.Expr) -> str:
        return self._as_number(self._value(node))

    def _text(self, node: exp.Expr) -> str:
        return self._as_text(self._value(node))

    def _alike(self, values: Sequence[_Value]) -> tuple[list[str], Kind]:
        """``values`` as one kind, so that they can be compared."""
        kinds = {value.kind for value in values}
        if "null" in kinds:
            _refuse("nothing equals NULL: write IS NULL or IS NOT NULL")
        if "stretch" in kinds:
            _refuse("stretches of time cannot be compared: write date_diff('day', a, b) > 30")
        if kinds & {"day", "moment"}:
            return [self._as_moment(value) for value in values], "moment"
        if "number" in kinds:
            return [self._as_number(value) for value in values], "number"
        if "truth" in kinds:
            return [self._as_truth(value) for value in values], "truth"
        return [self._as_text(value) for value in values], "text"

    # What stands in the tree

    def _column(self, node: exp.Column) -> _Value:
        if not isinstance(node.this, exp.Identifier):
            _refuse(f"{_called(node)} is not allowed here")
        column = find(node.name, self._columns, "list.segment")
        return _Value(f"nullif({trimmed(f'c{column.index}')}, '')", "text")

    @staticmethod
    def _literal(node: exp.Literal) -> _Value:
        if node.is_string:
            return _Value(text(node.name), "text", node.name)
        try:
            return _Value(_number(node.name), "number", node.name)
        except ValueError as error:
            _refuse(f"{node.name}: {error}")

    def _chain(self, node: exp.Connector) -> _Value:
        word = " AND " if isinstance(node, exp.And) else " OR "
        return _Value("(" + word.join(self.truth(part) for part in node.flatten(unnest=False)) + ")", "truth")

    def _compare(self, node: exp.Binary) -> _Value:
        sign = _COMPARISONS[type(node)]
        left, right = self._value(node.this), self._value(node.expression)
        if "DISTINCT" in sign and "null" in (left.kind, right.kind):
            _refuse("write IS NULL or IS NOT NULL")
        (a, b), kind = self._alike((left, right))
        if kind == "truth" and sign[0] in "<>" and sign != "<>":
            _refuse("true and false have no order")
        return _Value(f"({a} {sign} {b})", "truth")

    def _is(self, node: exp.Is) -> _Value:
        value = self._value(node.this)
        if isinstance(node.expression, exp.Null):
            return _Value(f"({value.sql} IS NULL)", "truth")
        if isinstance(node.expression, exp.Boolean):
            return _Value(f"({self._as_truth(value)} IS {'TRUE' if node.expression.this else 'FALSE'})", "truth")
        _refuse("IS goes with NULL, NOT NULL, TRUE and FALSE")

    def _in(self, node: exp.In) -> _Value:
        (first, *rest), _ = self._alike([self._value(part) for part in (node.this, *node.expressions)])
        if not rest:
            _refuse("IN () has nothing in it")
        return _Value(f"({first} IN ({', '.join(rest)}))", "truth")

    def _between(self, node: exp.Between) -> _Value:
        parts = (node.this, node.args["low"], node.args["high"])
        (value, low, high), _ = self._alike([self._value(part) for part in parts])
        return _Value(f"({value} BETWEEN {low} AND {high})", "truth")

    def _like(self, node: exp.Like | exp.ILike) -> _Value:
        # DuckDB's LIKE tries every way that many % can be filled, RE2 never does.
        pattern = "".join({"%": ".*", "_": "."}.get(sign) or _plain(sign) for sign in self._pattern(node.expression))
        options = "si" if isinstance(node, exp.ILike) else "s"
        made = f"regexp_full_match({self._text(node.this)}, {text(pattern)}, '{options}')"
        return _Value(f"(NOT {made})" if node.args.get("negate") else made, "truth")

    def _matches(self, node: exp.RegexpLike) -> _Value:
        pattern = self._pattern(node.expression)
        try:
            duckdb.connect().execute("SELECT regexp_matches('', ?)", [pattern])
        except duckdb.Error:
            _refuse(f"'{pattern}' is no regular expression")
        return _Value(f"regexp_matches({self._text(node.this)}, {text(pattern)})", "truth")

    def _pattern(self, node: exp.Expr) -> str:
        value = self._value(node)
        if value.kind != "text" or value.literal is None or len(value.literal) > LONGEST_PATTERN:
            _refuse(f"a pattern is a text in quotes, of at most {LONGEST_PATTERN} characters")
        return value.literal

    def _sum(self, node: exp.Add | exp.Sub) -> _Value:
        sign = "+" if isinstance(node, exp.Add) else "-"
        left, right = self._value(node.this), self._value(node.expression)
        if right.kind == "stretch":
            return _Value(f"({self._as_moment(left)} {sign} {right.sql})", "moment")
        if left.kind == "day" and right.kind == "number":
            if right.literal is not None and not abs(float(right.literal)) <= 1_000_000:
                _refuse(f"{right.literal} days leave the calendar")
            return _Value(f"({left.sql} {sign} CAST({right.sql} AS INTEGER))", "day")
        if left.kind == right.kind == "day" and sign == "-":
            return _Value(f"CAST(date_diff('day', {right.sql}, {left.sql}) AS DOUBLE)", "number")
        if {"day", "moment"} & {left.kind, right.kind}:
            _refuse(
                "to or from a date go days (current_date - 30) or an INTERVAL; between two dates write "
                "current_date - CAST(x AS DATE), which are days"
            )
        return _Value(f"({self._as_number(left)} {sign} {self._as_number(right)})", "number")

    def _product(self, node: exp.Binary) -> _Value:
        left, right = self._number(node.this), self._number(node.expression)
        if isinstance(node, exp.Mul):
            return _Value(f"({left} * {right})", "number")
        return _Value(f"({left} {'/' if isinstance(node, exp.Div) else '%'} nullif({right}, 0))", "number")

    def _joined(self, node: exp.DPipe) -> _Value:
        self._joins += 1
        if self._joins > MOST_JOINED:
            _refuse(f"|| stands in it more than {MOST_JOINED} times")
        return _Value(f"({self._text(node.this)} || {self._text(node.expression)})", "text")

    def _cast(self, node: exp.Cast) -> _Value:
        value, to = self._value(node.this), node.args["to"]
        if not isinstance(to, exp.DataType) or to.expressions or to.args.get("nested"):
            _refuse(f"{_called(node)} to that type is not allowed")
        kind = _CASTS.get(to.this)
        if to.this in _WHOLE:
            return _Value(f"round({self._as_number(value)})", "number")
        match kind:
            case "day":
                return _Value(f"CAST({self._as_moment(value)} AS DATE)", "day")
            case "moment":
                return _Value(self._as_moment(value), "moment")
            case "number":
                return _Value(self._as_number(value), "number")
            case "truth":
                return _Value(self._as_truth(value), "truth")
            case "text":
                return value if value.kind == "text" else _Value(f"CAST({value.sql} AS VARCHAR)", "text")
        _refuse("CAST goes to DATE, TIMESTAMP, INTEGER, BIGINT, DOUBLE, TEXT and BOOLEAN")

    def _interval(self, node: exp.Interval) -> _Value:
        unit = (node.args["unit"].name if node.args.get("unit") else "").upper().removesuffix("S")
        amount = node.this.name if isinstance(node.this, exp.Literal) else ""
        if unit not in _UNITS or not re.fullmatch(r"[+-]?\d{1,6}", amount):
            _refuse("an interval is a whole number of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR: INTERVAL 30 DAY")
        return _Value(f"INTERVAL '{int(amount)}' {unit}", "stretch")

    def _moment_now(self) -> _Value:
        return _Value(_moment(self._now), "moment")

    def _anonymous(self, node: exp.Anonymous) -> _Value:
        if node.name.lower() in ("now", "get_current_timestamp") and not node.expressions:
            return self._moment_now()
        _refuse(f"the function {node.name}() is not allowed here")

    def _cut(self, function: str, value: exp.Expr, *numbers: exp.Expr | None) -> _Value:
        given = [self._value(number) for number in numbers if number is not None]
        if any(not re.fullmatch(r"\d{1,6}", number.literal or "") for number in given):
            _refuse(f"{function}() takes whole numbers")
        return _Value(
            f"{function}({', '.join((self._text(value), *(number.literal or '' for number in given)))})", "text"
        )

    def _test(self, function: str, node: exp.Func) -> _Value:
        return _Value(f"{function}({self._text(node.this)}, {self._text(node.args['expression'])})", "truth")

    def _coalesce(self, node: exp.Coalesce) -> _Value:
        made, kind = self._alike([self._value(part) for part in (node.this, *node.expressions)])
        return _Value(f"coalesce({', '.join(made)})", kind)

    def _round(self, node: exp.Round) -> _Value:
        decimals = node.args.get("decimals")
        places = self._value(decimals).literal if decimals is not None else "0"
        if not re.fullmatch(r"\d", places or ""):
            _refuse("round() takes a number of decimals from 0 to 9")
        return _Value(f"round({self._number(node.this)}, {places})", "number")

    def _part(self, part: str, node: exp.Expr) -> _Value:
        if part not in _PARTS:
            _refuse(f"of a date there are {', '.join(sorted(_PARTS)).lower()}")
        return _Value(f"CAST(extract('{part}' FROM {self._as_moment(self._value(node))}) AS DOUBLE)", "number")

    def _date_diff(self, node: exp.DateDiff) -> _Value:
        unit = node.args.get("unit")
        named = (unit.name if unit is not None else "").upper()
        if named not in _UNITS:
            _refuse("date_diff() counts in 'second', 'minute', 'hour', 'day', 'week', 'month' or 'year'")
        since, until = self._as_moment(self._value(node.expression)), self._as_moment(self._value(node.this))
        return _Value(f"CAST(date_diff('{named.lower()}', {since}, {until}) AS DOUBLE)", "number")


def _number(written: str) -> str:
    """A number for SQL.

    Raises:
        ValueError: it is none, or one that cells read as numbers could be rounded to.
    """
    value = float(written)
    if not math.isfinite(value):
        raise ValueError("is too large")
    if value.is_integer() and abs(value) > 2**53:
        raise ValueError("has too many digits for a number: compare it as text, in quotes")
    return f"CAST({text(repr(value))} AS DOUBLE)"


def _moment(value: datetime) -> str:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return f"TIMESTAMP '{aware.astimezone(UTC):%Y-%m-%d %H:%M:%S}'"


def _plain(sign: str) -> str:
    return sign if sign.isalnum() or ord(sign) > 127 else re.escape(sign)


def _called(node: exp.Expr) -> str:
    """What a person would call ``node``."""
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
        return "a subquery"
    if isinstance(node, exp.AggFunc | exp.Window):
        return "an aggregate or window function"
    if isinstance(node, exp.Func):
        return f"the function {node.sql_name().lower()}()"
    return type(node).__name__


def _shown(value: _Value) -> str:
    words = {"text": "a text", "number": "a number", "day": "a date", "moment": "a point of time"}
    words |= {"truth": "a condition", "stretch": "an interval", "null": "NULL"}
    return f"'{value.literal}'" if value.literal is not None else words[value.kind]
