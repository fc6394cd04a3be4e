"""CancelTasks: one shard's Pending rows become Cancelled."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.environment import Environment, load
from carillon.lifecycle import cancelling
from carillon.shapes import CancelTasks

logger = Logger()


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str


@logger.inject_lambda_context(clear_state=True)
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """`CancelTasks` in, `CancelTasksResult` out."""
    request, settings = CancelTasks.model_validate(event), load(Settings)
    logger.append_keys(campaign_id=request.campaign_id, shard=request.shard)
    campaigns, rows = CampaignStore(settings.campaigns_table), CampaignRows(settings.tasks_table)

    def seconds_left() -> float:
        return context.get_remaining_time_in_millis() / 1000

    result = cancelling.cancel_tasks(request, campaigns, rows, seconds_left)
    logger.info("swept", cancelled=result.cancelled, running=result.running)
    return result.model_dump()
