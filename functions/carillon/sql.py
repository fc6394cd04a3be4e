"""Literals and names in SQL that is put together: every value of a list or a spec goes through here."""

from __future__ import annotations


def text(value: str) -> str:
    """``value`` as a literal."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """``value`` as an identifier."""
    return '"' + value.replace('"', '""') + '"'
