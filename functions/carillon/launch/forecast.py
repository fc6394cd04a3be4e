"""What a timetable means: e-mails by the hour, what they cost, and whether the account's quotas carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from carillon.launch import prices
from carillon.launch.readiness import Account
from carillon.launch.timetable import Timetable
from carillon.shapes import Cost, Fit, Histogram, instant
from carillon.timing.curve import Ints
from carillon.timing.pace import Pace

HOUR, DAY = 3_600, 86_400

SENDING = 0.25 * 0.5
"""GB-seconds of Lambda for an e-mail: a quarter of a second at 512 MB (one call of SES, and waits for the pace)."""
ENROLLING = 5 * 0.5
"""GB-seconds of Lambda for a batch of some 280 tasks, and as many seconds of an Express execution."""
EVENTS = 4
"""Records of an e-mail in Firehose: Send, Delivery, and about two of opens and clicks."""
RECORD = 5_000 / 1e9
"""GB that Firehose bills for each."""
WRITES_EACH, READS_EACH = 4, 4
"""DynamoDB units of an e-mail at most: row, claim, outcome and a share of the pace; the row and two suppressions."""
STATES = 40
"""State transitions of one launch, outside its Express children."""


@dataclass(frozen=True)
class Quotas:
    """What EventBridge Scheduler lets this account do in this Region (AWS_CONTRACTS 1); each can be raised."""

    schedules: int = 10_000_000
    creations_per_second: int = 250
    invocations_per_second: int = 1_000


def histogram(timetable: Timetable) -> Histogram:
    """E-mails by hour, in UTC and in the recipients' own days."""
    slots = timetable.planned.slots
    return Histogram(utc=_by_day(slots[slots >= 0]), local=_by_day(timetable.local()))


def _by_day(moments: Ints) -> dict[str, list[int]]:
    hours, counts = np.unique(moments // HOUR, return_counts=True)
    found: dict[str, list[int]] = {}
    for hour, count in zip(hours.tolist(), counts.tolist(), strict=True):
        day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).date().isoformat()
        found.setdefault(day, [0] * 24)[hour % 24] = count
    return found


def ends(slots: Ints) -> dict[str, Any]:
    """The first and the last of ``slots`` (-1: none) as instants."""
    planned = slots[slots >= 0]
    if not len(planned):
        return {"first_slot": None, "last_slot": None}
    return {
        name: instant(datetime.fromtimestamp(int(moment), UTC))
        for name, moment in (("first_slot", planned.min()), ("last_slot", planned.max()))
    }


def eta(slots: Ints) -> str | None:
    """When the last e-mail will have gone: Scheduler knows minutes, the rest of the slot is a delay of the queue."""
    last = int(slots.max(initial=-1))
    return None if last < 0 else instant(datetime.fromtimestamp(last + 60, UTC))


