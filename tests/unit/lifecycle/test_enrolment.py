"""Enrolling a batch: what Scheduler is asked for, and that any number of times is the same as once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.session import get_session
from hypothesis import given
from hypothesis import strategies as st

from carillon import keys
from carillon.adapters.enrolment import CampaignRows
from carillon.errors import CampaignStateConflict
from carillon.launch.enrolment import CREATION_LEAD, enrol_batch, schedule_for, schedule_size
from carillon.shapes import BatchLine, EnrolBatch, EnrolBatchResult, Message
from carillon.transitions import CampaignState, TaskStatus

from .conftest import NOW, campaign, task

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/send"
NOW_SECONDS = int(NOW.timestamp())
TOMORROW = NOW_SECONDS + 86400

texts = st.text(st.characters(codec=None), max_size=60)


def line(address: str = "ana@example.com", **changes: Any) -> BatchLine:
    fields: dict[str, Any] = {
        "task": keys.task_id(0, address),
        "step": 0,
        "address": address,
        "timezone": None,
        "slot": TOMORROW,
        "revision": 0,
        "input": {"first_name": "Ana"},
    }
    return BatchLine.model_validate(fields | changes)


def request(generation: int = 1, count: int = 1) -> EnrolBatch:
    return EnrolBatch(campaign_id="advent", generation=generation, batch="g1-aaaa/4", count=count)


ENQUEUED = campaign(state=CampaignState.ENQUEUED, generation=1)


def test_a_schedule_is_the_minute_and_its_delay_the_second() -> None:
    """2026-11-30T08:00:37Z: at the minute, in UTC, and 37 s of DelaySeconds (SQS takes 0 to 900)."""
    schedule = schedule_for("advent", 1, line(slot=TOMORROW + 37), QUEUE)
    assert schedule.at == "2026-11-30T08:00:00"
    assert schedule.group == "campaign-advent-g1"
    assert schedule.name == keys.task_id(0, "ana@example.com")
    call = json.loads(schedule.input)
    assert call == {"QueueUrl": QUEUE, "MessageBody": call["MessageBody"], "DelaySeconds": 37}
    assert Message.model_validate_json(call["MessageBody"]) == Message(
        campaign="advent",
        generation=1,
        revision=0,
        task=schedule.name,
        step=0,
        to="ana@example.com",
        slot=TOMORROW + 37,
        data={"first_name": "Ana"},
    )


@given(slot=st.integers(0, 4_000_000_000), not_before=st.integers(0, 4_000_000_000))
def test_minute_and_delay_make_the_slot_or_the_earliest_moment(slot: int, not_before: int) -> None:
    """Law: `at` + DelaySeconds is the later of the two, to the second; the message keeps the planned slot."""
    schedule = schedule_for("advent", 1, line(slot=slot), QUEUE, not_before=not_before)
    call = json.loads(schedule.input)
    minute = datetime.strptime(schedule.at, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    assert minute % 60 == 0
    assert minute + call["DelaySeconds"] == max(slot, not_before)
    assert 0 <= call["DelaySeconds"] < 60
    assert json.loads(call["MessageBody"])["slot"] == slot


@given(st.dictionaries(texts, texts, max_size=4))
def test_whatever_is_in_the_list_arrives_as_it_was(data: dict[str, str]) -> None:
    """Law: no `<` for Scheduler to replace, nothing that SQS refuses or UTF-8 cannot say, and the data come back."""
    schedule = schedule_for("advent", 1, line(input=data), QUEUE)
    assert "<" not in schedule.input
    body = json.loads(schedule.input)["MessageBody"]
    allowed = [(0x9, 0xA), (0xD, 0xD), (0x20, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF)]
    assert all(any(low <= ord(c) <= high for low, high in allowed) for c in body)
    assert json.loads(body)["data"] == data
    schedule.input.encode()


def test_context_words_of_scheduler_are_text_to_us() -> None:
    """`<aws.scheduler.schedule-arn>` in somebody's column is not replaced (AWS_CONTRACTS 1)."""
    schedule = schedule_for("advent", 1, line(input={"x": "<aws.scheduler.schedule-arn>"}), QUEUE)
    assert "<aws.scheduler" not in schedule.input
    assert "<aws.scheduler.schedule-arn>" in json.loads(schedule.input)["MessageBody"]


