"""Enrolling a batch: a row for each task, and the schedule that will put it on the send queue."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from carillon import campaigns, keys
from carillon.errors import CampaignStateConflict
from carillon.shapes import BatchLine, Campaign, EnrolBatch, EnrolBatchResult, Message, Schedule, Task
from carillon.transitions import CampaignState, TaskStatus

_NOT_FOR_SQS = re.compile("[\ufffe\uffff\ud800-\udfff]")
"""SQS takes #x9 #xA #xD #x20–#xD7FF #xE000–#xFFFD and above; below #x20 JSON escapes by itself."""

CREATION_LEAD = 120
"""Seconds from enrolling to the earliest minute that Scheduler is asked for.

The schedule is created some seconds later, retries included, and nobody promises what a past ``at()`` does.
"""


LARGEST_LINE = BatchLine(
    task=keys.task_id(99, "anyone"),
    step=99,
    address="",
    timezone=None,
    slot=9_999_999_999,
    revision=99_999,
    input={},
)
"""The longest that there can be, its address and its data left out."""


class Rows(Protocol):
    """The port to a campaign's task rows (`carillon.adapters.enrolment.CampaignRows`)."""

    def enrol(self, wanted: Sequence[Task]) -> list[Task]:
        """Put if absent, or raise a Pending row to a newer generation; what is there then, in the same order."""
        ...


def enrol_batch(
    request: EnrolBatch, campaign: Campaign, lines: Sequence[BatchLine], rows: Rows, queue_url: str, now: int
) -> EnrolBatchResult:
    """A row for each of ``lines``, and a schedule for each row that is Pending at this generation and does not wait.

    Any number of times is the same as once. ``campaign`` was read just now, for a child of the Map may outlive
    the launch that started it; ``now`` is in epoch seconds. For a campaign that is cancelled, those who have no row
    get a Cancelled one, and nobody a schedule.

    Raises:
        CampaignStateConflict: the campaign is not enqueued at this generation (any more); nothing was written,
            or, when it is a row that says so, nothing that a newer generation would not overrule.
    """
    expected = {CampaignState.CANCELLING, CampaignState.CANCELLED} if request.cancelled else {CampaignState.ENQUEUED}
    campaigns.expect(campaign, expected, request.generation)
    wanted = [row_for(campaign, request, line) for line in lines]
    there = rows.enrol(wanted)
    if any(row.generation > request.generation for row in there):
        raise CampaignStateConflict(
            f"campaign {campaign.campaign_id} has been resumed: generation {request.generation} is over", campaign
        )
    schedules = [
        schedule_for(
            campaign.campaign_id,
            request.generation,
            line.model_copy(update={"slot": row.slot, "revision": row.revision}),
            queue_url,
            not_before=now + CREATION_LEAD,
            client_token=row.client_token,
        )
        for line, row in zip(lines, there, strict=True)
        if row.status is TaskStatus.PENDING and not row.waits and not request.cancelled
    ]
    return EnrolBatchResult(schedules=schedules, enrolled=len(there), settled=len(there) - len(schedules))


def row_for(campaign: Campaign, request: EnrolBatch, line: BatchLine) -> Task:
    """The row of a task not yet sent. It lives as long as the campaign's record."""
    return Task(
        campaign_id=campaign.campaign_id,
        task=line.task,
        step=line.step,
        address=line.address,
        timezone=line.timezone,
        slot=line.slot,
        status=TaskStatus.CANCELLED if request.cancelled else TaskStatus.PENDING,
        generation=request.generation,
        revision=line.revision,
        batch=request.batch,
        waits=line.waits,
        client_token=keys.client_token(campaign.campaign_id, request.generation, line.task, line.revision),
        expires_at=campaign.expires_at,
    )


def schedule_for(
    campaign_id: str,
    generation: int,
    line: BatchLine,
    queue_url: str,
    *,
    not_before: int = 0,
    client_token: str | None = None,
) -> Schedule:
    """The one schedule of a task: at the slot's minute, and ``DelaySeconds`` is the second inside it.

    ``not_before`` (epoch seconds) moves a slot that is past or too close; the message keeps the planned slot,
    for windows and deadlines are judged by it. ``client_token`` is the row's, if it has one of its own.
    ``input`` is finished text: ``<`` is escaped, because Scheduler replaces ``<aws.scheduler.…>`` in it.
    """
    due = max(line.slot, not_before)
    body = Message(
        campaign=campaign_id,
        generation=generation,
        revision=line.revision,
        task=line.task,
        step=line.step,
        to=line.address,
        slot=line.slot,
        data=line.input,
    )
    call = {"QueueUrl": queue_url, "MessageBody": _json(body.model_dump()), "DelaySeconds": due % 60}
    return Schedule(
        name=line.task,
        group=keys.group(campaign_id, generation),
        at=datetime.fromtimestamp(due - due % 60, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        client_token=client_token or keys.client_token(campaign_id, generation, line.task, line.revision),
        input=_json(call).replace("<", r"\u003c"),
    )


def schedule_size(schedule: Schedule) -> int:
    """Bytes that ``schedule`` takes at most in EnrolBatch's result: as if every non-ASCII character were escaped."""
    return len(json.dumps(schedule.model_dump())) + 2


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _NOT_FOR_SQS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
