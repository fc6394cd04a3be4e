"""The tables of states say what DESIGN section 13 says, line by line."""

from __future__ import annotations

import itertools

import pytest

from carillon.transitions import (
    CAMPAIGN_TRANSITIONS,
    CANCELLABLE,
    TERMINAL,
    CampaignState,
    TaskStatus,
    may_follow,
)

CAMPAIGN_LINE = (
    "created→scheduled, enqueued · scheduled→enqueued, cancelling · enqueued→dispatching, failed, aborted, cancelling"
    " · dispatching→completed, aborted, cancelling, enqueued · aborted→enqueued, cancelling · cancelling→cancelled"
)
TASK_LINE = {
    ("Pending", "Running", None),
    ("Running", "Pending", None),
    ("Running", "Finished", None),
    ("Running", "Failed", "MessageRejected"),
    ("Pending", "Failed", "Suppressed"),
    ("Pending", "Failed", "DeadlinePassed"),
    ("Pending", "Failed", "ScheduleRefused"),
    ("Pending", "Failed", "TemplateError"),
    ("Pending", "Failed", "EnrichmentFailed"),
    ("Pending", "Cancelled", None),
    ("Failed", "Finished", "OutcomeUnknown"),
}


def test_campaign_table_is_the_design_s_line():
    """Every transition that the design names is allowed, and nothing else."""
    line = {
        (before, after.strip())
        for part in CAMPAIGN_LINE.split(" · ")
        for before, afters in [part.split("→")]
        for after in afters.split(",")
    }
    table = {(str(b), str(a)) for b, afters in CAMPAIGN_TRANSITIONS.items() for a in afters}
    assert table == line


@pytest.mark.parametrize(("before", "after", "error"), sorted(TASK_LINE, key=str))
def test_task_transition_of_the_design_is_allowed(before, after, error):
    """Each transition that the design names may happen."""
    assert may_follow(TaskStatus(before), TaskStatus(after), error)


def test_no_other_task_transition_is_allowed():
    """Whatever the line does not name is refused, with every error that could be on the row."""
    errors = {
        None,
        "MessageRejected",
        "Suppressed",
        "DeadlinePassed",
        "ScheduleRefused",
        "TemplateError",
        "EnrichmentFailed",
        "OutcomeUnknown",
        "PreviousNotSent",
    }
    free = {
        ("Running", "Pending"),
        ("Running", "Finished"),
        ("Running", "Failed"),
        ("Pending", "Running"),
        ("Pending", "Cancelled"),
    }
    for before, after, error in itertools.product(TaskStatus, TaskStatus, errors):
        named = (str(before), str(after), error) in TASK_LINE or (str(before), str(after)) in free
        assert may_follow(before, after, error) == named, (before, after, error)


def test_a_terminal_task_never_goes_back_to_be_sent():
    """From a terminal status there is no way to Pending or Running, so no second e-mail."""
    for status, after in itertools.product(TERMINAL, (TaskStatus.PENDING, TaskStatus.RUNNING)):
        assert not may_follow(status, after, "OutcomeUnknown")


def test_ended_campaigns_cannot_be_cancelled():
    """What is completed, failed or cancelled has nothing left to cancel; a created one never started."""
    assert {
        CampaignState.SCHEDULED,
        CampaignState.ENQUEUED,
        CampaignState.DISPATCHING,
        CampaignState.ABORTED,
    } == CANCELLABLE
