"""Reconciling: what was lost is planned again, what is done is completed, and a second pass finds nothing to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.delivery.standing import outside_window
from carillon.errors import CampaignNotFound, ReconcileUnfinished
from carillon.lifecycle.reconciling import (
    AT_ONCE,
    GRACE,
    GRACE_BEHIND_A_QUEUE,
    LOOK_EVERY,
    Reconcile,
    Reconciled,
    Reconciler,
)
from carillon.shapes import BatchLine, CampaignPace, QuietHours, Step, Task
from carillon.timing.openings import openings
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState, TaskStatus

from .conftest import NOW, SPEC, campaign, empty_tables, put, task
from .fakes import FakeBatches, FakeIdentity, FakeQueue, FakeScheduler, FakeTemplates

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

LONG_AGO = int(NOW.timestamp()) - 24 * 3600


class World:
    """A dispatching campaign of generation 1 with its rows, batches, schedules and queue."""

    def __init__(self, client: DynamoDBClient, *rows: Task, **changes: Any) -> None:
        self.client = client
        self.campaigns = CampaignStore("Campaigns", client)
        self.rows = CampaignRows("Tasks", client)
        self.scheduler = FakeScheduler({"campaign-advent-g1": {}})
        self.queue = FakeQueue()
        self.identity = FakeIdentity()
        self.batches = FakeBatches()
        self.templates = FakeTemplates()
        fields = {"state": "dispatching", "generation": 1, "enrolled": len(rows)}
        self.campaigns.create(campaign(**fields | changes))
        for row in rows:
            put(client, row)
            self.plan(row)

    def plan(self, row: Task, **changes: Any) -> None:
        line = BatchLine(
            task=row.task,
            step=row.step,
            address=row.address,
            timezone=None,
            slot=row.slot,
            revision=row.revision,
            input={"of": row.generation},
        )
        key = row.batch
        self.batches.files[key] = [*self.batches.files.get(key, ()), line]

    def run(self, now: datetime = NOW, campaign_id: str | None = "advent") -> list[Reconciled]:
        reconciler = Reconciler(
            self.campaigns,
            self.rows,
            self.batches,
            self.scheduler,
            self.queue,
            self.identity,
            "Europe/Berlin",
            self.templates,
        )
        return reconciler.run(Reconcile(campaign_id=campaign_id), now)

    def row(self, wanted: Task) -> Task:
        for page in self.rows.shard("advent", keys.shard(wanted.task)):
            for row in page:
                if row.task == wanted.task:
                    return row
        raise AssertionError("the row is gone")


@pytest.fixture
def client() -> DynamoDBClient:
    return empty_tables()


def test_a_vanished_schedule_is_made_again_with_a_fresh_token(client: DynamoDBClient) -> None:
    """The old token would be answered from Scheduler's memory, with no schedule behind it."""
    lost = task("ana@example.com", slot=LONG_AGO, revision=2)
    world = World(client, lost)
    world.scheduler.remembered.add(lost.client_token)
    (done,) = world.run()
    assert (done.pending, done.rescheduled, done.completed) == (1, 1, False)
    schedule = world.scheduler.groups["campaign-advent-g1"][lost.task]
    assert schedule.client_token != lost.client_token
    assert world.row(lost).client_token == schedule.client_token
    assert schedule.at == "2026-11-29T08:02:00"
    new = int(NOW.timestamp()) + 120
    assert world.row(lost).slot == new
    body = json.loads(json.loads(schedule.input)["MessageBody"])
    assert (body["slot"], body["revision"], body["data"]) == (new, 2, {"of": 1})


def test_what_is_there_already_has_not_vanished(client: DynamoDBClient) -> None:
    """A schedule of that name still waits (or was made by the pass before): nothing is added."""
    lost = task("ana@example.com", slot=LONG_AGO)
    world = World(client, lost)
    world.run()
    before = dict(world.scheduler.groups["campaign-advent-g1"])
    (done,) = world.run(NOW + timedelta(minutes=1))
    assert done.rescheduled == 0
    assert world.scheduler.groups["campaign-advent-g1"] == before


