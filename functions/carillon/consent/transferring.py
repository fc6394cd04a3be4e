"""Moving a suppression list in and out: a CSV in the bucket, read or written as a stream.

What goes in may be addresses (another tool's unsubscribed) or hashes (an export of ours). What comes out is hashes
alone, for no address is kept. Doing either again is harmless.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from carillon.consent import transfers
from carillon.consent.suppressions import Suppression, hash_of
from carillon.consent.transfers import Progress, Transfer
from carillon.errors import CarillonError, ListRejected
from carillon.recipients.columns import choose_address, columns
from carillon.recipients.reading import Format, Records, refusal, sniff
from carillon.shapes import ListSpec, Problem, instant

HEADER = ("address_hash", "topic", "reason", "at", "campaign", "task")
"""Columns of an export."""
AT_ONCE = 1000
"""Rows between two looks at the clock."""
BETWEEN_REPORTS = 5.0
"""Seconds."""

_HASH = re.compile(r"[0-9a-f]{64}")
_TOPIC = re.compile(r"\*|campaign\.[a-z0-9][a-z0-9-]{2,39}|[A-Za-z0-9_-]{1,64}")
_REASON = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}")
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z", re.ASCII)


class OutOfTime(CarillonError):
    """The function's time is nearly over; what was done stays."""


class Files(transfers.Files, Protocol):
    """The port to the bucket (`carillon.adapters.objects.Objects`)."""

    def fetch(self, key: str, version: str, target: Path) -> None:
        """Write that version of ``key`` to a local file."""
        ...

    def upload(self, source: Path, key: str, content_type: str) -> None:
        """Write a local file to ``key``."""
        ...


class Table(Protocol):
    """The port to the list (`carillon.adapters.suppressions.SuppressionTable`)."""

    def put_all(self, suppressions: Sequence[Suppression]) -> int:
        """Put each that is absent; how many those were."""
        ...

    def every(self) -> Iterator[list[Suppression]]:
        """The whole list, page by page."""
        ...


@dataclass
class Transferring:
    """One transfer. ``deadline``: the epoch second at which its function ends."""

    files: Files
    table: Table
    now: Callable[[], datetime]
    deadline: float

    def run(self, asked: Transfer) -> Progress:
        """Import or export. Its progress is in the bucket while it goes, and its end is, however it ends.

        Raises:
            Exception: our fault or AWS's; to be tried again.
        """
        self._asked = asked
        self._progress = Progress(direction=asked.direction, changed_at=instant(self.now()))
        self._reported = self.now().timestamp()
        try:
            with TemporaryDirectory() as directory:
                (self._export if asked.direction == "export" else self._import)(Path(directory))
        except CarillonError as error:
            self._report(state="failed", error=Problem(code=error.code, message=str(error)))
        except Exception:
            message = "it failed and the log of TransferSuppressions says where: it is tried again by itself, twice"
            self._report(state="failed", error=Problem(code="Unexpected", message=message))
            raise
        else:
            self._report(state="completed")
        return self._progress

    def _import(self, work: Path) -> None:
        key = transfers.upload_key(self._asked.transfer)
        version = self.files.version(key)
        if version is None:
            raise ListRejected("no_list: nothing has been uploaded. Upload the list and import it again.")
        source = work / "list.csv"
        self.files.fetch(key, version, source)
        layout = sniff(source, ListSpec(), work)
        if layout.delimiter is None:
            raise refusal("not_csv", "the file is JSON", "Save it as CSV, with a header")
        rejects = work / "rejects.csv"
        rejected: Counter[str] = Counter()
        with rejects.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("line", "reason"))
            for some in batched(self._rows(layout), AT_ONCE, strict=False):
                good = [row for _, row in some if isinstance(row, Suppression)]
                bad = [(line, row) for line, row in some if not isinstance(row, Suppression)]
                added = self.table.put_all(
                    list({(row.address_hash, row.topic): row for row in reversed(good)}.values())
                )
                writer.writerows(bad)
                rejected.update(reason for _, reason in bad)
                self._count(rows=len(some), added=added, present=len(good) - added, rejected=dict(rejected))
        if rejected:
            self.files.upload(rejects, transfers.result_key(self._asked.transfer, "import"), "text/csv")

    def _rows(self, layout: Format) -> Iterator[tuple[int, Suppression | str]]:
        """Each record's line, and what it says, or why it says nothing."""
        among = columns(layout.header)
        named = {column.name: column.index for column in among}
        hashed = named.get("address_hash")
        who = choose_address(among, layout.sample).index if hashed is None else hashed
        assert layout.delimiter is not None
        assert layout.header_line is not None
        at = instant(self.now())
        for record in Records(layout.text, layout.delimiter):
            if record.line <= layout.header_line:
                continue
            if record.fault:
                yield record.line, record.fault
                continue

            def cell(name: str, otherwise: str, cells: list[str] = record.cells) -> str:
                index = named.get(name)
                return (cells[index].strip() if index is not None and index < len(cells) else "") or otherwise

            written = record.cells[who] if who < len(record.cells) else ""
            digest = written.strip().lower()
            address_hash = hash_of(written) if hashed is None else digest if _HASH.fullmatch(digest) else None
            topic, reason = cell("topic", self._asked.topic), cell("reason", self._asked.reason)
            if address_hash is None:
                yield record.line, "invalid_address" if hashed is None else "invalid_hash"
            elif not _TOPIC.fullmatch(topic):
                yield record.line, "invalid_topic"
            elif not _REASON.fullmatch(reason):
                yield record.line, "invalid_reason"
            else:
                since = cell("at", at)
                yield record.line, Suppression(address_hash, topic, reason, since if _INSTANT.fullmatch(since) else at)

    def _export(self, work: Path) -> None:
        target = work / "suppressions.csv"
        with target.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            for page in self.table.every():
                writer.writerows([getattr(row, name) for name in HEADER] for row in page)
                self._count(rows=len(page))
        self.files.upload(target, transfers.result_key(self._asked.transfer, "export"), "text/csv")

    def _count(self, rows: int, added: int = 0, present: int = 0, rejected: dict[str, int] | None = None) -> None:
        progress, now = self._progress, self.now().timestamp()
        self._progress = progress.model_copy(
            update={
                "rows": progress.rows + rows,
                "added": progress.added + added,
                "present": progress.present + present,
                "rejected": rejected or {},
            }
        )
        if now > self.deadline:
            advice = "" if progress.direction == "export" else ": split the list, and import what is left"
            raise OutOfTime(f"there was time for {self._progress.rows} rows{advice}")
        if now - self._reported >= BETWEEN_REPORTS:
            self._report()
            self._reported = now

    def _report(self, **changes: object) -> None:
        self._progress = self._progress.model_copy(update={"changed_at": instant(self.now()), **changes})
        key = transfers.progress_key(self._asked.transfer)
        self.files.put(key, self._progress.model_dump_json().encode(), "application/json")
