"""A campaign's list and templates, read and checked together: who gets what, before anything is planned or written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from carillon import keys
from carillon.content import links, syntax, typesetting
from carillon.content.templates import Prepared
from carillon.errors import ListRejected, TemplateRejected
from carillon.launch.tasks import Draft, refuse_oversized
from carillon.recipients.columns import MOMENT, ORDER, find
from carillon.recipients.lists import RecipientList
from carillon.recipients.reading import refusal
from carillon.shapes import AfterPrevious, CampaignSpec, ColumnDate, Fingerprint, LocalTime, Step
from carillon.sql import blank, text, trimmed
from carillon.timing import dates, rules

NAMES = ("list.csv", "list.jsonl")
"""What an uploaded list may be called."""

LARGEST = 3_000_000_000
"""Bytes of a list: with what is made of it, that fits the 10 GB of a Lambda's /tmp."""

MOST_TASKS = 10_000_000
"""E-mails of one campaign: what one PrepareList prepares in its 900 s and 3,008 MB. 272 s and 2.1 GB were measured, S3
and DynamoDB left out (docs/decisions.md)."""

MOST_WARNINGS, LONGEST_WARNING = 100, 300
"""Sentences, and characters of one: they go into the campaign's record, which DynamoDB holds to 400 KB and a state of
Step Functions to 256 KiB (AWS_CONTRACTS 2 and 6). A template may have thousands of links."""


NOBODY = "no_valid_recipients"
"""Reason of the refusal that leaves a reject file."""


class Source(Protocol):
    """The port to what has been uploaded (`carillon.adapters.objects.Objects`)."""

    def version(self, key: str) -> str | None:
        """The newest version of ``key``; None: there is none."""
        ...

    def read(self, key: str) -> bytes | None:
        """What is in ``key``; None: nothing is."""
        ...

    def fetch(self, key: str, version: str, target: Path) -> None:
        """Write that version of ``key`` to a local file."""
        ...


@dataclass(frozen=True)
class Templates:
    """Each step's template, typeset."""

    prepared: Sequence[Prepared]
    digests: dict[str, str]
    """By the template's name: SHA-256 of its bytes."""
    versions: dict[str, str]
    """By the upload's name."""


@dataclass(frozen=True)
class Roster:
    """Who is written to, and with what. Its database is open until the list is closed."""

    recipients: RecipientList
    templates: Templates
    drafts: Sequence[Draft]
    fingerprint: Fingerprint
    name: str
    """The list's, as it was uploaded."""
    version: str
    """The list's."""
    warnings: list[str]

    def remembered(self) -> dict[str, str]:
        """What a resume plans by again: columns for the recipients' table, with what is in them as SQL."""
        moments = {f"{MOMENT}{draft.step}": draft.moment for draft in self.drafts if draft.moment is not None}
        order = self.drafts[0].order
        return moments | ({} if order is None else {ORDER: order})


def digest(fingerprint: Fingerprint) -> str:
    """What a launch can be bound to (`carillon.shapes.Plan.hash`)."""
    return hashlib.sha256(_canonical(fingerprint.model_dump())).hexdigest()


def changed(before: Fingerprint, now: Fingerprint) -> list[str]:
    """What of a plan has changed, in words."""
    found = [] if before.list == now.list else ["the list"]
    names = sorted(before.templates.keys() | now.templates.keys())
    found += [f"template {name!r}" for name in names if before.templates.get(name) != now.templates.get(name)]
    return found if before.spec == now.spec else [*found, "the spec"]


def typeset(campaign_id: str, spec: CampaignSpec, source: Source) -> Templates:
    """The uploaded templates of ``spec``, ready to render.

    Raises:
        TemplateRejected: with cause and fix.
    """
    prepared, digests, versions = [], {}, {}
    for step in spec.steps:
        name = f"templates/{step.template}"
        key = keys.upload(campaign_id, name)
        content = source.read(key)
        if content is None:
            raise TemplateRejected(
                f"template {step.template!r} has not been uploaded: create a new campaign and upload it to that"
            )
        digests[step.template] = hashlib.sha256(content).hexdigest()
        versions[name] = source.version(key) or ""
        try:
            html = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise TemplateRejected(f"template {step.template!r} is not UTF-8: save it as UTF-8") from None
        provided = spec.enrichment.provides if spec.enrichment else ()
        prepared.append(typesetting.prepare(step, html, parameters=_utm(spec), provided=provided))
    return Templates(prepared, digests, versions)


def read(
    campaign_id: str,
    spec: CampaignSpec,
    source: Source,
    templates: Templates,
    work: Path,
    *,
    overhead: int,
    now: int,
    memory_limit: str,
) -> Roster:
    """The uploaded list, every row judged by all that the campaign needs of it; suppressions are still to come.

    Args:
        work: an empty directory.
        overhead: `carillon.launch.batches.schedule_overhead`.
        now: epoch seconds, for a segment.

    Raises:
        ListRejected, TemplateRejected: with cause and fix.
    """
    name, version = _uploaded(campaign_id, source)
    local = work / name
    source.fetch(keys.upload(campaign_id, name), version, local)
    _check_size(local.stat().st_size)
    fingerprint = _fingerprint(local, spec, templates)
    recipients = RecipientList(
        local,
        spec.list,
        work,
        zones_matter=spec.quiet_hours is not None
        or any(isinstance(step.rule, LocalTime | ColumnDate) for step in spec.steps),
        zones_help=any(syntax.ZONE in prepared.placeholders for prepared in templates.prepared)
        or any(isinstance(step.rule, AfterPrevious) for step in spec.steps),
        memory_limit=memory_limit,
        now=datetime.fromtimestamp(now, UTC),
    )
    known = [name for column in recipients.columns for name in column.placeholders]
    warnings = []
    for step, prepared in zip(spec.steps, templates.prepared, strict=True):
        warnings += [*typesetting.check_placeholders(step, prepared, known), *prepared.warnings]
        typesetting.check_footing(step, prepared)
    drafts = _drafts(spec, templates, recipients)
    recipients.read()
    _check_count(recipients.rows, len(spec.steps))
    for step, prepared, draft in zip(spec.steps, templates.prepared, drafts, strict=True):
        recipients.refuse_incomplete(prepared)
        refuse_oversized(recipients, draft, overhead)
        _refuse_without_moment(recipients, step, draft)
    return Roster(recipients, templates, drafts, fingerprint, name, version, _some(warnings))


