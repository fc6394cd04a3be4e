"""Filters that MiniJinja does not have, or has without a bound: all take a cell of the list as it is written.

``date``, ``datetime``, ``time``, ``number``, ``currency`` and ``percent`` write for the recipient's locale, in the
recipient's zone. Babel is imported when a template uses the first of them, for it takes a tenth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, tzinfo
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from html import escape, unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import minijinja

from carillon.content import links, syntax
from carillon.timing import dates

if TYPE_CHECKING:
    from babel import Locale
    from minijinja._lowlevel import State

LONGEST = 200_000
"""Characters that one filter may make: more than a schedule can carry (`carillon.launch.batches.LARGEST_SCHEDULE`)."""

FALLBACK_LOCALE = "en"

STAND_IN = "x"
"""What a trial has for every value."""

_LENGTHS = ("short", "medium", "long", "full")
_DAY = "yMLdEcQqGw"
_CLOCK = "ahHkKmszZvVxX"
_SAMPLE_MOMENT, _SAMPLE_NUMBER = datetime(2026, 12, 31, 9, 30, tzinfo=UTC), Decimal("1234.5")


class FilterError(Exception):
    """A filter cannot do its work; the message names it and never its value."""


class MissingValue(FilterError):
    """There is no value."""


def filters(*, trial: bool = False) -> dict[str, Callable[..., Any]]:
    """All of them by name. ``trial``: a value that cannot be read is taken for a sample, so that only a filter's
    arguments can be wrong."""

    def moment(name: str, value: object, form: str | None, zone: tzinfo) -> date | datetime:
        found = value if isinstance(value, date) else read_moment(_written(name, value), form)
        if found is None:
            if trial:
                return _SAMPLE_MOMENT
            raise FilterError(
                f"{name} finds no date in its value: give dates as 2026-12-31, or say how they are written, "
                f'{name}(input="%d/%m/%Y")'
            )
        if isinstance(found, datetime):
            return found.astimezone(zone) if found.tzinfo else found.replace(tzinfo=zone)
        return found

    def quantity(name: str, value: object) -> Decimal:
        found = Decimal(str(value)) if isinstance(value, int | float) else read_number(_written(name, value))
        if found is None:
            if trial:
                return _SAMPLE_NUMBER
            raise FilterError(f"{name} finds no number in its value: give numbers as 1234.50")
        return found

    @minijinja.pass_state
    def format_date(
        state: State, value: object, format: str = "medium", *, input: str | None = None, locale: str | None = None
    ) -> str:
        from babel import dates as babel

        found = moment("date", value, input, _zone(state))
        day = found.date() if isinstance(found, datetime) else found
        return babel.format_date(day, _pattern("date", format, _DAY), _locale(state, locale))

    @minijinja.pass_state
    def format_datetime(
        state: State, value: object, format: str = "medium", *, input: str | None = None, locale: str | None = None
    ) -> str:
        from babel import dates as babel

        zone = _zone(state)
        found = moment("datetime", value, input, zone)
        if not isinstance(found, datetime):
            raise FilterError("datetime finds no time of day in its value: use date for dates")
        pattern = _pattern("datetime", format, _DAY + _CLOCK)
        return babel.format_datetime(found, pattern, zone, _locale(state, locale))

    @minijinja.pass_state
    def format_time(
        state: State, value: object, format: str = "short", *, input: str | None = None, locale: str | None = None
    ) -> str:
        from babel import dates as babel

        zone = _zone(state)
        wall = read_wall(_written("time", value)) if isinstance(value, str) and input is None else None
        found = wall or moment("time", value, input, zone)
        if isinstance(found, date) and not isinstance(found, datetime):
            raise FilterError("time finds no time of day in its value")
        if isinstance(found, time):
            found = datetime.combine(_SAMPLE_MOMENT.date(), found, tzinfo=zone)
        return babel.format_time(found, _pattern("time", format, _CLOCK), zone, _locale(state, locale))

    @minijinja.pass_state
    def number(state: State, value: object, decimals: int | None = None, *, locale: str | None = None) -> str:
        from babel import numbers

        return numbers.format_decimal(
            quantity("number", value), _decimals("number", "#,##0", decimals), _locale(state, locale)
        )

    @minijinja.pass_state
    def currency(state: State, value: object, code: str = "", *, locale: str | None = None) -> str:
        from babel import numbers

        amount = quantity("currency", value)
        if not numbers.is_currency(str(code)) and not (trial and code == STAND_IN):
            raise FilterError('currency needs the currency\'s code: currency("EUR")')
        return numbers.format_currency(amount, str(code), locale=_locale(state, locale))

    @minijinja.pass_state
    def percent(state: State, value: object, decimals: int | None = None, *, locale: str | None = None) -> str:
        from babel import numbers

        return numbers.format_percent(
            quantity("percent", value), _decimals("percent", "#,##0", decimals, "%"), _locale(state, locale)
        )

    return {
        "date": format_date,
        "datetime": format_datetime,
        "time": format_time,
        "number": number,
        "currency": currency,
        "percent": percent,
        "replace": replace,
        "join": join,
        "split": split,
        "urlencode": urlencode,
        links.FILTER: add_parameters,
    }


def urlencode(value: object) -> str:
    """``value`` as part of an address; MiniJinja's own makes nothing of a missing one, which breaks the link."""
    return quote(_written("urlencode", value), safe="/")