@pytest.mark.parametrize(
    ("age", "messages", "rescheduled"),
    [
        (GRACE - 1, 0, 0),
        (GRACE + 1, 0, 1),
        (GRACE + 1, 1, 0),
        (GRACE_BEHIND_A_QUEUE - 1, 1, 0),
        (GRACE_BEHIND_A_QUEUE + 1, 1, 1),
    ],
)
def test_overdue_is_what_no_waiting_message_explains(
    client: DynamoDBClient, age: int, messages: int, rescheduled: int
) -> None:
    """With an empty queue a quarter of an hour; behind a queue, messages may wait for the pace for hours."""
    world = World(client, task("ana@example.com", slot=int(NOW.timestamp()) - age))
    world.queue.messages = messages
    assert world.run()[0].rescheduled == rescheduled


def test_a_group_that_is_gone_is_made_again(client: DynamoDBClient) -> None:
    """Somebody deleted it by hand."""
    lost = task("ana@example.com", slot=LONG_AGO)
    world = World(client, lost)
    world.scheduler.groups.clear()
    assert world.run()[0].rescheduled == 1
    assert lost.task in world.scheduler.groups["campaign-advent-g1"]


def test_a_row_left_behind_by_a_resume_is_taken_along(client: DynamoDBClient) -> None:
    """It was Running while the rest was planned again, then came back: its generation's messages are dropped now.

    Its data are in the old generation's batch, which is found again when that schedule is lost as well.
    """
    left = task("ana@example.com", slot=LONG_AGO, batch="g1-aaaa/3")
    world = World(client, left, generation=2)
    other = task("bo@example.com", generation=2, slot=LONG_AGO, batch="g1-aaaa/3")
    world.plan(other)
    for minute in (0, 30):
        world.run(NOW + timedelta(minutes=minute))
        schedule = world.scheduler.groups["campaign-advent-g2"][left.task]
        body = json.loads(json.loads(schedule.input)["MessageBody"])
        assert (body["generation"], body["data"]) == (2, {"of": 1})
        assert world.row(left).generation == 2
        world.scheduler.vanish()


def test_many_overdue_are_spread_and_bounded(client: DynamoDBClient) -> None:
    """A second apart, and no more than one pass can have sent before the next."""
    lost = [task(f"r{n}@example.com", slot=LONG_AGO) for n in range(150)]
    world = World(client, *lost)
    assert world.run()[0].rescheduled == 150
    seconds = sorted(
        datetime.fromisoformat(f"{s.at}+00:00").timestamp() + json.loads(s.input)["DelaySeconds"]
        for s in world.scheduler.groups["campaign-advent-g1"].values()
    )
    assert seconds == [NOW.timestamp() + 120 + n for n in range(150)]
    assert AT_ONCE <= 30 * 60


OFFICE_HOURS = CampaignPace.model_validate(
    {"per_day": 4, "timezone": "Europe/Berlin", "windows": [{"start": "09:00", "end": "12:00"}]}
)


def test_what_missed_its_window_is_planned_for_the_next_one(client: DynamoDBClient) -> None:
    """The sender drops what comes outside the window of its slot: with the old slot it would do so for ever."""
    friday = int(datetime(2026, 11, 27, 10, 0, tzinfo=UTC).timestamp())
    lost = [task(f"r{n}@example.com", slot=friday) for n in range(5)]
    world = World(client, *lost, spec=SPEC.model_copy(update={"pace": OFFICE_HOURS}))
    assert world.run()[0].rescheduled == 5  # on a Sunday
    schedules = world.scheduler.groups["campaign-advent-g1"]
    due = sorted((f"{s.at}Z", json.loads(json.loads(s.input)["MessageBody"])["slot"]) for s in schedules.values())
    assert [at for at, _ in due] == [
        "2026-11-30T08:00:00Z",
        "2026-11-30T08:45:00Z",
        "2026-11-30T09:30:00Z",
        "2026-11-30T10:15:00Z",
        "2026-12-01T08:00:00Z",
    ]
    for at, slot in due:
        assert not outside_window(OFFICE_HOURS, slot, datetime.fromisoformat(at))
    assert sorted(world.row(row).slot for row in lost) == [slot for _, slot in due]
    assert world.run(NOW + timedelta(minutes=30))[0].rescheduled == 0


