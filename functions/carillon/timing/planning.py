"""Slots for targets: one function for every rule and pace (DESIGN section 3).

Nobody is early, no second, window or day carries more than its capacity, nobody is mailed in their quiet hours, and
the order of targets is kept among those whom the same hours are open for.

An e-mail takes one unit of the capacity curve, from the place where C reaches it. So two plans do not overlap when
their units do not: what a later round plans (a misfit's next day, a step's forecast) goes into the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from carillon import zones
from carillon.errors import PlanRefused
from carillon.shapes import AfterPrevious, CampaignPace, Offset, QuietHours
from carillon.timing import curve, rules
from carillon.timing.clocks import DAY, Clocks
from carillon.timing.curve import UNIT, Curve, Ints
from carillon.timing.ledger import NOTHING, Taken
from carillon.timing.rules import Targets

LONGEST_DAYS = 400
"""A plan that reaches further is refused: it is a pace set wrongly, not a campaign."""

HANDLING = 30
"""Seconds between planning and the fan-out's first row: a million batch lines are written and stored in about 20,
and the table, the group and the Map take a few more (each one call)."""

FRUITLESS = 31
"""Days in a row on which nobody of those who are ever again put off gets a slot: then nobody ever will."""

NONE, NOT_AFTER, TOO_LATE, PAST, PREVIOUS = range(5)
REASONS = ("", "not_after", "too_late", "past", "previous")
"""Why a task has no slot, by number: the deadline; `within`, and `past` already, where the campaign skips those; the
step before has none."""

_FAR = 2**62
"""Beyond every place of a curve."""

_SPAN = 1_441
"""Minutes in a row that hold any 24 hours."""

_MOST_AT_ONCE = 500_000
"""Tasks that are given their places together: what bounds memory."""

_AT_ONCE = 8_192
"""Tasks looked at together where some may be too late and make room for others."""


@dataclass(frozen=True)
class Limits:
    """What bounds a plan beside its targets."""

    pace: CampaignPace | None
    """The campaign's; None: as fast as the identity's rate."""
    rate_per_second: float
    """The identity's."""
    cap_on: Callable[[date], int] | None
    """How many may go on a day of ``cap_zone``, other campaigns' plans left out; None: any number."""
    cap_zone: str
    taken: Taken = NOTHING
    """What other campaigns have taken in the ledger: it goes off the curve, minute by minute, and off the day's cap."""
    quota: int | None = None
    """How many may go in any 24 hours, other campaigns' and what has been sent included; None: any number."""
    sent: Taken = NOTHING
    """What has been sent in the last hours, no minute earlier than it was."""


@dataclass(frozen=True)
class Follow:
    """The tasks of an `AfterPrevious` step that wait: their slots are forecasts.

    They are planned on what the tasks before them leave, and take their place in plan and ledger like the others, so
    that the plan shown is what happens if every e-mail goes at its slot. Nothing else is reserved for them.
    """

    tasks: Ints
    """Which they are (positions in the request's arrays)."""
    previous: Ints
    """The task of the step before, for each of them; where that has no slot, neither have they."""
    rule: AfterPrevious


@dataclass(frozen=True)
class Request:
    """All that a plan depends on. The arrays are of one length, one place a task, and equal targets keep their order.

    A task that waits (`follows`) has any target.
    """

    targets: Targets
    zone: Ints
    """Number (``clocks``) of each recipient's own zone: quiet hours are its, and the days of a `Follow`."""
    clocks: Clocks
    now: int
    """Epoch seconds: whose target is earlier, is past."""
    earliest: int
    """Epoch seconds: no slot is earlier (`fan_out_ready`)."""
    limits: Limits
    rank: Ints | None = None
    """Who goes first among equal targets, by number; None: as the arrays are ordered."""
    follows: Sequence[Follow] = ()
    """Step by step: what one of them waits for is planned before it."""
    quiet_hours: QuietHours | None = None
    within: Offset | None = None
    """How late a slot may be, its days on the target's clock."""
    if_late: Literal["next_day", "late", "skip"] = "next_day"
    end: int | None = None
    """Epoch seconds: no slot is later (``not_after``)."""


