"""EnrolBatch: rows for one batch, and the schedules that the machine is to create."""

from __future__ import annotations

from typing import Any

from carillon import enrolment
from carillon.adapters import clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.fan_out import FanOutFiles
from carillon.environment import Environment, load
from carillon.shapes import EnrolBatch


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    bucket: str
    send_queue_url: str


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """`EnrolBatch` in, `EnrolBatchResult` out."""
    request, settings = EnrolBatch.model_validate(event), load(Settings)
    campaign = CampaignStore(settings.campaigns_table).get(request.campaign_id)
    lines = FanOutFiles(settings.bucket).batch(request.key)
    rows = CampaignRows(settings.tasks_table)
    now = int(clock.epoch())
    return enrolment.enrol_batch(request, campaign, lines, rows, settings.send_queue_url, now).model_dump()