@given(
    st.dates(date(2026, 1, 1), date(2027, 12, 31)),
    st.integers(0, 86_399),
    st.lists(st.lists(st.integers(0, 24 * 60), min_size=2, max_size=2, unique=True), min_size=1, max_size=3),
    st.sets(st.integers(1, 7), min_size=1),
    st.integers(1, 100_000),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York"]),
)
def test_openings_are_in_order_and_the_sender_holds_them_to_no_other_window(
    day: date, second: int, windows: list[list[int]], weekdays: set[int], per_day: int, zone: str
) -> None:
    """Law: none before the start, each later than the one before, and each may be sent at its own instant."""
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) + second
    pace = CampaignPace.model_validate(
        {
            "per_day": per_day,
            "timezone": zone,
            "weekdays": sorted(weekdays),
            "windows": [dict(zip(("start", "end"), map(_wall, sorted(pair)), strict=True)) for pair in windows],
        }
    )
    found = list(islice(openings(pace, start), 50))
    assert found[0] >= start
    assert all(a < b for a, b in pairwise(found))
    assert not any(outside_window(pace, slot, datetime.fromtimestamp(slot, UTC)) for slot in found)


def _wall(minute: int) -> str:
    return f"{minute // 60 % 24:02d}:{minute % 60:02d}"


def test_a_day_that_carries_its_own_gets_only_what_is_missing(client: DynamoDBClient) -> None:
    """Four a day: Monday has three planned and one sent, Tuesday two; the lost two go on Tuesday."""
    monday = int(datetime(2026, 11, 30, 8, 0, tzinfo=UTC).timestamp())
    rows = [task(f"m{n}@example.com", slot=monday + n) for n in range(3)]
    rows.append(task("sent@example.com", slot=monday + 9, status=TaskStatus.FINISHED))
    rows += [task(f"t{n}@example.com", slot=monday + 86_400 + n) for n in range(2)]
    lost = [task(f"lost{n}@example.com", slot=LONG_AGO) for n in range(2)]
    world = World(client, *rows, *lost, spec=SPEC.model_copy(update={"pace": OFFICE_HOURS}))
    world.run()
    days = {datetime.fromtimestamp(world.row(row).slot, UTC).date() for row in lost}
    assert days == {date(2026, 12, 1)}


def test_over_the_identitys_cap_tasks_wait_for_the_next_day_and_are_left_there(client: DynamoDBClient) -> None:
    """Three more may go today, the cap's day being Berlin's: two wait for its midnight, and no pass moves them."""
    lost = [task(f"r{n}@example.com", slot=LONG_AGO) for n in range(5)]
    world = World(client, *lost)
    world.identity.pace = Pace(daily_cap=10, hours={"2026112907": 7})
    assert world.run()[0].rescheduled == 5
    midnight = datetime(2026, 11, 29, 23, 0, tzinfo=UTC).timestamp()
    slots = sorted(world.row(row).slot for row in lost)
    start = int(NOW.timestamp()) + 120
    assert slots == [start, start + 1, start + 2, midnight, midnight + 1]
    # The three were turned away, for others were faster.
    world.scheduler.vanish()
    world.identity.pace = Pace(daily_cap=10, hours={"2026112907": 7, "2026112908": 3})
    assert world.run(NOW + timedelta(minutes=30))[0].rescheduled == 3
    tomorrow = sorted(world.row(row).slot for row in lost)
    assert tomorrow[0] == midnight
    for hours in (1, 5, 10):
        assert world.run(NOW + timedelta(hours=hours))[0].rescheduled == 0


