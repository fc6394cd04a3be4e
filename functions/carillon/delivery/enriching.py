"""Enrichment: values for a batch's templates that a function of the account knows and the list does not.

It is asked once for each campaign and step of a batch, before anything is claimed, and believed as little as a list:
what it answers beside the names that the campaign announced, or in no shape for a template, is nobody's value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from carillon.errors import CarillonError
from carillon.shapes import Enrichment

SECONDS = 6
"""At most 1 s to connect and 5 s for the function's answer: `carillon.adapters.enrichment` holds to it."""
PATIENCE = timedelta(hours=3)
"""How long after its message first came a task waits for a function that cannot be reached; then it has failed."""
LONGEST_VALUE = 50_000
"""Characters: a value is part of an e-mail, which mailbox providers cut at about 100 KB."""

_HALF = re.compile("[\ud800-\udfff]")

type Value = str | int | float | bool
"""What a template can show."""


class EnrichmentUnreachable(CarillonError):
    """The function has not been asked, or has not answered: asking again may help."""


class EnrichmentFailed(CarillonError):
    """The function, or what it answered, is no good; the message says what of it, never a value."""


class Enrichers(Protocol):
    """The port to functions of the account (`carillon.adapters.enrichment.LambdaEnrichers`)."""

    def ask(self, function: str, question: Mapping[str, Any]) -> Any:
        """What ``function`` answers, as JSON gives it; within `SECONDS`.

        Raises:
            EnrichmentUnreachable: it may answer another time.
            EnrichmentFailed: it will not.
        """


def question(campaign_id: str, step: int, columns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a function is asked: ``columns`` is the personalisation data by task. No address is in it, unless it is a
    column that the templates use."""
    recipients = [{"task": task, "columns": dict(data)} for task, data in columns.items()]
    return {"campaign_id": campaign_id, "step": step, "recipients": recipients}


def values(enrichment: Enrichment, answer: Any, task: str) -> dict[str, Value]:
    """What ``answer`` says about ``task``; what it leaves open or says to be null is left out.

    Raises:
        EnrichmentFailed: nothing, or something that no template can show.
    """
    if not isinstance(answer, Mapping):
        raise EnrichmentFailed(f"{enrichment.function} must answer an object of objects by task")
    found = answer.get(task)
    if not isinstance(found, Mapping):
        raise EnrichmentFailed(f"{enrichment.function} answers no object for this task")
    if found.keys() - set(enrichment.provides):
        raise EnrichmentFailed(f"{enrichment.function} answers more than the campaign's enrichment.provides names")
    kept: dict[str, Value] = {}
    for name, value in found.items():
        if not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
            raise EnrichmentFailed(f"{enrichment.function}: {name} must be text, a number, true, false or null")
        if len(str(value)) > LONGEST_VALUE:
            raise EnrichmentFailed(f"{enrichment.function}: {name} has more than {LONGEST_VALUE:,} characters")
        if isinstance(value, str) and _HALF.search(value):
            raise EnrichmentFailed(f"{enrichment.function}: {name} has half a character")
        if value is not None:
            kept[name] = value
    return kept
