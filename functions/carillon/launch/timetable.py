"""A slot for every task: what the planner needs, taken from the tasks' table, the settings and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np

from carillon import zones
from carillon.launch import direct, enrolment
from carillon.launch.tasks import TaskTable
from carillon.shapes import AfterPrevious, CampaignPace, CampaignSpec, Step
from carillon.sql import text
from carillon.timing import ledger, planning, rules
from carillon.timing.clocks import DAY, Clocks
from carillon.timing.curve import Ints
from carillon.timing.ledger import Ledger, Taken
from carillon.timing.pace import Pace
from carillon.timing.planning import Follow, Limits, Planned, Request
from carillon.timing.rules import Targets


@dataclass(frozen=True)
class Terms:
    """What bounds every campaign of this stack."""

    pace: Pace
    max_24_hour_send: int
    """SES's; -1: any number."""
    cap_zone: str
    """Whose midnight ends the cap's day."""
    creations_per_second: int

    def limits(self, spec: CampaignSpec) -> Limits:
        """For the planner, with nothing taken by others yet."""
        zone = zones.get(self.cap_zone)

        def cap_on(day: date) -> int:
            return self.pace.cap_on(day) - self.pace.taken_on(day, zone)

        quota = None if self.max_24_hour_send < 0 else self.max_24_hour_send
        return Limits(
            spec.pace, self.pace.rate_per_second, cap_on, self.cap_zone, quota=quota, sent=ledger.sent(self.pace.hours)
        )


@dataclass(frozen=True)
class Timetable:
    """A plan, and what it was made on."""

    request: Request
    planned: Planned

    def local(self) -> Ints:
        """What each planned recipient's clock shows at the slot (`carillon.timing.clocks`), in the order of tasks."""
        some = self.planned.slots >= 0
        return self.request.clocks.wall(self.request.zone[some], self.planned.slots[some])

    def days(self) -> list[date]:
        """The UTC days with a slot."""
        return sorted(ledger.by_day(self.planned.slots))


def request(tasks: TaskTable, spec: CampaignSpec, terms: Terms, now: int) -> Request:
    """What there is to plan at ``now`` (epoch seconds), with nothing taken by others yet."""
    clocks = Clocks()
    # Whom nobody has asked for their zone has the pace's, as when a step of a sequence is released.
    default = (spec.pace or CampaignPace()).timezone
    names, codes = tasks.zones()
    zone = clocks.numbers(name or default for name in names)[codes]
    count = len(codes)
    lead, margin, quiet_hours = enrolment.CREATION_LEAD, 0, spec.quiet_hours
    if spec.route == "direct":
        # Nobody stops an e-mail there that is late.
        lead, margin = direct.CREATION_LEAD, direct.latest(count)
        quiet_hours = quiet_hours and direct.nights(quiet_hours, count)
    at, clock, wall = np.zeros((3, count), dtype=np.int64)

    def put(some: Ints, targets: Targets) -> None:
        at[some], clock[some], wall[some] = targets.at, targets.clock, targets.wall

    follows = []
    for number, step in enumerate(spec.steps, 1):
        if isinstance(step.rule, AfterPrevious):
            waiting, previous = tasks.waiting(number)
            there = previous >= 0
            follows.append(Follow(waiting[there], previous[there], step.rule))
            # The step before has been sent, or is being sent, and what then released this one was missed.
            alone = waiting[~there]
            put(alone, rules.follow(step.rule, np.full(len(alone), now), zone[alone], clocks))
        else:
            some = tasks.of_step(number)
            put(some, _due(step, tasks, number, zone[some], clocks, now, terms.cap_zone))
    free, slots = tasks.released()
    moments = np.maximum(slots, now)
    put(free, Targets(moments, zone[free], clocks.wall(zone[free], moments)))
    return Request(
        targets=Targets(at, clock, wall),
        zone=zone,
        clocks=clocks,
        now=now,
        earliest=planning.fan_out_ready(now, count, terms.creations_per_second, lead),
        limits=terms.limits(spec),
        rank=tasks.rank(spec.order) if count else None,
        follows=[follow for follow in follows if len(follow.tasks)],
        quiet_hours=quiet_hours,
        within=spec.within,
        if_late=spec.if_late,
        end=int(spec.not_after.timestamp()) - margin if spec.not_after else None,
    )


