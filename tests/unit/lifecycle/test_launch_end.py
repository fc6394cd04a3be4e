"""A launch that was stopped or timed out ran no Catch: EventBridge tells us."""

from __future__ import annotations

import json
from typing import Any

import pytest

from carillon.adapters import aws, clock
from carillon.adapters.campaigns import CampaignStore
from carillon.campaigns import LAUNCH_STOPPED
from carillon.environment import load
from carillon.shapes import Problem
from carillon.transitions import CampaignState
from record_launch_end import app

from .conftest import CONTEXT, NOW, campaign
from .fakes import FakeScheduler, FakeTemplates

MACHINE = "arn:aws:states:eu-central-1:123456789012:stateMachine:launch"
EXECUTION = "arn:aws:states:eu-central-1:123456789012:execution:launch:advent-g2-3"


def event(status: str = "ABORTED", **detail: Any) -> dict[str, Any]:
    """As EventBridge documents "Step Functions Execution Status Change"."""
    return {
        "version": "0",
        "source": "aws.states",
        "detail-type": "Step Functions Execution Status Change",
        "detail": {
            "executionArn": EXECUTION,
            "stateMachineArn": MACHINE,
            "name": "advent-g2-3",
            "status": status,
            "startDate": 1_700_000_000_000,
            "stopDate": 1_700_000_100_000,
            "input": json.dumps({"campaign_id": "advent", "resume": True}),
            "inputDetails": {"included": True},
            "output": None,
            "outputDetails": None,
        }
        | detail,
    }


@pytest.fixture
def scheduler(campaigns: CampaignStore, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    fake = FakeScheduler({"campaign-advent-g2": {}, "campaign-advent-g1": {}, "campaign-other-g2": {}})
    monkeypatch.setenv("CAMPAIGNS_TABLE", "Campaigns")
    monkeypatch.setenv("LAUNCH_CAMPAIGN_ARN", MACHINE)
    load.cache_clear()
    monkeypatch.setattr(aws, "dynamodb", lambda: campaigns._client)
    monkeypatch.setattr(app, "Schedules", lambda: fake)
    monkeypatch.setattr(app, "SesTemplates", FakeTemplates)
    monkeypatch.setattr(clock, "epoch", NOW.timestamp)
    return fake


@pytest.mark.parametrize("status", ["ABORTED", "TIMED_OUT", "FAILED"])
def test_a_stopped_launch_leaves_an_aborted_campaign_and_no_schedules(
    campaigns: CampaignStore, scheduler: FakeScheduler, status: str
) -> None:
    """The error says how the launch ended and what to do; only this generation's group goes."""
    campaigns.create(campaign(state="enqueued", generation=2, execution=EXECUTION))
    assert app.handler(event(status), CONTEXT) == {"aborted": True}
    there = campaigns.get("advent")
    assert there.state is CampaignState.ABORTED
    assert there.error is not None
    assert there.error.code == LAUNCH_STOPPED
    assert status in there.error.message
    assert "resume" in there.error.message
    assert set(scheduler.groups) == {"campaign-advent-g1", "campaign-other-g2"}


def test_the_event_may_come_twice(campaigns: CampaignStore, scheduler: FakeScheduler) -> None:
    """The second changes nothing, but deletes the group if the first could not."""
    campaigns.create(campaign(state="enqueued", generation=2, execution=EXECUTION))
    app.handler(event(), CONTEXT)
    after = campaigns.get("advent")
    scheduler.groups["campaign-advent-g2"] = {}
    assert app.handler(event(), CONTEXT) == {"aborted": False}
    assert campaigns.get("advent") == after
    assert "campaign-advent-g2" not in scheduler.groups


@pytest.mark.parametrize(
    "there",
    [
        campaign(state="enqueued", generation=3, execution=EXECUTION.replace("g2-3", "g3-4")),
        campaign(state="enqueued", generation=2, execution=None),
        *(
            campaign(state=state, generation=2, execution=EXECUTION)
            for state in CampaignState
            if state is not CampaignState.ENQUEUED
        ),
        campaign(
            state="aborted",
            generation=2,
            execution=EXECUTION,
            error=Problem(code="FanOutBroken", message="by the machine's own catch"),
        ),
    ],
    ids=lambda c: f"{c.state}-g{c.generation}-{'error' if c.error else 'no-error'}",
)
def test_a_late_or_foreign_event_changes_nothing(
    campaigns: CampaignStore, scheduler: FakeScheduler, there: Any
) -> None:
    """Another execution has the campaign, it is past enqueued, or the machine has said why by itself."""
    campaigns.create(there)
    before = set(scheduler.groups)
    assert app.handler(event(), CONTEXT) == {"aborted": False}
    assert campaigns.get("advent") == there
    assert set(scheduler.groups) == before


@pytest.mark.parametrize(
    "detail",
    [
        {"stateMachineArn": MACHINE + "-other"},
        {"input": None},
        {"input": "[]"},
        {"input": "{}"},
        {"input": '{"campaign_id": ""}'},
        {"input": '{"campaign_id": "nobody"}'},
    ],
)
def test_an_event_of_nothing_of_ours_is_ignored(
    campaigns: CampaignStore, scheduler: FakeScheduler, detail: dict[str, Any]
) -> None:
    """Another machine, no input, no campaign."""
    there = campaign(state="enqueued", generation=2, execution=EXECUTION)
    campaigns.create(there)
    assert app.handler(event(**detail), CONTEXT) == {"aborted": False}
    assert campaigns.get("advent") == there


def test_a_group_that_cannot_be_deleted_is_tried_again(
    campaigns: CampaignStore, scheduler: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error goes to Lambda, whose retry finds the campaign aborted and the group still there."""
    campaigns.create(campaign(state="enqueued", generation=2, execution=EXECUTION))

    def throttled(group: str) -> None:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "delete_group", throttled)
        with pytest.raises(TimeoutError):
            app.handler(event(), CONTEXT)
    assert campaigns.get("advent").state is CampaignState.ABORTED
    app.handler(event(), CONTEXT)
    assert "campaign-advent-g2" not in scheduler.groups


@pytest.mark.parametrize("state", ["created", "scheduled", "enqueued", "dispatching"])
def test_a_plan_that_failed_is_no_launch_that_failed(
    campaigns: CampaignStore, scheduler: FakeScheduler, state: str
) -> None:
    """An execution that never claimed the campaign changes nothing, wherever the campaign is by then."""
    launched = {"generation": 1, "execution": EXECUTION} if state in ("enqueued", "dispatching") else {}
    campaigns.create(there := campaign(state=state, **launched))
    plan = EXECUTION.replace("advent-g2-3", "advent-plan-4")
    given = json.dumps({"campaign_id": "advent", "plan": True})
    for status in ("FAILED", "TIMED_OUT", "ABORTED"):
        assert app.handler(event(status, executionArn=plan, input=given), CONTEXT) == {"aborted": False}
    assert campaigns.get("advent") == there
    assert "campaign-advent-g1" in scheduler.groups
