"""Reconciling: the rows are the truth, and what Scheduler or a queue has lost is planned again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Protocol
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict

from carillon import keys, zones
from carillon.campaigns import Campaigns
from carillon.delivery import sequences
from carillon.errors import CampaignStateConflict, ReconcileUnfinished
from carillon.launch import direct
from carillon.launch.enrolment import CREATION_LEAD, schedule_for
from carillon.shapes import BatchLine, Campaign, CampaignId, CampaignSpec, Problem, Schedule, Task, instant
from carillon.timing.openings import first_opening, openings
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState, TaskStatus

GRACE = 15 * 60
"""Seconds after its slot that a task may be Pending with nothing waiting in the queue: Scheduler's minute, its
retries and its wait for capacity."""

GRACE_BEHIND_A_QUEUE = 6 * 3600
"""The same while messages wait: they wait for the pace, and a second message for each would only add to them."""

AT_ONCE = 1500
"""Tasks of a campaign planned again by one pass, a second apart: done before the next pass, 30 minutes later."""

LOOK_EVERY = 25
"""Schedules made between two looks at the campaign. A cancel deletes the group half a minute after it has said so; by
then whoever saw the campaign dispatching has looked again."""

ROOM_AHEAD = 14 * 24
"""Hours in which room under the identity's cap is looked for."""


class Reconcile(BaseModel):
    """Input of ReconcileTasks: one campaign, or (from the rule, whose event names none) all that are dispatching."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    campaign_id: CampaignId | None = None


class Reconciled(BaseModel):
    """What a pass found and did for one campaign; the counts are of its rows."""

    campaign_id: str
    pending: int
    running: int
    finished: int
    failed: int
    cancelled: int
    rescheduled: int = 0
    completed: bool = False


class Rows(Protocol):
    """The port to a campaign's task rows (`carillon.adapters.enrolment.CampaignRows`)."""

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        """Pages of a shard's rows."""
        ...

    def renew(self, task: Task, generation: int, slot: int, client_token: str) -> bool:
        """Plan a Pending task anew, and let it wait no more; False when it is not as ``task`` says any more."""
        ...

    def cancel(self, tasks: Sequence[Task], error: Problem | None = None) -> int:
        """Cancel those that are Pending still; how many that was."""
        ...


class Batches(Protocol):
    """The port to the batches in S3 (`carillon.adapters.fan_out.FanOutFiles`)."""

    def batch(self, campaign_id: str, name: str) -> list[BatchLine]:
        """The lines of one batch; FileNotFoundError when there is none of that name."""
        ...


class Schedules(Protocol):
    """The port to Scheduler (`carillon.adapters.schedules.Schedules`)."""

    def create(self, schedule: Schedule) -> bool:
        """Create it; False when one of that name is there."""
        ...

    def ensure_group(self, group: str) -> None:
        """Create the group; one that is there is fine."""
        ...

    def delete_group(self, group: str) -> None:
        """Delete the group; one that is gone is fine."""
        ...

    def is_group_empty(self, group: str) -> bool:
        """Whether no schedule is left in it; also of one that is gone."""
        ...


class Queue(Protocol):
    """The port to the send queue (`carillon.adapters.queue.SendQueue`)."""

    @property
    def url(self) -> str:
        """What schedules send to."""
        ...

    def is_empty(self) -> bool:
        """Whether nothing waits, is delayed or is being worked on."""
        ...


class Identity(Protocol):
    """The port to the identity's pace (`carillon.adapters.settings.PaceTable`)."""

    def read(self) -> Pace:
        """As it is now."""
        ...


