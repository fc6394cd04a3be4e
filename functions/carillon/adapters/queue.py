"""The send queue, as those see it who do not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeFilterType


class SendQueue:
    """The queue at ``url``."""

    def __init__(self, url: str, client: SQSClient | None = None) -> None:
        self.url = url
        self._client = client or aws.sqs()

    def is_empty(self) -> bool:
        """Whether nothing waits, is delayed or is being worked on; SQS's numbers are approximate."""
        numbers: list[QueueAttributeFilterType] = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ]
        found = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=numbers)["Attributes"]
        return all(int(n) == 0 for n in found.values())
