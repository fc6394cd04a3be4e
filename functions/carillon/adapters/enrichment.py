"""Functions of the account that know more about recipients, asked through Lambda."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from carillon.delivery.enriching import EnrichmentFailed, EnrichmentUnreachable

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

BRIEF = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=1, read_timeout=5)
"""`carillon.delivery.enriching.SECONDS` is the sum of the timeouts. One attempt: the message comes again by itself."""

LARGEST_ANSWER = 6 * 2**20
"""Bytes: what Lambda hands back at most (AWS_CONTRACTS 6)."""

_NEVER = frozenset({"ResourceNotFoundException", "RequestTooLargeException", "InvalidRequestContentException"})
"""What the same question meets again. All else (throttled, not ready, 5xx, our own role) a person or time can mend."""


class LambdaEnrichers:
    """`carillon.delivery.enriching.Enrichers` on Lambda."""

    def __init__(self, client: LambdaClient | None = None) -> None:
        self._client = client or _brief_client()

    def ask(self, function: str, question: Mapping[str, Any]) -> Any:
        """See `carillon.delivery.enriching.Enrichers.ask`."""
        name, _, alias = function.partition(":")
        qualifier: dict[str, Any] = {"Qualifier": alias} if alias else {}
        payload = json.dumps(question, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            answer = self._client.invoke(FunctionName=name, Payload=payload, **qualifier)
            body = answer["Payload"].read(LARGEST_ANSWER + 1)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            kind = EnrichmentFailed if code in _NEVER else EnrichmentUnreachable
            raise kind(f"{function}: {code}") from None
        except BotoCoreError as error:
            raise EnrichmentUnreachable(f"{function}: {type(error).__name__}") from None
        if "FunctionError" in answer:
            raise EnrichmentFailed(f"{function} ended with an error: see its log")
        if len(body) > LARGEST_ANSWER:
            raise EnrichmentFailed(f"{function} answers more than {LARGEST_ANSWER:,} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise EnrichmentFailed(f"{function} does not answer JSON") from None


@cache
def _brief_client() -> LambdaClient:
    return boto3.client("lambda", config=BRIEF)
