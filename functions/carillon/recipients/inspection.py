"""Looking at a list without a campaign: the same reader and judge that a preparation uses, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from carillon.errors import ListRejected
from carillon.recipients.lists import RecipientList
from carillon.shapes import ListSpec

DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}


class Valid(BaseModel):
    """Who would be written to. The lists, in the file's order, only where they were asked for."""

    count: int
    addresses: list[str] | None = None
    """In the form by which a person is recognised: lower-cased, the domain as A-labels."""
    lines: list[int] | None = None
    timezones: list[str | None] | None = None


class Inspection(BaseModel):
    """What was found in a list. Lines are physical ones, counted from 1."""

    encoding: str | None = None
    bom: bool | None = None
    delimiter: str | None = None
    header_line: int | None = None
    columns: list[str] = []
    address_column: str | None = None
    timezone_column: str | None = None
    rows_total: int = 0
    valid: Valid = Valid(count=0)
    rejects: list[dict[str, Any]] = []
    """``line``, ``reason``, and ``detail`` where there is more to say."""
    bad_cells: dict[int, str] = Field({}, exclude=True)
    """What an invalid address or zone says, by line: for people, not for the JSON."""
    warnings: list[dict[str, Any]] = []
    """``line`` and ``warning``."""
    file_error: str | None = None
    """Why the file cannot be used at all: a reason of the samples' vocabulary."""
    message: str | None = None
    """The same with cause and fix."""

    def as_json(self) -> dict[str, Any]:
        """Everything, without the lists where they were not asked for."""
        shown = self.model_dump()
        shown["valid"] = self.valid.model_dump(exclude_none=True)
        return shown


def inspect(source: Path, spec: ListSpec, work: Path, *, addresses: bool = False) -> Inspection:
    """What ``source`` is and what becomes of each row, as `carillon.launch.preparation` would find it.

    ``work`` is an empty directory. A file that cannot be used is an answer too (``file_error``), not an exception.
    """
    found: dict[str, Any] = {}
    try:
        recipients = RecipientList(source, spec, work)
        found = recipients.decisions()
        recipients.read()
    except ListRejected as error:
        return Inspection(**found, file_error=error.reason, message=str(error))
    valid = Valid(count=recipients.count())
    if addresses:
        accepted = list(recipients.accepted())
        valid = Valid(
            count=len(accepted),
            addresses=[address for _, address, _ in accepted],
            lines=[line for line, _, _ in accepted],
            timezones=[zone for _, _, zone in accepted],
        )
    rejects = [
        {"line": line, "reason": reason} | ({"detail": detail} if detail else {})
        for line, reason, detail in recipients.refused()
    ]
    warnings = [{"line": line, "warning": warning} for line, warning in recipients.warned()]
    bad_cells = dict(recipients.bad_cells())
    recipients.close()
    return Inspection(
        **found, rows_total=recipients.rows, valid=valid, rejects=rejects, bad_cells=bad_cells, warnings=warnings
    )