def test_where_ses_last_24_hours_are_used_up_the_first_hour_with_room_is_taken(client: DynamoDBClient) -> None:
    """Not the next midnight: what was sent yesterday at noon is forgotten at one."""
    lost = task("ana@example.com", slot=LONG_AGO)
    world = World(client, lost)
    world.identity.pace = Pace(daily_cap=1000, max_24_hour_send=50, hours={"2026112812": 50})
    world.run()
    assert world.row(lost).slot == datetime(2026, 11, 29, 13, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("pace", [Pace(paused=True), Pace(daily_cap=0)], ids=str)
def test_an_identity_that_sends_nothing_gets_nothing_planned(client: DynamoDBClient, pace: Pace) -> None:
    """Paused, or capped at nothing: the tasks stay as they are until somebody changes that."""
    lost = task("ana@example.com", slot=LONG_AGO)
    world = World(client, lost)
    world.identity.pace = pace
    assert world.run()[0].rescheduled == 0
    assert world.row(lost) == lost
    world.identity.pace = Pace()
    assert world.run()[0].rescheduled == 1


def test_the_campaigns_of_a_pass_share_the_room(client: DynamoDBClient) -> None:
    """One may still go today: one of the two campaigns' tasks has a slot today."""
    rows = [task("ana@example.com", slot=LONG_AGO), task("bo@example.com", slot=LONG_AGO, campaign_id="winter")]
    world = World(client, rows[0])
    world.campaigns.create(campaign(campaign_id="winter", state="dispatching", generation=1, enrolled=1))
    put(client, rows[1])
    world.plan(rows[1])
    world.identity.pace = Pace(daily_cap=1)
    world.run(campaign_id=None)
    slots = [
        json.loads(json.loads(s.input)["MessageBody"])["slot"]
        for g in world.scheduler.groups.values()
        for s in g.values()
    ]
    assert sorted(slot < NOW.timestamp() + 3600 for slot in slots) == [False, True]


def test_a_recovery_slot_keeps_out_of_quiet_hours(client: DynamoDBClient) -> None:
    """Eight in the morning UTC is three at night in New York: the slot is eight o'clock there."""
    lost = task("ana@example.com", slot=LONG_AGO, timezone="America/New_York")
    quiet = QuietHours.model_validate({"start": "21:00", "end": "08:00"})
    world = World(client, lost, spec=SPEC.model_copy(update={"quiet_hours": quiet}))
    world.run()
    assert world.row(lost).slot == datetime(2026, 11, 29, 13, 0, tzinfo=UTC).timestamp()


# a campaign that somebody else has stopped or resumed


class Meanwhile:
    """The campaigns, with something that happens before a look at one."""

    def __init__(self, world: World, before_look: int, act: Callable[[], object]) -> None:
        self._campaigns, self._before, self._act, self._looks = world.campaigns, before_look, act, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._campaigns, name)

    def get(self, campaign_id: str) -> Any:
        if self._looks == self._before:
            self._act()
        self._looks += 1
        return self._campaigns.get(campaign_id)


def cancel(world: World) -> None:
    """As the machine does: say so, delete the group, acknowledge."""
    dispatching, cancelling = CampaignState.DISPATCHING, CampaignState.CANCELLING
    world.campaigns.transition("advent", dispatching, 1, cancelling, now=NOW)
    world.scheduler.delete_group("campaign-advent-g1")
    world.campaigns.transition("advent", cancelling, 1, CampaignState.CANCELLED, now=NOW)


@pytest.mark.parametrize(
    "act",
    [
        cancel,
        lambda world: world.campaigns.transition(
            "advent", CampaignState.DISPATCHING, 1, CampaignState.ENQUEUED, now=NOW
        ),
        lambda world: world.campaigns.pause("advent", 1, True, now=NOW),
    ],
    ids=["cancelled", "resumed", "paused"],
)
def test_what_was_stopped_while_its_rows_were_read_is_left_alone(
    client: DynamoDBClient, act: Callable[[World], object]
) -> None:
    """No group comes back and no schedule is made after a cancel has deleted them, and no row changes."""
    lost = task("ana@example.com", slot=LONG_AGO)
    world = World(client, lost)
    groups_before = {"campaign-advent-g1": {}} if act is not cancel else {}
    world.campaigns = Meanwhile(world, 1, lambda: act(world))  # type: ignore[assignment]
    assert world.run()[0].rescheduled == 0
    assert world.scheduler.groups == groups_before
    assert world.row(lost) == lost


def test_a_cancel_stops_a_pass_that_has_begun_to_plan(client: DynamoDBClient) -> None:
    """It looks again before every 25 schedules: those made before go with the group."""
    lost = [task(f"r{n}@example.com", slot=LONG_AGO) for n in range(LOOK_EVERY + 5)]
    world = World(client, *lost)
    world.campaigns = Meanwhile(world, 2, lambda: cancel(world))  # type: ignore[assignment]
    assert world.run()[0].rescheduled == LOOK_EVERY
    assert world.scheduler.groups == {}


