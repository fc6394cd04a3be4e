"""SendBatch: messages whose minute has come, from the send queue to SES."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters import aws, clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrichment import LambdaEnrichers
from carillon.adapters.imprint import SenderImprint
from carillon.adapters.mail import SesMail
from carillon.adapters.messages import Messages, partial_response, records
from carillon.adapters.prepared import PreparedTemplates
from carillon.adapters.schedules import Schedules, brief_client
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.adapters.settings import PaceTable
from carillon.adapters.tasks import TaskRows
from carillon.consent.unsubscribing import Links
from carillon.delivery.sending import Sender
from carillon.delivery.slots import Cadence
from carillon.environment import Environment, load
from carillon.shapes import ZoneName

logger = Logger()
copy_config_to_registered_loggers(source_logger=logger, include={"carillon"})


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    settings_table: str
    suppressions_table: str
    bucket: str
    send_queue_url: str
    send_dead_letter_queue_url: str
    configuration_set: str
    sending_domain: str
    api_url: str
    unsubscribe_keys_secret: str
    scheduler_role_arn: str
    schedule_dead_letter_queue_arn: str
    stack_timezone: ZoneName = "UTC"
    send_time_limit: int


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """An SQS event in, the messages that stay in the queue out."""
    left = min(context.get_remaining_time_in_millis() / 1000, load(Settings).send_time_limit)
    kept = _sender().handle(records(event), clock.now() + timedelta(seconds=left))
    return partial_response(kept)


@cache
def _sender() -> Sender:
    settings = load(Settings)
    zone = ZoneInfo(settings.stack_timezone)
    return Sender(
        campaigns=CampaignStore(settings.campaigns_table),
        rows=TaskRows(settings.tasks_table, settings.suppressions_table),
        pace=PaceTable(aws.dynamodb(), settings.settings_table, zone, clock.now),
        templates=PreparedTemplates(settings.bucket),
        mail=SesMail(settings.configuration_set),
        queue=Messages(settings.send_queue_url, settings.send_dead_letter_queue_url),
        links=Links(settings.api_url, UnsubscribeKeys(settings.unsubscribe_keys_secret)),
        imprint=SenderImprint(settings.settings_table),
        enrichers=LambdaEnrichers(),
        schedules=Schedules(settings.scheduler_role_arn, settings.schedule_dead_letter_queue_arn, brief_client()),
        clock=clock,
        sending_domain=settings.sending_domain,
        send_queue_url=settings.send_queue_url,
        token=lambda: uuid4().hex,
        cadence=Cadence(),
    )
