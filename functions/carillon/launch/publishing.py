"""Writing a preparation where the fan-out, the sender and the reports find it: all under one prefix, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from carillon import keys
from carillon.launch import batches, forecast
from carillon.launch.roster import Roster
from carillon.launch.tasks import TaskTable
from carillon.recipients.lists import RecipientList
from carillon.shapes import ManifestLine
from carillon.timing.curve import Ints


class Target(Protocol):
    """The port to what Carillon writes (`carillon.adapters.objects.Objects`)."""

    bucket: str

    def copy(self, key: str, version: str, target: str) -> None:
        """Copy that version of ``key``."""
        ...

    def put(self, key: str, content: bytes, content_type: str) -> str:
        """Write ``key``; its new version."""
        ...

    def put_all(self, contents: Iterable[tuple[str, bytes]], content_type: str) -> None:
        """`put` many, several at a time; asks for the next ones only when some are written."""
        ...

    def upload(self, source: Path, key: str, content_type: str) -> None:
        """Write a local file to ``key``."""
        ...


def write_roster(target: Target, roster: Roster, campaign_id: str, attempt: str, work: Path) -> list[dict[str, str]]:
    """Keep the list as it was, the templates, the recipients and the rejects; the Glue columns of the recipients."""
    prefix = keys.preparation(campaign_id, attempt)
    target.copy(keys.upload(campaign_id, roster.name), roster.version, f"{prefix}source/{roster.name}")
    for number, prepared in enumerate(roster.templates.prepared, 1):
        target.put(keys.template(campaign_id, attempt, number), prepared.model_dump_json().encode(), "application/json")
    local = work / "recipients.parquet"
    columns = roster.recipients.write_recipients(local, roster.remembered())
    target.upload(local, f"{prefix}recipients/recipients.parquet", "application/vnd.apache.parquet")
    local.unlink()
    write_rejects(target, roster.recipients, f"{prefix}rejects.csv", work)
    return columns


def write_rejects(target: Target, recipients: RecipientList, key: str, work: Path) -> None:
    """Everybody who is not written to, with line, reason and row."""
    local = work / "rejects.csv"
    recipients.write_rejects(local)
    target.upload(local, key, "text/csv; charset=utf-8")
    local.unlink()


def write_batches(
    target: Target, tasks: TaskTable, slots: Ints, campaign_id: str, attempt: str, overhead: int
) -> dict[str, Any]:
    """Write batches and then the manifest; what a result says about them."""
    manifest: list[ManifestLine] = []

    def contents() -> Iterator[tuple[str, bytes]]:
        for batch in batches.cut(tasks.database, tasks.sizes(), slots, attempt, overhead):
            manifest.append(batch.entry)
            yield keys.batch(campaign_id, batch.entry.batch), batch.content

    target.put_all(contents(), "application/jsonl")
    key = keys.manifest(campaign_id, attempt)
    body = "".join(line.model_dump_json() + "\n" for line in manifest)
    return {
        "count": sum(line.count for line in manifest),
        "batches": len(manifest),
        "bucket": target.bucket,
        "manifest_key": key,
        "manifest_version": target.put(key, body.encode(), "application/jsonl"),
        **forecast.ends(slots),
    }
