"""AWS as the sender's ports see it, in memory: one world, whose every call goes through `World.call`.

Conditions are DynamoDB's (checked and written at once), SES accepts or does what a test says, time is virtual.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

from carillon.content.emails import Email, MailError
from carillon.content.templates import Prepared, Renderer
from carillon.delivery.claims import Change, RowConflict
from carillon.delivery.envelopes import Record
from carillon.delivery.sending import Sender
from carillon.delivery.slots import Cadence
from carillon.errors import CampaignNotFound, CampaignStateConflict
from carillon.shapes import Campaign, Problem, Schedule, Task
from carillon.timing.pace import Grant, Pace, Refused, epoch_us, hour_key, reserve
from carillon.transitions import PAUSABLE, may_follow
from tests.unit.sending.examples import NOW, PREPARED

LIMIT = timedelta(seconds=30)


class World:
    """Everything outside of a sender."""

    def __init__(self, campaigns: Collection[Campaign] = (), tasks: Collection[Task] = ()) -> None:
        self.now_us = epoch_us(NOW)
        self.campaigns = {c.campaign_id: c for c in campaigns}
        self.rows = {(t.campaign_id, t.task): t for t in tasks}
        self.suppressed: set[tuple[str, str]] = set()
        self.pace = Pace(rate_per_second=1000, daily_cap=100_000)
        self.zone = ZoneInfo("UTC")
        self.accepted: list[tuple[int, Email]] = []
        """When (microseconds), and what."""
        self.asked: list[Email] = []
        self.answers: deque[MailError | Callable[[], None]] = deque()
        """SES's next answers: an error to raise, or something to do before it accepts. Empty: it accepts."""
        self.delayed: dict[Record, int] = {}
        self.buried: dict[str, str] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.calls: Counter[str] = Counter()
        self.prepared: Prepared = PREPARED
        self.keys_readable = True
        self.postal_address: str | None = "Hauptstr. 1, 10115 Berlin"
        self.scheduled: list[Schedule] = []
        self.questions: list[Mapping[str, Any]] = []
        self.enricher: Callable[[Mapping[str, Any]], Any] = lambda question: {}
        self._tokens = count()

    def call[T](self, name: str, effect: Callable[[], T]) -> T:
        """One external call; `simulation.py` stops senders here."""
        self.calls[name] += 1
        return effect()

    def sender(self, **changes: Any) -> Sender:
        """A new process. ``changes`` replaces ports."""
        ports: dict[str, Any] = {
            "campaigns": FakeCampaigns(self),
            "rows": FakeRows(self),
            "pace": FakePace(self),
            "templates": FakeTemplates(self),
            "mail": FakeMail(self),
            "queue": FakeQueue(self),
            "links": FakeLinks(self),
            "imprint": FakeImprint(self),
            "enrichers": FakeEnrichers(self),
            "schedules": FakeSchedules(self),
            "clock": FakeClock(self),
            "sending_domain": "example.com",
            "send_queue_url": "https://sqs.eu-west-1.amazonaws.com/123456789012/send",
            "token": lambda: f"token-{next(self._tokens)}",
            "cadence": Cadence(),
        }
        return Sender(**(ports | changes))

    def send(self, *records: Record, limit: timedelta = LIMIT, **changes: Any) -> list[str]:
        """One invocation of a new process."""
        return self.sender(**changes).handle(records, self.now() + limit)

    def now(self) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.now_us)

    def pass_time(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)

    def row(self, n: int) -> Task:
        from tests.unit.sending.examples import task

        return self.rows["advent", task(n).task]

    def accepted_by_task(self) -> Counter[str]:
        """How often SES took each task's e-mail: counted at SES, never at the rows."""
        return Counter(dict(email.tags)["task"] for _, email in self.accepted)


class FakeClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now()

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self._world.call("sleep", lambda: self._world.pass_time(seconds))


class FakeCampaigns:
    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, campaign_id: str, *, consistent: bool = True) -> Campaign:
        assert consistent
        found = self._world.call("get campaign", lambda: self._world.campaigns.get(campaign_id))
        if found is None:
            raise CampaignNotFound("there is none")
        return found

    def pause(self, campaign_id: str, generation: int, paused: bool, *, now: datetime, error: Problem | None) -> object:
        def effect() -> None:
            there = self._world.campaigns[campaign_id]
            if there.generation != generation or there.state not in PAUSABLE:
                raise CampaignStateConflict("someone else decided")
            changed = there.model_copy(update={"paused": paused, "error": error})
            self._world.campaigns[campaign_id] = changed

        return self._world.call("pause campaign", effect)

    def count(self, campaign_id: str, **deltas: int) -> None:
        self._world.call("count", lambda: self._world.counts.setdefault(campaign_id, Counter()).update(deltas))


