"""Steps that come after the one before: released by its outcome or ended by it, in the same transaction."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.addresses import canonical
from carillon.content.emails import MaybeSent, Rejected
from carillon.delivery import sequences
from carillon.shapes import AfterPrevious, Campaign, Message, Offset, Task
from carillon.timing import rules
from carillon.timing.clocks import Clocks
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState, TaskStatus
from tests.unit.sending.examples import NOW, SPEC, address, campaign, record
from tests.unit.sending.fakes import World

STEP = {"template": "advent.html", "subject": "Hello {{ first_name }}"}
AFTER = {"kind": "after_previous", "offset": "P3D"}


def drip(*rules: dict[str, Any], **changes: Any) -> Campaign:
    """A campaign whose first step is due now, and whose others have ``rules``."""
    steps = [{**STEP, "rule": rule} for rule in ({"kind": "asap"}, *rules)]
    spec = changes.pop("spec", {})
    return campaign({"steps": steps} | spec, **changes)


def row(step: int, n: int = 0, **changes: Any) -> Task:
    """Person ``n``'s Pending task of ``step``; all but the first wait."""
    fields: dict[str, Any] = {
        "campaign_id": "advent",
        "task": keys.task_id(step, canonical(address(n))),
        "step": step,
        "address": address(n),
        "timezone": "America/New_York",
        "slot": int(NOW.timestamp()) + (step - 1) * 86_400,
        "status": TaskStatus.PENDING,
        "generation": 1,
        "revision": 0,
        "batch": f"g1-aaaa/{step}",
        "waits": step > 1,
        "client_token": f"token-of-{step}",
        "expires_at": 1_900_000_000,
    }
    return Task.model_validate(fields | changes)


def message(step: int = 1, n: int = 0, **changes: Any) -> Message:
    """The message of that task's schedule."""
    fields = {"campaign": "advent", "generation": 1, "revision": 0, "task": row(step, n).task, "step": step}
    fields |= {"to": address(n), "slot": int(NOW.timestamp()), "data": {"first_name": "Ana", "city": "Köln"}}
    return Message.model_validate(fields | changes)


def sequence(*rules: dict[str, Any], steps: int = 3, **changes: Any) -> World:
    """One person in a drip of ``steps``."""
    rules = rules or (AFTER,) * (steps - 1)
    return World([drip(*rules, **changes)], [row(step) for step in range(1, len(rules) + 2)])


def of(w: World, step: int) -> Task:
    return w.rows["advent", row(step).task]


def test_a_step_that_is_sent_releases_the_next_one():
    """Three days later by the recipient's own clock, with a schedule under its stored token, and not the one after."""
    w = sequence()
    assert w.send(record(message())) == []
    assert of(w, 1).status is TaskStatus.FINISHED
    following = of(w, 2)
    assert (following.status, following.waits) == (TaskStatus.PENDING, False)
    assert following.slot == int(datetime.fromisoformat(of(w, 1).sent_at or "").timestamp()) + 3 * 86_400
    assert of(w, 3) == row(3)
    (schedule,) = w.scheduled
    assert (schedule.name, schedule.group, schedule.client_token) == (row(2).task, "campaign-advent-g1", "token-of-2")
    body = Message.model_validate_json(json.loads(schedule.input)["MessageBody"])
    assert body == message(2, slot=following.slot)


def test_the_released_step_is_sent_by_its_own_message_and_releases_the_last():
    """The whole chain: three e-mails, nobody waits any more."""
    w = sequence()
    w.send(record(message()))
    for _ in range(2):
        body = json.loads(w.scheduled[-1].input)["MessageBody"]
        w.pass_time(3 * 86_400)
        assert w.send(record(body)) == []
    assert [of(w, step).status for step in range(1, 4)] == [TaskStatus.FINISHED] * 3
    assert len(w.scheduled) == 2
    assert w.accepted_by_task() == {row(step).task: 1 for step in range(1, 4)}


