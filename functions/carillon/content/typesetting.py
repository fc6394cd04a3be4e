"""Typesetting: a template's source, checked and made ready once at preparation, for `carillon.content.templates` to
render."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from html import escape, unescape
from itertools import pairwise

import css_inline
import minijinja
from inscriptis import get_text  # type: ignore[import-untyped]  # ships no types
from inscriptis.css_profiles import CSS_PROFILES  # type: ignore[import-untyped]  # ships no types
from inscriptis.model.config import ParserConfig  # type: ignore[import-untyped]  # ships no types

from carillon.content import filters, links, syntax
from carillon.content.syntax import BUILTINS, JINJA, LOCALE, STRING, ZONE
from carillon.content.templates import Prepared, Renderer, TemplateError, environment, lacks
from carillon.errors import TemplateRejected
from carillon.shapes import Step

LARGEST = 500_000
"""Bytes of a template, SES's own limit for its templates (AWS_CONTRACTS 3)."""

CLIPPED = 102 * 1024
"""Bytes of HTML from which Gmail hides the rest, and with it the unsubscribe link."""

TRACKED = 250
"""Links of an e-mail whose clicks SES counts (AWS_CONTRACTS 3)."""

FOOTING = '<p>{{ postal_address }} <a href="{{ unsubscribe_url }}">Unsubscribe</a></p>'
"""What every template needs, to be pasted."""

_PIECE = re.compile(
    rf"(?P<jinja>{JINJA})|(?P<comment><!--)|(?P<uncomment>-->)"
    r"|(?P<tag></?[A-Za-z][^\s>/]*)|(?P<untag>>)|(?P<quote>[\"'])",
    re.DOTALL,
)
_RAW_TEXT = frozenset({"style", "script", "title", "textarea"})
_PLAIN = re.compile(rf"\{{\{{-?\s*\w+\s*(?:\|(?:{STRING}|[^|\"'}}]|\}}(?!\}}))*)*\}}\}}", re.DOTALL)
_BARE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_CHOICE = re.compile(r"\b(?:if|and|or|not|is)\b")

_ATTRIBUTES = r'(?:\s+[^\s=>]+(?:="[^"]*")?)*\s*'
_ROW_TAG = re.compile(rf"<(/?)(?:table|thead|tbody|tfoot|tr){_ATTRIBUTES}>")
_CELL_TAG = re.compile(rf"<(/?)(?:td|th){_ATTRIBUTES}>")
_BODY_TAG = re.compile(rf"<body{_ATTRIBUTES}>")
_LINK_TAG = re.compile(rf"<a({_ATTRIBUTES})>")
_LINK = re.compile(rf"<a({_ATTRIBUTES})>(.*?)</a>", re.DOTALL)
_IMAGE_TAG = re.compile(rf"<img({_ATTRIBUTES})/?>")
_ATTRIBUTE = re.compile(r'\s+([^\s=>]+)(?:="([^"]*)")?')
_LINK_TAGS = re.compile(r"(?:[A-Za-z0-9_-]+:[A-Za-z0-9_-]+(?:;\s*|$))+")

_INLINER = css_inline.CSSInliner(load_remote_stylesheets=False, keep_at_rules=True)


def prepare(step: Step, html: str, *, parameters: str = "", provided: Collection[str] = ()) -> Prepared:
    """``step`` with its template's source as a `Prepared`: parsed, CSS inlined, links seen to, text part derived.

    ``parameters`` (``utm_source=…&…``, encoded) are added to web links; an enrichment fills the names ``provided``.

    Raises:
        TemplateRejected: not parsable, what the language has not (`carillon.content.syntax`), a link that cannot work,
        or a
            condition at a place that inlining cannot keep; the message names the template, the place and the fix.
    """
    if len(html.encode()) > LARGEST:
        raise TemplateRejected(f"template {step.template!r} is over {LARGEST:,} bytes: SES takes no more")
    used: set[str] = set()
    for part, source in (("subject", step.subject), ("preheader", step.preheader or ""), ("template", html)):
        used |= syntax.names(step.template, part, source)
    body, text, warnings = _Typesetting(step.template, parameters).typeset(html, step.preheader)
    if len(body.encode()) > CLIPPED:
        warnings.append(
            f"template {step.template!r} is {len(body.encode()) // 1024} KB of HTML, and Gmail hides what is after "
            f"{CLIPPED // 1024} KB, the unsubscribe link too: shorten it"
        )
    everything = step.subject + (step.preheader or "") + html
    given = used & {*BUILTINS, *provided}
    draft = Prepared(
        subject=step.subject,
        html=body,
        text=text,
        placeholders=tuple(sorted(used - given)),
        required=None,
        given=tuple(sorted(given)),
        formatted={name: kind for name, kind in syntax.formatted(everything).items() if name in used - given},
        warnings=tuple(warnings),
    )
    _try(step.template, draft)
    return draft.model_copy(update={"required": _required(draft, everything)})