class Reconciler:
    """One pass over the dispatching campaigns; another pass right after it changes nothing."""

    def __init__(
        self,
        campaigns: Campaigns,
        rows: Rows,
        batches: Batches,
        schedules: Schedules,
        queue: Queue,
        identity: Identity,
        stack_timezone: str,
        templates: direct.Templates,
    ) -> None:
        self._campaigns = campaigns
        self._rows = rows
        self._batches = batches
        self._schedules = schedules
        self._queue = queue
        self._identity = identity
        self._stack_timezone = stack_timezone
        self._templates = templates

    def run(self, request: Reconcile, now: datetime) -> list[Reconciled]:
        """Recount, plan again what is overdue, and complete what is done. Paused campaigns are left alone.

        Raises:
            CampaignNotFound: the campaign asked for does not exist.
            ReconcileUnfinished: of all campaigns some broke; the others are done.
        """
        room = Room(self._identity.read(), now, zones.get(self._stack_timezone))
        if request.campaign_id:
            return self._look_at(request.campaign_id, now, room)
        done: list[Reconciled] = []
        broken: list[str] = []
        for campaign_id in self._dispatching():
            try:
                done += self._look_at(campaign_id, now, room)
            except Exception as error:  # no campaign's trouble is another's
                broken.append(f"{campaign_id} ({type(error).__name__})")
        if broken:
            raise ReconcileUnfinished(
                f"{len(broken)} of {len(done) + len(broken)} campaigns broke: {', '.join(broken)}. "
                'Invoke this function with {"campaign_id": "…"} to see why'
            )
        return done

    def _look_at(self, campaign_id: str, now: datetime, room: Room) -> list[Reconciled]:
        campaign = self._campaigns.get(campaign_id)
        if campaign.state is not CampaignState.DISPATCHING or campaign.paused:
            return []
        if campaign.spec.route == "direct":
            return [self._reconcile_direct(campaign, now)]
        return [self._reconcile(campaign, now, room)]

    def _dispatching(self) -> Iterator[str]:
        cursor: str | None = None
        while True:
            page, cursor = self._campaigns.by_state(CampaignState.DISPATCHING, cursor=cursor)
            yield from [campaign.campaign_id for campaign in page]
            if cursor is None:
                return

    def _reconcile(self, campaign: Campaign, now: datetime, room: Room) -> Reconciled:
        grace = GRACE if self._queue.is_empty() else GRACE_BEHIND_A_QUEUE
        survey = Survey(campaign.spec, int(now.timestamp()) - grace)
        for number in range(keys.SHARDS):
            survey.shard(self._rows.shard(campaign.campaign_id, number))
        counts = survey.counts
        found = Reconciled(
            campaign_id=campaign.campaign_id,
            pending=counts[TaskStatus.PENDING],
            running=counts[TaskStatus.RUNNING],
            finished=counts[TaskStatus.FINISHED],
            failed=counts[TaskStatus.FAILED],
            cancelled=counts[TaskStatus.CANCELLED],
        )
        if survey.over and self._is_still(campaign):
            ended = self._rows.cancel(survey.over, sequences.NOT_SENT)
            found.pending -= ended
            found.cancelled += ended
        if survey.overdue or survey.released:
            found.rescheduled = self._plan_again(campaign, survey, now, room)
        elif not found.pending and not found.running and counts.total() == campaign.enrolled:
            found.completed = self._complete(campaign, found, now)
        return found

    def _reconcile_direct(self, campaign: Campaign, now: datetime) -> Reconciled:
        """There are no rows to count, and nothing is planned again; when nothing is left to come, it is completed."""
        found = Reconciled(
            campaign_id=campaign.campaign_id, pending=0, running=0, finished=0, failed=campaign.failed, cancelled=0
        )
        group = keys.group(campaign.campaign_id, campaign.generation)
        if direct.is_over(campaign, now) and self._schedules.is_group_empty(group):
            direct.forget(campaign, self._templates)
            found.completed = self._complete(campaign, found, now)
        return found

    def _is_still(self, campaign: Campaign) -> bool:
        """Whether nobody has stopped or resumed the campaign since it was read."""
        there = self._campaigns.get(campaign.campaign_id)
        return (there.state, there.generation, there.paused) == (campaign.state, campaign.generation, campaign.paused)

    def _plan_again(self, campaign: Campaign, survey: Survey, now: datetime, room: Room) -> int:
        """Slots, and their schedules, for tasks that have lost theirs and for steps that nobody released; how many
        there were no schedules for.

        A new slot and not the old one, because the sender holds a campaign's windows to the window of the slot.
        """
        earliest = int(now.timestamp()) + CREATION_LEAD
        slots = room.slots(campaign.spec, survey.planned, earliest)
        made = 0
        lines = self._lines(campaign.campaign_id, [*survey.released, *survey.overdue])
        for n, (task, line) in enumerate(lines):
            if n % LOOK_EVERY == 0 and not self._is_still(campaign):
                break
            if n == 0:
                self._schedules.ensure_group(keys.group(campaign.campaign_id, campaign.generation))
            if task.waits:
                slot = sequences.slot_after(campaign.spec, task, survey.sent[task.task], earliest)
            elif (opening := next(slots, None)) is not None:
                slot = first_opening(campaign.spec, task.timezone, opening)
            else:
                continue
            made += self._plan(campaign, task, line, slot, now)
        return made

    def _plan(self, campaign: Campaign, task: Task, line: BatchLine, slot: int, now: datetime) -> bool:
        """Give ``task`` the ``slot`` and a schedule; whether it had none."""
        # The old token could be answered from memory, with no schedule behind it.
        token = keys.client_token(campaign.campaign_id, campaign.generation, task.task, task.revision, instant(now))
        if not self._rows.renew(task, campaign.generation, slot, token):
            return False
        schedule = schedule_for(
            campaign.campaign_id,
            campaign.generation,
            line.model_copy(update={"slot": slot, "revision": task.revision}),
            self._queue.url,
            client_token=token,
        )
        return self._schedules.create(schedule)

    def _lines(self, campaign_id: str, tasks: Sequence[Task]) -> Iterator[tuple[Task, BatchLine]]:
        """Each task with the line that its batch planned it by: personalisation data are nowhere else.

        Raises:
            LookupError: after all others, when some task is not in the batch that its row names.
        """
        left = {task.task: task for task in tasks}
        for name in sorted({task.batch for task in tasks}):
            try:
                lines = self._batches.batch(campaign_id, name)
            except FileNotFoundError:
                continue
            yield from [
                (left.pop(line.task), line) for line in lines if line.task in left and left[line.task].batch == name
            ]
        if left:
            raise LookupError(f"{len(left)} Pending tasks are in no batch and cannot be planned again: {min(left)}, …")

    def _complete(self, campaign: Campaign, found: Reconciled, now: datetime) -> bool:
        # The group first: a campaign that says completed is looked at by nobody again.
        self._schedules.delete_group(keys.group(campaign.campaign_id, campaign.generation))
        try:
            self._campaigns.transition(
                campaign.campaign_id,
                CampaignState.DISPATCHING,
                campaign.generation,
                CampaignState.COMPLETED,
                now=now,
                finished=found.finished,
                failed=found.failed,
                cancelled=found.cancelled,
            )
        except CampaignStateConflict:
            return False
        return True


