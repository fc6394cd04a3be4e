"""What the parts of the local cloud promise each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class AwsError(Exception):
    """An error that an AWS service answers: its code as botocore's model spells it, and a message.

    ``status`` is the HTTP status of the model (400 where it names none).
    """

    def __init__(self, code: str, message: str, status: int = 400, **members: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.members = members


class Caller(Protocol):
    """Calls one AWS operation as a role, wherever in the local cloud the service lives."""

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        """Call ``operation`` (botocore spelling, e.g. ``CreateSchedule``) of ``service``
        (botocore's name, e.g. ``scheduler``, ``dynamodb``, ``lambda``).

        ``params`` are the operation's members in the service model's own spelling; the answer is what
        boto3 would return, without ``ResponseMetadata``; blobs are bytes. The role's policies are evaluated.
        ``source_arn`` is what an ``aws:SourceArn`` condition in the role's trust policy sees.

        Raises:
            AwsError: what the service (or IAM: ``AccessDeniedException``) answers.
        """
        ...
