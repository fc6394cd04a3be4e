"""The archive of events: what SES does not say itself goes the same way as what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_firehose import FirehoseClient


class EventArchive:
    """`carillon.consent.unsubscribing.Archive` on the stack's Firehose stream."""

    def __init__(self, stream: str, client: FirehoseClient | None = None) -> None:
        self._stream = stream
        self._client = client or aws.firehose()

    def archive(self, event: Mapping[str, Any]) -> None:
        """One line of JSON: SES too ends each of its records with a line feed (AWS_CONTRACTS 4)."""
        line = json.dumps(event, separators=(",", ":")) + "\n"
        self._client.put_record(DeliveryStreamName=self._stream, Record={"Data": line.encode()})
