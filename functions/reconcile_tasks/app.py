"""ReconcileTasks: every half hour, and on demand for one campaign."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters import clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.fan_out import FanOutFiles
from carillon.adapters.queue import SendQueue
from carillon.adapters.schedules import Schedules
from carillon.environment import Environment, load
from carillon.reconciling import Reconcile, Reconciler

logger = Logger()


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    bucket: str
    send_queue_url: str
    scheduler_role_arn: str
    schedule_dead_letter_queue_arn: str


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
    )
    done = [found.model_dump() for found in reconciler.run(Reconcile.model_validate(event), clock.now())]
    logger.info("reconciled", campaigns=done)
    return {"campaigns": done}
