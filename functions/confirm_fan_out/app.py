"""ConfirmFanOut: what of the manifest is not proven to be scheduled."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.executions import Executions
from carillon.adapters.fan_out import FanOutFiles
from carillon.environment import Environment, load
from carillon.launch import fan_out
from carillon.shapes import ConfirmFanOut

logger = Logger()


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    bucket: str


@logger.inject_lambda_context(clear_state=True)
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """`ConfirmFanOut` in, `ConfirmFanOutResult` out."""
    request, settings = ConfirmFanOut.model_validate(event), load(Settings)
    logger.append_keys(campaign_id=request.campaign_id, generation=request.generation, round=request.round)
    campaigns, files = CampaignStore(settings.campaigns_table), FanOutFiles(settings.bucket)
    result = fan_out.confirm_fan_out(request, campaigns, files, Executions())
    logger.info("confirmed", remaining=result.remaining, refused=result.refused)
    return result.model_dump()