# sequences


DRIP = SPEC.model_copy(
    update={
        "steps": tuple(
            Step.model_validate({"template": "a.html", "subject": "s", "rule": rule})
            for rule in ({"kind": "asap"}, *[{"kind": "after_previous", "offset": "P3D"}] * 2)
        )
    }
)
ANA = "ana@example.com"


def step(number: int, address: str = ANA, **changes: Any) -> Task:
    """A task of the drip; all but the first wait, and were planned for long ago."""
    name = keys.task_id(number, address)
    token = keys.client_token("advent", 1, name, 0)
    fields = {"task": name, "step": number, "waits": number > 1, "slot": LONG_AGO, "client_token": token}
    return task(address, **fields | changes)


def drip(client: DynamoDBClient, *rows: Task) -> World:
    return World(client, *rows, spec=DRIP)


SENT = {"status": TaskStatus.FINISHED, "sent_at": "2026-11-28T07:30:00Z"}


def test_a_step_that_nobody_released_is_released(client: DynamoDBClient) -> None:
    """Three days after the one before went out, with its schedule; the one after it waits on."""
    world = drip(client, step(1, **SENT), step(2), step(3))
    (done,) = world.run()
    assert (done.rescheduled, done.completed) == (1, False)
    there = world.row(step(2))
    assert (there.status, there.waits) == (TaskStatus.PENDING, False)
    assert there.slot == datetime(2026, 12, 1, 7, 30, tzinfo=UTC).timestamp()
    schedule = world.scheduler.groups["campaign-advent-g1"][step(2).task]
    assert json.loads(json.loads(schedule.input)["MessageBody"])["data"] == {"of": 1}
    assert world.row(step(3)) == step(3)
    assert world.run()[0].rescheduled == 0


def test_a_release_that_is_late_goes_as_soon_as_a_schedule_can(client: DynamoDBClient) -> None:
    """Its time has come while nobody was looking."""
    world = drip(client, step(1, status=TaskStatus.FINISHED, sent_at="2026-11-01T07:30:00Z"), step(2))
    world.run()
    assert world.row(step(2)).slot == NOW.timestamp() + 120


@pytest.mark.parametrize(
    "before",
    [
        {"status": TaskStatus.FAILED, "error": {"code": "MessageRejected", "message": "no"}},
        {"status": TaskStatus.FAILED, "error": {"code": "OutcomeUnknown", "message": "no"}},
        {"status": TaskStatus.CANCELLED},
        None,
    ],
    ids=["failed", "outcome unknown", "cancelled", "never enrolled"],
)
def test_what_waits_for_a_step_that_will_not_be_sent_is_cancelled(
    client: DynamoDBClient, before: dict[str, Any] | None
) -> None:
    """All of the chain in one pass, with the reason, and the campaign is complete."""
    rows = [step(2), step(3)] + ([] if before is None else [step(1, **before)])
    world = drip(client, *rows)
    (done,) = world.run()
    assert (done.pending, done.completed) == (0, True)
    for number in (2, 3):
        there = world.row(step(number))
        assert there.status is TaskStatus.CANCELLED
        assert there.error is not None
        assert there.error.code == "PreviousNotSent"


@pytest.mark.parametrize("status", [TaskStatus.PENDING, TaskStatus.RUNNING])
def test_what_waits_for_a_step_that_may_still_be_sent_is_never_overdue(
    client: DynamoDBClient, status: TaskStatus
) -> None:
    """However long ago its forecast was; and it keeps the campaign from completing."""
    world = drip(client, step(1, status=status, slot=int(NOW.timestamp()) + 60), step(2))
    (done,) = world.run()
    assert (done.rescheduled, done.completed) == (0, False)
    assert world.row(step(2)) == step(2)


def test_more_than_ten_steps_are_in_order_too(client: DynamoDBClient) -> None:
    """Step 10 is read before step 9, for keys are text."""
    rules = [{"kind": "asap"}, *[{"kind": "after_previous", "offset": "P1D"}] * 11]
    steps = tuple(Step.model_validate({"template": "a.html", "subject": "s", "rule": rule}) for rule in rules)
    rows = [step(n, **SENT) for n in range(1, 9)] + [step(9, status=TaskStatus.FAILED), step(10), step(11)]
    world = World(client, *rows, spec=SPEC.model_copy(update={"steps": steps}))
    world.run()
    assert {world.row(step(n)).status for n in (10, 11)} == {TaskStatus.CANCELLED}


