"""``carillon inspect``: what a list is, and what becomes of each of its rows, before anything is sent anywhere."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carillon import wording
from carillon.recipients import inspection
from carillon.shapes import ListSpec

MOST_ROWS = 20
"""Rejects that a person is shown; all of them are in the JSON."""


def list_spec(**given: Any) -> ListSpec:
    """How to read the list, as the options say it; a usage error (exit code 2) where they cannot be meant."""
    try:
        return ListSpec.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise typer.BadParameter(wording.of(first), param_hint=option) from None


def inspect(
    source: Annotated[Path, typer.Argument(metavar="LIST", exists=True, dir_okay=False, readable=True)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    addresses: Annotated[bool, typer.Option("--addresses", help="Show every accepted address and its line.")] = False,
    address_column: Annotated[str | None, typer.Option(help="Which column holds the addresses.")] = None,
    timezone_column: Annotated[str | None, typer.Option(help="Which column holds IANA time zones.")] = None,
    fallback_timezone: Annotated[str | None, typer.Option(help="Zone of whoever's cell names none.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Overrides what the bytes say: windows-1250, utf-8, …")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Overrides what the header says; \\t is a tab.")] = None,
) -> None:
    """Look at LIST: how it is written, who would be written to, and who would not and why. Needs no network."""
    spec = list_spec(
        address_column=address_column,
        timezone_column=timezone_column,
        fallback_timezone=fallback_timezone,
        encoding=encoding,
        delimiter="\t" if delimiter == "\\t" else delimiter,
    )
    with tempfile.TemporaryDirectory(prefix="carillon-") as work:
        found = inspection.inspect(source, spec, Path(work), addresses=addresses)
    if as_json:
        json.dump(found.as_json(), sys.stdout, ensure_ascii=False, indent=1)
        sys.stdout.write("\n")
    else:
        _show(found, Console(highlight=False))
    if found.file_error:
        raise typer.Exit(1)


def _show(found: inspection.Inspection, console: Console) -> None:
    if found.file_error:
        console.print(found.message, style="bold red", markup=False)
        return
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in (
        ("encoding", f"{found.encoding}{' with a byte-order mark' if found.bom else ''}"),
        ("delimiter", inspection.DELIMITER_NAMES.get(found.delimiter or "", found.delimiter or "none")),
        ("header", f"line {found.header_line}" if found.header_line else "none: the names are in each line"),
        ("columns", ", ".join(found.columns)),
        ("addresses", found.address_column or ""),
        ("time zones", found.timezone_column or "none"),
        ("rows", f"{found.rows_total:,}"),
        ("valid", f"{found.valid.count:,}"),
    ):
        facts.add_row(name, value.replace("[", r"\["))
    console.print(facts)
    warnings = "warnings" if len(found.warnings) > 1 else "warning"
    for title, rows, what in (("rejected", found.rejects, "reason"), (warnings, found.warnings, "warning")):
        if not rows:
            continue
        table = Table("line", what, "detail", title=f"{len(rows):,} {title}", title_justify="left")
        for row in rows[:MOST_ROWS]:
            cell = _printable(found.bad_cells.get(row["line"], ""))
            why = ": ".join(filter(None, (cell, row.get("detail"))))
            table.add_row(str(row["line"]), str(row[what]), Text(why))
        console.print(table)
        if len(rows) > MOST_ROWS:
            console.print(f"and {len(rows) - MOST_ROWS:,} more: --json shows them all")
    for line, address in zip(found.valid.lines or (), found.valid.addresses or (), strict=True):
        console.print(f"{line:>8}  {address}", markup=False)


def _printable(cell: str) -> str:
    """``cell`` without what would steer a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in cell)
