"""PrepareList: the list read, every slot planned, everything written that the fan-out reads."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from carillon import zones
from carillon.adapters import aws, clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.identities import Identities
from carillon.adapters.ledger import LedgerTable
from carillon.adapters.objects import Objects
from carillon.adapters.ses_templates import SesTemplates
from carillon.adapters.settings import PaceTable, SettingsTable
from carillon.adapters.suppressed import AccountSuppressions, SuppressionLookup
from carillon.environment import Environment, load
from carillon.launch.forecast import Quotas
from carillon.launch.preparation import Preparation
from carillon.shapes import Prepare


class Settings(Environment):
    """What this function is told."""

    campaigns_table: str
    tasks_table: str
    settings_table: str
    suppressions_table: str
    bucket: str
    send_queue_url: str
    sending_domain: str
    stack_timezone: str = "UTC"
    create_schedule_rate: int = 250
    """The account's quota of CreateSchedule a second: 250 is the least that any Region has (AWS_CONTRACTS 1)."""
    schedule_quota: int = 10_000_000
    """How many schedules the account may have in the Region."""
    invocation_rate: int = 1_000
    """How many schedules a second Scheduler lets go off: less outside the large Regions."""
    aws_lambda_function_memory_size: int = 2048
    """MB; Lambda sets it. DuckDB gets a quarter: of ten million e-mails the planner takes more than that."""


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """`Prepare` in; `PrepareListResult` out, or `Plan` for a dry run."""
    request, settings = Prepare.model_validate(event), load(Settings)
    preparation = Preparation(
        campaigns=CampaignStore(settings.campaigns_table),
        objects=Objects(settings.bucket),
        suppressions=SuppressionLookup(settings.suppressions_table, account=AccountSuppressions()),
        identities=Identities(),
        pace=PaceTable(aws.dynamodb(), settings.settings_table, zones.get(settings.stack_timezone), clock.now),
        ledger=LedgerTable(settings.settings_table),
        rows=CampaignRows(settings.tasks_table),
        now=clock.epoch,
        nonce=lambda: uuid4().hex[:8],
        sending_domain=settings.sending_domain.lower(),
        queue_url=settings.send_queue_url,
        cap_zone=settings.stack_timezone,
        quotas=Quotas(settings.schedule_quota, settings.create_schedule_rate, settings.invocation_rate),
        memory_limit=f"{settings.aws_lambda_function_memory_size // 4}MB",
        ses_templates=SesTemplates(),
        postal_address=SettingsTable(settings.settings_table).postal_address,
    )
    return (preparation.plan(request) if request.plan else preparation.prepare(request)).model_dump()
