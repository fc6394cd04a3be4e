"""Imports and exports of the suppression list: how they are asked for, and how they go.

The work itself is `carillon.consent.transferring`'s, in a function of its own; this is what that and the API share.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from carillon.consent.suppressions import EVERY_TOPIC, Reason, Topic
from carillon.errors import CarillonError
from carillon.shapes import Problem, Shape, instant

MOST_BYTES = 100_000_000
"""Of an upload: some three million addresses, which is what a function writes in its quarter of an hour."""
LINK_SECONDS = 3600

TransferId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class TransferNotFound(CarillonError):
    """No such import or export, or it has been forgotten: a week after."""


class NothingUploaded(CarillonError):
    """The list to import is not there."""


class Import(Shape):
    """An uploaded list that is to be suppressed. Columns ``topic``, ``reason`` and ``at``, if it has them, win."""

    upload: TransferId
    topic: Topic = EVERY_TOPIC
    reason: Reason = "import"


class Transfer(Shape):
    """Input of TransferSuppressions."""

    transfer: TransferId
    direction: Literal["import", "export"]
    topic: Topic = EVERY_TOPIC
    reason: Reason = "import"


class Progress(Shape):
    """How a transfer goes. ``rows`` are those read or written so far."""

    direction: Literal["import", "export"]
    state: Literal["running", "completed", "failed"] = "running"
    rows: int = 0
    added: int = 0
    present: int = 0
    """Suppressed already: the first reason stays."""
    rejected: dict[str, int] = Field(default_factory=dict)
    """By reason; ``rejects.csv`` has their lines."""
    changed_at: str
    error: Problem | None = None


class TransferView(Progress):
    """The same with a link, once there is something to fetch: the export, or an import's ``rejects.csv``."""

    transfer: TransferId
    url: str | None = None


class TransferUpload(Shape):
    """A presigned POST for the list, and what the import calls it by."""

    upload: TransferId
    url: str
    fields: dict[str, str]
    expires_at: str
    most_bytes: int


class TransferStarted(Shape):
    """A transfer to watch."""

    transfer: TransferId


def upload_key(transfer: str) -> str:
    """S3 key of the list to import. All of ``suppressions/`` is deleted after a week."""
    return f"suppressions/{transfer}/list.csv"


def progress_key(transfer: str) -> str:
    """S3 key of `Progress` as JSON."""
    return f"suppressions/{transfer}/progress.json"


def result_key(transfer: str, direction: str) -> str:
    """S3 key of what can be fetched afterwards."""
    return f"suppressions/{transfer}/{'suppressions' if direction == 'export' else 'rejects'}.csv"


class Files(Protocol):
    """The port to the bucket (`carillon.adapters.objects.Objects`)."""

    def read(self, key: str) -> bytes | None:
        """What is in ``key``, if anything is."""
        ...

    def version(self, key: str) -> str | None:
        """The newest version of ``key``, if there is one."""
        ...

    def put(self, key: str, content: bytes, content_type: str) -> str:
        """Write ``key``."""
        ...


class Links(Protocol):
    """The port to presigned links (`carillon.adapters.uploads.Uploads`)."""

    def link(self, key: str, content_type: str, most_bytes: int, seconds: int) -> tuple[str, dict[str, str]]:
        """URL and form fields of a presigned POST."""
        ...

    def download(self, key: str, name: str, seconds: int) -> str:
        """URL of a download."""
        ...


class Functions(Protocol):
    """The port to functions that run in the background (`carillon.adapters.functions.BackgroundFunction`)."""

    def run_later(self, given: Mapping[str, Any]) -> None:
        """Hand over the input; once that returns, the function will run."""
        ...


class Transfers:
    """What the API does with imports and exports."""

    def __init__(self, files: Files, links: Links, function: Functions) -> None:
        self._files = files
        self._links = links
        self._function = function

    def upload_link(self, now: datetime) -> TransferUpload:
        """A link by which a list goes to S3, past the API."""
        upload = secrets.token_hex(8)
        url, fields = self._links.link(upload_key(upload), "text/csv", MOST_BYTES, LINK_SECONDS)
        expires_at = instant(datetime.fromtimestamp(now.timestamp() + LINK_SECONDS, UTC))
        return TransferUpload(upload=upload, url=url, fields=fields, expires_at=expires_at, most_bytes=MOST_BYTES)

    def start_import(self, asked: Import, now: datetime) -> TransferStarted:
        """Import what was uploaded; once more is harmless.

        Raises:
            NothingUploaded: there is nothing.
        """
        if self._files.version(upload_key(asked.upload)) is None:
            raise NothingUploaded(
                f"nothing has been uploaded as {asked.upload}: get a link by POST /suppressions/uploads, upload the "
                "list by it, and ask again"
            )
        return self._start(
            Transfer(transfer=asked.upload, direction="import", topic=asked.topic, reason=asked.reason), now
        )

    def start_export(self, now: datetime) -> TransferStarted:
        """Write the whole list to a file."""
        return self._start(Transfer(transfer=secrets.token_hex(8), direction="export"), now)

    def look(self, transfer: str) -> TransferView:
        """How it goes.

        Raises:
            TransferNotFound: there is none.
        """
        found = self._files.read(progress_key(transfer))
        if found is None:
            raise TransferNotFound(f"there is no import or export {transfer}: they are forgotten after a week")
        progress = Progress.model_validate_json(found)
        key = result_key(transfer, progress.direction)
        fetchable = progress.state == "completed" and (progress.direction == "export" or progress.rejected)
        url = self._links.download(key, key.rpartition("/")[2], LINK_SECONDS) if fetchable else None
        return TransferView(**progress.model_dump(), transfer=transfer, url=url)

    def _start(self, asked: Transfer, now: datetime) -> TransferStarted:
        progress = Progress(direction=asked.direction, changed_at=instant(now))
        self._files.put(progress_key(asked.transfer), progress.model_dump_json().encode(), "application/json")
        self._function.run_later(asked.model_dump())
        return TransferStarted(transfer=asked.transfer)
