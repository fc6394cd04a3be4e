"""Who calls, and what IAM lets them do: MiniStack's evaluator, asked from inside this process."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from local.ministack import private


@dataclass(frozen=True)
class Identity:
    """The credentials a request is made with."""

    access_key_id: str
    secret_access_key: str = ""
    session_token: str = ""


caller: contextvars.ContextVar[Identity | None] = contextvars.ContextVar("caller", default=None)
"""Whose request is being answered; None when our own machinery asks (CloudFormation, tests)."""


def of_request(headers: Mapping[str, str], query: Mapping[str, Any]) -> Identity:
    """The identity that signed an HTTP request; MiniStack has checked the signature by then."""
    return Identity(private("core.router").extract_access_key_id(headers, query) or "")
