"""RecordLaunchEnd: a launch that was stopped, timed out or failed leaves no campaign that waits for it."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, ConfigDict

from carillon import campaigns
from carillon.adapters import clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.schedules import Schedules
from carillon.adapters.ses_templates import SesTemplates
from carillon.environment import Environment, load
from carillon.launch import direct

logger = Logger()


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    launch_campaign_arn: str


class Detail(BaseModel):
    """``detail`` of EventBridge's "Step Functions Execution Status Change"."""

    model_config = ConfigDict(extra="ignore")

    executionArn: str
    stateMachineArn: str
    status: str
    input: str | None = None
    """JSON text; absent when it was too long for an event, which no input of ours is."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, bool]:
    """An event in; whether the campaign was aborted because of it out."""
    settings, detail = load(Settings), Detail.model_validate(event["detail"])
    given = json.loads(detail.input or "null")
    campaign_id = str(given.get("campaign_id") or "") if isinstance(given, dict) else ""
    if detail.stateMachineArn != settings.launch_campaign_arn or not campaign_id:
        return {"aborted": False}
    store, now = CampaignStore(settings.campaigns_table), clock.now()
    aborted = campaigns.record_launch_end(store, Schedules(), campaign_id, detail.executionArn, detail.status, now)
    direct.forget_broken(store, SesTemplates(), campaign_id, detail.executionArn)
    logger.info("launch ended", campaign_id=campaign_id, status=detail.status, aborted=aborted)
    return {"aborted": aborted}
