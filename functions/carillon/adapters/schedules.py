"""EventBridge Scheduler: the schedules of a campaign and the groups that hold them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from carillon.adapters import aws
from carillon.shapes import Schedule

if TYPE_CHECKING:
    from mypy_boto3_scheduler import EventBridgeSchedulerClient

TARGET = "arn:aws:scheduler:::aws-sdk:sqs:sendMessage"
"""Universal, not the SQS template: only the API call takes ``DelaySeconds``."""


BRIEF = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=1, read_timeout=2)
"""For the sender, whose time is short: a schedule that it cannot make the reconciler makes."""


class Schedules:
    """Creates what `launch_campaign` creates, with the same settings, and deletes groups."""

    def __init__(
        self, role: str = "", dead_letter_queue: str = "", client: EventBridgeSchedulerClient | None = None
    ) -> None:
        self._role = role
        self._dead_letter_queue = dead_letter_queue
        self._client = client or aws.scheduler()

    def create(self, schedule: Schedule) -> bool:
        """Create it; False when one of that name is there (still)."""
        try:
            self._client.create_schedule(
                Name=schedule.name,
                GroupName=schedule.group,
                ClientToken=schedule.client_token,
                ScheduleExpression=f"at({schedule.at})",
                ScheduleExpressionTimezone="UTC",
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target={
                    "Arn": TARGET,
                    "RoleArn": self._role,
                    "Input": schedule.input,
                    "RetryPolicy": {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 3600},
                    "DeadLetterConfig": {"Arn": self._dead_letter_queue},
                },
            )
        except self._client.exceptions.ConflictException:
            return False
        return True

    def ensure_group(self, group: str) -> None:
        """Create the group; one that is there is fine."""
        try:
            self._client.create_schedule_group(Name=group)
        except self._client.exceptions.ConflictException:
            return

    def delete_group(self, group: str) -> None:
        """Delete the group and every schedule left in it; one that is gone, or going, is fine."""
        gone = self._client.exceptions
        try:
            self._client.delete_schedule_group(Name=group)
        except (gone.ResourceNotFoundException, gone.ConflictException):
            return

    def is_group_empty(self, group: str) -> bool:
        """Whether no schedule is left in it; also of one that is gone. Those that have gone off are deleted a while
        after their last attempt."""
        try:
            return not self._client.list_schedules(GroupName=group, MaxResults=1)["Schedules"]
        except self._client.exceptions.ResourceNotFoundException:
            return True


@cache
def brief_client() -> EventBridgeSchedulerClient:
    """Scheduler, asked once and for 3 s at most."""
    return boto3.client("scheduler", config=BRIEF)