def check_placeholders(step: Step, prepared: Prepared, known: Iterable[str]) -> tuple[str, ...]:
    """See that every placeholder is one of the list's columns (by the names that placeholders use).

    Answers with a warning for each column that a name of Carillon's own hides.

    Raises:
        TemplateRejected: naming the template, the placeholder and the columns.
    """
    known = list(known)
    own = (LOCALE, ZONE)
    for name in prepared.placeholders:
        if name not in known and name not in own:
            close = difflib.get_close_matches(name, [*known, *BUILTINS], n=1)
            hint = f" Did you mean {{{{ {close[0]} }}}}?" if close else ""
            raise TemplateRejected(
                f"template {step.template!r}, or its subject or preheader, uses {{{{ {name} }}}}, which no column of "
                f"the list fills.{hint} Columns: {', '.join(known)}"
            )
    return tuple(
        f"template {step.template!r}: {{{{ {name} }}}} is not the list's column of that name; Carillon fills it"
        for name in (*prepared.given, *own)
        if name in known and name in prepared.given + prepared.placeholders
    )


def missing_footing(prepared: Prepared) -> tuple[str, ...]:
    """Which of `carillon.content.syntax.BUILTINS` a step's e-mail does not show everybody, in its HTML and in its
    text."""
    shown = re.sub(r"<!--.*?-->", "", prepared.html, flags=re.DOTALL)
    return tuple(
        name for name in BUILTINS if not (syntax.always_shows(shown, name) and syntax.always_shows(prepared.text, name))
    )


def check_footing(step: Step, prepared: Prepared) -> None:
    """See that every recipient finds a way out and the sender's address.

    Raises:
        TemplateRejected: with what can be pasted.
    """
    if missing := missing_footing(prepared):
        named = " and no ".join(f"{{{{ {name} }}}}" for name in missing)
        raise TemplateRejected(
            f"template {step.template!r} has no {named} that every recipient sees, in HTML and in text. Put this "
            f"before </body>, outside conditions: {FOOTING}"
        )


@dataclass(frozen=True)
class SesTemplate:
    """A step's template in SES's own language, to be filled with `carillon.content.templates.ses_data`."""

    subject: str
    html: str
    text: str


def for_ses(prepared: Prepared) -> SesTemplate:
    """``prepared`` as SES fills it by itself, on the direct route.

    SES escapes nothing, so HTML and text take each value under a name of its own, escaped and plain.

    Raises:
        TemplateRejected: it is more than plain placeholders; names the place.
    """
    return SesTemplate(
        **{part: _for_ses(part, getattr(prepared, part)) for part in ("subject", "html", "text")},
    )


def _for_ses(part: str, source: str) -> str:
    made, end = [], 0
    for tag in syntax.tags(source):
        made.append(source[end : tag.start()])
        end = tag.end()
        if tag[0].startswith("{#"):
            continue
        bare = _BARE.fullmatch(tag[0])
        if bare is None or source[: tag.start()].endswith(("\\", "{")) or source.startswith("}", end):
            line = source.count("\n", 0, tag.start()) + 1
            raise TemplateRejected(
                f"the {part} has {tag[0]} (line {line}): on the direct route SES fills plain {{{{ placeholders }}}} "
                "alone, in ASCII letters and not beside a brace or backslash. Put finished values into the list, or "
                "take the guarded route"
            )
        made.append(f"{{{{{'html' if part == 'html' else 'text'}_{bare[1]}}}}}")
    return "".join(made) + source[end:]


_NOT_ABOUT_DATA = frozenset(
    {
        "SyntaxError", "UnknownFilter", "UnknownTest", "UnknownFunction", "UnknownMethod", "UndefinedError",
        "TemplateNotFound", "OutOfFuel",
    }
)  # fmt: skip


def _try(template: str, prepared: Prepared) -> None:
    """Render with a value for everything: what fails now would fail for everybody."""
    stand = environment(prepared, trial=True)
    values = dict.fromkeys(prepared.placeholders + prepared.given, filters.STAND_IN)
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
        except filters.MissingValue:
            pass
        except (filters.FilterError, TypeError) as error:
            cause = "a filter has the wrong arguments" if isinstance(error, TypeError) else str(error)
            raise TemplateRejected(f"template {template!r} cannot be rendered: {cause} ({part})") from None


