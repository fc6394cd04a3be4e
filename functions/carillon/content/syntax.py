"""The template language: what of Jinja may stand in a template, told apart from the text around it.

Deny by default. Placeholders, filters, ``if``, ``for`` and ``set`` are all there is, and nothing among them can make a
short template and ordinary values into gigabytes: values that are kept (``set``, ``for``) cannot be joined to
themselves, and only numbers are multiplied.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

import minijinja

from carillon.errors import TemplateRejected
from carillon.shapes import Step

STRING = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
JINJA = (
    r"\{%-?\s*raw\s*-?%\}.*?\{%-?\s*endraw\s*-?%\}"
    rf"|\{{\{{(?:{STRING}|[^\"'}}]|\}}(?!\}}))*\}}\}}"
    rf"|\{{%(?:{STRING}|[^\"'%]|%(?!\}}))*%\}}"
    r"|\{#.*?#\}"
)
"""Any tag of the language; DOTALL."""

FORMATS = {"date": "date", "datetime": "date", "time": "date", "number": "number", "currency": "number"} | {
    "percent": "number"
}
"""Filters that write for the recipient's locale (`carillon.content.filters`), and what they read in a cell."""
FILTERS = frozenset(
    {"abs", "bool", "capitalize", "count", "d", "default", "e", "escape", "first", "float", "int", "join", "last"}
    | {"length", "lower", "max", "min", "pluralize", "replace", "reverse", "round", "safe", "sort", "split"}
    | {"striptags", "sum", "title", "trim", "truncate", "unique", "upper", "urlencode", *FORMATS}
)
BUILTINS = ("unsubscribe_url", "postal_address")
"""Names that Carillon fills itself, whatever the list has."""
LOCALE, ZONE = "recipient_locale", "recipient_timezone"
"""Data of each recipient that the list's reading gives: a locale of CLDR and an IANA zone."""

_STATEMENTS = frozenset({"if", "elif", "else", "endif", "for", "endfor", "set"})
_NESTING = {"": 0, "elif": 0, "else": 0, "if": 1, "for": 1, "filter": 1, "endif": -1, "endfor": -1, "endfilter": -1}
_CODE = re.compile(JINJA, re.DOTALL)
_FILTER = re.compile(r"\|\s*([A-Za-z_]\w*)")
_LITERAL_LIST = re.compile(r"\[(?:\s*(?:''|-?[\d.]+)\s*,?)*\]")
_FILTER_CALL = re.compile(r"\|\s*\w+\s*(?:\([^()\[\]{}~+*]*\))?")
_NUMBER_BEFORE = re.compile(r"(?:\|\s*(?:float|int)(?:\([^()]*\))?|(?<![\w.])\d[\d.]*)\s*$")
_NUMBER_AFTER = re.compile(r"\s*(?:\d[\d.]*(?![\w.])|\w+\s*\|\s*(?:float|int)\b)")
_DIRECT = re.compile(rf"\{{\{{-?\s*(\w+)\s*\|\s*({'|'.join(FORMATS)})\b")


def tags(source: str) -> Iterator[re.Match[str]]:
    """Each tag of ``source`` in its order, comments and raw stretches included."""
    return _CODE.finditer(source)


def is_code(tag: str) -> bool:
    """Whether ``tag`` does anything: comments and raw stretches do not."""
    return not re.match(r"\{#|\{%-?\s*raw\b", tag)


def inside(tag: str) -> str:
    """What ``tag`` says, without its braces, and with every string literal emptied."""
    return re.sub(STRING, "''", tag[2:-2].strip("-+ \t\r\n"))


def names(template: str, part: str, source: str) -> set[str]:
    """Every name that ``source`` uses and does not define.

    Raises:
        TemplateRejected: it cannot be parsed, or uses what is not allowed; naming template, part and line.
    """
    try:
        found = minijinja.Environment().undeclared_variables_in_str(source)
        found |= minijinja.Environment().undeclared_variables_in_str(_unsliced(source))
    except minijinja.TemplateError as error:
        raise TemplateRejected(
            f"template {template!r}: the {part} cannot be parsed, line {error.line}: {error.detail}"
        ) from None
    for tag in tags(source):
        if is_code(tag[0]) and (problem := _refusal(tag[0])):
            line = source.count("\n", 0, tag.start()) + 1
            raise TemplateRejected(f"template {template!r}: {problem} ({part}, line {line})")
    formats = used_formats(source)
    return found | ({LOCALE} if formats else set()) | ({ZONE} if "date" in formats else set())


def _unsliced(source: str) -> str:
    """``source`` without slices: what is sliced is a name that MiniJinja does not tell of."""
    return _CODE.sub(
        lambda tag: re.sub(r"\[[^\[\]'\"]*:[^\[\]'\"]*\]", "", tag[0]) if is_code(tag[0]) else tag[0], source
    )


def joined(tag: str) -> int:
    """How many values ``tag`` can put together at most."""
    return 1 + len(re.findall(r"[~+,]", inside(tag))) if is_code(tag) else 0


