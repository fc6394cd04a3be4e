"""The environment of a function as a typed model, checked when first asked for."""

from __future__ import annotations

import os
from functools import cache

from pydantic import BaseModel, ConfigDict, ValidationError


class Environment(BaseModel):
    """Base of each function's own model: field ``campaigns_table`` is read from ``CAMPAIGNS_TABLE``."""

    model_config = ConfigDict(frozen=True, extra="ignore")


@cache
def load[E: Environment](model: type[E]) -> E:
    """The process's environment as ``model``.

    Raises:
        RuntimeError: a variable is missing or malformed; the message names it, and not its value.
    """
    values = {name: os.environ[name.upper()] for name in model.model_fields if name.upper() in os.environ}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, e["loc"])).upper() for e in error.errors())
        raise RuntimeError(f"environment of this function is incomplete: {wrong}; see template.yaml") from None
