"""``carillon plan``: the whole campaign before anything is sent, from files alone."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from carillon import wording, zones
from carillon.errors import CarillonError, ListRejected
from carillon.launch import roster
from carillon.launch.forecast import Quotas, written
from carillon.launch.preparation import Preparation
from carillon.recipients.inspection import DELIMITER_NAMES
from carillon.shapes import CampaignSpec, Plan, Prepare
from carillon.timing.pace import Pace
from cli.offline import CAMPAIGN, Assumed, EmptyLedger, LocalFiles, NoRows, OneCampaign, uploads

RATE, DAILY_CAP = 14.0, 50_000
"""What SES commonly gives an account that has just left the sandbox: e-mails a second, and in 24 hours."""

MOST_HOURS = 48
"""Bars that a person is shown; of a longer campaign each is a day."""
WIDTH = 40

_QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/carillon-send"
"""As long as a real one: it travels in every schedule, and so decides how many fit into a batch."""


def plan(
    source: Annotated[Path, typer.Argument(metavar="LIST", exists=True, dir_okay=False, readable=True)],
    campaign: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="The campaign's spec, as the API takes it.")
    ],
    template: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE, a file by its own name, or a directory; by default the spec's directory."),
    ] = None,
    slots: Annotated[Path | None, typer.Option(help="Write every e-mail's target and slot to this CSV.")] = None,
    rejects: Annotated[Path | None, typer.Option(help="Write who is not written to, and why, to this CSV.")] = None,
    now: Annotated[str | None, typer.Option(help="Plan as if it were this instant, 2026-12-01T09:00:00Z.")] = None,
    rate: Annotated[float, typer.Option(min=0.001, max=100_000, help="E-mails a second of the identity.")] = RATE,
    daily_cap: Annotated[int, typer.Option(min=0, help="E-mails a day of the identity.")] = DAILY_CAP,
    timezone: Annotated[str, typer.Option(help="The stack's zone, whose midnight ends the cap's day.")] = "UTC",
    price_plan: Annotated[
        Literal["NONE", "ESSENTIALS", "PRO", "ENTERPRISE"], typer.Option(help="SES's price plan of the account.")
    ] = "ESSENTIALS",
    as_json: Annotated[bool, typer.Option("--json", help="The plan as one JSON object.")] = False,
) -> None:
    """Plan a campaign for LIST as a launch would: who, when, at what cost. Needs no account and no network.

    Of what only an account knows, nobody is taken to be suppressed and no other campaign to be planned.
    """
    spec = _spec(campaign)
    assumed = Assumed(Pace(rate_per_second=rate, daily_cap=daily_cap), price_plan)
    numbers = count(1)
    preparation = Preparation(
        campaigns=OneCampaign(spec),
        objects=LocalFiles(uploads(source, _templates(spec, template or [str(campaign.parent)])), rejects),
        suppressions=assumed,
        identities=assumed,
        pace=assumed,
        ledger=EmptyLedger(),
        rows=NoRows(),
        now=lambda: datetime.now(UTC).timestamp(),
        nonce=lambda: str(next(numbers)),
        sending_domain=spec.from_.rpartition("@")[2].rstrip("> ").lower(),
        queue_url=_QUEUE,
        cap_zone=_zone(timezone),
        quotas=Quotas(),
        memory_limit="1GB",
        ses_templates=assumed,
        postal_address=assumed.postal_address,
    )
    try:
        made = preparation.plan(Prepare(campaign_id=CAMPAIGN, generation=0, plan=True, now=_instant(now)), slots)
    except CarillonError as refusal:
        message = str(refusal)
        if rejects and isinstance(refusal, ListRejected) and refusal.reason == roster.NOBODY:
            message += f" Each row and why: {rejects}"
        if as_json:
            json.dump({"error": refusal.code, "message": message}, sys.stdout, ensure_ascii=False, indent=1)
            sys.stdout.write("\n")
        else:
            Console(highlight=False).print(message, style="bold red", markup=False)
        raise typer.Exit(1) from None
    made = made.model_copy(update={"rejects_key": str(rejects or "")})
    if as_json:
        sys.stdout.write(made.model_dump_json(indent=1) + "\n")
    else:
        console = Console(highlight=False)
        console.print(
            f"assumed: {rate:g} e-mails a second, {daily_cap:,} a day of {timezone} (--rate, --daily-cap, --timezone), "
            f"prices of {price_plan} (--price-plan); nobody suppressed, no other campaign",
            markup=False,
        )
        _show(made, console)
    if made.refusals:
        raise typer.Exit(1)


def _spec(path: Path) -> CampaignSpec:
    try:
        return CampaignSpec.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{path}: {where + ': ' if where else ''}{wording.of(first)}"
        raise typer.BadParameter(message, param_hint="--campaign") from None


def _templates(spec: CampaignSpec, given: list[str]) -> dict[str, Path]:
    """The file of each template that a step names; one that is not found is for the preparation to refuse."""
    wanted = {step.template for step in spec.steps}
    found: dict[str, Path] = {}
    for each in given:
        name, equals, file = each.partition("=")
        path = Path(file if equals else each)
        if path.is_dir():
            found |= {inside: path / inside for inside in wanted if (path / inside).is_file()}
        elif path.is_file():
            found[name if equals else path.name] = path
        else:
            raise typer.BadParameter(f"{path} is neither a file nor a directory", param_hint="--template")
    if unknown := sorted(found.keys() - wanted):
        raise typer.BadParameter(
            f"no step names a template {unknown[0]!r}: the steps name {', '.join(sorted(wanted))}",
            param_hint="--template",
        )
    return found


def _instant(written: str | None) -> str | None:
    if written is None:
        return None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise typer.BadParameter("write an instant with its offset, 2026-12-01T09:00:00Z", param_hint="--now")
    return moment.isoformat()


def _zone(written: str) -> str:
    try:
        return zones.known(written)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timezone") from None


def _show(made: Plan, console: Console) -> None:
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column()
    facts.add_column(overflow="fold")
    rejected = {reason: n for reason, n in made.rejected.items() if n}
    for name, value in (
        ("list", f"{made.reading['encoding']}, {_delimiter(made)}, addresses in {made.reading['address_column']}"),
        ("rows", f"{made.rows:,}"),
        ("valid", f"{made.valid:,}"),
        ("rejected", ", ".join(f"{reason} {n:,}" for reason, n in rejected.items()) or "nobody"),
        ("outside the segment", f"{made.outside_segment:,}" if made.outside_segment else ""),
        ("accepted all the same", ", ".join(f"{what} {n:,}" for what, n in made.list_warnings.items())),
        ("e-mails planned", f"{made.planned:,}" + (f", {made.forecast:,} of them forecasts" * bool(made.forecast))),
        ("targets already past", f"{made.past:,}" if made.past else ""),
        ("put off to another day", f"{made.next_day:,}" if made.next_day else ""),
        ("later than within", f"{made.late:,}" if made.late else ""),
        ("without a slot", ", ".join(f"{reason} {n:,}" for reason, n in made.skipped.items())),
        ("first e-mail", made.first_slot or "none"),
        ("last e-mail", made.last_slot or "none"),
        ("done by", made.eta or ""),
        ("hash", made.hash),
    ):
        if value:
            facts.add_row(name, value.replace("[", r"\["))
    console.print(facts)
    for title, days in (("UTC", made.histogram.utc), ("recipients' local time", made.histogram.local)):
        _show_histogram(title, days, console)
    costs = Table("service", "what", "USD", title="cost", title_justify="left")
    for cost in made.cost:
        costs.add_row(cost.service, cost.what, f"{cost.usd:,.2f}")
    costs.add_row("in all", "", f"{made.cost_usd:,.2f}")
    console.print(costs)
    quotas = Table("quota", "limit", "needed", "fits", title="quotas", title_justify="left")
    for fit in made.quotas:
        limit = "not known here" if fit.limit is None else written(fit.limit)
        quotas.add_row(fit.quota, limit, written(fit.needed), "yes" if fit.fits else "NO")
    console.print(quotas)
    for warning in made.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    for refusal in made.refusals:
        console.print(f"a launch is refused: {refusal}", style="bold red", markup=False)


def _delimiter(made: Plan) -> str:
    found = made.reading["delimiter"]
    return DELIMITER_NAMES.get(found or "", found or "one object a line")


def _show_histogram(title: str, days: dict[str, list[int]], console: Console) -> None:
    hours = [(f"{day} {hour:02}:00", n) for day, counts in sorted(days.items()) for hour, n in enumerate(counts) if n]
    bars = hours if len(hours) <= MOST_HOURS else [(day, sum(counts)) for day, counts in sorted(days.items())]
    if not bars:
        return
    most = max(n for _, n in bars)
    table = Table(show_header=False, box=None, pad_edge=False, title=f"e-mails, {title}", title_justify="left")
    for label, n in bars:
        table.add_row(label, f"{n:,}", "█" * max(round(WIDTH * n / most), 1))
    console.print(table)
