"""Which states may follow which: the one table that code, machines, README and tests agree on.

Source: DESIGN section 13, "Decided, where one could guess".
"""

from __future__ import annotations

from enum import StrEnum


class CampaignState(StrEnum):
    """The life of a campaign. ``paused`` is no state but a flag beside `ENQUEUED` and `DISPATCHING`."""

    CREATED = "created"
    SCHEDULED = "scheduled"
    ENQUEUED = "enqueued"
    DISPATCHING = "dispatching"
    COMPLETED = "completed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    ABORTED = "aborted"
    FAILED = "failed"


class TaskStatus(StrEnum):
    """The life of one e-mail to one recipient in one step."""

    PENDING = "Pending"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


class TaskError(StrEnum):
    """Why a task is `TaskStatus.FAILED` (`PREVIOUS_NOT_SENT`: `TaskStatus.CANCELLED`), where Carillon itself says so;
    SES's own error names stand beside these."""

    SUPPRESSED = "Suppressed"
    DEADLINE_PASSED = "DeadlinePassed"
    SCHEDULE_REFUSED = "ScheduleRefused"
    TEMPLATE_ERROR = "TemplateError"
    ENRICHMENT_FAILED = "EnrichmentFailed"
    OUTCOME_UNKNOWN = "OutcomeUnknown"
    PREVIOUS_NOT_SENT = "PreviousNotSent"
    """The step before was not sent, so this one, which comes after it, is not either."""


CAMPAIGN_TRANSITIONS: dict[CampaignState, frozenset[CampaignState]] = {
    CampaignState.CREATED: frozenset({CampaignState.SCHEDULED, CampaignState.ENQUEUED}),
    CampaignState.SCHEDULED: frozenset({CampaignState.ENQUEUED, CampaignState.CANCELLING}),
    CampaignState.ENQUEUED: frozenset(
        {CampaignState.DISPATCHING, CampaignState.FAILED, CampaignState.ABORTED, CampaignState.CANCELLING}
    ),
    CampaignState.DISPATCHING: frozenset(
        {CampaignState.COMPLETED, CampaignState.ABORTED, CampaignState.CANCELLING, CampaignState.ENQUEUED}
    ),
    CampaignState.ABORTED: frozenset({CampaignState.ENQUEUED, CampaignState.CANCELLING}),
    CampaignState.CANCELLING: frozenset({CampaignState.CANCELLED}),
    CampaignState.CANCELLED: frozenset(),
    CampaignState.COMPLETED: frozenset(),
    CampaignState.FAILED: frozenset(),
}

LAUNCHABLE = frozenset({CampaignState.CREATED, CampaignState.SCHEDULED})
"""A launch starts from here: nothing of the campaign has been sent."""

RESUMABLE = frozenset({CampaignState.DISPATCHING, CampaignState.ABORTED})
"""A resume starts from here: the Pending tasks are planned again at generation + 1."""

CANCELLABLE = frozenset(s for s, after in CAMPAIGN_TRANSITIONS.items() if CampaignState.CANCELLING in after)

PAUSABLE = frozenset({CampaignState.ENQUEUED, CampaignState.DISPATCHING})

TASK_TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.RUNNING, TaskStatus.FAILED, TaskStatus.CANCELLED}),
    TaskStatus.RUNNING: frozenset({TaskStatus.PENDING, TaskStatus.FINISHED, TaskStatus.FAILED}),
    TaskStatus.FINISHED: frozenset(),
    # Only an outcome that nobody could prove, and only by evidence: see `may_follow`.
    TaskStatus.FAILED: frozenset({TaskStatus.FINISHED}),
    TaskStatus.CANCELLED: frozenset(),
}

PENDING_MAY_FAIL_WITH = frozenset(
    {TaskError.SUPPRESSED, TaskError.DEADLINE_PASSED, TaskError.SCHEDULE_REFUSED, TaskError.TEMPLATE_ERROR}
    | {TaskError.ENRICHMENT_FAILED}
)
"""Nothing was sent in any of these, so no claim is needed to say so."""

TERMINAL = frozenset({TaskStatus.FINISHED, TaskStatus.FAILED, TaskStatus.CANCELLED})


def may_follow(before: TaskStatus, after: TaskStatus, error: str | None = None) -> bool:
    """Whether a task may go from ``before`` to ``after``.

    ``error`` is the error code that the row carries: the new one where ``after`` is Failed, the old one
    where ``before`` is. A Failed task becomes Finished only if its outcome was unknown.
    """
    if after not in TASK_TRANSITIONS[before]:
        return False
    if before is TaskStatus.FAILED:
        return error == TaskError.OUTCOME_UNKNOWN
    if before is TaskStatus.PENDING and after is TaskStatus.FAILED:
        return error in PENDING_MAY_FAIL_WITH
    return True