@given(st.lists(st.dictionaries(texts, texts, max_size=3), max_size=5))
def test_sizes_bound_the_result(people: list[dict[str, str]]) -> None:
    """Law: batches cut by schedule_size make a result no larger than their sum, however it is put into JSON."""
    schedules = [schedule_for("advent", 1, line(f"r{n}@example.com", input=d), QUEUE) for n, d in enumerate(people)]
    result = EnrolBatchResult(schedules=schedules, enrolled=len(people), settled=0).model_dump()
    bound = sum(map(schedule_size, schedules)) + 100
    assert len(json.dumps(result).encode()) <= bound
    assert len(json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()) <= bound


def test_what_we_ask_is_what_scheduler_takes() -> None:
    """Names, group, token and expression fit the patterns and lengths of botocore's CreateSchedule."""
    import re

    model = get_session().get_service_model("scheduler").operation_model("CreateSchedule").input_shape
    assert model is not None
    widest = campaign(campaign_id="z" * 40).campaign_id
    schedule = schedule_for(widest, 9999, line(), QUEUE)
    for member, given_value in {
        "Name": schedule.name,
        "GroupName": schedule.group,
        "ClientToken": schedule.client_token,
        "ScheduleExpression": f"at({schedule.at})",
    }.items():
        shape = model.members[member]  # type: ignore[attr-defined]
        assert shape.metadata["min"] <= len(given_value) <= shape.metadata["max"]
        if "pattern" in shape.metadata:
            assert re.fullmatch(shape.metadata["pattern"], given_value)


def test_a_batch_is_enrolled_and_every_row_has_its_schedule(rows: CampaignRows) -> None:
    """Rows carry the token of their schedule, the batch that they came from, and the campaign's end of life."""
    lines = [line(f"r{n}@example.com", slot=TOMORROW + n) for n in range(40)]
    result = enrol_batch(request(count=40), ENQUEUED, lines, rows, QUEUE, NOW_SECONDS)
    assert (result.enrolled, result.settled) == (40, 0)
    assert [schedule.name for schedule in result.schedules] == [wanted.task for wanted in lines]
    there = {row.task: row for n in range(keys.SHARDS) for page in rows.shard("advent", n) for row in page}
    for schedule in result.schedules:
        row = there[schedule.name]
        assert row.client_token == schedule.client_token
        assert (row.status, row.batch, row.expires_at) == (TaskStatus.PENDING, "g1-aaaa/4", ENQUEUED.expires_at)


def test_enrolling_twice_is_enrolling_once(rows: CampaignRows) -> None:
    """The same schedules with the same tokens, and the same rows: an Express child may run again."""
    lines = [line(f"r{n}@example.com") for n in range(3)]
    first, second = (enrol_batch(request(), ENQUEUED, lines, rows, QUEUE, NOW_SECONDS) for _ in range(2))
    assert first == second


def test_what_is_settled_gets_no_schedule(rows: CampaignRows) -> None:
    """A recipient who was cancelled, or is being sent to, is counted and left alone."""
    gone = task("gone@example.com")
    rows.enrol([gone])
    rows.cancel([gone])
    lines = [line("gone@example.com"), line("new@example.com")]
    result = enrol_batch(request(), ENQUEUED, lines, rows, QUEUE, NOW_SECONDS)
    assert (result.enrolled, result.settled) == (2, 1)
    assert [schedule.name for schedule in result.schedules] == [lines[1].task]


def test_a_resume_raises_what_is_pending_and_plans_it_anew(rows: CampaignRows) -> None:
    """Generation 2: a new group, a new token, the new slot."""
    enrol_batch(request(), ENQUEUED, [line()], rows, QUEUE, NOW_SECONDS)
    resumed = campaign(state=CampaignState.ENQUEUED, generation=2)
    later = line(slot=TOMORROW + 3600, revision=1)
    result = enrol_batch(request(2), resumed, [later], rows, QUEUE, NOW_SECONDS)
    (schedule,) = result.schedules
    assert schedule.group == "campaign-advent-g2"
    assert schedule.at == "2026-11-30T09:00:00"
    assert schedule.client_token == keys.client_token("advent", 2, later.task, 1)
    assert json.loads(json.loads(schedule.input)["MessageBody"])["revision"] == 1


def test_a_slot_that_is_past_goes_to_the_next_minutes(rows: CampaignRows) -> None:
    """Nobody promises what a past `at()` does (AWS_CONTRACTS 1), so Scheduler is never asked for one."""
    past = line(slot=NOW_SECONDS - 600)
    (schedule,) = enrol_batch(request(), ENQUEUED, [past], rows, QUEUE, NOW_SECONDS + 5).schedules
    assert schedule.at == "2026-11-29T08:02:00"
    call = json.loads(schedule.input)
    assert call["DelaySeconds"] == (CREATION_LEAD + 5) % 60
    assert json.loads(call["MessageBody"])["slot"] == past.slot