def _required(prepared: Prepared, source: str) -> tuple[str, ...] | None:
    """Which names must be there, where that is the same for everybody: plain ``{{ name | filters }}`` only."""
    for piece in syntax.tags(source):
        if not syntax.is_code(piece[0]):
            continue
        if not _PLAIN.fullmatch(piece[0]) or _CHOICE.search(re.sub(STRING, "", piece[0])):
            return None
    renderer = Renderer(prepared, trial=True)
    everything = dict.fromkeys(prepared.placeholders + prepared.given, filters.STAND_IN)
    try:
        renderer.render(everything)
    except TemplateError:
        return None  # some filter wants a number: no stand-in value can tell
    return tuple(name for name in prepared.placeholders if lacks(renderer, everything | {name: None}))


class _Typesetting:
    """One template on its way.

    Parsers of HTML move, escape or drop what they do not know, so while they work each Jinja tag is a stand-in that
    they keep: a comment between elements (a word there would be thrown out of a table), a word elsewhere.
    """

    def __init__(self, template: str, parameters: str) -> None:
        self._template = template
        self._parameters = parameters
        self._tags: list[str] = []
        self._warnings: list[str] = []
        self._tracked = 0

    def typeset(self, source: str, preheader: str | None) -> tuple[str, str, list[str]]:
        """The HTML with its CSS inlined and its links seen to, the text part, and warnings."""
        if not re.search(r"<(?:html|body)\b", source, re.IGNORECASE):
            source = f"<!doctype html><html><body>{source}</body></html>"
        word = "carillon"
        while word in source.lower():
            word += "q"
        self._word = word
        self._stand_in = re.compile(rf'<!--{word}(\d+)x-->|{word}(\d+)x(?:="")?')
        masked, visible = self._mask(source)
        try:
            inlined = _INLINER.inline(masked)
        except css_inline.InlineError as error:
            raise TemplateRejected(f"template {self._template!r}: its CSS cannot be inlined: {error}") from None
        inlined = _LINK_TAG.sub(self._link, inlined)
        inlined = re.sub(rf'\s+{word}line="\d+"', "", inlined)
        if self._tracked > TRACKED:
            self._warn(f"has {self._tracked} links, and SES counts the clicks of the first {TRACKED} alone")
        text = self._text(inlined)

        kept = [self._number(match) for match in self._stand_in.finditer(inlined)]
        lost = visible - set(kept)
        if lost:
            self._refuse(f"{self._tags[min(lost)]} stands where HTML keeps no text; put it inside an element")
        for part in (inlined, text):
            order = [n for n in map(self._number, self._stand_in.finditer(part)) if n in visible]
            order = [n for n in order if self._tags[n].startswith("{%")]
            if order != sorted(order):
                wrong = next(b for a, b in pairwise(order) if b < a)
                self._refuse(f"{self._tags[wrong]} stands where HTML moves it; put it around whole elements")
        if preheader is not None:
            hidden = f'<div style="display:none;max-height:0;overflow:hidden;mso-hide:all">{preheader}</div>'
            inlined = _BODY_TAG.sub(lambda match: match[0] + hidden, inlined, count=1)
        return self._restored(inlined), self._restored(text), self._warnings

    def _mask(self, source: str) -> tuple[str, set[int]]:
        """``source`` with stand-ins, each link with its line; and the numbers of what readers see."""
        visible: set[int] = set()
        pieces: list[str] = []
        end = 0
        for match, mode in _contexts(source):
            pieces.append(source[end : match.start()])
            end = match.end()
            if mode == "link":
                pieces.append(f'{match[0]} {self._word}line="{source.count(chr(10), 0, end) + 1}"')
                continue
            number = self._keep(match[0])
            pieces.append(f"<!--{self._word}{number}x-->" if mode == "text" else f"{self._word}{number}x")
            if mode != "style":
                visible.add(number)
            if mode in ("style", "tag") and re.match(r"\{%-?\s*(?!raw)", match[0]):
                place = "inside <style>" if mode == "style" else "between attributes"
                self._refuse(
                    f"{match[0]} {place}, where CSS inlining cannot keep it: put the condition around whole elements, "
                    "or inside the quotes of an attribute",
                    verb="has ",
                )
        return "".join(pieces) + source[end:], visible

    def _link(self, match: re.Match[str]) -> str:
        """An ``<a>`` as it is sent: checked, with parameters, and tagged for the reports."""
        attributes = dict(_ATTRIBUTE.findall(match[1]))
        line = attributes.pop(f"{self._word}line", "?")
        if "href" not in attributes:
            return _open("a", attributes)
        url = unescape(attributes["href"]).strip()
        codes = [self._tags[self._number(found)] for found in self._stand_in.finditer(url)]
        if any(re.search(r"\bunsubscribe_url\b", code) for code in codes):
            return _open("a", attributes | {"ses:no-track": ""})
        place = f"the link to {self._restored(url)!r} (line {line})"
        unknown = self._stand_in.match(url) is not None
        plain = self._stand_in.sub("x", url)
        if not unknown:
            if problem := links.problem(plain):
                self._refuse(f"{place} {problem}")
            if doubt := links.doubt(plain):
                self._warn(f"{place} {doubt}")
        if not (unknown or links.is_web(plain)):
            return _open("a", attributes)
        query = url.partition("?")[2]
        for found in self._stand_in.finditer(query):
            code = self._tags[self._number(found)]
            if code.startswith("{{") and "urlencode" not in code:
                self._warn(f"{place} takes {code} as it is, and a blank or & in it breaks the link: add | urlencode")
        attributes["href"] = escape(self._with_parameters(url))
        if "ses:no-track" not in attributes:
            self._tracked += 1
            attributes["ses:tags"] = self._link_tags(attributes.get("ses:tags", ""), place)
        return _open("a", attributes)

    def _with_parameters(self, url: str) -> str:
        if not self._parameters:
            return url
        path = url.partition("#")[0]
        codes = [self._tags[self._number(found)] for found in self._stand_in.finditer(path)]
        if not codes or ("?" in self._stand_in.sub("", path) and not any(code.startswith("{%") for code in codes)):
            return links.add_parameters(url, self._parameters)
        opening = self._keep(f"{{% filter {links.FILTER}('{self._parameters}') %}}")
        closing = self._keep("{% endfilter %}")
        return f"{self._word}{opening}x{url}{self._word}{closing}x"

    def _link_tags(self, written: str, place: str) -> str:
        """``ses:tags`` of a link: its own, and which link of the template it is, for the reports."""
        if written and (self._stand_in.search(written) or not _LINK_TAGS.fullmatch(written)):
            self._refuse(
                f"{place} has ses:tags={self._restored(written)!r}: write name:value; pairs of ASCII letters, digits, "
                "_ and -, without placeholders"
            )
        names = [pair.partition(":")[0].strip() for pair in written.split(";")]
        own = "" if "link" in names else f"link:{self._tracked};"
        return written.strip().rstrip(";") + (";" if written else "") + own

    def _text(self, inlined: str) -> str:
        """The text part of ``inlined``, links as ``text (https://…)``."""
        words = re.sub(rf"<!--({self._word}\d+x)-->", r"\1", inlined)
        words = _LINK.sub(self._written_link, words)
        flat = _CELL_TAG.sub(r" <\1span> ", _ROW_TAG.sub(r"<\1div>", words))
        text: str = get_text(flat, ParserConfig(css=CSS_PROFILES["strict"]))
        return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip() + "\n"

    @staticmethod
    def _written_link(match: re.Match[str]) -> str:
        attributes = dict(_ATTRIBUTE.findall(match[1]))
        inner = _IMAGE_TAG.sub(lambda image: f" {dict(_ATTRIBUTE.findall(image[1])).get('alt', '')} ", match[2])
        target = unescape(attributes.get("href", "")).strip()
        if not target or target.startswith("#"):
            return f"<span>{inner}</span>"
        if re.match(r"(?:mailto|tel|sms):", target, re.IGNORECASE):
            target = target.partition(":")[2].partition("?")[0]
        said = " ".join(unescape(re.sub(r"<[^>]*>", " ", inner)).split())
        if not said:
            return f"<span>{escape(target)}</span>"
        if said in (target, re.sub(r"^https?://", "", target).rstrip("/")):
            return f"<span>{inner}</span>"
        return f"<span>{inner} ({escape(target)})</span>"

    def _keep(self, tag: str) -> int:
        self._tags.append(tag)
        return len(self._tags) - 1

    def _restored(self, text: str) -> str:
        return self._stand_in.sub(lambda match: self._tags[self._number(match)], text)

    @staticmethod
    def _number(match: re.Match[str]) -> int:
        return int(match[1] or match[2])

    def _warn(self, sentence: str) -> None:
        self._warnings.append(f"template {self._template!r}: {sentence}")

    def _refuse(self, sentence: str, verb: str = "") -> None:
        raise TemplateRejected(f"template {self._template!r}{' ' + verb if verb else ': '}{sentence}")


def _open(element: str, attributes: dict[str, str]) -> str:
    return f"<{element}{''.join(f' {name}="{value}"' for name, value in attributes.items())}>"


def _contexts(source: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each Jinja tag of ``source`` with where it stands: ``text``, ``tag``, ``attribute`` (in its quotes),
    ``comment``, or a raw element's name; and the beginning of each ``<a``, as ``link``."""
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
                if element == "a":
                    yield match, "link"
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
