"""The deployed stack, once for each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.cloud import Cloud
from local.deployment import ROOT, Deployment
from tests.local.end_to_end.stage import Stage


@pytest.fixture(scope="session")
def stage(cloud: Cloud) -> Iterator[Stage]:
    """The real template, built once for all test processes and deployed on this one's cloud."""
    stack = Deployment(cloud.operator_environment(), ROOT / ".local" / "sam")
    stack.build()
    stack.deploy()
    played = Stage(cloud, stack)
    played.pace()
    stack.api.call("PUT", "/settings/sender", {"postal_address": "Ringers' Lane 1, 10115 Berlin"})
    yield played
    cloud.scheduler.faults.set()
