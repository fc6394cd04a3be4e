"""Templates as the sender uses them: made ready by `carillon.typesetting`, rendered once per e-mail.

MiniJinja: autoescape in HTML and not in subject and text, strict undefined, a fuel limit, no functions,
no other templates and no Python in reach. An empty cell is *undefined*, so that
``{{ first_name | default("there") }}`` does what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import minijinja

from carillon.errors import CarillonError
from carillon.shapes import Shape

FUEL = 100_000
"""MiniJinja instructions for one rendering. A placeholder takes about 4: room for a template of 500 KB, none for a loop
that would use up the sender's time."""


class TemplateError(CarillonError):
    """One e-mail cannot be rendered from its data. The message names the place, never the data."""


class Prepared(Shape):
    """A step's templates, ready to render; JSON at `carillon.keys.template`."""

    subject: str
    html: str
    """CSS inlined, preheader inside."""
    text: str
    placeholders: tuple[str, ...]
    """Every name that some part uses, sorted: the data that a task must carry."""
    required: tuple[str, ...] | None
    """The names without which rendering fails; None: that depends on the data (conditions), so ask by rendering."""


@dataclass(frozen=True)
class Rendered:
    """One e-mail's content."""

    subject: str
    html: str
    text: str


class Renderer:
    """Renders one prepared step; make it once and keep it, for compiling is the expensive part."""

    def __init__(self, prepared: Prepared):
        self._placeholders = prepared.placeholders
        self._environment = environment(prepared)

    def render(self, data: Mapping[str, Any]) -> Rendered:
        """The e-mail for ``data`` (placeholder → value; None and blanks count as missing).

        Raises:
            TemplateError: a value without a default is missing, a filter fails, the fuel runs out, or the subject
                would have a line break, which could become a header of its own.
        """
        values = {name: value for name, value in data.items() if not _is_empty(value)}
        try:
            subject, html, text = (
                self._environment.render_template(part, **values) for part in ("subject", "html", "text")
            )
        except minijinja.TemplateError as error:
            raise TemplateError(_explain(error, [name for name in self._placeholders if name not in values])) from None
        if subject.splitlines() != [subject] or "\x00" in subject:
            raise TemplateError("the subject is empty or has a line break: take it out of the value that it uses")
        return Rendered(subject, html, text)


def lacks(renderer: Renderer, data: Mapping[str, Any]) -> bool:
    """Whether a missing value would stop ``data`` from being rendered (for a `Prepared` without ``required``)."""
    try:
        renderer.render(data)
    except TemplateError as error:
        return str(error).startswith(_MISSING)
    return False


_MISSING = "a value without default is missing"


def environment(prepared: Prepared, debug: bool = False) -> minijinja.Environment:
    """``debug`` names what is undefined in an error, but with its value beside it: only for made-up data."""
    environment = minijinja.Environment(
        templates={"subject": prepared.subject, "html": prepared.html, "text": prepared.text},
        undefined_behavior="strict",
        fuel=FUEL,
        debug=debug,
        auto_escape_callback=lambda name: "html" if name == "html" else None,
    )
    for function in environment.globals:
        environment.remove_global(function)
    return environment


def _explain(error: minijinja.TemplateError, missing: list[str]) -> str:
    where = f"{error.name}, line {error.line}"
    match error.kind:
        case "UndefinedError":
            return f"{_MISSING} ({where}); empty here: {', '.join(missing)}"
        case "OutOfFuel":
            return f"rendering takes too many steps ({where})"
        case kind:
            return f"{kind} ({where})"


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