@dataclass(frozen=True)
class Planned:
    """What became of each task."""

    slots: Ints
    """Epoch seconds; -1: none."""
    targets: Targets
    """As they were planned in the end: moved to the next day, or forecast."""
    reason: NDArray[np.int8]
    """Why there is no slot: a number of `REASONS`."""
    past: int
    """Tasks whose target was past already. What became of them is ``if_late``."""
    next_day: int
    """Tasks with a slot that had to be put off to another day because none was within `Request.within`."""
    late: int
    """Tasks with a slot later than `Request.within` allows, for ``if_late`` is ``late``."""

    def unplanned(self) -> dict[str, int]:
        """How many tasks have no slot, by reason."""
        counts = np.bincount(self.reason, minlength=len(REASONS))
        return {name: int(n) for name, n in zip(REASONS[1:], counts[1:], strict=True) if n}


def fan_out_ready(now: int, tasks: int, creations_per_second: int, creation_lead: int) -> int:
    """The first epoch second at which every schedule can be there, launched ``now``.

    ``creation_lead`` is how long before its minute EnrolBatch wants a schedule to be asked for: a slot before this
    instant would be moved by it, and the plan would not be what happens.
    """
    return now + HANDLING + -(-tasks // creations_per_second) + creation_lead


def interleave(domains: Ints) -> Ints:
    """A `Request.rank` that spreads each mailbox domain evenly over the whole list.

    ``domains``: a number for each task's domain. The k-th of m tasks of one domain comes (k + 1/2)/m of the way in, so
    that no provider gets a burst, and none is left over at the end; equal places keep their order.
    """
    _, code, counts = np.unique(domains, return_inverse=True, return_counts=True)
    grouped = np.argsort(code, kind="stable")
    within = np.empty_like(domains)
    within[grouped] = np.arange(len(domains)) - np.repeat(np.cumsum(counts) - counts, counts)
    rank = np.empty(len(domains), dtype=np.int64)
    rank[np.argsort((2 * within + 1) / counts[code], kind="stable")] = np.arange(len(domains))
    return rank


def plan(request: Request) -> Planned:
    """A slot for each task, or the reason why it has none.

    Day by day the cap admits in order of target, and the rest goes to the next day: from its first open second on.
    Whoever has no slot ``within`` is put off to the next day, goes late or is skipped, as the campaign chooses; one
    that is put off is planned on what its next day has left.

    Raises:
        PlanRefused: the plan would need more than `LONGEST_DAYS` days, or there is never an opening.
    """
    return _Planner(request).plan()


class _Planner:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.clocks = request.clocks
        count = len(request.zone)
        given = request.targets
        self.at, self.clock, self.wall = given.at, given.clock, given.wall
        self.slots = np.full(count, -1, dtype=np.int64)
        self.reason = np.zeros(count, dtype=np.int8)
        self.put_off = np.zeros(count, dtype=np.bool_)

    def plan(self) -> Planned:
        request = self.request
        waiting = np.zeros(len(self.slots), dtype=np.bool_)
        for follow in request.follows:
            waiting[follow.tasks] = True
        tasks = np.flatnonzero(~waiting)
        past = tasks[self.at[tasks] < request.now]
        if request.if_late == "next_day":
            self._next_day(past, request.now)
        elif request.if_late == "skip":
            self.reason[past] = PAST
            tasks = tasks[self.reason[tasks] == NONE]
        self.capacity = _Capacity(request, int(self.at[tasks].max(initial=request.now)))
        self._rounds(tasks)
        for follow in request.follows:
            self._follow(follow)
        late = 0
        if request.if_late == "late" and request.within is not None:
            late = int((self.slots > self._latest(np.arange(len(self.slots)), request.within)).sum())
        return Planned(
            slots=self.slots,
            targets=Targets(self.at, self.clock, self.wall),
            reason=self.reason,
            past=len(past),
            next_day=int((self.put_off & (self.slots >= 0)).sum()),
            late=late,
        )

    def _move(self, tasks: Ints, at: Ints, clock: Ints, wall: Ints) -> None:
        """Give ``tasks`` other targets. The request's arrays stay as they are, and are copied for nothing else."""
        if self.at is self.request.targets.at:
            self.at, self.clock, self.wall = self.at.copy(), self.clock.copy(), self.wall.copy()
        self.at[tasks], self.clock[tasks], self.wall[tasks] = at, clock, wall

    def _follow(self, follow: Follow) -> None:
        sent = self.slots[follow.previous]
        self.reason[follow.tasks[sent < 0]] = PREVIOUS
        tasks, sent = follow.tasks[sent >= 0], sent[sent >= 0]
        forecast = rules.follow(follow.rule, sent, self.request.zone[tasks], self.clocks)
        self._move(tasks, forecast.at, forecast.clock, forecast.wall)
        self._rounds(tasks)

    def _rounds(self, tasks: Ints) -> None:
        """Slots for ``tasks`` on what is left, and on their next days for whom none was in time."""
        request = self.request
        within = None if request.if_late == "late" else request.within
        fruitless = 0
        while len(tasks):
            if request.rank is None:
                tasks = tasks[np.argsort(self.at[tasks], kind="stable")]
            else:
                tasks = tasks[np.lexsort((request.rank[tasks], self.at[tasks]))]
            latest = None if within is None else self._latest(tasks, within)
            self.slots[tasks], misfit = self.capacity.place(self.at[tasks], latest, request.zone[tasks])
            unplanned = tasks[(self.slots[tasks] < 0) & ~misfit]
            if len(unplanned) and request.end is None:
                raise PlanRefused(
                    f"the pace leaves {len(unplanned):,} of {len(self.slots):,} e-mails without a slot within "
                    f"{LONGEST_DAYS} days: raise per_day, the rate or the daily cap"
                )
            self.reason[unplanned] = NOT_AFTER
            fruitless = fruitless + 1 if misfit.all() else 0
            tasks = tasks[misfit]
            if request.if_late == "skip":
                self.reason[tasks] = TOO_LATE
                return
            if fruitless >= FRUITLESS:
                raise PlanRefused(
                    f"{len(tasks):,} of {len(self.slots):,} e-mails have no slot within {_written(request.within)} of "
                    f"their targets on any of {FRUITLESS} days: raise within, or open pace and quiet hours at "
                    "that time of day"
                )
            tasks = np.sort(tasks)
            self._next_day(tasks, self.at[tasks] + 1)
            self.put_off[tasks] = True

    def _next_day(self, tasks: Ints, after: int | Ints) -> None:
        """Move the targets of ``tasks`` to the first day on which they are not before ``after``."""
        if not len(tasks):
            return
        clock, wall = self.clock[tasks], self.wall[tasks]
        days = np.maximum((after - self.at[tasks]) // DAY, 0)  # one too few at most, for a clock change may help
        while True:
            at = self.clocks.utc(clock, wall + days * DAY)
            early = at < after
            if not early.any():
                break
            days += early
        self._move(tasks, at, clock, wall + days * DAY)

    def _latest(self, tasks: Ints, within: Offset) -> Ints:
        """The last second at which each may go."""
        if not within.days:
            return self.at[tasks] + within.seconds
        clock = self.clock[tasks]
        return self.clocks.utc(clock, self.wall[tasks] + within.days * DAY) + within.seconds


class _Gaps:
    """What earlier rounds have left of a curve, for a walk from its beginning to its end."""

    def __init__(self, used: Ints) -> None:
        """``used``: in order, where e-mails begin that have one `UNIT` each already."""
        start = np.concatenate(([0], used + UNIT))
        last = np.append(used - UNIT, _FAR)
        self._start = start[start <= last].tolist()
        self._last = last[start <= last].tolist()
        """Where in each gap an e-mail may begin at the latest."""
        self._at = 0

    def fill(self, wanted: Ints, limit: Ints, taken: int, stop: int, room: int) -> tuple[Ints, int]:
        """Where on the curve each e-mail begins; -1 where that is not before its ``limit``: the next has its place.

        Ends where ``stop`` or the day's ``room`` is reached; also returns the capacity used by then. ``wanted``, and
        what a later call wants, never falls.
        """
        found: list[int] = []
        at = self._at
        start, last = self._start[at], self._last[at]
        for first, before in zip(wanted.tolist(), limit.tolist(), strict=True):
            begin = taken if taken > first else first
            while begin > last:
                at += 1
                start, last = self._start[at], self._last[at]
            if begin < start:
                begin = start
            if begin >= before:
                found.append(-1)
            elif begin >= stop or not room:
                break
            else:
                found.append(begin)
                taken, room = begin + UNIT, room - 1
        self._at = at
        return np.array(found, dtype=np.int64), taken


class _Round:
    """E-mails that are planned together, in order of target, and how far that has got."""

    def __init__(self, c: Curve, used: Ints, due: Ints, latest: Ints | None, group: NDArray[np.int16]) -> None:
        """``used``: see `_Gaps`. ``group``: see `_Queue`."""
        self._curve = c
        self._due = due
        self._limit = None if latest is None else c.position(latest + 1)
        self._gaps = _Gaps(used) if len(used) or latest is not None else None
        self.queue = _Queue(group)
        self.placed = np.full(len(due), -1, dtype=np.int64)
        """Where on the curve each e-mail begins."""
        self.misfit = np.zeros(len(due), dtype=np.bool_)
        """Those for whom it was too late."""
        self._taken = 0
        """Capacity used so far: the next e-mail begins there at the earliest."""

    def waits_before(self, moment: int) -> bool:
        """Whether somebody due before ``moment`` has not been looked at."""
        return int(np.searchsorted(self._due, moment, side="left")) > self.queue.taken

    def fill(self, start: int, end: int, groups: Ints, room: int) -> Ints:
        """Plan up to ``room`` e-mails of ``groups`` from ``start`` to before ``end`` (epoch); where they are now."""
        position = self._curve.position
        ready = int(np.searchsorted(self._due, end, side="left"))
        begin, stop = position(np.array([start, end])).tolist()
        used, found = 0, [self.placed[:0]]
        while room > used and (free := max(self._taken, begin)) < stop:
            fitting = min(room - used, (stop - free - 1) // UNIT + 1, _MOST_AT_ONCE)
            some = self.queue.first(groups, fitting if self._limit is None else max(fitting, _AT_ONCE), ready)
            if not len(some):
                break
            wanted = position(np.maximum(self._due[some], start))
            limit = np.full(len(some), _FAR) if self._limit is None else self._limit[some]
            if self._gaps is None:
                rank = np.arange(len(some), dtype=np.int64) * UNIT
                reached = rank + np.maximum(np.maximum.accumulate(wanted - rank), self._taken)
                reached = reached[: np.searchsorted(reached, stop, side="left")]
                self._taken = int(reached[-1]) + UNIT if len(reached) else self._taken
            else:
                reached, self._taken = self._gaps.fill(wanted, limit, self._taken, stop, room - used)
            seen = some[: len(reached)]
            self.placed[seen] = reached
            self.misfit[seen] = reached < 0
            self.queue.take(seen)
            found.append(reached[reached >= 0])
            used += len(found[-1])
            if len(seen) < len(some):
                break
        return np.concatenate(found)


class _Rolling:
    """How many e-mails lie in any 24 hours, so that it is never more than a quota: by minutes, `_SPAN` in a row."""

    def __init__(self, quota: int, first: int, last: int, *given: Taken) -> None:
        """``given``: what is there already. Nothing is planned before ``first`` or after ``last`` (epoch)."""
        self._quota = quota
        self._first = first // 60 - _SPAN
        self._sums = np.zeros(last // 60 - self._first + 2 * _SPAN, dtype=np.int64)
        """By minute: what it and those before it in `_SPAN` hold."""
        for taken in given:
            self._add(taken.minutes, taken.counts)

    def add(self, moments: Ints) -> None:
        """E-mails go at ``moments`` (epoch)."""
        self._add(*np.unique(moments // 60, return_counts=True))

    def _add(self, minutes: Ints, counts: Ints) -> None:
        at = minutes - self._first
        inside = (at >= 0) & (at < len(self._sums) - _SPAN)
        if inside.any():
            at = at[inside]
            low, high = int(at[0]), int(at[-1]) + _SPAN
            steps = np.zeros(high - low + 1, dtype=np.int64)
            steps[at - low] = counts[inside]
            steps[at - low + _SPAN] -= counts[inside]
            self._sums[low:high] += np.cumsum(steps)[:-1]

    def stretch(self, begin: int, until: int, wanted: int) -> tuple[int, int, int]:
        """The first stretch from ``begin`` to before ``until`` with room, and for how many; an empty one, if none has.

        Where the quota is spent, a hundredth of it is waited for (if so many are ``wanted``): one by one, e-mails would
        take a look at the day each.
        """
        full = self._quota - min(wanted, max(self._quota // 100, 1))
        while begin < until:
            at, last = begin // 60 - self._first, (until - 1) // 60 - self._first
            # An e-mail of a minute counts in the sums of that minute and of `_SPAN` - 1 after it.
            ahead = self._sums[at : last + _SPAN]
            over = np.flatnonzero(ahead > full)
            blocked = over[over < _SPAN]
            if not len(blocked):
                if len(over):
                    until = (self._first + at + int(over[0]) - _SPAN + 1) * 60
                    ahead = ahead[: over[0]]
                return begin, until, self._quota - int(ahead.max())
            begin = (self._first + at + int(blocked[-1]) + 1) * 60
        return until, until, 0


class _Capacity:
    """What a plan has not used yet of curve and caps."""

    def __init__(self, request: Request, last: int) -> None:
        """``last``: the latest target that is known now."""
        limits = self._limits = request.limits
        self._request = request
        ahead = sum(f.rule.offset.days + f.rule.offset.seconds // DAY + 1 for f in request.follows)
        days = max(last - request.earliest, 0) // DAY + LONGEST_DAYS + ahead
        whole = curve.build(limits.pace, limits.rate_per_second, request.earliest, days)
        self._curve = whole.less(limits.taken, limits.rate_per_second)
        self._end = self._curve.end if request.end is None else min(self._curve.end, request.end + 1)
        self._used: Ints = np.empty(0, dtype=np.int64)
        """Where on the curve the e-mails planned so far begin, in order."""
        self._room: dict[date | None, int] = {}
        self._rolling = None
        if limits.quota is not None:
            planned = limits.taken.since(request.now)  # what was planned before has been sent and counted, or is not
            self._rolling = _Rolling(limits.quota, request.earliest, self._curve.end, planned, limits.sent)
        zone_count = len(request.clocks.names)
        self._group = np.zeros(zone_count, dtype=np.int16)
        if request.quiet_hours is not None:
            self._group = request.clocks.alike(request.earliest - DAY, self._curve.end).astype(np.int16)

    def place(self, due: Ints, latest: Ints | None, zone: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Slots for e-mails that are ``due`` (in order), and who was too late.

        A slot is -1 where there was none, be it that it would be after ``latest`` or that the curve is over.
        """
        group = self._group[zone]
        groups = np.unique(group).astype(np.int64)
        this = _Round(self._curve, self._used, np.maximum(due, self._request.earliest), latest, group)
        for start, end, day in self._days(max(int(due[0]), self._request.earliest)):
            if this.queue.taken == len(due):
                break
            room = self._room_on(day)
            if room > 0 and this.waits_before(end) and np.diff(self._curve.position(np.array([start, end])))[0]:
                for begin, until, awake in self._awake(start, end, groups):
                    room -= self._fill(this, begin, until, awake, room)
                self._room[day] = room
        if latest is not None:  # nothing is open any more until it would be too late
            this.misfit |= (this.placed < 0) & (latest < self._end)
        slots, misfit, placed = this.placed, this.misfit, this.placed[this.placed >= 0]
        self._used = np.concatenate((self._used, placed)) if len(self._used) else placed
        self._used.sort()
        del this, placed
        for start in range(0, len(slots), _MOST_AT_ONCE):
            some = slots[start : start + _MOST_AT_ONCE]
            some[some >= 0] = self._curve.moment(some[some >= 0])
        return slots, misfit

    def _fill(self, this: _Round, begin: int, until: int, groups: Ints, room: int) -> int:
        """`_Round.fill` as far as the quota of any 24 hours allows; how many it were."""
        if self._rolling is None:
            return len(this.fill(begin, until, groups, room))
        left = room
        while left and begin < until and this.waits_before(until):
            begin, end, free = self._rolling.stretch(begin, until, this.queue.left)
            if begin >= until:
                break
            most = min(free, left)
            moments = self._curve.moment(this.fill(begin, end, groups, most))
            self._rolling.add(moments)
            left -= len(moments)
            begin = end if len(moments) < most else max(begin, int(moments[-1]))
        return room - left

    def _room_on(self, day: date | None) -> int:
        """How many more the cap lets go on ``day``; None: on any."""
        if day not in self._room:
            if day is None or self._limits.cap_on is None:
                return _FAR
            first, last = _day_bounds(self._limits.cap_zone, day)
            # What was planned before now has been sent and counted, or will not be.
            others = self._limits.taken.between(max(first, self._request.now), last)
            self._room[day] = self._limits.cap_on(day) - others
        return self._room[day]

    def _days(self, first: int) -> Iterator[tuple[int, int, date | None]]:
        """From ``first`` (epoch) on, the days of the cap: from when to before when; all at once if none matters."""
        if self._limits.cap_on is None and self._request.quiet_hours is None:
            yield first, self._end, None
            return
        zone = self._limits.cap_zone
        day = datetime.fromtimestamp(first, UTC).astimezone(zones.get(zone)).date()
        while first < self._end:
            close = min(_day_bounds(zone, day)[1], self._end)
            if first < close:
                yield first, close, day
                first = close
            day += timedelta(days=1)

    def _awake(self, start: int, end: int, groups: Ints) -> Iterator[tuple[int, int, Ints]]:
        """A day cut where quiet hours begin or end for some of ``groups``: from when to before when, and for whom."""
        quiet = self._request.quiet_hours
        if quiet is None:
            yield start, end, groups
            return
        clocks = self._request.clocks
        offsets = np.unique([clocks.wall(groups, np.full(len(groups), at)) - at for at in (start, end)])
        begin, over = rules.seconds(quiet.start), rules.seconds(quiet.end)
        edges = [np.array([start, end]), clocks.changes(start, end)]
        for midnight in range(start // DAY - 1, end // DAY + 2):
            edges += [midnight * DAY + begin - offsets, midnight * DAY + over - offsets]
        cuts = np.unique(np.concatenate(edges))
        cuts = cuts[(cuts >= start) & (cuts <= end)]
        shown = clocks.wall(np.tile(groups, len(cuts) - 1), np.repeat(cuts[:-1], len(groups))) % DAY
        after, before = shown >= begin, shown < over
        asleep = (after & before if begin < over else after | before).reshape(len(cuts) - 1, len(groups))
        changed = np.flatnonzero(np.append(True, (asleep[1:] != asleep[:-1]).any(axis=1)))
        for n, until in zip(changed, [*cuts[changed[1:]], end], strict=True):
            if not asleep[n].all():
                yield int(cuts[n]), int(until), groups[~asleep[n]]


class _Queue:
    """Tasks that wait for a slot: a queue for each group of zones, and the first of several groups together."""

    def __init__(self, group: NDArray[np.int16]) -> None:
        """``group``: each task's, in the order of tasks."""
        self._count = len(group)
        present = np.bincount(group) > 0
        self._numbers = np.flatnonzero(present)
        self._of = (np.cumsum(present) - 1).astype(np.int16)[group]
        order = np.argsort(self._of, kind="stable")
        # Groups end to end, and in each the tasks in order: one look-up finds a task's place in all groups at once.
        self._line: Ints = self._of[order] * np.int64(self._count) + order
        self._next = np.searchsorted(self._line, np.arange(len(self._numbers)) * self._count)
        self.taken = 0
        """How many have been removed."""

    def first(self, groups: Ints, count: int, before: int) -> Ints:
        """Up to ``count`` tasks of ``groups`` that are before task ``before``, in order."""
        at = np.flatnonzero(np.isin(self._numbers, groups))
        base = at * self._count
        begin = self._next[at]
        if not len(at):
            return begin

        def ends(task: int) -> Ints:
            return np.maximum(np.searchsorted(self._line, base + task), begin)

        low, high = 0, before
        if int((ends(high) - begin).sum()) > count:
            while high - low > 1:  # the least task before which there are `count`
                middle = (low + high) // 2
                if int((ends(middle) - begin).sum()) < count:
                    low = middle
                else:
                    high = middle
        found = [self._line[a:b] % self._count for a, b in zip(begin, ends(high), strict=True) if a < b]
        some: Ints = np.sort(np.concatenate(found)) if found else begin[:0]
        return some

    @property
    def left(self) -> int:
        """How many are there still."""
        return self._count - self.taken

    def take(self, tasks: Ints) -> None:
        """Remove ``tasks``: all, or the first, of those that `first` has just given."""
        self._next += np.bincount(self._of[tasks], minlength=len(self._numbers))
        self.taken += len(tasks)


def _written(within: Offset | None) -> str:
    """As a person would have written it."""
    if within is None:
        return ""
    minutes, seconds = divmod(within.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    time = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if n)
    if not within.days and not time:
        return "PT0S"
    return "P" + f"{within.days}D" * bool(within.days) + f"T{time}" * bool(time)


@cache
def _day_bounds(zone: str, day: date) -> tuple[int, int]:
    midnight = datetime.min.time()
    return zones.to_utc(zone, day, midnight), zones.to_utc(zone, day + timedelta(days=1), midnight)
