"""EnrolBatch: rows for one batch (none on the direct route), and the schedules that the machine is to create."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters import clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.fan_out import FanOutFiles
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.consent.unsubscribing import Links
from carillon.environment import Environment, load
from carillon.launch import direct, enrolment
from carillon.shapes import EnrolBatch

logger = Logger()


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    bucket: str
    send_queue_url: str
    configuration_set: str
    sending_domain: str
    api_url: str
    unsubscribe_keys_secret: str


@logger.inject_lambda_context(clear_state=True)
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """`EnrolBatch` in, `EnrolBatchResult` out."""
    request, settings = EnrolBatch.model_validate(event), load(Settings)
    logger.append_keys(campaign_id=request.campaign_id, generation=request.generation, batch=request.batch)
    campaign = CampaignStore(settings.campaigns_table).get(request.campaign_id)
    lines = FanOutFiles(settings.bucket).batch(request.campaign_id, request.batch)
    now = int(clock.epoch())
    if campaign.spec.route == "direct":
        result = direct.enrol_batch(
            request, campaign, lines, _links(), settings.configuration_set, settings.sending_domain, now
        )
    else:
        rows = CampaignRows(settings.tasks_table)
        result = enrolment.enrol_batch(request, campaign, lines, rows, settings.send_queue_url, now)
    logger.info("enrolled", enrolled=result.enrolled, settled=result.settled)
    return result.model_dump()


@cache
def _links() -> Links:
    settings = load(Settings)
    return Links(settings.api_url, UnsubscribeKeys(settings.unsubscribe_keys_secret))
