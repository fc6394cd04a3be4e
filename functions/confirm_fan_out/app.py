"""ConfirmFanOut: what of the manifest is not proven to be scheduled."""

from __future__ import annotations

from typing import Any

from carillon import fan_out
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.executions import Executions
from carillon.adapters.fan_out import FanOutFiles
from carillon.environment import Environment, load
from carillon.shapes import ConfirmFanOut


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    bucket: str


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """`ConfirmFanOut` in, `ConfirmFanOutResult` out."""
    request, settings = ConfirmFanOut.model_validate(event), load(Settings)
    campaigns, files = CampaignStore(settings.campaigns_table), FanOutFiles(settings.bucket)
    return fan_out.confirm_fan_out(request, campaigns, files, Executions()).model_dump()
