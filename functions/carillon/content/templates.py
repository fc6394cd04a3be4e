"""Templates as the sender uses them: made ready by `carillon.content.typesetting`, rendered once per e-mail.

MiniJinja: autoescape in HTML and not in subject and text, a fuel limit, no functions, no other templates and no Python
in reach. An empty cell is *undefined*: ``{{ first_name | default("there") }}`` and ``{% if first_name %}`` do what they
say, and everything else that uses it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import Any

import minijinja
from pydantic import Field

from carillon.content import filters, syntax
from carillon.errors import CarillonError
from carillon.shapes import Shape

FUEL = 100_000
"""MiniJinja instructions for one rendering. A placeholder takes about 4: room for a template of 500 KB, none for a loop
that would use up the sender's time."""

LARGEST_EMAIL = 7_000_000
"""Bytes of all parts: in base64 still under the 10 MB from which SES slows a sender down (AWS_CONTRACTS 3)."""

LARGEST_RENDERING = 64 * 2**20
"""Characters that a rendering may be before its size is known: what the sender's memory can take beside the rest."""


class TemplateError(CarillonError):
    """One e-mail cannot be rendered from its data. The message names the place, never the data."""

    @property
    def missing(self) -> bool:
        """Whether it is for want of a value that has no default."""
        return str(self).startswith(_MISSING)


class Prepared(Shape):
    """A step's templates, ready to render; JSON at `carillon.keys.template`."""

    subject: str
    html: str
    """CSS inlined, preheader inside."""
    text: str
    placeholders: tuple[str, ...]
    """Every name that some part uses, sorted: the data that a task must carry. `carillon.content.syntax.LOCALE` and
    ``ZONE`` are among them where a filter writes for them."""
    required: tuple[str, ...] | None
    """The names without which rendering fails; None: that depends on the data (conditions), so ask by rendering."""
    given: tuple[str, ...] = ()
    """Names that some part uses and no column fills: `carillon.content.syntax.BUILTINS` and what an enrichment
    provides."""
    formatted: dict[str, str] = Field(default={})
    """Placeholders whose value has to be a ``date`` or a ``number``, for a filter reads it as it is."""
    warnings: tuple[str, ...] = ()
    """What a person should look at before launch, in sentences."""


@dataclass(frozen=True)
class Rendered:
    """One e-mail's content."""

    subject: str
    html: str
    text: str


class Renderer:
    """Renders one prepared step; make it once and keep it, for compiling is the expensive part."""

    def __init__(self, prepared: Prepared, *, trial: bool = False):
        """``trial``: as `environment` says."""
        sources = {"subject": prepared.subject, "html": prepared.html, "text": prepared.text}
        self._names = prepared.placeholders + prepared.given
        self._environment = environment(prepared, trial=trial)
        self._parts = [_Part(self._environment, name, source) for name, source in sources.items()]
        joined = [syntax.joined(tag[0]) for source in sources.values() for tag in syntax.tags(source)]
        self._work = sum(each**2 for each in joined)  # what is joined one by one is copied each time
        self._longest_join = max(joined, default=1)
        self._repeated = max(map(syntax.repeated, sources.values()))
        if not self._repeated:
            self._environment.fuel = None  # without a loop nothing goes on, and counting costs a fifth
        filters.load(prepared.placeholders)

    def render(self, data: Mapping[str, Any], given: Mapping[str, str] = {}) -> Rendered:
        """The e-mail for ``data`` (placeholder → value) and what Carillon gives itself (`Prepared.given`), which goes
        first. None and blanks count as missing.

        Raises:
            TemplateError: a value without a default is missing, a filter fails, the fuel runs out, the e-mail would be
                too large, or the subject would have a line break, which could become a header of its own.
        """
        values = {
            name: value
            for name, value in {**data, **given}.items()
            if (value.strip() if isinstance(value, str) else value is not None)
        }
        self._bound(values)
        subject, html, text = (self._render(part, values) for part in self._parts)
        if subject.splitlines() != [subject] or "\x00" in subject:
            raise TemplateError("the subject is empty or has a line break: take it out of the value that it uses")
        if (len(html) + len(text)) * 4 > LARGEST_EMAIL and len(html.encode()) + len(text.encode()) > LARGEST_EMAIL:
            raise TemplateError(_TOO_LARGE)
        return Rendered(subject, html, text)

    def _render(self, part: _Part, values: Mapping[str, Any]) -> str:
        try:
            return part.render(values)
        except minijinja.TemplateError as error:
            raise TemplateError(_explain(error, self._missing(values))) from None
        except filters.MissingValue:
            raise TemplateError(_lacking(part.name, self._missing(values))) from None
        except filters.FilterError as error:
            raise TemplateError(f"{error} ({part.name})") from None

    def _bound(self, values: Mapping[str, Any]) -> None:
        """Let nothing be rendered that could take the sender's memory, whatever the template does with ``values``."""
        longest = max([len(value) for value in values.values() if isinstance(value, str)], default=0)
        if self._repeated:
            self._environment.fuel = min(
                FUEL, LARGEST_RENDERING // max(self._repeated, 2 * longest * self._longest_join)
            )
        elif self._work * longest > LARGEST_RENDERING:
            raise TemplateError(_TOO_LARGE)

    def _missing(self, values: Mapping[str, Any]) -> list[str]:
        return [name for name in self._names if name not in values]