class Survey:
    """What the rows of one campaign say is to be done. Whoever waits for the step before is never overdue."""

    def __init__(self, spec: CampaignSpec, latest_slot: int) -> None:
        self.counts: Counter[TaskStatus] = Counter()
        self.overdue: list[Task] = []
        """Pending, and planned for before ``latest_slot``; at most `AT_ONCE`."""
        self.released: list[Task] = []
        """Waiting for a step that is Finished; at most `AT_ONCE`."""
        self.sent: dict[str, str] = {}
        """By released task: when the step before went out."""
        self.over: list[Task] = []
        """Waiting for a step that will not be sent."""
        self.planned: Counter[date] = Counter()
        """E-mails by day of the pace's zone, the overdue ones not counted."""
        self._latest_slot = latest_slot
        self._awaited = {step for step in range(1, len(spec.steps)) if next(sequences.following(spec, step), None)}
        self._zone = zones.get(spec.pace.timezone) if spec.pace else None

    def shard(self, pages: Iterable[Sequence[Task]]) -> None:
        """Look at every row of a shard; all steps of one person are in the same one."""
        sent: dict[str, str | None] = {}
        """By task that others wait for: when it was sent, "" for never, None for not yet."""
        waiting: list[Task] = []
        for page in pages:
            for task in page:
                self.counts[task.status] += 1
                if task.step in self._awaited:
                    sent[task.task] = _sent(task)
                if task.status is TaskStatus.PENDING and task.waits:
                    waiting.append(task)
                elif task.status is TaskStatus.PENDING and task.slot < self._latest_slot:
                    if len(self.overdue) < AT_ONCE:
                        self.overdue.append(task)
                elif self._zone and task.status in _CARRIED and task.slot > self._latest_slot - 2 * 86_400:
                    self.planned[datetime.fromtimestamp(task.slot, self._zone).date()] += 1
        for task in sorted(waiting, key=lambda task: task.step):
            before = sent.get(sequences.task_of(task.task, task.step - 1), "")
            if before == "":
                self.over.append(task)
                sent[task.task] = ""
            elif before is not None and len(self.released) < AT_ONCE:
                self.released.append(task)
                self.sent[task.task] = before


_CARRIED = frozenset({TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.FINISHED})


def _sent(task: Task) -> str | None:
    match task.status:
        case TaskStatus.FINISHED:
            return task.sent_at or instant(datetime.fromtimestamp(task.slot, UTC))
        case TaskStatus.PENDING | TaskStatus.RUNNING:
            return None
        case _:
            return ""


class Room:
    """What the identity may still send, hour by hour and day by day; one for all campaigns of a pass.

    Without it everybody over today's cap would be planned for today at every pass, and turned away by the sender.
    """

    def __init__(self, pace: Pace, now: datetime, zone: ZoneInfo) -> None:
        self._starts = self._look(pace, now, zone)
        self._start, self._left = 0, 0

    def slots(self, spec: CampaignSpec, planned: Mapping[date, int], earliest: int) -> Iterator[int]:
        """Instants (epoch seconds) from ``earliest`` on for one e-mail each, as the campaign's pace and what the
        identity has room for let them go. ``planned``: what the campaign's days carry already."""
        carried = Counter(planned)
        source: Iterator[int] = iter(())
        based_on = -1
        while (start := self._take()) is not None:
            if start != based_on:
                based_on, first = start, max(start, earliest)
                source = openings(spec.pace, first, carried) if spec.pace else count(first)
            slot = next(source)
            if spec.pace:
                carried[datetime.fromtimestamp(slot, zones.get(spec.pace.timezone)).date()] += 1
            yield slot

    def _take(self) -> int | None:
        while not self._left:
            found = next(self._starts, None)
            if found is None:
                return None
            self._start, self._left = found
        self._left -= 1
        return self._start

    @staticmethod
    def _look(pace: Pace, now: datetime, zone: ZoneInfo) -> Iterator[tuple[int, int]]:
        """From when on (epoch seconds) how many may go until the day of ``zone`` ends."""
        moment, last = now, now + timedelta(hours=ROOM_AHEAD)
        while moment < last and not pace.paused:
            room = pace.room(moment, zone)
            if room:
                yield int(moment.timestamp()), room
                tomorrow = moment.astimezone(zone).date() + timedelta(days=1)
                moment = datetime(tomorrow.year, tomorrow.month, tomorrow.day, tzinfo=zone).astimezone(UTC)
            else:
                moment = moment.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