def _some(warnings: Sequence[str]) -> list[str]:
    """Each of ``warnings`` once, as many and as much of each as the record has room for."""
    distinct = list(dict.fromkeys(warnings))
    shown = [
        each if len(each) <= LONGEST_WARNING else f"{each[:LONGEST_WARNING]}…" for each in distinct[:MOST_WARNINGS]
    ]
    more = len(distinct) - len(shown)
    return [*shown, f"and {more:,} more warnings"] if more else shown


def nobody(recipients: RecipientList) -> ListRejected:
    """The refusal of a list with nobody to write to, with the reasons counted."""
    counted = ", ".join(f"{reason}: {count:,}" for reason, count in recipients.rejected().items())
    return ListRejected(
        f"{NOBODY}: none of {recipients.rows:,} rows can be written to ({counted}). "
        f"The addresses were taken from the column '{recipients.address_column.label}'."
    )


def _uploaded(campaign_id: str, source: Source) -> tuple[str, str]:
    """The list's name and version."""
    versions = {name: source.version(keys.upload(campaign_id, name)) for name in NAMES}
    there = [(name, version) for name, version in versions.items() if version is not None]
    if not there:
        raise ListRejected("no_list: no list has been uploaded. Create a new campaign and upload it to that.")
    if len(there) > 1:
        raise ListRejected(
            f"two_lists: {' and '.join(name for name, _ in there)} have been uploaded, and only one can be meant. "
            "Create a new campaign and upload the right one to that."
        )
    return there[0]


def _utm(spec: CampaignSpec) -> str:
    if spec.utm is None:
        return ""
    given = spec.utm.model_dump() | {"campaign": spec.utm.campaign or spec.name}
    return links.encode({f"utm_{name}": value for name, value in given.items()})


def _fingerprint(local: Path, spec: CampaignSpec, templates: Templates) -> Fingerprint:
    with local.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    written = _canonical(spec.model_dump(mode="json", by_alias=True))
    return Fingerprint(list=content, templates=templates.digests, spec=hashlib.sha256(written).hexdigest())


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _drafts(spec: CampaignSpec, templates: Templates, recipients: RecipientList) -> list[Draft]:
    order = None
    if spec.order is not None:
        order = trimmed(f"c{find(spec.order.column, recipients.columns, 'order.column').index}")
    drafts = []
    for number, step in enumerate(spec.steps, 1):
        names = set(templates.prepared[number - 1].placeholders)
        for later, prepared in zip(spec.steps[number:], templates.prepared[number:], strict=True):
            if not isinstance(later.rule, AfterPrevious):
                break
            names |= set(prepared.placeholders)
        drafts.append(
            Draft(
                step=number,
                data={name: recipients.cell(name) for name in sorted(names)},
                moment=_moment(step, recipients),
                order=order,
                waits=isinstance(step.rule, AfterPrevious),
                direct=spec.route == "direct",
            )
        )
    return drafts


def _moment(step: Step, recipients: RecipientList) -> str | None:
    if isinstance(step.rule, ColumnDate):
        return dates.canonical(trimmed(f"c{find(step.rule.column, recipients.columns, 'rule.column').index}"))
    if isinstance(step.rule, LocalTime) and step.rule.time_column is not None:
        return trimmed(f"c{find(step.rule.time_column, recipients.columns, 'time_column').index}")
    return None


def _refuse_without_moment(recipients: RecipientList, step: Step, draft: Draft) -> None:
    """Refuse whoever's cell says nothing about when: empty (``missing_value``), or not to be read as such."""
    if draft.moment is None:
        return
    name = step.rule.column if isinstance(step.rule, ColumnDate) else getattr(step.rule, "time_column", "")
    column = find(name, recipients.columns, "rule")
    untimed = text(f"no time of day: {column.label}")
    recipients.refuse_where(f"({blank(f'c{column.index}')})", "missing_value", text(f"empty: {column.label}"))
    if isinstance(step.rule, ColumnDate):
        recipients.refuse_where(f"{draft.moment} IS NULL", "invalid_date", text(f"no clear date: {column.label}"))
        if step.rule.time is None:
            recipients.refuse_where(f"length({draft.moment}) = {rules.DATE}", "invalid_time", untimed)
    else:
        recipients.refuse_where(f"NOT regexp_full_match({draft.moment}, {text(rules.WALL)})", "invalid_time", untimed)


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise refusal(
            "too_large",
            f"the list has {size / 1e9:.1f} GB, and one preparation can hold {LARGEST / 1e9:.0f} GB",
            "Split the list into several campaigns, or leave out columns that nothing uses",
        )


def _check_count(rows: int, steps: int) -> None:
    if rows * steps > MOST_TASKS:
        raise refusal(
            "too_many_rows",
            f"{rows:,} rows in {steps} step{'s' if steps > 1 else ''} make {rows * steps:,} e-mails, and one "
            f"preparation does {MOST_TASKS:,} in the 15 minutes and 3 GB that it has",
            f"Split the list into campaigns of at most {MOST_TASKS // steps:,} rows",
        )
