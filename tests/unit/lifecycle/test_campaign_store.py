"""The Campaigns table: states only along the table, and never over someone else's decision."""

from __future__ import annotations

from itertools import product

import pytest

from carillon.adapters.campaigns import CampaignStore, write_cursor
from carillon.errors import CampaignNotFound, CampaignStateConflict, InvalidCursor
from carillon.shapes import Problem
from carillon.transitions import CAMPAIGN_TRANSITIONS, CampaignState

from .conftest import NOW, campaign


def test_a_record_comes_back_as_it_was_put(campaigns: CampaignStore) -> None:
    """Spec, summary, error and counters survive the table."""
    put = campaign(summary={"valid": 3, "rejected": {}}, error=Problem(code="A", message="b"), enrolled=3)
    assert campaigns.create(put)
    assert campaigns.get("advent") == put


def test_creating_twice_keeps_the_first(campaigns: CampaignStore) -> None:
    """A second record of the same id is refused and changes nothing."""
    campaigns.create(campaign(enrolled=1))
    assert not campaigns.create(campaign(enrolled=2))
    assert campaigns.get("advent").enrolled == 1


def test_an_unknown_campaign_is_named(campaigns: CampaignStore) -> None:
    """Whatever is asked of a campaign that is not there, the answer is CampaignNotFound."""
    for ask in (
        lambda: campaigns.get("nobody"),
        lambda: campaigns.next_attempt(campaign(campaign_id="nobody")),
        lambda: campaigns.pause("nobody", 1, True, now=NOW),
    ):
        with pytest.raises(CampaignNotFound, match="nobody"):
            ask()
    campaigns.count("nobody", failed=1)
    with pytest.raises(CampaignNotFound):
        campaigns.get("nobody")


def test_states_change_only_along_the_table(campaigns: CampaignStore) -> None:
    """Every pair of states: allowed ones are written, all others are refused before DynamoDB is asked."""
    for n, (before, after) in enumerate(product(CampaignState, CampaignState)):
        campaign_id = f"c-{n}"
        campaigns.create(campaign(campaign_id=campaign_id, state=before, generation=1))
        if after in CAMPAIGN_TRANSITIONS[before]:
            assert campaigns.transition(campaign_id, before, 1, after, now=NOW).state is after
            assert campaigns.get(campaign_id).state is after
        else:
            with pytest.raises(ValueError, match="no campaign goes from"):
                campaigns.transition(campaign_id, before, 1, after, now=NOW)
            assert campaigns.get(campaign_id).state is before


@pytest.mark.parametrize(
    ("state", "generation", "execution"),
    [
        (CampaignState.CANCELLING, 2, "arn:mine"),
        (CampaignState.ENQUEUED, 3, "arn:mine"),
        (CampaignState.ENQUEUED, 2, "arn:other"),
    ],
)
def test_someone_elses_decision_stands(
    campaigns: CampaignStore, state: CampaignState, generation: int, execution: str
) -> None:
    """Another state, generation or execution refuses the write, and the conflict carries what is there."""
    there = campaign(state=state, generation=generation, execution=execution)
    campaigns.create(there)
    with pytest.raises(CampaignStateConflict) as conflict:
        campaigns.transition("advent", CampaignState.ENQUEUED, 2, CampaignState.ABORTED, now=NOW, execution="arn:mine")
    assert conflict.value.found == there
    assert campaigns.get("advent") == there


def test_changes_go_with_the_state_and_none_removes(campaigns: CampaignStore) -> None:
    """Attributes are written in the same update; None takes one away."""
    campaigns.create(campaign(state=CampaignState.ENQUEUED, plan={"hash": "abc", "cost": 1.25}))
    assert campaigns.get("advent").plan == {"hash": "abc", "cost": 1.25}
    after = campaigns.transition(
        "advent",
        CampaignState.ENQUEUED,
        0,
        CampaignState.ABORTED,
        now=NOW,
        error=Problem(code="LaunchStopped", message="stopped"),
        plan=None,
    )
    assert after == campaigns.get("advent")
    assert after.error == Problem(code="LaunchStopped", message="stopped")
    assert after.plan is None


def test_only_a_campaign_under_way_is_paused(campaigns: CampaignStore) -> None:
    """The flag is set in enqueued and dispatching, and nowhere else."""
    campaigns.create(campaign(state=CampaignState.DISPATCHING, generation=1))
    assert campaigns.pause("advent", 1, True, now=NOW).paused
    assert not campaigns.pause("advent", 1, False, now=NOW).paused
    campaigns.transition("advent", CampaignState.DISPATCHING, 1, CampaignState.COMPLETED, now=NOW)
    with pytest.raises(CampaignStateConflict, match="completed"):
        campaigns.pause("advent", 1, True, now=NOW)


def test_counters_add_up(campaigns: CampaignStore) -> None:
    """Counters are added to, and refused schedules once a generation."""
    campaigns.create(campaign(generation=1))
    campaigns.count("advent", finished=2, failed=1)
    campaigns.count("advent", finished=3, cancelled=0)
    campaigns.count_refused("advent", 1, 7)
    campaigns.count_refused("advent", 1, 7)
    campaigns.count_refused("advent", 2, 9)
    there = campaigns.get("advent")
    assert (there.finished, there.failed, there.cancelled) == (5, 8, 0)


def test_of_two_that_ask_at_once_one_gets_an_attempt(campaigns: CampaignStore) -> None:
    """The number is given to whoever saw the campaign as it is; it is given once."""
    campaigns.create(campaign())
    seen = campaigns.get("advent")
    assert campaigns.next_attempt(seen) == 1
    with pytest.raises(CampaignStateConflict, match="asked for twice"):
        campaigns.next_attempt(seen)
    assert campaigns.next_attempt(campaigns.get("advent")) == 2


def test_an_idempotency_key_stays_tied_to_its_first_campaign(campaigns: CampaignStore) -> None:
    """The tie is no campaign: no listing shows it."""
    assert campaigns.remember("k", "one", "f", 1_900_000_000) == ("one", "f")
    assert campaigns.remember("k", "two", "g", 1_900_000_000) == ("one", "f")
    assert campaigns.by_state(CampaignState.CREATED) == ([], None)


def test_listings_are_newest_first_and_go_on_where_they_stopped(campaigns: CampaignStore) -> None:
    """A page ends with a cursor, the last one without, and together they hold each campaign once."""
    for day in range(1, 6):
        campaigns.create(campaign(campaign_id=f"c-{day}", created_at=f"2026-11-{day:02d}T00:00:00Z"))
    first, cursor = campaigns.by_state(CampaignState.CREATED, limit=3)
    second, end = campaigns.by_state(CampaignState.CREATED, limit=3, cursor=cursor)
    assert [c.campaign_id for c in first + second] == ["c-5", "c-4", "c-3", "c-2", "c-1"]
    assert end is None
    assert [c.campaign_id for c in campaigns.by_created("2026-11", limit=2)[0]] == ["c-5", "c-4"]
    for forged in ("nonsense", write_cursor({"campaign_id": {"N": "1"}}), write_cursor({"other": {"S": "x"}})):
        with pytest.raises(InvalidCursor):
            campaigns.by_state(CampaignState.CREATED, cursor=forged)
