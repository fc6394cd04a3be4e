"""The sweep after a cancel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.errors import CampaignStateConflict, SweepUnfinished
from carillon.lifecycle.cancelling import RESERVE, cancel_tasks
from carillon.shapes import CancelTasks, CancelTasksResult
from carillon.transitions import CampaignState, TaskStatus

from .conftest import campaign, empty_tables, put, task

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def plenty() -> float:
    return 900.0


def sweep(campaigns: CampaignStore, rows: CampaignRows, shards: Iterable[int]) -> list[CancelTasksResult]:
    return [cancel_tasks(CancelTasks(campaign_id="advent", shard=n), campaigns, rows, plenty) for n in shards]


@settings(max_examples=25, deadline=None)
@given(statuses=st.lists(st.sampled_from(TaskStatus), max_size=12), state=st.sampled_from(["cancelling", "cancelled"]))
def test_sweeping_twice_is_sweeping_once(statuses: list[TaskStatus], state: str) -> None:
    """Law: Pending becomes Cancelled, all else stays, the second sweep finds nothing, and the counter says how many."""
    client = empty_tables()
    campaigns, rows = CampaignStore("Campaigns", client), CampaignRows("Tasks", client)
    campaigns.create(campaign(state=state, generation=1))
    people = [task(f"r{n}@example.com", status=status) for n, status in enumerate(statuses)]
    for row in people:
        put(client, row)
    shards = {keys.shard(row.task) for row in people} | {0}
    first, second = sweep(campaigns, rows, shards), sweep(campaigns, rows, shards)
    pending, running = statuses.count(TaskStatus.PENDING), statuses.count(TaskStatus.RUNNING)
    assert sum(result.cancelled for result in first) == pending
    assert sum(result.cancelled for result in second) == 0
    assert sum(result.running for result in first) == sum(result.running for result in second) == running
    counts = rows.counts("advent")
    assert counts[TaskStatus.PENDING] == 0
    assert counts[TaskStatus.CANCELLED] == pending + statuses.count(TaskStatus.CANCELLED)
    assert counts.total() == len(statuses)
    assert campaigns.get("advent").cancelled == pending
    assert sum(r.rows for r in first) == sum(r.rows for r in second) == len(statuses)


@pytest.mark.parametrize("state", sorted(set(CampaignState) - {CampaignState.CANCELLING, CampaignState.CANCELLED}))
def test_a_campaign_that_is_not_being_cancelled_is_not_swept(
    campaigns: CampaignStore, rows: CampaignRows, state: CampaignState
) -> None:
    """An invocation gone astray cancels nobody."""
    campaigns.create(campaign(state=state, generation=1))
    rows.enrol([task("ana@example.com")])
    with pytest.raises(CampaignStateConflict):
        sweep(campaigns, rows, range(keys.SHARDS))
    assert rows.counts("advent")[TaskStatus.PENDING] == 1


def test_a_row_claimed_between_the_look_and_the_write_is_running(
    campaigns: CampaignStore, rows: CampaignRows, dynamodb: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender won: the row is not cancelled, and is counted among those that run."""
    campaigns.create(campaign(state="cancelling", generation=1))
    enrolled = rows.enrol([task(f"r{n}@example.com") for n in range(5)])
    cancel = rows.cancel

    def claimed_first(tasks: list[object]) -> int:
        for row in tasks:
            if row == enrolled[2]:
                put(dynamodb, enrolled[2].model_copy(update={"status": TaskStatus.RUNNING}))
        return cancel(tasks)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "cancel", claimed_first)
    results = sweep(campaigns, rows, range(keys.SHARDS))
    assert (sum(r.cancelled for r in results), sum(r.running for r in results)) == (4, 1)


def test_a_sweep_out_of_time_says_so_and_the_next_goes_on(
    campaigns: CampaignStore, rows: CampaignRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was cancelled stays and is counted; the same call again does the rest."""
    campaigns.create(campaign(state="cancelling", generation=1))
    enrolled = rows.enrol([task(f"r{n}@example.com") for n in range(300)])
    shard = keys.shard(enrolled[0].task)
    mine = sorted((row for row in enrolled if keys.shard(row.task) == shard), key=lambda row: row.task)
    assert len(mine) > 2
    walk = rows.shard
    monkeypatch.setattr(rows, "shard", lambda *_: ([row] for page in walk(*_) for row in page))
    with pytest.raises(SweepUnfinished, match="1 rows cancelled"):
        cancel_tasks(CancelTasks(campaign_id="advent", shard=shard), campaigns, rows, lambda: RESERVE - 1)
    assert campaigns.get("advent").cancelled == 1
    rest = cancel_tasks(CancelTasks(campaign_id="advent", shard=shard), campaigns, rows, plenty)
    assert rest.cancelled == len(mine) - 1
