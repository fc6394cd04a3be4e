"""Typesetting: a template's source, checked and made ready once at preparation, for `carillon.templates` to render."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import css_inline
import minijinja
from inscriptis import get_text  # type: ignore[import-untyped]  # ships no types
from inscriptis.css_profiles import CSS_PROFILES  # type: ignore[import-untyped]  # ships no types
from inscriptis.model.config import ParserConfig  # type: ignore[import-untyped]  # ships no types

from carillon.errors import TemplateRejected
from carillon.shapes import Step
from carillon.templates import Prepared, Renderer, TemplateError, environment, lacks

LARGEST = 500_000
"""Bytes of a template, SES's own limit for its templates (AWS_CONTRACTS 3)."""

_STRING = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
_JINJA = (
    r"\{%-?\s*raw\s*-?%\}.*?\{%-?\s*endraw\s*-?%\}"
    rf"|\{{\{{(?:{_STRING}|[^\"'}}]|\}}(?!\}}))*\}}\}}"
    rf"|\{{%(?:{_STRING}|[^\"'%]|%(?!\}}))*%\}}"
    r"|\{#.*?#\}"
)
_PIECE = re.compile(
    rf"(?P<jinja>{_JINJA})|(?P<comment><!--)|(?P<uncomment>-->)"
    r"|(?P<tag></?[A-Za-z][^\s>/]*)|(?P<untag>>)|(?P<quote>[\"'])",
    re.DOTALL,
)
_RAW_TEXT = frozenset({"style", "script", "title", "textarea"})
_PLAIN = re.compile(rf"\{{\{{-?\s*\w+\s*(?:\|(?:{_STRING}|[^|\"'}}]|\}}(?!\}}))*)*\}}\}}", re.DOTALL)
_CHOICE = re.compile(r"\b(?:if|and|or|not|is)\b")

_ATTRIBUTES = r'(?:\s+[^\s=>]+(?:="[^"]*")?)*\s*'
_ROW_TAG = re.compile(rf"<(/?)(?:table|thead|tbody|tfoot|tr){_ATTRIBUTES}>")
_CELL_TAG = re.compile(rf"<(/?)(?:td|th){_ATTRIBUTES}>")
_BODY_TAG = re.compile(rf"<body{_ATTRIBUTES}>")

_INLINER = css_inline.CSSInliner(load_remote_stylesheets=False, keep_at_rules=True)
_WHATEVER = "x"


def prepare(step: Step, html: str) -> Prepared:
    """``step`` with its template's source as a `Prepared`: parsed, CSS inlined, text part derived.

    Raises:
        TemplateRejected: not parsable, an unknown filter, an include, or a condition at a place that inlining
            cannot keep; the message names the template, the place and the fix.
    """
    if len(html.encode()) > LARGEST:
        raise TemplateRejected(f"template {step.template!r} is over {LARGEST:,} bytes: SES takes no more")
    placeholders = sorted(
        {
            name
            for part, source in (("subject", step.subject), ("preheader", step.preheader or ""), ("template", html))
            for name in _undeclared(step.template, part, source)
        }
    )
    body, text = _html_and_text(step.template, html, step.preheader)
    draft = Prepared(subject=step.subject, html=body, text=text, placeholders=tuple(placeholders), required=None)
    _try(step.template, draft)
    return draft.model_copy(update={"required": _required(draft, step.subject + (step.preheader or "") + html)})


def check_placeholders(step: Step, prepared: Prepared, known: Iterable[str]) -> None:
    """See that every placeholder is one of the list's columns (by the names that placeholders use).

    Raises:
        TemplateRejected: naming the template, the placeholder and the columns.
    """
    known = list(known)
    for name in prepared.placeholders:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {{{{ {close[0]} }}}}?" if close else ""
            raise TemplateRejected(
                f"template {step.template!r} uses {{{{ {name} }}}}, which no column of the list fills.{hint} "
                f"Columns: {', '.join(known)}"
            )


def _undeclared(template: str, part: str, source: str) -> set[str]:
    try:
        return minijinja.Environment().undeclared_variables_in_str(source)
    except minijinja.TemplateError as error:
        raise TemplateRejected(
            f"template {template!r}: the {part} cannot be parsed, line {error.line}: {error.detail}"
        ) from None


_NOT_ABOUT_DATA = frozenset(
    {
        "SyntaxError", "UnknownFilter", "UnknownTest", "UnknownFunction", "UnknownMethod", "UndefinedError",
        "TemplateNotFound", "OutOfFuel",
    }
)  # fmt: skip


def _try(template: str, prepared: Prepared) -> None:
    """Render with a value for everything: what fails now would fail for everybody."""
    stand = environment(prepared, debug=True)
    values = dict.fromkeys(prepared.placeholders, _WHATEVER)
    for part in ("subject", "html", "text"):
        try:
            stand.render_template(part, **values)
        except minijinja.TemplateError as error:
            if error.kind in _NOT_ABOUT_DATA:
                cause = "it takes too many steps" if error.kind == "OutOfFuel" else error.detail or error.kind
                raise TemplateRejected(
                    f"template {template!r} cannot be rendered: {cause} ({part}, "
                    f"line {error.line}). Only placeholders, filters, conditions and loops work here"
                ) from None


