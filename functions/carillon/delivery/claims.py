"""Changes of task rows by the sender: each names what it expects, and none that `carillon.transitions` does not know.

A claim is what makes an e-mail ours to send. Its token is fresh for every attempt to claim, so that a claim whose
reply was lost can be told from somebody else's, and also from our own for an earlier copy of the same message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from carillon.shapes import Message, Problem, Task, instant
from carillon.transitions import TaskStatus, may_follow

type TaskKey = tuple[str, str]
"""Campaign and task."""
type SuppressionKey = tuple[str, str]
"""Address hash (64 hex digits) and topic, or ``*`` for all topics."""


@dataclass(frozen=True)
class Change:
    """One transition of one row: done if status is ``before`` and each attribute is as ``expected``, else not at all.

    ``claim.token`` in ``expected`` is a path into the claim.
    """

    campaign_id: str
    task: str
    before: TaskStatus
    after: TaskStatus
    expected: Mapping[str, Any]
    sets: Mapping[str, Any]
    removes: tuple[str, ...] = ()


class RowConflict(Exception):
    """The row was not as expected and stays as it is; ``found`` is what is there (None: no row)."""

    def __init__(self, found: Task | None) -> None:
        super().__init__("the task row is not as expected")
        self.found = found


class Rows(Protocol):
    """Task rows and suppressions, as the sender needs them (`carillon.adapters.tasks.TaskRows`)."""

    def read(
        self, tasks: Collection[TaskKey], suppressions: Collection[SuppressionKey]
    ) -> tuple[dict[TaskKey, Task], set[SuppressionKey]]:
        """What there is of ``tasks`` and ``suppressions``, consistently; at most 100 keys together."""

    def apply(self, change: Change) -> None:
        """Do ``change``.

        Raises:
            RowConflict: the row is not as expected. Also when a repeated write meets its own first one.
        """

    def apply_together(self, changes: Sequence[Change]) -> None:
        """Do all of ``changes``, or none of them.

        Raises:
            RowConflict: some row is not as expected; ``found`` is the first such.
        """


def claim(rows: Rows, message: Message, token: str, now: datetime) -> bool:
    """Whether the task is ours now: Pending → Running of this generation and revision.

    ``token`` must never have been used before. A conflict with our own token is a lost reply: the write was done.
    """
    claiming = _change(
        message, TaskStatus.PENDING, TaskStatus.RUNNING, sets={"claim": {"token": token, "at": instant(now)}}
    )
    try:
        rows.apply(claiming)
    except RowConflict as conflict:
        found = conflict.found
        return (
            found is not None
            and found.status is TaskStatus.RUNNING
            and found.claim is not None
            and found.claim.token == token
        )
    return True


def is_done(change: Change, found: Task | None) -> bool:
    """Whether the row that was ``found`` says that ``change``, an outcome, was written, and its reply lost."""
    return (
        found is not None
        and found.status is change.after
        and found.claim is not None
        and found.claim.token == change.expected.get("claim.token")
    )


def release(message: Message, token: str) -> Change:
    """Running → Pending, for what is provably unsent."""
    return _change(message, TaskStatus.RUNNING, TaskStatus.PENDING, token=token, removes=("claim",))


def finish(message: Message, token: str, subject: str, message_id: str, now: datetime) -> Change:
    """Running → Finished: SES has taken it, as ``message_id``, at about ``now``."""
    sets = {"subject": subject, "message_id": message_id, "sent_at": instant(now)}
    return _change(message, TaskStatus.RUNNING, TaskStatus.FINISHED, token=token, sets=sets)


def fail(message: Message, token: str, error: Problem) -> Change:
    """Running → Failed: it can never be sent."""
    return _change(message, TaskStatus.RUNNING, TaskStatus.FAILED, token=token, error=error)


def fail_unclaimed(message: Message, error: Problem) -> Change:
    """Pending → Failed, where nothing was tried."""
    return _change(message, TaskStatus.PENDING, TaskStatus.FAILED, error=error)


def _change(
    message: Message,
    before: TaskStatus,
    after: TaskStatus,
    *,
    token: str | None = None,
    error: Problem | None = None,
    sets: Mapping[str, Any] | None = None,
    removes: tuple[str, ...] = (),
) -> Change:
    """The one way to a `Change`. Running is expected with our token, Pending with the message's own numbers."""
    if not may_follow(before, after, error.code if error else None):
        raise ValueError(f"no task goes from {before} to {after} ({error and error.code})")
    expected: dict[str, Any] = (
        {"claim.token": token}
        if before is TaskStatus.RUNNING
        else {"generation": message.generation, "revision": message.revision}
    )
    sets = dict(sets or {})
    if error is not None:
        sets["error"] = error.model_dump()
    return Change(message.campaign, message.task, before, after, expected, sets, removes)
