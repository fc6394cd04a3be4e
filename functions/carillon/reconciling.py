"""Reconciling: the rows are the truth, and what Scheduler or a queue has lost is planned again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import count
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from carillon import keys
from carillon.campaigns import Campaigns
from carillon.enrolment import CREATION_LEAD, schedule_for
from carillon.errors import CampaignStateConflict, ReconcileUnfinished
from carillon.openings import openings
from carillon.shapes import BatchLine, Campaign, CampaignId, Schedule, Task, instant
from carillon.transitions import CampaignState, TaskStatus

GRACE = 15 * 60
"""Seconds after its slot that a task may be Pending with nothing waiting in the queue: Scheduler's minute, its
retries and its wait for capacity."""

GRACE_BEHIND_A_QUEUE = 6 * 3600
"""The same while messages wait: they wait for the pace, and a second message for each would only add to them."""

AT_ONCE = 1500
"""Tasks of a campaign planned again by one pass, a second apart: done before the next pass, 30 minutes later."""


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
        """Plan a Pending task anew; False when it is not as ``task`` says any more."""
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


class Queue(Protocol):
    """The port to the send queue (`carillon.adapters.queue.SendQueue`)."""

    @property
    def url(self) -> str:
        """What schedules send to."""
        ...

    def is_empty(self) -> bool:
        """Whether nothing waits, is delayed or is being worked on."""
        ...


class Reconciler:
    """One pass over the dispatching campaigns; another pass right after it changes nothing."""

    def __init__(self, campaigns: Campaigns, rows: Rows, batches: Batches, schedules: Schedules, queue: Queue) -> None:
        self._campaigns = campaigns
        self._rows = rows
        self._batches = batches
        self._schedules = schedules
        self._queue = queue

    def run(self, request: Reconcile, now: datetime) -> list[Reconciled]:
        """Recount, plan again what is overdue, and complete what is done. Paused campaigns are left alone.

        Raises:
            CampaignNotFound: the campaign asked for does not exist.
            ReconcileUnfinished: of all campaigns some broke; the others are done.
        """
        if request.campaign_id:
            return self._look_at(request.campaign_id, now)
        done: list[Reconciled] = []
        broken: list[str] = []
        for campaign_id in self._dispatching():
            try:
                done += self._look_at(campaign_id, now)
            except Exception as error:  # no campaign's trouble is another's
                broken.append(f"{campaign_id} ({type(error).__name__})")
        if broken:
            raise ReconcileUnfinished(
                f"{len(broken)} of {len(done) + len(broken)} campaigns broke: {', '.join(broken)}. "
                'Invoke this function with {"campaign_id": "…"} to see why'
            )
        return done

    def _look_at(self, campaign_id: str, now: datetime) -> list[Reconciled]:
        campaign = self._campaigns.get(campaign_id)
        if campaign.state is not CampaignState.DISPATCHING or campaign.paused:
            return []
        return [self._reconcile(campaign, now)]

    def _dispatching(self) -> Iterator[str]:
        cursor: str | None = None
        while True:
            page, cursor = self._campaigns.by_state(CampaignState.DISPATCHING, cursor=cursor)
            yield from [campaign.campaign_id for campaign in page]
            if cursor is None:
                return

    def _reconcile(self, campaign: Campaign, now: datetime) -> Reconciled:
        grace = GRACE if self._queue.is_empty() else GRACE_BEHIND_A_QUEUE
        latest_slot = int(now.timestamp()) - grace
        counts: Counter[TaskStatus] = Counter()
        overdue: list[Task] = []
        for number in range(keys.SHARDS):
            for page in self._rows.shard(campaign.campaign_id, number):
                counts.update(task.status for task in page)
                late = (t for t in page if t.status is TaskStatus.PENDING and t.slot < latest_slot)
                overdue += _first(late, AT_ONCE - len(overdue))
        found = Reconciled(
            campaign_id=campaign.campaign_id,
            pending=counts[TaskStatus.PENDING],
            running=counts[TaskStatus.RUNNING],
            finished=counts[TaskStatus.FINISHED],
            failed=counts[TaskStatus.FAILED],
            cancelled=counts[TaskStatus.CANCELLED],
        )
        if overdue:
            found.rescheduled = self._plan_again(campaign, overdue, now)
        elif not found.pending and not found.running and counts.total() == campaign.enrolled:
            found.completed = self._complete(campaign, found, now)
        return found

    def _plan_again(self, campaign: Campaign, overdue: Sequence[Task], now: datetime) -> int:
        """New slots, and their schedules, for tasks that have lost theirs; how many there were none for.

        A new slot and not the old one, because the sender holds a campaign's windows to the window of the slot.
        """
        group = keys.group(campaign.campaign_id, campaign.generation)
        self._schedules.ensure_group(group)
        earliest = int(now.timestamp()) + CREATION_LEAD
        slots = count(earliest) if campaign.spec.pace is None else openings(campaign.spec.pace, earliest)
        made = 0
        for (task, line), slot in zip(self._lines(campaign.campaign_id, overdue), slots, strict=False):
            # The old token could be answered from memory, with no schedule behind it.
            token = keys.client_token(campaign.campaign_id, campaign.generation, task.task, task.revision, instant(now))
            if not self._rows.renew(task, campaign.generation, slot, token):
                continue
            schedule = schedule_for(
                campaign.campaign_id,
                campaign.generation,
                line.model_copy(update={"slot": slot, "revision": task.revision}),
                self._queue.url,
                client_token=token,
            )
            made += self._schedules.create(schedule)
        return made

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


def _first(tasks: Iterable[Task], most: int) -> list[Task]:
    return [task for _, task in zip(range(max(0, most)), tasks, strict=False)]
