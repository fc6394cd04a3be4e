"""The send queue, as the sender sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import batched
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws
from carillon.delivery.envelopes import Record

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_log = logging.getLogger(__name__)


def records(event: Mapping[str, Any]) -> list[Record]:
    """The messages of an SQS event of Lambda."""
    return [
        Record(
            message_id=record["messageId"],
            receipt=record["receiptHandle"],
            body=record["body"],
            receives=int(record["attributes"]["ApproximateReceiveCount"]),
            first_received=datetime.fromtimestamp(
                int(record["attributes"]["ApproximateFirstReceiveTimestamp"]) / 1000, UTC
            ),
        )
        for record in event["Records"]
    ]


def partial_response(kept: Iterable[str]) -> dict[str, Any]:
    """ReportBatchItemFailures: the message ids that stay in the queue."""
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in kept]}


class Messages:
    """`carillon.delivery.sending.Queue` on SQS."""

    def __init__(self, queue_url: str, dead_letter_queue_url: str, client: SQSClient | None = None) -> None:
        self._queue_url = queue_url
        self._dead_letter_queue_url = dead_letter_queue_url
        self._client = client or aws.sqs()

    def delay(self, seconds: Mapping[Record, int]) -> None:
        """By visibility. A message that SQS refuses it for comes back when the queue's own time is up."""
        for some in batched(seconds.items(), 10, strict=False):
            answer = self._client.change_message_visibility_batch(
                QueueUrl=self._queue_url,
                Entries=[
                    {"Id": str(n), "ReceiptHandle": record.receipt, "VisibilityTimeout": wait}
                    for n, (record, wait) in enumerate(some)
                ],
            )
            for failure in answer.get("Failed", []):
                _log.warning("cannot delay a message", extra={"error": failure["Code"]})

    def bury(self, record: Record, reason: str) -> None:
        """With ``reason`` and where it came from as message attributes."""
        self._client.send_message(
            QueueUrl=self._dead_letter_queue_url,
            MessageBody=record.body,
            MessageAttributes={
                "reason": {"DataType": "String", "StringValue": reason},
                "message_id": {"DataType": "String", "StringValue": record.message_id},
            },
        )