def test_outcome_and_release_are_one_write_and_the_schedule_comes_after():
    """Three writes for the e-mail: claim, transaction, share of the pace; one read for both rows."""
    w = sequence()
    w.send(record(message()))
    assert w.calls["read rows"] == w.calls["Running to Finished together"] == w.calls["create schedule"] == 1
    assert w.calls["Running to Finished"] == 0


def test_a_step_with_a_rule_of_its_own_waits_for_nobody():
    """Only what says after_previous comes after; an ordinary outcome stays an ordinary write."""
    w = sequence({"kind": "asap"}, AFTER)
    w.send(record(message()))
    assert w.calls["Running to Finished"] == 1
    assert w.scheduled == []
    assert of(w, 3) == row(3)


def test_a_message_for_a_step_that_still_waits_is_dropped():
    """Whoever sent it: nothing goes out of turn."""
    w = sequence()
    assert w.send(record(message(2))) == []
    assert w.asked == []
    assert of(w, 2) == row(2)


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        ({"answers": [Rejected("MessageRejected", "no")]}, "MessageRejected"),
        ({"data": {}}, "TemplateError"),
        ({"suppressed": "offers"}, "Suppressed"),
        ({"suppressed": "campaign.advent"}, "Suppressed"),
    ],
    ids=str,
)
def test_a_step_that_fails_ends_the_sequence(trouble, error):
    """What waits after it is Cancelled with the reason, all in the transaction of the outcome."""
    w = sequence()
    w.answers.extend(trouble.get("answers", []))
    if "suppressed" in trouble:
        w.suppressed = {(keys.address_hash(canonical(address(0))), trouble["suppressed"])}
    w.send(record(message(data=trouble.get("data", {"first_name": "Ana"}))))
    assert of(w, 1).error.code == error
    for step in (2, 3):
        assert of(w, step).status is TaskStatus.CANCELLED
        assert of(w, step).error.code == "PreviousNotSent"
    assert w.scheduled == []
    assert w.counts["advent"] == {"failed": 1, "cancelled": 2}


def test_who_is_on_the_exit_list_leaves_with_words_of_its_own():
    """The suppression's topic is the campaign itself; another campaign's does not count, nor does it without a
    sequence."""
    hashed = keys.address_hash(canonical(address(0)))
    w = sequence()
    w.suppressed = {(hashed, "campaign.advent")}
    w.send(record(message()))
    assert "left" in of(w, 1).error.message
    for other in (sequence(), World([campaign()], [row(1)])):
        other.suppressed = {(hashed, "campaign.winter" if len(other.rows) > 1 else "campaign.advent")}
        other.send(record(message()))
        assert of(other, 1).status is TaskStatus.FINISHED


@pytest.mark.parametrize(
    "change",
    [{"generation": 2}, {"revision": 1}, {"waits": False}, {"status": TaskStatus.CANCELLED}],
    ids=str,
)
def test_an_outcome_is_never_lost_because_of_the_next_step(change):
    """Resumed, changed, released or cancelled meanwhile: the outcome alone is written, the other row left as it is."""
    w = sequence()
    effect = w.call

    def meanwhile(name, run):
        if name == "send email":
            w.rows["advent", row(2).task] = row(2, **change)
        return effect(name, run)

    w.call = meanwhile
    w.send(record(message()))
    assert of(w, 1).status is TaskStatus.FINISHED
    assert of(w, 2) == row(2, **change)
    assert w.scheduled == []


def test_a_next_step_that_was_never_enrolled_is_none():
    """The planner gave it no slot."""
    w = sequence()
    del w.rows["advent", row(2).task]
    w.send(record(message()))
    assert of(w, 1).status is TaskStatus.FINISHED
    assert w.calls["Running to Finished"] == 1


def test_a_transaction_whose_reply_was_lost_is_found_in_the_row():
    """The row says Finished with our own token: then the release was done too, and its schedule is made."""
    w = sequence()
    effect = w.call

    def lost(name, run):
        result = effect(name, run)
        if name.endswith("together"):
            raise ConnectionError
        return result

    w.call = lost
    assert w.send(record(message())) == []
    assert of(w, 2).waits is False
    assert [s.name for s in w.scheduled] == [row(2).task]


