"""Resuming: what the first preparation enrolled and nobody has settled, as tasks to be planned again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from carillon import keys
from carillon.launch.roster import Source
from carillon.launch.tasks import TaskTable
from carillon.recipients.columns import MOMENT, ORDER
from carillon.shapes import AfterPrevious, Campaign, ManifestLine, PrepareListResult, Task
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
        out.writelines(b"%d\x1f%s\n" % numbered for numbered in enumerate(_lines(campaign, first, archive)))
    _look_at_rows(campaign, rows, settled, released)
    tasks.take_over(lines, settled, released)
    own = [c["Name"] for c in first.columns if c["Name"].startswith(MOMENT) or c["Name"] == ORDER]
    if own:
        local = work / "recipients.parquet"
        key = f"{keys.preparation(campaign.campaign_id, prepared)}recipients/recipients.parquet"
        archive.fetch(key, archive.version(key) or "null", local)
        for step in range(1, len(campaign.spec.steps) + 1):
            tasks.remember(step, local, own)


def cancel(campaign_id: str, tasks: Collection[str], rows: Rows) -> None:
    """Cancel those of ``tasks`` that have a row."""
    for shard in range(keys.SHARDS):
        for page in rows.shard(campaign_id, shard, TaskStatus.PENDING):
            rows.cancel([row for row in page if row.task in tasks])


def _lines(campaign: Campaign, first: PrepareListResult, archive: Archive) -> Iterator[bytes]:
    """Every line of every batch."""
    entries = (archive.read(first.manifest_key) or b"").splitlines()
    names = (keys.batch(campaign.campaign_id, ManifestLine.model_validate_json(entry).batch) for entry in entries)
    for batch in archive.read_all(names):
        if batch is None:
            raise FileNotFoundError(f"a batch of {first.manifest_key} is gone: its tasks cannot be planned again")
        yield from batch.splitlines()


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
