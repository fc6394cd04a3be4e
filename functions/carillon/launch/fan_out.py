"""Proving a fan-out: every batch of the manifest is accounted for, or runs again, or the launch is broken."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from carillon import keys
from carillon.campaigns import Campaigns, expect
from carillon.errors import FanOutBroken
from carillon.shapes import ConfirmFanOut, ConfirmFanOutResult, ManifestLine
from carillon.transitions import CampaignState

ROUNDS = 3
"""How often a generation is fanned out, the first time included, until what is missing breaks the launch."""

REFUSALS = 10
REFUSED_SHARE = 0.01
"""More refusals than both of these are no longer single recipients' troubles (DESIGN section 7)."""

HOPELESS = frozenset({"ScheduleQuotaExceeded", "SchedulerAccessDenied"})
"""Domain errors of a child that another try cannot mend."""

_ADDRESS = re.compile(r"\S+@\S+")


@dataclass(frozen=True)
class Child:
    """One child execution as ResultWriter wrote it down."""

    batch: str | None
    """None: its input was not written, so nobody knows."""
    output: Mapping[str, Any] | None
    """{batch, enrolled, scheduled, settled, refused} of a child that succeeded."""
    error: str | None = None
    cause: str = ""


class Files(Protocol):
    """The port to a fan-out's files (`carillon.adapters.fan_out.FanOutFiles`)."""

    def manifest(self, key: str) -> list[ManifestLine]:
        """The lines of a manifest."""
        ...

    def write_manifest(self, key: str, lines: Sequence[ManifestLine]) -> str | None:
        """Write a manifest; the version of the object."""
        ...

    def results(self, prefix: str) -> Iterable[Mapping[str, Any]]:
        """Every child's record of every Map Run whose results are under ``prefix``."""
        ...


class MapRuns(Protocol):
    """The port to Map Runs (`carillon.adapters.executions.Executions`)."""

    def map_run_counts(self, map_run: str) -> Mapping[str, int]:
        """How many of a Map Run's children ended how."""
        ...


def confirm_fan_out(
    request: ConfirmFanOut, campaigns: Campaigns, files: Files, map_runs: MapRuns
) -> ConfirmFanOutResult:
    """What of the generation's manifest is not proven to be scheduled, written down as a manifest to run again.

    Raises:
        CampaignStateConflict: the campaign is not enqueued at this generation any more.
        FanOutBroken: quota, access, too many refusals, or still missing something after the last round, which a
            Map Run that broke is by itself.
    """
    expect(campaigns.get(request.campaign_id), {CampaignState.ENQUEUED}, request.generation)
    manifest = files.manifest(request.manifest_key)
    children = [child(record) for record in files.results(request.results_prefix)]
    missing = unproven(manifest, children)
    # A row is refused once: where its batch ran again, the row was settled already.
    refused = sum(int(c.output["refused"]) for c in children if c.output is not None)
    reason = hopeless(missing, children)
    if missing and not reason and request.map_run and request.round < ROUNDS:
        key = keys.retry_manifest(request.manifest_key, request.round + 1)
        version = files.write_manifest(key, missing)
        return ConfirmFanOutResult(remaining=len(missing), manifest_key=key, manifest_version=version, refused=refused)
    campaigns.count_refused(request.campaign_id, request.generation, refused)
    if reason:
        raise FanOutBroken(reason)
    if request.map_run is None:
        raise FanOutBroken(
            f"more batches failed than the fan-out tolerates, {len(missing)} of {len(manifest)} are not scheduled"
            f"{_errors(missing, children)}. Look at the failed children, mend the cause, and resume the campaign"
        )
    if missing:
        counts = ", ".join(f"{n} {how}" for how, n in map_runs.map_run_counts(request.map_run).items() if n)
        raise FanOutBroken(
            f"{len(missing)} of {len(manifest)} batches could not be scheduled in {request.round} rounds"
            f"{_errors(missing, children)}; the last Map Run: {counts or 'no child'}. "
            "Look at its failed children, mend the cause, and resume the campaign"
        )
    enrolled = sum(line.count for line in manifest)
    if refused > max(REFUSALS, enrolled * REFUSED_SHARE):
        raise FanOutBroken(
            f"Scheduler refused {refused} of {enrolled} schedules, more than {REFUSED_SHARE:.0%} and {REFUSALS}: "
            "the error of each is on its task (ScheduleRefused); mend the cause and resume for those who are left"
        )
    return ConfirmFanOutResult(remaining=0, refused=refused)


def child(record: Mapping[str, Any]) -> Child:
    """A record of SUCCEEDED_n, FAILED_n or PENDING_n.json: ``Input`` and ``Output`` are JSON as text."""
    given, output = _parsed(record, "Input"), _parsed(record, "Output")
    return Child(
        batch=(given or output or {}).get("batch"),
        output=output if record.get("Status") == "SUCCEEDED" else None,
        error=record.get("Error"),
        cause=str(record.get("Cause") or ""),
    )


def unproven(manifest: Iterable[ManifestLine], children: Iterable[Child]) -> list[ManifestLine]:
    """Lines that no child's output proves complete: a row for each task, and each scheduled, settled or refused."""
    proven: set[tuple[str, int]] = set()
    for c in children:
        if c.batch is None or c.output is None:
            continue
        counted = sum(int(c.output[part]) for part in ("scheduled", "settled", "refused"))
        if counted == int(c.output["enrolled"]):
            proven.add((c.batch, counted))
    return [line for line in manifest if (line.batch, line.count) not in proven]


def hopeless(missing: Sequence[ManifestLine], children: Iterable[Child]) -> str | None:
    """Why running ``missing`` again is no use, in words; None: it may be."""
    batches = {line.batch for line in missing}
    for c in children:
        if c.batch in batches and c.error in HOPELESS:
            cause = _ADDRESS.sub("…", c.cause)[:500]
            return f"{c.error}: {cause} Nothing more is scheduled; mend that and resume the campaign"
    return None


def _parsed(record: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    text = record.get(name)
    value = json.loads(text) if isinstance(text, str) else None
    return value if isinstance(value, dict) else None


def _errors(missing: Sequence[ManifestLine], children: Iterable[Child]) -> str:
    batches = {line.batch for line in missing}
    names = Counter(c.error for c in children if c.batch in batches and c.error)
    return "".join(f", {n} × {name}" for name, n in names.most_common(5))
