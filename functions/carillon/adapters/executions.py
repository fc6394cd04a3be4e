"""Executions of the state machines, and the Map Runs inside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_stepfunctions import SFNClient


class Executions:
    """Step Functions, as far as a campaign's life needs it."""

    def __init__(self, client: SFNClient | None = None) -> None:
        self._client = client or aws.stepfunctions()

    def start(self, machine: str, name: str, given: Mapping[str, Any]) -> str | None:
        """Start an execution of a machine (ARN); the execution's ARN.

        The same name and input while it runs is the same execution. None: the name has been used up, for
        90 days after an execution has ended.
        """
        try:
            answer = self._client.start_execution(
                stateMachineArn=machine, name=name, input=json.dumps(given, separators=(",", ":"))
            )
        except self._client.exceptions.ExecutionAlreadyExists:
            return None
        return answer["executionArn"]

    def map_run_counts(self, map_run: str) -> dict[str, int]:
        """How many children of a Map Run (ARN) ended how: ``succeeded``, ``failed``, ``pending``, ``timedOut``, …"""
        counts: Mapping[str, Any] = self._client.describe_map_run(mapRunArn=map_run)["executionCounts"]
        return {how: int(n) for how, n in counts.items()}
