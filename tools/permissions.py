"""What the template's roles allow, read from their policies; enough of IAM for policies without Deny or NotAction."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.definitions import resolved, resources


@dataclass(frozen=True)
class Statement:
    """One Allow of a role."""

    role: str
    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]


def roles() -> dict[str, dict[str, Any]]:
    """Every role's properties, references resolved, by logical id."""
    return {name: resolved(role["Properties"]) for name, role in resources("AWS::IAM::Role").items()}


def statements(role: str) -> list[Statement]:
    """The statements of a role's inline policies."""
    return [
        Statement(role, each.get("Sid", policy["PolicyName"]), _listed(each["Action"]), _listed(each["Resource"]))
        for policy in roles()[role].get("Policies", ())
        for each in policy["PolicyDocument"]["Statement"]
    ]


def allows(role: str, action: str, resource: str) -> bool:
    """Whether ``role`` may do ``action`` on the ARN ``resource`` (conditions are taken as met)."""
    return any(
        any(fnmatch.fnmatchcase(action, pattern) for pattern in statement.actions)
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in statement.resources)
        for statement in statements(role)
    )


def granted(role: str) -> Iterator[str]:
    """Every action that a role is given."""
    for statement in statements(role):
        yield from statement.actions


def _listed(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
