"""SES's template language: the part of Handlebars that SES documents, and no HTML escaping.

Substitution by nested path (``{{user.name}}``, ``{{this}}``, ``{{../total}}``, ``{{@index}}``), ``#each``,
``#if``, ``#unless``, ``else``, comments. Anything else (partials, other helpers) is refused by name when the
template is created, so that it never renders into a message as if it were text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_TAG = re.compile(r"{{!--.*?--}}|{{{\s*(.*?)\s*}}}|{{~?\s*(.*?)\s*~?}}", re.DOTALL)
_PATH = re.compile(r"(?:\.\./)*(?:@?[\w-]+|this|\.)(?:[./][\w-]+|\.?\[[^\]]+\])*")
_ELSE = re.compile(r"\^|else(?:\s+(if|unless)\s+(.+))?")
_BLOCKS = frozenset({"each", "if", "unless"})
# Where the open tracking pixel would stand; this cloud's e-mails carry none.
_OPEN_TRACKER = "ses:openTracker"


class TemplateError(Exception):
    """The template cannot be understood."""


class RenderingError(Exception):
    """The data do not fill the template; the text is what the Rendering Failure event says."""


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Value:
    path: str


@dataclass(frozen=True)
class _Block:
    kind: str
    path: str
    body: tuple[_Node, ...]
    otherwise: tuple[_Node, ...]


type _Node = _Text | _Value | _Block
type Template = tuple[_Node, ...]


@lru_cache(maxsize=256)
def compiled(source: str) -> Template:
    """``source`` as a tree.

    Raises:
        TemplateError: unbalanced blocks, or what SES does not know.
    """
    tags = list(_TAG.finditer(source))
    nodes, end, position = _parse(source, tags, 0, 0, None)
    if end != len(tags):
        raise TemplateError(f"{{{{{_content(tags[end])}}}}} closes nothing")
    rest = source[position:]
    if "{{" in rest:
        raise TemplateError("a tag is not closed")
    return (*nodes, _Text(rest)) if rest else nodes


def render(source: str, data: Mapping[str, Any]) -> str:
    """``source`` filled with ``data``.

    Raises:
        TemplateError, RenderingError
    """
    return _render(compiled(source), [data], {})


def is_simple(source: str) -> bool:
    """Whether ``source`` holds substitutions only, as inline template content must."""
    return not any(isinstance(node, _Block) for node in compiled(source))


def _content(tag: re.Match[str]) -> str:
    return tag[1] if tag[1] is not None else tag[2] or ""


def _parse(
    source: str, tags: Sequence[re.Match[str]], index: int, position: int, inside: str | None
) -> tuple[Template, int, int]:
    """The nodes from ``tags[index]`` up to the ``else`` or the end of the block ``inside``: with the index
    of the tag that ended them, and the position after it."""
    nodes: list[_Node] = []
    while index < len(tags):
        tag = tags[index]
        content = _content(tag)
        if tag.start() > position:
            nodes.append(_Text(source[position : tag.start()]))
        position = tag.end()
        if content.startswith("/") or (inside is not None and _ELSE.fullmatch(content)):
            return tuple(nodes), index, position
        index += 1
        if tag[0].startswith("{{!") or content == _OPEN_TRACKER:
            continue
        if content.startswith("#"):
            kind, _, path = content[1:].partition(" ")
            block, index, position = _parse_block(source, tags, index, position, kind, path.strip(), kind)
            nodes.append(block)
        elif _PATH.fullmatch(content) and content != "else":
            nodes.append(_Value(content))
        else:
            raise TemplateError(f"{{{{{content}}}}} is not part of SES's templates here")
    if inside is not None:
        raise TemplateError(f"{{{{#{inside}}}}} is not closed")
    return tuple(nodes), index, position


def _parse_block(
    source: str,
    tags: Sequence[re.Match[str]],
    index: int,
    position: int,
    kind: str,
    path: str,
    closer: str,
) -> tuple[_Block, int, int]:
    """A block whose opening tag has been read; ``{{else if x}}`` is a block inside, closed with its parent."""
    if kind not in _BLOCKS:
        raise TemplateError(f"{{{{#{kind}}}}} is not part of SES's templates here")
    if not _PATH.fullmatch(path):
        raise TemplateError(f"{{{{#{kind}}}}} needs one path")
    body, index, position = _parse(source, tags, index, position, closer)
    content = _content(tags[index])
    otherwise: Template = ()
    if (chained := _ELSE.fullmatch(content)) and chained[1]:
        nested, index, position = _parse_block(source, tags, index + 1, position, chained[1], chained[2], closer)
        return _Block(kind, path, body, (nested,)), index, position
    if chained:
        otherwise, index, position = _parse(source, tags, index + 1, position, closer)
        content = _content(tags[index])
    if content != f"/{closer}":
        raise TemplateError(f"{{{{#{closer}}}}} is closed by {{{{{content}}}}}")
    return _Block(kind, path, body, otherwise), index + 1, position


_MISSING = object()


def _look_up(path: str, scopes: list[Any], specials: Mapping[str, Any]) -> Any:
    depth = len(scopes) - 1
    while path.startswith("../"):
        path, depth = path[3:], depth - 1
    if depth < 0:
        return _MISSING
    if path.startswith("@"):
        return specials.get(path[1:], _MISSING)
    value: Any = scopes[depth]
    for step in re.findall(r"\[([^\]]+)\]|([\w-]+)", path):
        key = step[0] or step[1]
        if key == "this":
            continue
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return _MISSING
    return value


def _truthy(value: Any) -> bool:
    return value is not _MISSING and bool(value)


def _render(nodes: Template, scopes: list[Any], specials: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for node in nodes:
        match node:
            case _Text(text):
                parts.append(text)
            case _Value(path):
                value = _look_up(path, scopes, specials)
                if value is _MISSING:
                    raise RenderingError(f"Attribute '{path}' is not present in the rendering data.")
                parts.append(_shown(value))
            case _Block("each", path, body, otherwise):
                parts.append(_render_each(path, body, otherwise, scopes, specials))
            case _Block(kind, path, body, otherwise):
                chosen = _truthy(_look_up(path, scopes, specials)) == (kind == "if")
                parts.append(_render(body if chosen else otherwise, scopes, specials))
    return "".join(parts)


def _render_each(path: str, body: Template, otherwise: Template, scopes: list[Any], specials: Mapping[str, Any]) -> str:
    value = _look_up(path, scopes, specials)
    if value is _MISSING:
        raise RenderingError(f"Attribute '{path}' is not present in the rendering data.")
    pairs = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value or ()))
    if not pairs:
        return _render(otherwise, scopes, specials)
    last = len(pairs) - 1
    return "".join(
        _render(
            body,
            [*scopes, item],
            {"index": number, "key": key, "first": number == 0, "last": number == last},
        )
        for number, (key, item) in enumerate(pairs)
    )


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_shown(item) for item in value)
    return str(value)