def test_nobody_is_ended_in_a_campaign_that_was_stopped_meanwhile(client: DynamoDBClient) -> None:
    """A resume plans these rows itself."""
    world = drip(client, step(1, status=TaskStatus.FAILED), step(2))
    world.campaigns = Meanwhile(world, 1, lambda: cancel(world))  # type: ignore[assignment]
    world.run()
    assert world.row(step(2)) == step(2)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(TaskStatus), st.sampled_from(TaskStatus), st.booleans(), st.booleans()), max_size=6
    )
)
def test_reconciling_a_sequence_twice_is_reconciling_once(
    people: list[tuple[TaskStatus, TaskStatus, bool, bool]],
) -> None:
    """Law: a second pass changes no row; only what waits is cancelled, and only what waits is released."""
    rows = []
    for n, (first, second, waits, late) in enumerate(people):
        slot = LONG_AGO if late else int(NOW.timestamp()) + 60
        rows.append(step(1, f"r{n}@example.com", status=first, slot=slot))
        rows.append(step(2, f"r{n}@example.com", status=second, slot=slot, waits=waits))
    world = World(empty_tables(), *rows, spec=DRIP, enrolled=len(rows) + 1)
    world.run()
    once = [world.row(row) for row in rows]
    for before, after in zip(rows, once, strict=True):
        changed = before.status is not after.status
        assert not changed or (before.waits and after.status is TaskStatus.CANCELLED)
        assert not (before.status is not TaskStatus.PENDING and before.waits != after.waits)
    world.run()
    assert [world.row(row) for row in rows] == once


def test_one_broken_campaign_keeps_no_other_from_being_reconciled(client: DynamoDBClient) -> None:
    """The pass ends with an error that names it, after all others have had their turn."""
    world = World(client, task("ana@example.com", slot=LONG_AGO))
    for name in ("a-first", "z-last"):
        world.campaigns.create(campaign(campaign_id=name, state="dispatching", generation=1, enrolled=1))
        put(client, task("bo@example.com", slot=LONG_AGO, campaign_id=name))
    with pytest.raises(ReconcileUnfinished, match="2 of 3 campaigns broke") as broken:
        world.run(campaign_id=None)
    assert {name: name in str(broken.value) for name in ("a-first", "z-last", "advent")} == {
        "a-first": True,
        "z-last": True,
        "advent": False,
    }
    assert world.scheduler.groups["campaign-advent-g1"]


def test_a_task_in_no_batch_is_said_and_not_passed_over(client: DynamoDBClient) -> None:
    """Its data are nowhere: somebody has to know. The others are planned again all the same."""
    lost, whole = task("ana@example.com", slot=LONG_AGO, batch="g1-aaaa/1"), task("bo@example.com", slot=LONG_AGO)
    world = World(client, lost, whole)
    del world.batches.files["g1-aaaa/1"]
    with pytest.raises(LookupError, match=lost.task):
        world.run()
    assert set(world.scheduler.groups["campaign-advent-g1"]) == {whole.task}


def test_running_is_left_as_it_is(client: DynamoDBClient) -> None:
    """Only evidence settles it, however old it is; and it keeps the campaign from completing."""
    stuck = task("ana@example.com", slot=LONG_AGO, status=TaskStatus.RUNNING)
    world = World(client, stuck)
    (done,) = world.run()
    assert (done.running, done.rescheduled, done.completed) == (1, 0, False)
    assert world.row(stuck) == stuck
    assert world.campaigns.get("advent").state is CampaignState.DISPATCHING


def test_a_campaign_whose_tasks_are_all_over_is_completed(client: DynamoDBClient) -> None:
    """Its counters become the rows' truth and its group goes."""
    ended = [
        task(f"{status}{n}@example.com", status=status)
        for status, times in ((TaskStatus.FINISHED, 3), (TaskStatus.FAILED, 2), (TaskStatus.CANCELLED, 1))
        for n in range(times)
    ]
    world = World(client, *ended, finished=1)
    (done,) = world.run()
    assert done == Reconciled(
        campaign_id="advent", pending=0, running=0, finished=3, failed=2, cancelled=1, completed=True
    )
    there = world.campaigns.get("advent")
    assert (there.state, there.finished, there.failed, there.cancelled) == (CampaignState.COMPLETED, 3, 2, 1)
    assert world.scheduler.groups == {}
    assert world.run() == []