def test_a_transaction_that_never_arrived_leaves_the_outcome_alone():
    """The reconciler releases the next step from the rows."""
    w = sequence()
    effect = w.call

    def broken(name, run):
        if name.endswith("together"):
            raise ConnectionError
        return effect(name, run)

    w.call = broken
    assert w.send(record(message())) == []
    assert of(w, 1).status is TaskStatus.FINISHED
    assert of(w, 2) == row(2)
    assert w.scheduled == []


def test_a_schedule_that_cannot_be_made_is_the_reconcilers():
    """The outcome and the release stand."""
    w = sequence()
    effect = w.call

    def broken(name, run):
        if name == "create schedule":
            raise ConnectionError
        return effect(name, run)

    w.call = broken
    assert w.send(record(message())) == []
    assert (of(w, 1).status, of(w, 2).waits) == (TaskStatus.FINISHED, False)


def test_without_time_for_it_the_schedule_is_the_reconcilers():
    """Ended by Lambda, the whole invocation would come again."""
    w = sequence()
    effect = w.call

    def slow(name, run):
        if name == "send email":
            w.pass_time(28)
        return effect(name, run)

    w.call = slow
    w.send(record(message()))
    assert of(w, 2).waits is False
    assert w.calls["create schedule"] == 0


def test_an_unknown_outcome_leaves_the_sequence_where_it_is():
    """Only evidence settles it, and what it means for the next step."""
    w = sequence()
    w.answers.append(MaybeSent("ReadTimeoutError"))
    w.send(record(message()))
    assert of(w, 1).status is TaskStatus.RUNNING
    assert of(w, 2) == row(2)


@pytest.mark.parametrize("changes", [{"paused": True}, {"state": CampaignState.CANCELLING}], ids=str)
def test_a_campaign_that_does_not_send_releases_nobody(changes):
    """The message is acknowledged and the next step waits."""
    w = sequence(**changes)
    w.send(record(message()))
    assert of(w, 2) == row(2)


def test_a_next_step_is_held_to_pace_and_quiet_hours():
    """Three days after Monday 10:00 in Berlin it is Thursday 04:00 in New York: quiet until eight."""
    quiet = {"quiet_hours": {"start": "21:00", "end": "08:00"}}
    w = sequence(AFTER, spec=quiet)
    w.send(record(message()))
    assert datetime.fromtimestamp(of(w, 2).slot, UTC).isoformat() == "2026-12-03T13:00:00+00:00"


def test_days_of_whoever_has_no_zone_are_those_that_the_plan_forecasts():
    """The pace's zone for both, whatever the stack's is: over a clock change the hour is not another one."""
    pace = {"windows": [{"start": "00:00", "end": "00:00"}], "timezone": "Europe/Berlin", "weekdays": [*range(1, 8)]}
    spec = drip({"kind": "after_previous", "offset": "P1D"}, spec={"pace": pace}).spec
    sent = int(datetime(2026, 10, 24, 8, tzinfo=UTC).timestamp())
    clocks = Clocks()
    berlin = np.array([clocks.number("Europe/Berlin")])
    rule = spec.steps[1].rule
    assert isinstance(rule, AfterPrevious)
    (forecast,) = rules.follow(rule, np.array([sent]), berlin, clocks).at.tolist()
    waiting = row(2, timezone=None, slot=0)
    assert sequences.slot_after(spec, waiting, "2026-10-24T08:00:00Z", 0) == forecast == sent + 25 * 3600


def test_a_next_step_goes_no_earlier_than_the_plan_has_room_for_it():
    """`per_day` holds for all steps together: who was forecast for a later day because that one was full keeps it."""
    w = sequence(AFTER)
    fullest = int(NOW.timestamp()) + 5 * 86_400
    w.rows["advent", row(2).task] = row(2, slot=fullest)
    w.send(record(message()))
    assert of(w, 2).slot == fullest
    assert not of(w, 2).waits


