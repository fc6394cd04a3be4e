"""Enrolling a batch: a row for each task, and the schedule that will put it on the send queue."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from carillon import keys
from carillon.shapes import BatchLine, Message, Schedule

_NOT_FOR_SQS = re.compile("[\ufffe\uffff\ud800-\udfff]")
"""SQS takes #x9 #xA #xD #x20–#xD7FF #xE000–#xFFFD and above; below #x20 JSON escapes by itself."""

CREATION_LEAD = 120
"""Seconds from enrolling to the earliest minute that Scheduler is asked for.

The schedule is created some seconds later, retries included, and nobody promises what a past ``at()`` does.
"""


def schedule_for(
    campaign_id: str,
    generation: int,
    line: BatchLine,
    queue_url: str,
    *,
    not_before: int = 0,
    nonce: str = "",
) -> Schedule:
    """The one schedule of a task: at the slot's minute, and ``DelaySeconds`` is the second inside it.

    ``not_before`` (epoch seconds) moves a slot that is past or too close; the message keeps the planned slot,
    for windows and deadlines are judged by it. ``nonce`` makes a fresh client token (`carillon.keys`).
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
        client_token=keys.client_token(campaign_id, generation, line.task, line.revision, nonce),
        input=_json(call).replace("<", r"\u003c"),
    )


def schedule_size(schedule: Schedule) -> int:
    """Bytes that ``schedule`` takes at most in EnrolBatch's result: as if every non-ASCII character were escaped."""
    return len(json.dumps(schedule.model_dump())) + 2


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _NOT_FOR_SQS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
