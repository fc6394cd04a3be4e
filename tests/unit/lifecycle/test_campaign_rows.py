"""The rows of a campaign: enrolled once however often it is tried, raised, walked and swept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.items import from_item, to_item
from carillon.shapes import Claim, Problem, Task
from carillon.transitions import TERMINAL, TaskStatus

from .conftest import empty_tables, put, task

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def everything(rows: CampaignRows, campaign_id: str = "advent") -> list[Task]:
    return [row for n in range(keys.SHARDS) for page in rows.shard(campaign_id, n) for row in page]


def test_a_row_comes_back_as_it_was_enrolled(rows: CampaignRows, dynamodb: DynamoDBClient) -> None:
    """Every attribute of a task survives, under the key that its name gives."""
    wanted = task("ana@example.com", timezone="Europe/Berlin")
    assert rows.enrol([wanted]) == [wanted]
    item = dynamodb.get_item(TableName="Tasks", Key=to_item(keys.task_key("advent", wanted.task)))["Item"]
    assert Task.model_validate(from_item(item)) == wanted
    assert item["sk"]["S"].startswith("0#")


def test_more_rows_than_one_call_takes_keep_their_order(rows: CampaignRows) -> None:
    """60 rows are three calls of at most 25 statements (botocore: PartiQLBatchRequest), and come back in order."""
    wanted = [task(f"r{n}@example.com") for n in range(60)]
    assert rows.enrol(wanted) == wanted
    assert {row.task for row in everything(rows)} == {row.task for row in wanted}


def test_a_pending_row_of_an_older_generation_is_raised(rows: CampaignRows) -> None:
    """Slot, revision, batch and token are the new plan's; the rest of the row stays."""
    old = task("ana@example.com", timezone="Asia/Tokyo")
    new = task("ana@example.com", generation=2, slot=old.slot + 60, batch="g2-bbbb/7", client_token="fresh")
    rows.enrol([old])
    assert rows.enrol([new]) == [new]
    assert everything(rows) == [new.model_copy(update={"timezone": "Asia/Tokyo"})]


@pytest.mark.parametrize(
    "there",
    [
        task("ana@example.com", status=TaskStatus.RUNNING, claim=Claim(token="t", at="2026-11-29T08:00:00Z")),
        task("ana@example.com", status=TaskStatus.FINISHED, message_id="m"),
        task("ana@example.com", status=TaskStatus.FAILED, error=Problem(code="Suppressed", message="…")),
        task("ana@example.com", status=TaskStatus.CANCELLED),
        task("ana@example.com", generation=2, client_token="mine"),
        task("ana@example.com", generation=3),
    ],
    ids=lambda t: f"{t.status}-g{t.generation}",
)
def test_what_is_settled_or_as_new_stays_untouched(rows: CampaignRows, dynamodb: DynamoDBClient, there: Task) -> None:
    """Enrolling at generation 2 changes no row that is being sent, that is over, or that is at 2 already."""
    put(dynamodb, there)
    assert rows.enrol([task("ana@example.com", generation=2)]) == [there]
    assert everything(rows) == [there]


def test_only_pending_rows_are_cancelled(rows: CampaignRows, dynamodb: DynamoDBClient) -> None:
    """A row that went Running after it was read keeps its state, and is not counted."""
    all_of_them = [task(f"{status}@example.com", status=status) for status in TaskStatus]
    for row in all_of_them:
        put(dynamodb, row)
    assert rows.cancel([row.model_copy(update={"status": TaskStatus.PENDING}) for row in all_of_them]) == 1
    after = {row.task: row.status for row in everything(rows)}
    assert after == {
        row.task: TaskStatus.CANCELLED if row.status is TaskStatus.PENDING else row.status for row in all_of_them
    }


def test_a_row_is_renewed_only_if_it_is_as_it_was_read(rows: CampaignRows, dynamodb: DynamoDBClient) -> None:
    """Two reconcilers: the second finds another token and leaves the row alone."""
    row = task("ana@example.com")
    rows.enrol([row])
    assert rows.renew(row, 1, 5, "second")
    assert not rows.renew(row, 1, 5, "third")
    assert everything(rows)[0].client_token == "second"
    put(dynamodb, row.model_copy(update={"status": TaskStatus.RUNNING}))
    assert not rows.renew(row, 1, 5, "fourth")


