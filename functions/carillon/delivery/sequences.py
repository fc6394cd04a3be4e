"""Steps that come after the one before (`carillon.shapes.AfterPrevious`): whom an outcome lets go on, and when.

Their rows are enrolled with all others and wait. The outcome of a step releases the next one or ends the sequence, in
the same transaction; whatever misses that, the reconciler makes good from the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from carillon import zones
from carillon.delivery.claims import Change
from carillon.shapes import AfterPrevious, CampaignPace, CampaignSpec, Message, Offset, Problem, Task
from carillon.timing.openings import first_opening
from carillon.transitions import TaskError, TaskStatus

NOT_SENT = Problem(code=TaskError.PREVIOUS_NOT_SENT, message="the step before was not sent to this recipient")


def is_sequence(spec: CampaignSpec) -> bool:
    """Whether any step comes after the one before."""
    return any(isinstance(step.rule, AfterPrevious) for step in spec.steps)


def following(spec: CampaignSpec, step: int) -> Iterator[int]:
    """The steps that wait for ``step`` (they count from 1), the next one first, each for the one before it."""
    for later in range(step + 1, len(spec.steps) + 1):
        if not isinstance(spec.steps[later - 1].rule, AfterPrevious):
            return
        yield later


def task_of(task: str, step: int) -> str:
    """The same person's task in ``step``."""
    return f"{step}-{task.partition('-')[2]}"


def slot_after(spec: CampaignSpec, waiting: Task, sent_at: str, earliest: int) -> int:
    """When ``waiting`` may go (epoch seconds), the step before having been sent at ``sent_at`` (an instant of ours).

    Its offset's days are counted on the wall clock of the recipient's zone (if there is none, of the pace's, as the
    plan forecasts it), then its seconds; from there, and not before ``earliest``, the first instant that pace and quiet
    hours leave open. Nor before the forecast, which the plan has put where the campaign's pace has room for it.

    Raises:
        PlanRefused: they leave none open.
    """
    rule = spec.steps[waiting.step - 1].rule
    assert isinstance(rule, AfterPrevious), "only such a step waits"
    zone = waiting.timezone or (spec.pace or CampaignPace()).timezone
    target = after(datetime.fromisoformat(sent_at), rule.offset, zone)
    return first_opening(spec, waiting.timezone, max(target, earliest, waiting.slot))


def after(moment: datetime, offset: Offset, zone: str) -> int:
    """``moment`` (aware) moved by ``offset`` in ``zone``, in epoch seconds."""
    if offset.days:
        local = moment.astimezone(zones.get(zone))
        start = zones.to_utc(zone, local.date() + timedelta(days=offset.days), local.time())
    else:
        start = int(moment.timestamp())
    return start + offset.seconds


def release(row: Task, slot: int) -> Change:
    """Let a waiting ``row`` go at ``slot``: it is Pending and as it was read."""
    expected = {"waits": True, "generation": row.generation, "revision": row.revision}
    return Change(
        row.campaign_id, row.task, TaskStatus.PENDING, TaskStatus.PENDING, expected, {"waits": False, "slot": slot}
    )


def end(spec: CampaignSpec, message: Message) -> list[Change]:
    """Cancel what waits for the task of ``message``, which will not be sent."""
    expected = {"waits": True, "generation": message.generation}
    sets = {"error": NOT_SENT.model_dump()}
    return [
        Change(
            message.campaign,
            task_of(message.task, step),
            TaskStatus.PENDING,
            TaskStatus.CANCELLED,
            expected,
            sets,
        )
        for step in following(spec, message.step)
    ]


def may_go_on(row: Task, generation: int) -> bool:
    """Whether ``row``, the next step's, waits for an outcome of this ``generation``."""
    return row.status is TaskStatus.PENDING and row.waits and row.generation == generation
