"""Ports of the lifecycle that keep what they are told in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from carillon.shapes import BatchLine, Schedule
from carillon.timing.pace import Pace


@dataclass
class FakeScheduler:
    """Groups and schedules by Scheduler's rules: a name is unique in its group, a group is deleted with all in it."""

    groups: dict[str, dict[str, Schedule]] = field(default_factory=dict)
    remembered: set[str] = field(default_factory=set)
    """Client tokens of earlier creations: answered from memory, with no new schedule."""

    def create(self, schedule: Schedule) -> bool:
        group = self.groups[schedule.group]
        if schedule.name in group:
            return False
        if schedule.client_token not in self.remembered:
            group[schedule.name] = schedule
            self.remembered.add(schedule.client_token)
        return True

    def ensure_group(self, group: str) -> None:
        self.groups.setdefault(group, {})

    def delete_group(self, group: str) -> None:
        self.groups.pop(group, None)

    def is_group_empty(self, group: str) -> bool:
        return not self.groups.get(group)

    def vanish(self) -> None:
        """Every schedule is gone, and the tokens are not forgotten."""
        for group in self.groups.values():
            group.clear()


@dataclass
class FakeTemplates:
    """What SES keeps, by name."""

    kept: dict[str, object] = field(default_factory=dict)

    def put_template(self, name: str, template: object) -> None:
        self.kept[name] = template

    def delete_template(self, name: str) -> None:
        self.kept.pop(name, None)


@dataclass
class FakeBatches:
    """Batches by name."""

    files: dict[str, Sequence[BatchLine]] = field(default_factory=dict)

    def batch(self, campaign_id: str, name: str) -> list[BatchLine]:
        if name not in self.files:
            raise FileNotFoundError(name)
        return list(self.files[name])


@dataclass
class FakeIdentity:
    """The identity's pace: roomy, unless a test says otherwise."""

    pace: Pace = field(default_factory=lambda: Pace(rate_per_second=100, daily_cap=100_000))

    def read(self) -> Pace:
        return self.pace


@dataclass
class FakeQueue:
    """A queue with so many messages."""

    messages: int = 0
    url: str = "https://sqs.eu-central-1.amazonaws.com/123456789012/send"

    def is_empty(self) -> bool:
        return self.messages == 0