def test_a_shard_is_walked_page_by_page(rows: CampaignRows) -> None:
    """Pages follow each other to the end, and a filter picks states after the limit has cut."""
    wanted = [task(f"r{n}@example.com") for n in range(200)]
    rows.enrol(wanted)
    rows.cancel(wanted[:100])
    shard = keys.shard(wanted[0].task)
    mine = sorted(row.task for row in wanted if keys.shard(row.task) == shard)
    found: list[str] = []
    after: str | None = None
    while True:
        page, after = rows.page("advent", shard, after=after, limit=2)
        assert len(page) <= 2
        found += [row.task for row in page]
        if after is None:
            break
    assert found == mine
    cancelled = [row for page in rows.shard("advent", shard, TaskStatus.CANCELLED) for row in page]
    assert {row.task for row in cancelled} == {row.task for row in wanted[:100] if keys.shard(row.task) == shard}


class Throttling:
    """A DynamoDB that says "not now" to each statement a few times, as AWS does inside a call that succeeds."""

    def __init__(self, client: DynamoDBClient, times: int, code: str = "ThrottlingError") -> None:
        self._client = client
        self._left = times
        self._code = code

    def batch_execute_statement(self, Statements: list[Any]) -> Any:
        if self._left:
            self._left -= 1
            first = self._client.batch_execute_statement(Statements=Statements[:1])["Responses"]
            return {"Responses": first + [{"Error": {"Code": self._code, "Message": "…"}}] * (len(Statements) - 1)}
        return self._client.batch_execute_statement(Statements=Statements)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_rows_put_off_by_dynamodb_are_written_in_the_end(dynamodb: DynamoDBClient) -> None:
    """Only what was throttled is tried again, each time after a longer possible wait."""
    waits: list[float] = []
    rows = CampaignRows("Tasks", Throttling(dynamodb, 3), waits.append)  # type: ignore[arg-type]
    wanted = [task(f"r{n}@example.com") for n in range(10)]
    assert rows.enrol(wanted) == wanted
    assert {row.task for row in everything(rows)} == {row.task for row in wanted}
    assert len(waits) == 3
    assert all(wait <= 5 for wait in waits)


def test_throttling_without_end_is_an_error_and_not_a_silent_loss(dynamodb: DynamoDBClient) -> None:
    """The caller hears of it and does the whole batch again, which is the same as once."""
    rows = CampaignRows("Tasks", Throttling(dynamodb, 1000), lambda _: None)  # type: ignore[arg-type]
    wanted = [task(f"r{n}@example.com") for n in range(30)]
    with pytest.raises(TimeoutError, match="rows 10 times"):
        rows.enrol(wanted)
    assert CampaignRows("Tasks", dynamodb).enrol(wanted) == wanted


def test_a_refused_statement_is_an_error(dynamodb: DynamoDBClient) -> None:
    """A table that does not exist is no outcome to go on with."""
    with pytest.raises(RuntimeError, match="ResourceNotFound"):
        CampaignRows("Nothing", dynamodb).enrol([task("ana@example.com")])


@settings(max_examples=40, deadline=None)
@given(
    attempts=st.lists(
        st.tuples(st.integers(1, 3), st.lists(st.integers(0, 5), unique=True, max_size=6)), min_size=1, max_size=6
    ),
    settled=st.dictionaries(st.integers(0, 5), st.sampled_from(sorted(TERMINAL | {TaskStatus.RUNNING}))),
)
def test_enrolling_in_any_order_and_often_is_enrolling_once(
    attempts: list[tuple[int, list[int]]], settled: dict[int, TaskStatus]
) -> None:
    """Law: one row a task; its generation is the highest that asked, unless it was settled before."""
    client = empty_tables()
    rows = CampaignRows("Tasks", client)
    for n, status in settled.items():
        put(client, task(f"r{n}@example.com", status=status))
    for generation, people in attempts:
        wanted = [task(f"r{n}@example.com", generation=generation) for n in people]
        assert rows.enrol(wanted) == rows.enrol(wanted)
    expected = {task(f"r{n}@example.com").task: (status, 1) for n, status in settled.items()}
    for n in {n for _, people in attempts for n in people} - set(settled):
        highest = max(generation for generation, people in attempts if n in people)
        expected[task(f"r{n}@example.com").task] = (TaskStatus.PENDING, highest)
    assert {row.task: (row.status, row.generation) for row in everything(rows)} == expected


def test_what_is_planned_anew_waits_no_more_and_what_is_cancelled_says_why(rows: CampaignRows) -> None:
    """How a reconciler releases a step, and ends a sequence."""
    released, ended = task("ana@example.com", waits=True), task("bo@example.com", waits=True)
    rows.enrol([released, ended])
    assert rows.renew(released, 1, released.slot + 60, "fresh")
    assert rows.cancel([ended], Problem(code="PreviousNotSent", message="no")) == 1
    there = {row.task: row for row in everything(rows)}
    assert (there[released.task].waits, there[released.task].slot) == (False, released.slot + 60)
    assert there[ended.task].error == Problem(code="PreviousNotSent", message="no")
