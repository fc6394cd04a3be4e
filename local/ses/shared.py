"""What the operations of every kind have in common: their shapes, refusals and pages."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from local.contract import contract
from local.ports import AwsError

type Members = Mapping[str, Any]
type Output = dict[str, Any]
type Operations = dict[str, Callable[[Members], Output]]

# Configuration sets, event destinations and templates: the SES API reference gives them all this form.
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def refused(code: str, reason: str) -> AwsError:
    """An error of SES v2, with the status of botocore's model."""
    return contract("sesv2").error(code, reason)


def bad(reason: str) -> AwsError:
    """A BadRequestException."""
    return refused("BadRequestException", reason)


def not_here(what: str) -> AwsError:
    """What SES would take and this cloud does not do: refused by name, never ignored."""
    return bad(f"the local cloud does not have {what}")


def page(
    member: str,
    items: Sequence[Any],
    params: Members,
    usual: int,
    most: int,
    if_wrong: str = "BadRequestException",
) -> Output:
    """One page of ``items`` under ``member``; ``if_wrong`` is the error for a token that is not ours."""
    size = params.get("PageSize") or usual
    if not 1 <= size <= most:
        raise bad(f"PageSize must be between 1 and {most}")
    start = 0
    if (token := params.get("NextToken")) is not None:
        try:
            start = int(base64.urlsafe_b64decode(token))
        except ValueError as reason:
            raise refused(if_wrong, "The NextToken is not valid.") from reason
    output: Output = {member: list(items[start : start + size])}
    if start + size < len(items):
        output["NextToken"] = base64.urlsafe_b64encode(str(start + size).encode()).decode()
    return output
