"""TransferSuppressions: a suppression list from the bucket into the table, or the other way round."""

from __future__ import annotations

from pathlib import PurePath
from traceback import extract_tb
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from carillon.adapters import clock
from carillon.adapters.objects import Objects
from carillon.adapters.suppressions import SuppressionTable
from carillon.consent.transferring import Transferring
from carillon.consent.transfers import Transfer
from carillon.environment import Environment, load

logger = Logger()

SPARE_SECONDS = 30
"""Kept of the function's time for the batch at hand and the last report."""


class Settings(Environment):
    """What this function is told."""

    suppressions_table: str
    bucket: str


class TransferBroken(Exception):
    """Raised for Lambda to try again; without the cause, whose text could quote an address."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """`Transfer` in, `Progress` out."""
    settings = load(Settings)
    transferring = Transferring(
        files=Objects(settings.bucket),
        table=SuppressionTable(settings.suppressions_table),
        now=clock.now,
        deadline=clock.epoch() + context.get_remaining_time_in_millis() / 1000 - SPARE_SECONDS,
    )
    try:
        return transferring.run(Transfer.model_validate(event)).model_dump()
    except Exception as error:
        where = [f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
        logger.error("the transfer broke", kind=type(error).__name__, where=where)
    raise TransferBroken("see the log entry before")