def _due(step: Step, tasks: TaskTable, number: int, zone: Ints, clocks: Clocks, now: int, stack_zone: str) -> Targets:
    assert not isinstance(step.rule, AfterPrevious)
    cells = tasks.cells(number, step.rule)
    return rules.targets(step.rule, zone, clocks, now=now, stack_zone=stack_zone, cells=cells)


def reserve(wanted: Request, book: Ledger, campaign_id: str, acceptable: Callable[[Timetable], None]) -> Timetable:
    """Plan on what other campaigns leave, and take it once ``acceptable`` has looked at it (and raised nothing).

    Raises:
        LedgerConflict, PlanRefused: see `carillon.timing.ledger.reserve`.
    """
    made: list[Timetable] = []

    def plan(taken: Taken) -> Ints:
        made.append(_planned(wanted, taken))
        acceptable(made[-1])
        return made[-1].planned.slots

    ledger.reserve(book, campaign_id, _days(wanted), wanted.limits.cap_zone, plan)
    return made[-1]


def look(wanted: Request, book: Ledger, campaign_id: str) -> Timetable:
    """Plan on what other campaigns leave, and take nothing."""
    return _planned(wanted, ledger.others(book.read(_days(wanted)), campaign_id))


def _planned(wanted: Request, taken: Taken) -> Timetable:
    bounded = replace(wanted, limits=replace(wanted.limits, taken=taken))
    return Timetable(bounded, planning.plan(bounded))


def write_slots(tasks: TaskTable, made: Timetable, target: Path) -> None:
    """Every e-mail as CSV, in the order of slots: address, step, target (the recipient's wall clock, with its offset
    from UTC), timezone, slot (UTC), and why there is none."""
    clocks, zone, planned = made.request.clocks, made.request.zone, made.planned
    wall = clocks.wall(zone, planned.targets.at)
    cursor = tasks.database.cursor()
    cursor.register(
        "planned",
        {
            "n": np.arange(len(zone)),
            "wall": wall,
            "ahead": wall - planned.targets.at,
            "zone": np.array(clocks.names, dtype=object)[zone],
            "slot": planned.slots,
            "reason": np.array(planning.REASONS, dtype=object)[planned.reason],
        },
    )
    cursor.execute(
        f"""
        COPY (
            SELECT address, step, strftime(make_timestamp(wall * 1000000), '%Y-%m-%dT%H:%M:%S')
                || CASE WHEN ahead < 0 THEN '-' ELSE '+' END
                || strftime(make_timestamp(abs(ahead) * 1000000), '%H:%M') AS target, zone AS timezone,
                CASE WHEN slot >= 0 THEN strftime(make_timestamp(slot * 1000000), '%Y-%m-%dT%H:%M:%SZ') END AS slot,
                nullif(reason, '') AS reason
            FROM tasks JOIN planned USING (n) ORDER BY planned.slot < 0, planned.slot, n
        ) TO {text(str(target))} (FORMAT csv, HEADER true, NULL '')
        """  # noqa: S608  (a path of ours, through `sql.text`)
    )
    cursor.close()


def days(first_slot: str | None, last_slot: str | None) -> list[date]:
    """The UTC days from a first to a last slot (instants as we write them)."""
    if first_slot is None or last_slot is None:
        return []
    first, last = (datetime.fromisoformat(slot).date() for slot in (first_slot, last_slot))
    return [first + timedelta(days=n) for n in range((last - first).days + 1)]


def _days(wanted: Request) -> Sequence[date]:
    """Every UTC day that the planner may look at."""
    ahead = sum(f.rule.offset.days + f.rule.offset.seconds // DAY + 1 for f in wanted.follows)
    last = int(wanted.targets.at.max(initial=wanted.now))
    count = (max(last, wanted.earliest) - wanted.now) // DAY + planning.LONGEST_DAYS + ahead + 2
    first = datetime.fromtimestamp(wanted.now, UTC).date()
    return [first + timedelta(days=n) for n in range(count)]