_BETWEEN = "\x1f"


class _Part:
    """Subject, HTML or text, compiled.

    A newsletter prints a few things many times: each different one is rendered once, and then put between the text.
    Where that cannot be, or goes wrong, the whole is rendered, which also knows where an error stands.
    """

    def __init__(self, environment: minijinja.Environment, name: str, source: str) -> None:
        self.name = name
        self._render = environment.render_template
        self._pieces = f"{name} in pieces"
        found = syntax.cut(source.removesuffix("\n"))
        self._count = 0
        if found is None or _BETWEEN in source:
            return
        around, pieces = found
        if len(pieces) - len(set(pieces)) < 4:
            return  # too few are the same for it to pay
        numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
        order = [len(numbers)]
        for number, piece in enumerate(pieces, len(numbers) + 1):
            order += [numbers[piece], number]
        self._count, self._around, self._pick = len(numbers), around, itemgetter(*order)
        environment.add_template(self._pieces, "".join(f"{piece}{_BETWEEN}" for piece in numbers))

    def render(self, values: Mapping[str, Any]) -> str:
        """The part for ``values``.

        Raises:
            minijinja.TemplateError, filters.FilterError: naming this part.
        """
        if self._count:
            try:
                made: list[str] = self._render(self._pieces, **values).split(_BETWEEN)[:-1]
            except (minijinja.TemplateError, filters.FilterError):
                made = []
            if len(made) == self._count:
                return "".join(self._pick(made + self._around))
        whole: str = self._render(self.name, **values)
        return whole


def lacks(renderer: Renderer, data: Mapping[str, Any], given: Mapping[str, str] = {}) -> bool:
    """Whether a missing value would stop ``data`` from being rendered (for a `Prepared` without ``required``)."""
    try:
        renderer.render(data, given)
    except TemplateError as error:
        return error.missing
    return False


_TOO_LARGE = f"the e-mail would be over {LARGEST_EMAIL:,} bytes: shorten the values that it repeats"
_MISSING = "a value without default is missing"


def ses_data(values: Mapping[str, Any]) -> dict[str, str]:
    """What fills `carillon.content.typesetting.for_ses`: each value escaped for HTML, and plain on one line for the
    rest."""
    filled = {name: str(value) for name, value in values.items() if value is not None and str(value).strip()}
    return {f"html_{name}": escape(value) for name, value in filled.items()} | {
        f"text_{name}": " ".join(value.replace("\x00", "").splitlines()) for name, value in filled.items()
    }


def environment(prepared: Prepared, *, trial: bool = False) -> minijinja.Environment:
    """``trial`` is for made-up data only: an error names what is undefined, with its value beside it, and filters take
    any value for one that they can read."""
    environment: minijinja.Environment = minijinja.Environment(  # type: ignore[call-overload]  # as strict, but for if
        templates={"subject": prepared.subject, "html": prepared.html, "text": prepared.text},
        undefined_behavior="semi_strict",
        fuel=FUEL,
        debug=trial,
        pycompat=False,
        filters=filters.filters(trial=trial),
        auto_escape_callback=lambda name: "html" if name.startswith("html") else None,
    )
    for function in environment.globals:
        environment.remove_global(function)
    return environment


def _explain(error: minijinja.TemplateError, missing: list[str]) -> str:
    where = f"{error.name}, line {error.line}"
    match error.kind:
        case "UndefinedError":
            return _lacking(where, missing)
        case "OutOfFuel":
            return f"rendering takes too many steps ({where})"
        case kind:
            return f"{kind} ({where})"


def _lacking(where: str, missing: list[str]) -> str:
    return f"{_MISSING} ({where}); empty here: {', '.join(missing)}"
