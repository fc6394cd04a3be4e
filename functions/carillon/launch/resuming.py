"""Resuming: what the first preparation enrolled and nobody has settled, as tasks to be planned again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from carillon import keys
from carillon.launch import enrolment
from carillon.launch.roster import Source
from carillon.launch.tasks import TaskTable
from carillon.recipients.columns import MOMENT, ORDER
from carillon.shapes import AfterPrevious, BatchLine, Campaign, EnrolBatch, ManifestLine, PrepareListResult, Task
from carillon.timing.curve import Ints
from carillon.transitions import TaskStatus


class Archive(Source, Protocol):
    """The port to what was written before (`carillon.adapters.objects.Objects`)."""

    def read_all(self, keys: Iterable[str]) -> Iterator[bytes | None]:
        """`read` many, several at a time, in their order."""
        ...


class Rows(Protocol):
    """The port to the task rows (`carillon.adapters.enrolment.CampaignRows`)."""

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        """Pages of a shard's rows that are in one of ``statuses``; any, if none is given."""
        ...

    def cancel(self, tasks: Sequence[Task]) -> int:
        """Cancel those of ``tasks`` that are Pending still."""
        ...

    def enrol(self, wanted: Sequence[Task]) -> list[Task]:
        """Put each row if there is none; what is there then."""
        ...


def take_over(
    tasks: TaskTable,
    campaign: Campaign,
    prepared: str,
    first: PrepareListResult,
    archive: Archive,
    rows: Rows,
    work: Path,
) -> None:
    """Fill ``tasks`` from ``prepared``, the campaign's first preparation, whose result was ``first``."""
    lines, settled, released = work / "lines.txt", work / "settled.txt", work / "released.txt"
    with lines.open("wb") as out:
        lines_of_all = (line for _, content in _batches(campaign, first, archive) for line in content.splitlines())
        out.writelines(b"%d\x1f%s\n" % numbered for numbered in enumerate(lines_of_all))
    _look_at_rows(campaign, rows, settled, released)
    tasks.take_over(lines, settled, released)
    own = [c["Name"] for c in first.columns if c["Name"].startswith(MOMENT) or c["Name"] == ORDER]
    if own:
        local = work / "recipients.parquet"
        key = f"{keys.preparation(campaign.campaign_id, prepared)}recipients/recipients.parquet"
        archive.fetch(key, archive.version(key) or "null", local)
        for step in range(1, len(campaign.spec.steps) + 1):
            tasks.remember(step, local, own)


def cancel(campaign: Campaign, tasks: Collection[str], first: PrepareListResult, archive: Archive, rows: Rows) -> None:
    """Cancel ``tasks``; whom a fan-out that broke has not reached gets a row that says so, for all have to be counted.

    ``first``: see `take_over`.
    """
    unreached = set(tasks)
    for shard in range(keys.SHARDS):
        for page in rows.shard(campaign.campaign_id, shard, TaskStatus.PENDING):
            there = [row for row in page if row.task in unreached]
            rows.cancel(there)
            unreached.difference_update(row.task for row in there)
    for entry, content in _batches(campaign, first, archive) if unreached else ():
        lines = [BatchLine.model_validate_json(line) for line in content.splitlines()]
        request = EnrolBatch(
            campaign_id=campaign.campaign_id,
            generation=campaign.generation,
            batch=entry.batch,
            count=entry.count,
            cancelled=True,
        )
        rows.enrol([enrolment.row_for(campaign, request, line) for line in lines if line.task in unreached])


def slots(campaign: Campaign, prepared: PrepareListResult, archive: Archive) -> Ints:
    """The slots of a preparation whose result was ``prepared``."""
    lines = (line for _, content in _batches(campaign, prepared, archive) for line in content.splitlines())
    return np.fromiter((BatchLine.model_validate_json(line).slot for line in lines), dtype=np.int64)


def _batches(campaign: Campaign, first: PrepareListResult, archive: Archive) -> Iterator[tuple[ManifestLine, bytes]]:
    """Every batch of a preparation: its manifest's line, and its own lines."""
    manifest = (archive.read(first.manifest_key) or b"").splitlines()
    entries = [ManifestLine.model_validate_json(line) for line in manifest]
    contents = archive.read_all(keys.batch(campaign.campaign_id, entry.batch) for entry in entries)
    for entry, content in zip(entries, contents, strict=True):
        if content is None:
            raise FileNotFoundError(f"a batch of {first.manifest_key} is gone: its tasks cannot be planned again")
        yield entry, content


def _look_at_rows(campaign: Campaign, rows: Rows, settled: Path, released: Path) -> None:
    """Write down which tasks are settled, and which a finished step before has released, with their slots."""
    sequences = {n for n, step in enumerate(campaign.spec.steps, 1) if isinstance(step.rule, AfterPrevious)}
    looked_at = () if sequences else tuple(status for status in TaskStatus if status is not TaskStatus.PENDING)
    with settled.open("w") as settled_tasks, released.open("w") as released_tasks:
        for shard in range(keys.SHARDS):
            for page in rows.shard(campaign.campaign_id, shard, *looked_at):
                for row in page:
                    if row.status is not TaskStatus.PENDING:
                        settled_tasks.write(f"{row.task}\n")
                    elif row.step in sequences and not row.waits:
                        released_tasks.write(f"{row.task}\x1f{row.slot}\n")