def test_a_pace_that_never_opens_keeps_the_next_step_waiting():
    """The outcome is written all the same."""
    pace = {"windows": [{"start": "09:00", "end": "17:00"}], "timezone": "America/New_York"}
    quiet = {"start": "08:00", "end": "18:00"}
    w = sequence(AFTER, spec={"pace": pace, "quiet_hours": quiet})
    w.rows["advent", row(1).task] = row(1, slot=1)
    w.send(record(message(slot=1)))
    assert of(w, 1).status is TaskStatus.FINISHED
    assert of(w, 2) == row(2)


@pytest.mark.parametrize(
    ("sent", "offset", "zone", "then"),
    [
        ("2026-10-24T08:00:00Z", "P1D", "Europe/Berlin", "2026-10-25T09:00:00Z"),
        ("2026-10-24T08:00:00Z", "PT24H", "Europe/Berlin", "2026-10-25T08:00:00Z"),
        ("2026-03-28T01:30:00Z", "P1D", "Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("2026-11-30T09:00:00Z", "P3DT90S", "UTC", "2026-12-03T09:01:30Z"),
    ],
)
def test_days_are_the_wall_clocks_and_seconds_are_seconds(sent, offset, zone, then):
    """Over a clock change a day keeps the wall time; 02:30 that does not exist is the first instant after the gap."""
    moment = sequences.after(datetime.fromisoformat(sent), Offset.model_validate(offset), zone)
    assert moment == int(datetime.fromisoformat(then).timestamp())


@given(
    st.integers(1_735_689_600, 1_830_297_600),
    st.integers(0, 30),
    st.integers(0, 100_000),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns"]),
)
def test_the_next_step_never_comes_before_its_offset(sent, days, seconds, zone):
    """Law: days on the wall clock differ from days of 24 hours by what the clocks were changed, an hour at most."""
    offset = Offset(days=days, seconds=seconds)
    gone = sequences.after(datetime.fromtimestamp(sent, UTC), offset, zone) - sent
    assert abs(gone - days * 86_400 - seconds) <= 3600


def test_a_campaign_of_one_step_is_no_sequence():
    """It asks for no exit list and no second row."""
    assert not sequences.is_sequence(campaign(SPEC).spec)
    assert [*sequences.following(drip(AFTER, {"kind": "asap"}, AFTER).spec, 1)] == [2]


class Killed(BaseException):
    """The process is gone."""


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_whatever_breaks_nobody_gets_a_step_twice_or_out_of_turn(fate):
    """Law, at every call that fails before or after it was done, or kills the sender: each step at most once, none
    before the one before it was accepted, and what is Finished was accepted."""
    w = sequence()
    w.pace = Pace(rate_per_second=1000, daily_cap=100_000)
    chosen = iter(fate)
    effect = w.call

    def troubled(name, run):
        trouble = next(chosen, 0)
        if trouble % 16 == 1:
            raise Killed
        if trouble % 16 == 2 and name != "send email":
            raise ConnectionError
        result = effect(name, run)
        if trouble % 16 == 3:
            raise Killed
        if trouble % 16 == 4:
            raise MaybeSent("ReadTimeoutError") if name == "send email" else ConnectionError
        return result

    w.call = troubled
    bodies = [message().model_dump_json()]
    for _ in range(6):
        with contextlib.suppress(Killed, ConnectionError):
            w.send(*[record(body, f"m{n}") for n, body in enumerate(bodies)])
        bodies = [message().model_dump_json(), *(json.loads(s.input)["MessageBody"] for s in w.scheduled)]
        accepted = w.accepted_by_task()
        assert all(times == 1 for times in accepted.values())
        for step in range(1, 4):
            if of(w, step).status is TaskStatus.FINISHED:
                assert accepted[row(step).task] == 1
            if step > 1 and accepted[row(step).task]:
                assert of(w, step - 1).status is TaskStatus.FINISHED
            if step > 1 and not of(w, step).waits:
                assert of(w, step - 1).status is TaskStatus.FINISHED