def lateness(made: Timetable) -> list[str]:
    """How far capacity keeps e-mails from the moment that they are meant for, if by more than an hour; in a sentence.

    Whoever goes as soon as possible has no such moment.
    """
    slots, targets = made.planned.slots, made.planned.targets.at
    meant = (slots >= 0) & (targets > made.request.earliest)
    delay = slots[meant] - targets[meant]
    late = int((delay > HOUR).sum())
    if not late:
        return []
    hours, minutes = divmod(int(delay.max()) // 60, 60)
    many = f"{late:,} e-mail{'s' if late > 1 else ''} would go more than an hour after the moment meant"
    cure = "raise the pace or the daily cap, begin earlier, or say in within how late is too late"
    return [f"{many}, one as late as {hours} h {minutes} min: {cure}"]


def costs(emails: int, batches: int, price_plan: str, *, direct: bool = False) -> list[Cost]:
    """What it costs to send ``emails``, service by service; on the direct route there are no rows and no sender."""
    ses, first = prices.ses(price_plan, emails)
    found = [Cost(service="SES", what=f"{emails:,} e-mails", usd=ses, price=str(first))]

    def add(service: str, *parts: tuple[prices.Price, float]) -> None:
        found.append(
            Cost(
                service=service,
                what=" + ".join(f"{written(quantity)} {price.unit.partition(',')[0]}" for price, quantity in parts),
                usd=sum(price.of(quantity) for price, quantity in parts),
                price="; ".join(str(price) for price, _ in parts),
            )
        )

    add("EventBridge Scheduler", (prices.SCHEDULER, emails))
    guarded = 0 if direct else emails
    if guarded:
        add("SQS", (prices.SQS, 3 * guarded))
        add("DynamoDB", (prices.WRITES, WRITES_EACH * guarded), (prices.READS, READS_EACH * guarded))
    add(
        "Lambda",
        (prices.LAMBDA, guarded + batches + 1),
        (prices.LAMBDA_TIME, guarded * SENDING + batches * ENROLLING),
    )
    add(
        "Step Functions",
        (prices.TRANSITIONS, STATES),
        (prices.EXPRESS, batches),
        (prices.EXPRESS_TIME, batches * ENROLLING / 8),
    )
    add("S3", (prices.PUTS, batches + 20), (prices.GETS, 3 * batches + 20))
    add("Firehose", (prices.FIREHOSE, emails * EVENTS * RECORD))
    return found


def written(quantity: float) -> str:
    """``quantity`` as people read it."""
    return f"{quantity:,.0f}" if quantity >= 10 or quantity == int(quantity) else f"{quantity:.3g}"


def fits(timetable: Timetable, schedules: int, pace: Pace, account: Account, quotas: Quotas) -> list[Fit]:
    """The account's quotas beside what the plan needs; ``schedules`` are made at launch."""
    slots = np.sort(timetable.planned.slots[timetable.planned.slots >= 0])
    firing = _peak(slots // 60, np.ones(len(slots), dtype=np.int64), 1)
    day = _peak_of_a_day(slots, timetable)
    creating = -(-schedules // quotas.creations_per_second)
    unlimited = account.max_24_hour_send < 0
    rate = pace.rate_per_second
    return [
        _fit(
            "EventBridge Scheduler: schedules in the Region", quotas.schedules, schedules,
            "request a quota increase for Number of schedules (Service Quotas, EventBridge Scheduler) to at least "
            f"{schedules:,}, and set ScheduleQuota; or split the list into several campaigns",
        ),
        Fit(
            quota="EventBridge Scheduler: CreateSchedule a second", limit=quotas.creations_per_second,
            needed=min(schedules, quotas.creations_per_second), fits=True,
            fix=f"all schedules are there after {timedelta(seconds=creating)}, and no slot is earlier" if creating > 60
            else None,
        ),
        _fit(
            "EventBridge Scheduler: invocations in the fullest minute", quotas.invocations_per_second * 60, firing,
            f"set the pace's rate_per_second to {quotas.invocations_per_second} or less, or request a quota increase "
            f"for Invocations throttle limit to {-(-firing // 60):,} a second, and set InvocationRate",
        ),
        _fit(
            "SES: e-mails in 24 hours", None if unlimited else account.max_24_hour_send, day,
            "other campaigns were planned on a larger quota: cancel one, or request a sending quota of "
            f"{day:,} in 24 hours (Service Quotas, SES, Sending quota)",
        ),
        _fit(
            "SES: e-mails a second", account.max_send_rate, rate,
            f"set the pace's rate_per_second to {account.max_send_rate:g} or less, or request a Sending rate of "
            f"{rate:g} a second (Service Quotas, SES)",
        ),
    ]  # fmt: skip


def _fit(quota: str, limit: float | None, needed: float, fix: str) -> Fit:
    fitting = limit is None or needed <= limit
    return Fit(quota=quota, limit=limit, needed=needed, fits=fitting, fix=None if fitting else fix)


def refusals(quotas: list[Fit]) -> list[str]:
    """Why a launch is refused for its quotas, each with the fix."""
    return [
        f"{fit.quota}: the plan needs {written(fit.needed)} and the quota is {written(fit.limit)}: {fit.fix}"
        for fit in quotas
        if not fit.fits and fit.limit is not None
    ]


def _peak_of_a_day(slots: Ints, timetable: Timetable) -> int:
    """The most e-mails in any 24 hours: this plan's, other campaigns', and what has been sent in the last hours."""
    given = timetable.request
    others, sent = given.limits.taken.since(given.now), given.limits.sent
    minutes = np.concatenate((slots // 60, others.minutes, sent.minutes))
    return _peak(minutes, np.concatenate((np.ones(len(slots), dtype=np.int64), others.counts, sent.counts)), DAY // 60)


def _peak(minutes: Ints, counts: Ints, span: int) -> int:
    """The most that lie in any ``span`` minutes."""
    if not len(minutes):
        return 0
    distinct, which = np.unique(minutes, return_inverse=True)
    sums = np.bincount(which, weights=counts).astype(np.int64)
    total = np.concatenate(([0], np.cumsum(sums)))
    first = np.searchsorted(distinct, distinct - span, side="right")
    return int((total[1:] - total[first]).max())


def counted(rejected: Mapping[str, int]) -> dict[str, Any]:
    """The rejected, with those who are told apart from them."""
    return {
        "rejected": {reason: n for reason, n in rejected.items() if reason != "outside_segment"},
        "duplicates": rejected.get("duplicate", 0),
        "suppressed": rejected.get("suppressed", 0),
        "outside_segment": rejected.get("outside_segment", 0),
    }