@pytest.mark.parametrize(
    "there",
    [campaign(state=state, generation=1) for state in CampaignState if state is not CampaignState.ENQUEUED]
    + [campaign(state="enqueued", generation=2)],
    ids=lambda c: f"{c.state}-g{c.generation}",
)
def test_a_child_that_outlives_its_launch_writes_nothing(rows: CampaignRows, there: Any) -> None:
    """Any other state or generation: CampaignStateConflict, and no row."""
    with pytest.raises(CampaignStateConflict):
        enrol_batch(request(), there, [line()], rows, QUEUE, NOW_SECONDS)
    assert sum(rows.counts("advent").values()) == 0


def test_a_row_of_a_newer_generation_says_that_this_one_is_over(rows: CampaignRows) -> None:
    """The campaign was resumed between our look at it and our look at the row."""
    rows.enrol([task("ana@example.com", generation=2)])
    with pytest.raises(CampaignStateConflict, match="resumed"):
        enrol_batch(request(), ENQUEUED, [line()], rows, QUEUE, NOW_SECONDS)


@pytest.mark.parametrize("state", [CampaignState.CANCELLING, CampaignState.CANCELLED])
def test_whom_a_cancelled_launch_did_not_reach_gets_a_cancelled_row(rows: CampaignRows, state: CampaignState) -> None:
    """And no schedule; a row that is there stays as it is, whatever it says. Twice is the same as once."""
    sent = task("ana@example.com", status=TaskStatus.FINISHED)
    rows.enrol([sent])
    lines = [line("ana@example.com"), line("ben@example.com")]
    closing = request(generation=2, count=2).model_copy(update={"cancelled": True})
    for _ in range(2):
        result = enrol_batch(closing, campaign(state=state, generation=2), lines, rows, QUEUE, NOW_SECONDS)
        assert result == EnrolBatchResult(schedules=[], enrolled=2, settled=2)
    there = {row.address: row for n in range(keys.SHARDS) for row in rows.page("advent", n)[0]}
    assert there["ana@example.com"] == sent
    assert (there["ben@example.com"].status, there["ben@example.com"].batch) == (TaskStatus.CANCELLED, "g1-aaaa/4")


@pytest.mark.parametrize("state", sorted(set(CampaignState) - {CampaignState.CANCELLING, CampaignState.CANCELLED}))
def test_nobody_is_enrolled_as_cancelled_in_a_campaign_that_is_not(rows: CampaignRows, state: CampaignState) -> None:
    """An invocation gone astray writes no row."""
    closing = request().model_copy(update={"cancelled": True})
    with pytest.raises(CampaignStateConflict):
        enrol_batch(closing, campaign(state=state, generation=1), [line()], rows, QUEUE, NOW_SECONDS)
    assert rows.counts("advent").total() == 0


def test_what_waits_for_the_step_before_has_a_row_and_no_schedule(rows: CampaignRows) -> None:
    """Counted as settled, so that ConfirmFanOut misses nothing; twice is the same as once."""
    waiting = line(task=keys.task_id(1, "ana@example.com"), step=1, waits=True)
    for _ in range(2):
        result = enrol_batch(request(count=2), ENQUEUED, [line(), waiting], rows, QUEUE, NOW_SECONDS)
        assert [schedule.name for schedule in result.schedules] == [line().task]
        assert (result.enrolled, result.settled) == (2, 1)
    (row,) = [row for row in rows.page("advent", keys.shard(waiting.task))[0] if row.step == 1]
    assert (row.status, row.waits, row.slot) == (TaskStatus.PENDING, True, waiting.slot)


@pytest.mark.parametrize("waits", [True, False])
def test_a_resume_says_anew_who_waits(rows: CampaignRows, waits: bool) -> None:
    """A step that was released before the pause is planned at once; one whose step before is to go waits again."""
    follower = {"task": keys.task_id(1, "ana@example.com"), "step": 1}
    enrol_batch(request(), ENQUEUED, [line(waits=not waits, **follower)], rows, QUEUE, NOW_SECONDS)
    resumed = campaign(state=CampaignState.ENQUEUED, generation=2)
    result = enrol_batch(request(2), resumed, [line(waits=waits, **follower)], rows, QUEUE, NOW_SECONDS)
    assert len(result.schedules) == (0 if waits else 1)
    assert [row.waits for row in rows.page("advent", keys.shard(follower["task"]))[0]] == [waits]
