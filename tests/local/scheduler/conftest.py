import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from local.clock import Clock
from local.identity import Identity
from local.ports import AwsError
from local.scheduler import Scheduler

ACCOUNT, REGION = "000000000000", "eu-central-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/scheduler"
QUEUE = f"arn:aws:sqs:{REGION}:{ACCOUNT}:send"
DEAD_LETTERS = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"


class FakeCaller:
    """Keeps every call; answers with what `errors` has next, if anything."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.roles: list[tuple[str, str]] = []
        self.errors: list[AwsError] = []
        self.gate = threading.Event()
        self.gate.set()

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        self.gate.wait(10)
        self.calls.append((service, operation, dict(params)))
        self.roles.append((role_arn, source_arn))
        if self.errors and "MessageAttributes" not in params:
            raise self.errors.pop(0)
        return {}


class FakeIam:
    """Lets everything pass but what `refused` names: (action, resource) or a role that trusts no Scheduler."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.asked: list[tuple[str, str, Mapping[str, Any]]] = []

    def allow(self, who: Identity, action: str, resource: str, context: Mapping[str, Any] | None = None) -> None:
        self.asked.append((action, resource, context or {}))
        if action in self.refused:
            raise AwsError("AccessDeniedException", f"not authorized to perform: {action}", 403)

    def assume(self, role_arn: str, service_principal: str, source_arn: str = "") -> Identity:
        if role_arn in self.refused:
            raise AwsError("AccessDeniedException", "no trust", 403)
        return Identity("ASIA")


class Bench:
    """A Scheduler with a clock and fakes, and short ways to use it."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock(directory / "clock")
        self.caller = FakeCaller()
        self.iam = FakeIam()
        self.scheduler = Scheduler(self.clock, self.caller, self.iam, ACCOUNT, REGION)  # type: ignore[arg-type]

    def __call__(self, operation: str, **params: Any) -> dict[str, Any]:
        return self.scheduler.handle(operation, params)

    def at(self, seconds: float) -> str:
        """The expression for so many seconds from now, UTC."""
        return time.strftime("at(%Y-%m-%dT%H:%M:%S)", time.gmtime(self.clock.time() + seconds))

    def schedule(self, name: str = "a", **changes: Any) -> dict[str, Any]:
        """Members of CreateSchedule: a templated queue target, due in 100 s; `target=` changes the target."""
        target = {"Arn": QUEUE, "RoleArn": ROLE, "Input": "hello", **changes.pop("target", {})}
        members = {
            "Name": name,
            "ScheduleExpression": self.at(100),
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": target,
        }
        return {**members, **changes}

    def create(self, name: str = "a", **changes: Any) -> str:
        arn: str = self("CreateSchedule", **self.schedule(name, **changes))["ScheduleArn"]
        return arn

    def names(self, **filters: Any) -> list[str]:
        return [schedule["Name"] for schedule in self("ListSchedules", **filters)["Schedules"]]

    @staticmethod
    def eventually(holds: Callable[[], object], seconds: float = 5.0) -> None:
        """Wait until `holds` is true; what happens on other threads takes a moment."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.005)

    def refused(self, operation: str, **params: Any) -> AwsError:
        with pytest.raises(AwsError) as refusal:
            self(operation, **params)
        return refusal.value


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.caller.gate.set()
    bench.scheduler.close()
