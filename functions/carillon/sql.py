"""Pieces of SQL that is put together: every value of a list or a spec goes through here."""

from __future__ import annotations

from carillon.addresses import INVISIBLE


def text(value: str) -> str:
    """``value`` as a literal."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """``value`` as an identifier."""
    return '"' + value.replace('"', '""') + '"'


def trimmed(column: str) -> str:
    """`carillon.addresses.clean` of a column.

    DuckDB's trim takes 9 µs a cell for so many characters, so it is asked only where an end is no printable ASCII.
    """
    visible = f"ascii({column}) BETWEEN 33 AND 126 AND ascii(right({column}, 1)) BETWEEN 33 AND 126"
    return f"CASE WHEN {visible} THEN {column} ELSE trim({column}, {text(INVISIBLE)}) END"


def blank(column: str) -> str:
    """Whether nothing of a column's cell can be seen; the first character answers for nearly all."""
    rest = f"regexp_full_match({column}, {text(f'[{INVISIBLE}]*')})"
    return f"CASE WHEN {column} IS NULL THEN true WHEN ascii({column}) BETWEEN 33 AND 126 THEN false ELSE {rest} END"
