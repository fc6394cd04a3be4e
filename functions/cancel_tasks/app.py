"""CancelTasks: one shard's Pending rows become Cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carillon import cancelling
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.environment import Environment, load
from carillon.shapes import CancelTasks

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """`CancelTasks` in, `CancelTasksResult` out."""
    request, settings = CancelTasks.model_validate(event), load(Settings)
    campaigns, rows = CampaignStore(settings.campaigns_table), CampaignRows(settings.tasks_table)

    def seconds_left() -> float:
        return context.get_remaining_time_in_millis() / 1000

    return cancelling.cancel_tasks(request, campaigns, rows, seconds_left).model_dump()