def check_subject(step: Step) -> None:
    """See that a step's subject and preheader can be parsed, before there is a template or a list.

    Raises:
        TemplateRejected: as `names`.
    """
    for part, source in (("subject", step.subject), ("preheader", step.preheader or "")):
        names(step.template, part, source)


def repeated(source: str) -> int:
    """The longest stretch of text that stands in a loop of ``source``; 0: it has no loop."""
    depth, end, longest = 0, 0, 0
    for tag in tags(source):
        if depth:
            longest = max(longest, tag.start() - end, 1 if is_code(tag[0]) else len(tag[0]))
        statement = re.match(r"\{%[-+]?\s*(for|endfor)\b", tag[0])
        if statement:
            depth += 1 if statement[1] == "for" else -1
        end = tag.end()
    return longest


def cut(source: str) -> tuple[list[str], list[str]] | None:
    """``source`` as the stretches of text around its placeholders and whole blocks, and these; one stretch more.

    None where the pieces are not independent: a ``set``, a tag that takes the blanks around it, a raw stretch.
    """
    around, pieces = [""], []
    end = start = depth = 0
    for tag in tags(source):
        said = inside(tag[0]).partition(" ")[0] if tag[0].startswith("{%") else ""
        if tag[0][2] in "-+" or tag[0][-3] in "-+" or said not in _NESTING:
            return None
        if depth == 0:
            around[-1] += source[end : tag.start()]
            start, end = tag.start(), tag.end()
        depth += _NESTING[said]
        if depth == 0:
            end = tag.end()
            if not tag[0].startswith("{#"):
                pieces.append(source[start:end])
                around.append("")
    around[-1] += source[end:]
    return around, pieces


def always_shows(source: str, name: str) -> bool:
    """Whether ``source`` prints ``name`` whatever the data: outside conditions, or in every branch of one."""
    word = re.compile(rf"\b{name}\b")
    shown = [False]
    earlier: list[list[bool]] = []  # of each open block: whether the branches before the present one show it
    complete: list[bool] = []  # of each open block: whether the present branch is its else
    for tag in tags(source):
        says = inside(tag[0]) if is_code(tag[0]) else ""
        statement = says.partition(" ")[0] if tag[0].startswith("{%") else ""
        if tag[0].startswith("{{"):
            shown[-1] = shown[-1] or bool(word.search(says))
        elif statement in ("if", "for"):
            shown.append(False)
            earlier.append([])
            complete.append(False)
        elif statement in ("elif", "else"):
            earlier[-1].append(shown[-1])
            shown[-1] = False
            complete[-1] = statement == "else"
        elif statement in ("endif", "endfor"):
            branches = [*earlier.pop(), shown.pop()]
            shown[-1] |= complete.pop() and all(branches)
    return shown[0]


def used_formats(source: str) -> set[str]:
    """What the filters of ``source`` that write for a locale read: ``date``, ``number``."""
    return {
        FORMATS[word]
        for tag in tags(source)
        if is_code(tag[0])
        for word in _FILTER.findall(inside(tag[0]))
        if word in FORMATS
    }


def formatted(source: str) -> dict[str, str]:
    """Placeholders whose cell such a filter reads as it is, with what it must be: ``date`` or ``number``."""
    found = {}
    for tag in tags(source):
        direct = _DIRECT.match(tag[0])
        if direct and "input" not in inside(tag[0]):
            found[direct[1]] = FORMATS[direct[2]]
    return found


def _refusal(tag: str) -> str | None:
    """Why ``tag`` may not stand in a template; None: it may."""
    words = inside(tag)
    if tag.startswith("{%"):
        statement = words.split(None, 1)[0] if words else ""
        if statement not in _STATEMENTS:
            return f"{{% {statement} %}} is not supported; if, for and set are"
        if statement == "for" and re.search(r"\brecursive$", words):
            return "a recursive for is not supported"
        if statement in ("for", "set"):
            kept = re.split(r"\bin\b" if statement == "for" else "=", words, maxsplit=1)
            if len(kept) == 1:
                return "{% set %} without a value is not supported; write {% set name = value %}"
            if re.search(r"[~+*,]", _FILTER_CALL.sub("", _LITERAL_LIST.sub("", kept[1]))):
                return f"{{% {statement} %}} cannot put values together; do that where they are printed"
    for word in _FILTER.findall(words):
        if word not in FILTERS:
            close = difflib.get_close_matches(word, FILTERS, n=1)
            return f"filter {word} is unknown; " + (
                f"did you mean {close[0]}?" if close else f"the filters are {', '.join(sorted(FILTERS))}"
            )
    for star in re.finditer(r"\*", words):
        if not (_NUMBER_BEFORE.search(words[: star.start()]) and _NUMBER_AFTER.match(words[star.end() :])):
            return "only numbers can be multiplied: write {{ price | float * 2 }}"
    return None