class FakeRows:
    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, tasks: Collection[Any], suppressions: Collection[Any]) -> Any:
        rows = self._world.rows
        return self._world.call(
            "read rows",
            lambda: ({t: rows[t] for t in tasks if t in rows}, self._world.suppressed & set(suppressions)),
        )

    def apply(self, change: Change) -> None:
        self._world.call(f"{change.before} to {change.after}", lambda: self._apply(change))

    def apply_together(self, changes: Sequence[Change]) -> None:
        """All or none, as a transaction."""

        def effect() -> None:
            before = dict(self._world.rows)
            try:
                for change in changes:
                    self._apply(change)
            except RowConflict:
                self._world.rows = before
                raise

        self._world.call(f"{changes[0].before} to {changes[0].after} together", effect)

    def _apply(self, change: Change) -> None:
        there = self._world.rows.get((change.campaign_id, change.task))
        if there is None or there.status is not change.before:
            raise RowConflict(there)
        for path, expected in change.expected.items():
            found: Any = there
            for part in path.split("."):
                found = getattr(found, part, None)
            if found != expected:
                raise RowConflict(there)
        code = (change.sets.get("error") or {}).get("code")
        assert change.before is change.after or may_follow(change.before, change.after, code)
        changed = there.model_dump() | {"status": change.after, **change.sets} | dict.fromkeys(change.removes)
        self._world.rows[change.campaign_id, change.task] = Task.model_validate(changed)


class FakePace:
    """`carillon.adapters.settings.PaceTable` without DynamoDB: the same plan, checked and written at once."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reserve(self, wanted: int, *, lead_us: int, last_send_us: int) -> Grant | Refused:
        def effect() -> Grant | Refused:
            world = self._world
            plan = reserve(world.pace, wanted, world.now(), world.zone, lead_us=lead_us, last_send_us=last_send_us)
            if isinstance(plan, Refused):
                return plan
            start = max(world.pace.next_free_us, plan.earliest_us)
            hours = world.pace.hours | {plan.hour: world.pace.hours.get(plan.hour, 0) + plan.count}
            world.pace = world.pace.model_copy(update={"next_free": (start + plan.advance_us) / 1000, "hours": hours})
            return Grant(start, plan.interval_us, plan.count, plan.hour)

        return self._world.call("reserve pace", effect)

    def give_back(self, hour: str, number: int) -> None:
        def effect() -> None:
            hours = self._world.pace.hours
            self._world.pace = self._world.pace.model_copy(update={"hours": hours | {hour: hours[hour] - number}})

        self._world.call("give back pace", effect)


class FakeTemplates:
    def __init__(self, world: World) -> None:
        self._world = world

    def renderer(self, campaign_id: str, generation: int, step: int) -> Renderer:
        return self._world.call("get template", lambda: Renderer(self._world.prepared))


class FakeMail:
    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, email: Email) -> str:
        def effect() -> str:
            self._world.asked.append(email)
            if self._world.answers:
                answer = self._world.answers.popleft()
                if isinstance(answer, MailError):
                    raise answer
                answer()
            self._world.accepted.append((self._world.now_us, email))
            return f"ses-{len(self._world.accepted)}"

        return self._world.call("send email", effect)


class FakeQueue:
    def __init__(self, world: World) -> None:
        self._world = world

    def delay(self, seconds: Mapping[Record, int]) -> None:
        self._world.call("delay messages", lambda: self._world.delayed.update(seconds))

    def bury(self, record: Record, reason: str) -> None:
        self._world.call("bury message", lambda: self._world.buried.update({record.message_id: reason}))


class FakeLinks:
    """The keys are in memory for minutes: no call, unless they cannot be read."""

    def __init__(self, world: World) -> None:
        self._world = world

    def unsubscribe(self, campaign_id: str, task: str, topic: str, address_hash: str) -> str:
        if not self._world.keys_readable:
            raise ConnectionError
        return f"https://api.example.com/u/{campaign_id}.{task}.{topic}.{address_hash[:8]}"


class FakeImprint:
    """Kept in memory as well."""

    def __init__(self, world: World) -> None:
        self._world = world

    def postal_address(self) -> str:
        if self._world.postal_address is None:
            raise LookupError
        return self._world.postal_address


class FakeEnrichers:
    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self, function: str, question: Mapping[str, Any]) -> Any:
        def effect() -> Any:
            self._world.questions.append(question)
            return self._world.enricher(question)

        return self._world.call("enrich", effect)


class FakeSchedules:
    def __init__(self, world: World) -> None:
        self._world = world

    def create(self, schedule: Schedule) -> bool:
        return self._world.call("create schedule", lambda: self._create(schedule))

    def _create(self, schedule: Schedule) -> bool:
        if (schedule.group, schedule.name) in {(s.group, s.name) for s in self._world.scheduled}:
            return False
        self._world.scheduled.append(schedule)
        return True


def taken_now(world: World) -> int:
    """E-mails that the pace has counted in this hour."""
    return world.pace.hours.get(hour_key(world.now()), 0)
