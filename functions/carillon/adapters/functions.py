"""A function of the stack that is run in the background."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient


class BackgroundFunction:
    """`carillon.consent.transfers.Functions` on Lambda's queue of asynchronous invocations, which tries twice more."""

    def __init__(self, name: str, client: LambdaClient | None = None) -> None:
        self._name = name
        self._client = client or aws.functions()

    def run_later(self, given: Mapping[str, Any]) -> None:
        """Hand over the input; once that returns, the function will run."""
        self._client.invoke(FunctionName=self._name, InvocationType="Event", Payload=json.dumps(given).encode())