def _required(prepared: Prepared, source: str) -> tuple[str, ...] | None:
    """Which names must be there, where that is the same for everybody: plain ``{{ name | filters }}`` only."""
    for piece in re.finditer(_JINJA, source, re.DOTALL):
        if piece[0].startswith(("{#", "{% raw", "{%- raw")):
            continue
        if not _PLAIN.fullmatch(piece[0]) or _CHOICE.search(re.sub(_STRING, "", piece[0])):
            return None
    renderer = Renderer(prepared)
    everything = dict.fromkeys(prepared.placeholders, _WHATEVER)
    try:
        renderer.render(everything)
    except TemplateError:
        return None  # some filter wants a number or a date: no stand-in value can tell
    return tuple(name for name in prepared.placeholders if lacks(renderer, everything | {name: None}))


def _html_and_text(template: str, source: str, preheader: str | None) -> tuple[str, str]:
    """The HTML with its CSS inlined and the text part, both with every Jinja tag where it was.

    Parsers of HTML move, escape or drop what they do not know, so while they work each Jinja tag is a stand-in that
    they keep: a comment between elements (a word there would be thrown out of a table), a word elsewhere.
    """
    if not re.search(r"<(?:html|body)\b", source, re.IGNORECASE):
        source = f"<!doctype html><html><body>{source}</body></html>"
    word = "carillon"
    while word in source:
        word += "q"
    tags: list[str] = []
    visible: set[int] = set()
    pieces: list[str] = []
    end = 0
    for match, mode in _contexts(source):
        number = len(tags)
        tags.append(match[0])
        pieces.append(source[end : match.start()])
        pieces.append(f"<!--{word}{number}x-->" if mode == "text" else f"{word}{number}x")
        end = match.end()
        if mode != "style":
            visible.add(number)
        if mode in ("style", "tag") and re.match(r"\{%-?\s*(?!raw)", match[0]):
            place = "inside <style>" if mode == "style" else "between attributes"
            raise TemplateRejected(
                f"template {template!r} has {match[0]} {place}, where CSS inlining cannot keep it: put the condition "
                "around whole elements, or inside the quotes of an attribute"
            )
    try:
        inlined = _INLINER.inline("".join(pieces) + source[end:])
    except css_inline.InlineError as error:
        raise TemplateRejected(f"template {template!r}: its CSS cannot be inlined: {error}") from None

    stand_in = re.compile(rf'<!--{word}(\d+)x-->|{word}(\d+)x(?:="")?')

    def number_of(match: re.Match[str]) -> int:
        return int(match[1] or match[2])

    def restored(text: str) -> str:
        return stand_in.sub(lambda match: tags[number_of(match)], text)

    flat = _CELL_TAG.sub(r" <\1span> ", _ROW_TAG.sub(r"<\1div>", inlined))
    words = re.sub(rf"<!--({word}\d+x)-->", r"\1", flat)
    text = get_text(words, ParserConfig(css=CSS_PROFILES["strict"], display_links=True))
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip() + "\n"

    kept = [number_of(match) for match in stand_in.finditer(inlined)]
    lost = visible - set(kept)
    if lost:
        raise TemplateRejected(
            f"template {template!r}: {tags[min(lost)]} stands where HTML keeps no text; put it inside an element"
        )
    for part in (inlined, text):
        order = [n for n in map(number_of, stand_in.finditer(part)) if n in visible and tags[n].startswith("{%")]
        if order != sorted(order):
            wrong = next(b for a, b in pairwise(order) if b < a)
            raise TemplateRejected(
                f"template {template!r}: {tags[wrong]} stands where HTML moves it; put it around whole elements"
            )
    if preheader is not None:
        hidden = f'<div style="display:none;max-height:0;overflow:hidden;mso-hide:all">{preheader}</div>'
        inlined = _BODY_TAG.sub(lambda match: match[0] + hidden, inlined, count=1)
    return restored(inlined), restored(text)


def _contexts(source: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each Jinja tag of ``source`` with where it stands: ``text``, ``tag``, ``attribute`` (in its quotes),
    ``comment``, or a raw element's name."""
    mode, element, quote = "text", "", ""
    for match in _PIECE.finditer(source):
        kind = match.lastgroup
        if kind == "jinja":
            yield match, "attribute" if quote else mode
        elif mode == "text":
            if kind == "comment":
                mode = "comment"
            elif kind == "tag":
                mode, element, quote = "tag", match[0][1:].lower(), ""
        elif mode == "comment":
            if kind == "uncomment":
                mode = "text"
        elif mode == "tag":
            if kind == "quote":
                quote = "" if quote == match[0] else quote or match[0]
            elif kind in ("untag", "uncomment") and not quote:
                mode = element if element in _RAW_TEXT else "text"
        elif kind == "tag" and match[0].lower() == f"</{mode}":
            mode, element, quote = "tag", "", ""