@pytest.mark.parametrize("enrolled", [0, 1, 3])
def test_rows_that_are_not_what_was_enrolled_prove_nothing(client: DynamoDBClient, enrolled: int) -> None:
    """Enrolled is the manifest's number: two rows of three is no end, and neither is a row too many."""
    ended = [task(f"r{n}@example.com", status=TaskStatus.FINISHED) for n in range(2)]
    world = World(client, *ended, enrolled=enrolled)
    assert not world.run()[0].completed
    assert world.campaigns.get("advent").state is CampaignState.DISPATCHING


@pytest.mark.parametrize(
    "changes",
    [{"paused": True}, *({"state": s} for s in CampaignState if s is not CampaignState.DISPATCHING)],
    ids=str,
)
def test_paused_and_other_campaigns_are_left_alone(client: DynamoDBClient, changes: dict[str, Any]) -> None:
    """Asked for by name or not."""
    world = World(client, task("ana@example.com", slot=LONG_AGO), **changes)
    assert world.run() == world.run(campaign_id=None) == []
    assert world.scheduler.groups == {"campaign-advent-g1": {}}


def test_the_rule_walks_every_dispatching_campaign(client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page of the index."""
    world = World(client)
    for n in range(5):
        world.campaigns.create(campaign(campaign_id=f"c-{n}", state="dispatching", generation=1))
    by_state = world.campaigns.by_state
    monkeypatch.setattr(
        world.campaigns, "by_state", lambda state, *, cursor=None: by_state(state, limit=2, cursor=cursor)
    )
    found = world.run(campaign_id=None)
    assert {done.campaign_id for done in found} == {"advent", *(f"c-{n}" for n in range(5))}


def test_an_unknown_campaign_is_named(client: DynamoDBClient) -> None:
    """Asked for on demand."""
    with pytest.raises(CampaignNotFound, match="nobody"):
        World(client).run(campaign_id="nobody")


def test_someone_elses_decision_stands(client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while the rows were counted: not completed, and no error."""
    world = World(client, task("ana@example.com", status=TaskStatus.FINISHED))
    seen = world.campaigns.get("advent")
    world.campaigns.transition("advent", CampaignState.DISPATCHING, 1, CampaignState.CANCELLING, now=NOW)
    monkeypatch.setattr(world.campaigns, "get", lambda _: seen)
    assert not world.run()[0].completed
    monkeypatch.undo()
    assert world.campaigns.get("advent").state is CampaignState.CANCELLING


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(TaskStatus), st.booleans()), max_size=12),
    st.integers(0, 2),
    st.sampled_from([0, 5]),
)
def test_reconciling_twice_is_reconciling_once(
    people: list[tuple[TaskStatus, bool]], surplus: int, messages: int
) -> None:
    """Law: a second pass in the same minute changes no row, schedule or state; statuses never change at all."""
    tasks = [
        task(f"r{n}@example.com", status=status, slot=LONG_AGO if late else int(NOW.timestamp()) + 60)
        for n, (status, late) in enumerate(people)
    ]
    world = World(empty_tables(), *tasks, enrolled=len(tasks) + surplus)
    world.queue.messages = messages
    world.run()
    statuses = {row.task: row.status for row in map(world.row, tasks)}
    assert statuses == {row.task: row.status for row in tasks}
    schedules = {name: dict(group) for name, group in world.scheduler.groups.items()}
    state = world.campaigns.get("advent").state
    assert (state is CampaignState.COMPLETED) == (
        surplus == 0 and not {TaskStatus.PENDING, TaskStatus.RUNNING} & {status for status, _ in people}
    )
    world.run()
    assert {name: dict(group) for name, group in world.scheduler.groups.items()} == schedules
    assert world.campaigns.get("advent").state is state
    assert {row.task: row.status for row in map(world.row, tasks)} == statuses
