"""What a campaign's record and a task's row say about a message whose minute has come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import lru_cache

from carillon import zones
from carillon.shapes import Campaign, CampaignPace, Message, Problem, QuietHours, Task
from carillon.timing.openings import is_quiet, open_on
from carillon.transitions import CampaignState, TaskError, TaskStatus

OUTSIDE_WINDOW = timedelta(minutes=15)
"""How far outside its window, or into quiet hours, a task may still go; later it waits to be planned again."""

_open_on = lru_cache(maxsize=64)(open_on)
"""A sender asks for the same days over and over."""


class Standing(Enum):
    """What a campaign's record says about its messages."""

    SEND = auto()
    BACK_TO_QUEUE = auto()
    ACKNOWLEDGE = auto()


def standing(campaign: Campaign) -> Standing:
    """Whether ``campaign`` sends, is about to, or does not."""
    if campaign.state is CampaignState.ENQUEUED:
        return Standing.BACK_TO_QUEUE
    if campaign.state is not CampaignState.DISPATCHING or campaign.paused:
        return Standing.ACKNOWLEDGE
    return Standing.SEND


class Verdict(Enum):
    """What a row says about its message."""

    SEND = auto()
    DROP = auto()


def judge(campaign: Campaign, message: Message, row: Task, suppression: str | None, now: datetime) -> Verdict | Problem:
    """Send it, drop it (the row stays as it is), or fail the task with the problem.

    ``suppression`` says why the address is not to be mailed, if it is not.
    """
    current = row.generation == message.generation and row.revision == message.revision
    if row.status is not TaskStatus.PENDING or row.waits or not current:
        return Verdict.DROP
    if suppression:
        return Problem(code=TaskError.SUPPRESSED, message=suppression)
    if overdue := past_deadline(campaign, now):
        return overdue
    spec = campaign.spec
    if spec.pace and outside_window(spec.pace, message.slot, now):
        return Verdict.DROP
    if spec.quiet_hours:
        zone = row.timezone or (spec.pace or CampaignPace()).timezone
        if in_quiet_hours(spec.quiet_hours, zone, message.slot, now):
            return Verdict.DROP
    return Verdict.SEND


def past_deadline(campaign: Campaign, now: datetime) -> Problem | None:
    """Why it is too late for any e-mail of ``campaign``, if it is."""
    deadline = campaign.spec.not_after
    if deadline is None or now <= deadline:
        return None
    return Problem(code=TaskError.DEADLINE_PASSED, message=f"not sent before the campaign's not_after, {deadline}")


def outside_window(pace: CampaignPace, slot: int, now: datetime) -> bool:
    """Whether ``now`` is more than `OUTSIDE_WINDOW` away from the window that ``slot`` (epoch seconds) lies in.

    A slot that lies in none was set by a person, and is kept.
    """
    day = datetime.fromtimestamp(slot, UTC).astimezone(zones.get(pace.timezone)).date()
    for start, end in _open_on(pace, day):
        if start <= slot < end:
            slack = OUTSIDE_WINDOW.total_seconds()
            return not start - slack <= now.timestamp() < end + slack
    return False


def in_quiet_hours(quiet: QuietHours, zone: str, slot: int, now: datetime) -> bool:
    """Whether it has been quiet in the recipient's ``zone`` for more than `OUTSIDE_WINDOW` at ``now``.

    A ``slot`` (epoch seconds) in quiet hours was set by a person, and is kept.
    """
    where = zones.get(zone)
    moments = (now, now - OUTSIDE_WINDOW)
    planned = datetime.fromtimestamp(slot, UTC)
    return all(is_quiet(quiet, m.astimezone(where).time()) for m in moments) and not is_quiet(
        quiet, planned.astimezone(where).time()
    )
