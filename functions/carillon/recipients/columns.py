"""The columns of a list: what people see, what reports and placeholders call them, and which holds what."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from carillon import addresses, zones
from carillon.recipients.reading import refusal

OWN = "carillon_"
"""Prefix of the columns that Carillon adds to ``recipients/``."""
HASH = f"{OWN}hash"
"""`carillon.keys.address_hash`: what reports join on."""
MOMENT = f"{OWN}moment_"
"""Followed by a step's number: the wall time or date that the list gives for it."""
ORDER = f"{OWN}order"
"""What the list says about who goes first."""

_RESERVED = frozenset(
    {"and", "as", "block", "break", "call", "continue", "do", "else", "elif", "endfor", "endif", "extends", "false"}
    | {"filter", "for", "from", "if", "import", "in", "include", "is", "loop", "macro", "none", "not", "or", "raw"}
    | {"recursive", "self", "set", "super", "true", "with"}
)
"""Words of the template language."""

_NAMED_ADDRESS = re.compile(r"e?mail")
_NAMED_ZONE = re.compile(r"time_?zone|zeitzone|zone|tz|timezone_name|iana_?zone|fuseau_horaire")
_HOLDS_ADDRESS = re.compile(r"[^\s@]@[^\s@]")


@dataclass(frozen=True)
class Column:
    """One column of the list, the ``index``-th of its header."""

    index: int
    label: str
    """The header as written, without invisible ends; made unique, and never empty."""
    name: str
    """Lower-case ASCII letters, digits and ``_``, unique: for Parquet and Glue."""
    placeholders: tuple[str, ...]
    """What templates may call it: its header where that is an identifier, and its name."""


def columns(header: Sequence[str]) -> tuple[Column, ...]:
    """The columns that ``header`` (cells as they are) means."""
    labels: list[str] = []
    names: list[str] = []
    # A header means its own column before it is another one's name: beside "Name", {{ name }} is "name".
    called: dict[str, int] = {}
    for index, cell in enumerate(header):
        written = " ".join(addresses.clean(cell).split())
        labels.append(_unique(written or f"column {index + 1}", labels, " ({})"))
        names.append(_unique(_safe(written) or f"column_{index + 1}", names, "_{}"))
        if written.isidentifier() and written.lower() not in _RESERVED:
            called.setdefault(written, index)
    for index, name in enumerate(names):
        called.setdefault(name, index)
    return tuple(
        Column(index, label, name, tuple(word for word, meant in called.items() if meant == index))
        for index, (label, name) in enumerate(zip(labels, names, strict=True))
    )


def _safe(written: str) -> str:
    folded = unicodedata.normalize("NFKD", written.replace("ß", "ss")).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "_", folded).strip("_")[:100]
    if not name:
        return ""
    if name[0].isdigit() or name in _RESERVED or name.startswith(OWN):
        return f"c_{name}"
    return name


def _unique(wanted: str, taken: Iterable[str], suffix: str) -> str:
    lower = {other.lower() for other in taken}
    candidate, n = wanted, 1
    while candidate.lower() in lower:
        n += 1
        candidate = wanted + suffix.format(n)
    return candidate


def find(wanted: str, among: Sequence[Column], what: str) -> Column:
    """The column that a person means by ``wanted``: its label, or its safe name.

    Raises:
        ListRejected: there is none.
    """
    for column in among:
        if wanted in (column.label, column.name):
            return column
    for column in among:
        if addresses.clean(wanted).lower() == column.label.lower():
            return column
    raise refusal(
        "no_such_column",
        f"{what} names the column {wanted!r}, which the list does not have",
        f"Its columns are {_listed(among)}",
    )


def choose_address(among: Sequence[Column], sample: Sequence[Sequence[str]]) -> Column:
    """The column with the addresses, by header and content.

    Raises:
        ListRejected: there is none, or a person has to choose between several.
    """
    named = [c for c in among if _NAMED_ADDRESS.search(c.name.replace("_", ""))]
    filled = [c for c in among if _share(c, sample, lambda cell: bool(_HOLDS_ADDRESS.search(cell))) >= 0.5]
    candidates = [c for c in named if c in filled] or filled or (named if _anybody(named, sample) else [])
    if not candidates:
        raise refusal(
            "no_address_column",
            f"no column holds e-mail addresses; the columns are {_listed(among)}",
            "Name the column in list.address_column, or add one",
        )
    return _only(candidates, "addresses", "list.address_column")


def _anybody(named: Sequence[Column], sample: Sequence[Sequence[str]]) -> bool:
    return any(_share(c, sample, bool) > 0 for c in named)


def choose_zone(among: Sequence[Column], sample: Sequence[Sequence[str]]) -> Column | None:
    """The column with time zones, by header and content; None: there is none.

    Raises:
        ListRejected: a person has to choose between several.
    """
    named = [c for c in among if _NAMED_ZONE.fullmatch(c.name)]
    filled = [
        c
        for c in among
        if _share(c, sample, lambda cell: "/" in cell and zones.find(addresses.clean(cell)) is not None) >= 0.5
    ]
    candidates = [c for c in named if c in filled] or filled or named
    return _only(candidates, "time zones", "list.timezone_column") if candidates else None


def _share(column: Column, sample: Sequence[Sequence[str]], test: Callable[[str], bool]) -> float:
    cells = [row[column.index] for row in sample if len(row) > column.index and addresses.clean(row[column.index])]
    return sum(map(test, cells)) / len(cells) if cells else 0.0


def _only(candidates: Sequence[Column], what: str, field: str) -> Column:
    if len(candidates) > 1:
        raise refusal(
            "column_not_chosen",
            f"{len(candidates)} columns hold {what}: {_listed(candidates)}",
            f"Name the one to use in {field}",
        )
    return candidates[0]


def _listed(among: Sequence[Column]) -> str:
    return ", ".join(f"'{column.label}'" for column in among)