def replace(value: object, old: str, new: str) -> str:
    """``value`` with ``new`` for each ``old``."""
    written = _written("replace", value)
    if not old:
        raise FilterError("replace needs something to look for")
    return _bounded("replace", len(written) + written.count(old) * (len(str(new)) - len(old)), written).replace(
        old, str(new)
    )


def join(value: object, between: str = "") -> str:
    """The members of a list in one text."""
    if value is None:
        raise MissingValue("join")
    parts = [str(part) for part in value] if isinstance(value, list | tuple) else [_written("join", value)]
    _bounded("join", sum(map(len, parts)) + len(parts) * len(between), "")
    return between.join(parts)


def split(value: object, between: str | None = None) -> list[str]:
    """The parts of a text, without the blanks around them; by default its words."""
    written = _written("split", value)
    if between == "":
        raise FilterError("split needs what stands between the parts")
    parts = [part.strip() for part in written.split(between)]
    if len(parts) > LONGEST // 20:
        raise FilterError(f"split makes more than {LONGEST // 20:,} parts")
    return parts


@minijinja.pass_state
def add_parameters(state: State, value: object, parameters: str = "") -> Any:
    """`carillon.content.links.add_parameters` to an address that is known only now; in HTML it comes and goes
    escaped."""
    written = str(value)
    if state.auto_escape != "html":
        return links.add_parameters(written, parameters)
    return minijinja.safe(escape(links.add_parameters(unescape(written), parameters)))


@lru_cache(maxsize=1024)
def find_locale(written: str) -> str | None:
    """CLDR's name for ``written`` (``de-AT``, ``pt_BR``), or for its language where the region is unknown; None: it
    is no locale."""
    from babel import Locale, UnknownLocaleError

    parts = re.split(r"[-_]", written.strip().partition(".")[0])
    while parts:
        try:
            return str(Locale.parse("_".join(parts)))
        except (UnknownLocaleError, ValueError, TypeError):
            parts.pop()
    return None


def read_moment(written: str, form: str | None = None) -> date | datetime | None:
    """The date, or date and time, that is ``written`` (`carillon.timing.dates`), or as ``form`` (of ``strptime``)
    says; None for all else."""
    if form is None:
        return dates.read(written)
    try:
        found = datetime.strptime(written.strip(), form)  # noqa: DTZ007  (wall time: the caller knows the zone)
    except ValueError:
        return None
    return found if re.search(r"%[HIMSXcTRzp]", form) else found.date()


def read_wall(written: str) -> time | None:
    """What is written like 9:05 or 09:05:30; None for all else."""
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", written.strip())
    return time(int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def read_number(written: str) -> Decimal | None:
    """The number that is ``written``: ``1234.5``, ``1,234.50``, ``1.234,50``, ``19,90``; None for all else.

    A lone point is always the decimal one; a lone comma with three digits after it says nothing, so it is refused.
    """
    digits = re.sub(r"(?<=\d)[\s\u00a0\u202f'’](?=\d{3})", "", written.strip()).replace("\u2212", "-")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+\.\d+", digits) or re.fullmatch(r"[+-]?\d{1,3}(,\d{3}){2,}", digits):
        digits = digits.replace(",", "")
    elif re.fullmatch(r"[+-]?\d{1,3}(\.\d{3})+,\d+|[+-]?\d{1,3}(\.\d{3}){2,}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif re.fullmatch(r"[+-]?\d+,(\d{1,2}|\d{4,})", digits):
        digits = digits.replace(",", ".")
    if not re.fullmatch(r"[+-]?\d{1,30}(\.\d{1,30})?", digits, re.ASCII):
        return None
    try:
        return Decimal(digits)
    except InvalidOperation:
        return None


def _written(name: str, value: object) -> str:
    if value is None:
        raise MissingValue(name)
    return str(value)


def _bounded(name: str, length: int, value: str) -> str:
    if length > LONGEST:
        raise FilterError(f"{name} makes more than {LONGEST:,} characters")
    return value


def _locale(state: State, named: str | None) -> Locale:
    from babel import Locale

    wanted = str(named or state.lookup(syntax.LOCALE) or FALLBACK_LOCALE)
    found = find_locale(wanted)
    if found is None and named:
        raise FilterError("locale= names none that is known: write it as de_AT")
    return Locale.parse(found or FALLBACK_LOCALE)


def _zone(state: State) -> tzinfo:
    from carillon import zones

    named = zones.find(str(state.lookup(syntax.ZONE) or ""))
    return zones.get(named) if named else UTC


def _pattern(name: str, written: str, letters: str) -> str:
    """``written`` (a length, or a pattern of CLDR) if it means something for a filter that shows ``letters``."""
    if written in _LENGTHS:
        return written
    runs = re.findall(r"([A-Za-z])\1*", re.sub(r"'[^']*'", "", written))
    if not runs or not set(runs) <= set(letters) or "'" in re.sub(r"'[^']*'", "", written):
        raise FilterError(
            f'{name}(…) takes {", ".join(_LENGTHS)} or a pattern such as "d. MMMM y", in letters {letters}'
        )
    return written


def _decimals(name: str, pattern: str, wanted: int | None, after: str = "") -> str | None:
    if wanted is None:
        return None
    if not 0 <= wanted <= 20:
        raise FilterError(f"{name}(…) takes a number of decimals between 0 and 20")
    return pattern + ("." + "0" * wanted if wanted else "") + after


def load(placeholders: Mapping[str, object] | tuple[str, ...]) -> None:
    """Import Babel now if templates with these placeholders will need it, and not when the first e-mail waits."""
    if syntax.LOCALE in placeholders:
        import babel.dates
        import babel.numbers  # noqa: F401
