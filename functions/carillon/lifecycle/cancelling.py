"""The sweep after a cancel: rows that can never be sent any more say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from carillon.campaigns import Campaigns, expect
from carillon.errors import SweepUnfinished
from carillon.shapes import CancelTasks, CancelTasksResult, Task
from carillon.transitions import CampaignState, TaskStatus

RESERVE = 20.0
"""Seconds kept for one more page (1 MB, about 2,000 rows: 80 calls) and for counting."""


class Rows(Protocol):
    """The port to a campaign's task rows (`carillon.adapters.enrolment.CampaignRows`)."""

    def shard(self, campaign_id: str, number: int) -> Iterator[list[Task]]:
        """Pages of a shard's rows."""
        ...

    def cancel(self, tasks: Sequence[Task]) -> int:
        """Cancel those that are Pending still; how many that was."""
        ...


def cancel_tasks(
    request: CancelTasks, campaigns: Campaigns, rows: Rows, seconds_left: Callable[[], float]
) -> CancelTasksResult:
    """Sweep one shard's Pending rows to Cancelled, and count all that it has. Twice is the same as once.

    Raises:
        CampaignStateConflict: the campaign is not being cancelled, so its rows are nobody's to sweep.
        SweepUnfinished: the time was too short; the same call again goes on where this one stopped.
    """
    expect(campaigns.get(request.campaign_id), {CampaignState.CANCELLING, CampaignState.CANCELLED})
    cancelled = running = rows_there = 0
    try:
        for number, page in enumerate(rows.shard(request.campaign_id, request.shard)):
            if number and seconds_left() < RESERVE:
                raise SweepUnfinished(
                    f"shard {request.shard} of campaign {request.campaign_id}: {cancelled} rows cancelled, "
                    "not all in time; sweep it again"
                )
            pending = [task for task in page if task.status is TaskStatus.PENDING]
            swept = rows.cancel(pending)
            cancelled += swept
            # What was Pending when it was read and is so no more has been claimed in between.
            running += sum(task.status is TaskStatus.RUNNING for task in page) + len(pending) - swept
            rows_there += len(page)
    finally:
        campaigns.count(request.campaign_id, cancelled=cancelled)
    return CancelTasksResult(cancelled=cancelled, running=running, rows=rows_there)
