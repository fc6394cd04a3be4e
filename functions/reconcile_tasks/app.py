"""ReconcileTasks: every half hour, and on demand for one campaign."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon import zones
from carillon.adapters import aws, clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.fan_out import FanOutFiles
from carillon.adapters.queue import SendQueue
from carillon.adapters.schedules import Schedules
from carillon.adapters.ses_templates import SesTemplates
from carillon.adapters.settings import PaceTable
from carillon.environment import Environment, load
from carillon.lifecycle.reconciling import Reconcile, Reconciler
from carillon.shapes import ZoneName

logger = Logger()


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    settings_table: str
    bucket: str
    send_queue_url: str
    scheduler_role_arn: str
    schedule_dead_letter_queue_arn: str
    stack_timezone: ZoneName = "UTC"


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """`Reconcile` in; ``{"campaigns": [Reconciled, …]}`` out."""
    settings = load(Settings)
    reconciler = Reconciler(
        CampaignStore(settings.campaigns_table),
        CampaignRows(settings.tasks_table),
        FanOutFiles(settings.bucket),
        Schedules(settings.scheduler_role_arn, settings.schedule_dead_letter_queue_arn),
        SendQueue(settings.send_queue_url),
        PaceTable(aws.dynamodb(), settings.settings_table, zones.get(settings.stack_timezone), clock.now),
        settings.stack_timezone,
        SesTemplates(),
    )
    done = [found.model_dump() for found in reconciler.run(Reconcile.model_validate(event), clock.now())]
    logger.info("reconciled", campaigns=done)
    return {"campaigns": done}
