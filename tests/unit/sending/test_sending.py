"""The sender's rules, one by one (DESIGN sections 5, 6 and 13)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from carillon import keys
from carillon.addresses import canonical
from carillon.content.emails import MaybeSent, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent
from carillon.delivery.sending import MOST_RECEIVES
from carillon.delivery.standing import outside_window
from carillon.shapes import CampaignPace, Claim
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState, TaskStatus
from tests.unit.sending.examples import NOW, address, campaign, message, record, task
from tests.unit.sending.fakes import World, taken_now


def world(count: int = 3, spec: dict | None = None, **changes) -> World:
    return World([campaign(spec, **changes)], [task(n) for n in range(count)])


def messages(count: int = 3):
    return [record(message(n)) for n in range(count)]


def statuses(w: World) -> list[str]:
    return [str(w.row(n).status) for n in range(len(w.rows))]


# before the claim


def test_a_message_of_a_campaign_that_is_still_launching_goes_back_to_the_queue():
    """`enqueued`: the fan-out is not confirmed; the message stays, a while, and nothing is claimed."""
    w = world(state=CampaignState.ENQUEUED)
    batch = messages()
    assert w.send(*batch) == [r.message_id for r in batch]
    assert w.accepted == []
    assert statuses(w) == ["Pending"] * 3
    assert all(10 <= seconds <= 13 for seconds in w.delayed.values())


@pytest.mark.parametrize(
    "changes",
    [{"paused": True}]
    + [{"state": state} for state in CampaignState if state not in (CampaignState.ENQUEUED, CampaignState.DISPATCHING)],
    ids=str,
)
def test_a_campaign_that_does_not_send_keeps_its_tasks_and_loses_the_messages(changes):
    """Paused, cancelling, aborted …: acknowledged, Pending, and neither pace nor rows are touched."""
    w = world(**changes)
    assert w.send(*messages()) == []
    assert w.accepted == []
    assert statuses(w) == ["Pending"] * 3
    assert set(w.calls) == {"get campaign"}


def test_the_identitys_pause_and_cap_keep_the_task_pending():
    """The identity paused, or the day's cap reached: acknowledged, and planned again later."""
    for pace in (Pace(paused=True), Pace(daily_cap=0), Pace(max_24_hour_send=0)):
        w = world()
        w.pace = pace
        assert w.send(*messages()) == []
        assert w.accepted == []
        assert statuses(w) == ["Pending"] * 3


def test_the_last_of_the_cap_are_sent_and_the_rest_wait():
    """A cap of two lets two of three go."""
    w = world()
    w.pace = Pace(rate_per_second=1000, daily_cap=2)
    assert w.send(*messages()) == []
    assert len(w.accepted) == 2
    assert statuses(w).count("Pending") == 1


def test_rows_and_suppressions_are_read_once_and_terminal_rows_cost_no_pace():
    """Terminal, Running, another generation, another revision: dropped before pace is reserved."""
    changes = [
        {"status": TaskStatus.FINISHED},
        {"status": TaskStatus.CANCELLED},
        {"status": TaskStatus.RUNNING, "claim": Claim(token="other", at="2026-11-30T08:59:00Z")},
        {"generation": 2},
        {"revision": 1},
    ]
    w = World([campaign()], [task(n, **c) for n, c in enumerate(changes)])
    before = dict(w.rows)
    assert w.send(*messages(5)) == []
    assert w.accepted == []
    assert w.rows == before
    assert w.calls == {"get campaign": 1, "read rows": 1}


@pytest.mark.parametrize("topic", ["offers", "*"])
def test_a_suppressed_address_fails_and_costs_no_pace(topic):
    """The hash of the normalised address, for the campaign's topic or for all."""
    w = world()
    w.suppressed = {(keys.address_hash(canonical(address(1))), topic)}
    assert w.send(*messages()) == []
    assert statuses(w) == ["Finished", "Failed", "Finished"]
    assert w.row(1).error.code == "Suppressed"
    assert taken_now(w) == 2


def test_a_suppression_for_another_topic_does_not_count():
    """Who left one list still gets the other."""
    w = world(1)
    w.suppressed = {(keys.address_hash(canonical(address(0))), "news")}
    w.send(*messages(1))
    assert statuses(w) == ["Finished"]


def test_after_the_deadline_the_task_fails():
    """`not_after` holds at send."""
    w = world(2, {"not_after": NOW - timedelta(seconds=1)})
    assert w.send(*messages(2)) == []
    assert {w.row(n).error.code for n in range(2)} == {"DeadlinePassed"}
    assert w.accepted == []
    assert w.counts["advent"] == {"failed": 2}


def test_the_deadline_holds_after_a_wait_for_pace():
    """Nine seconds of waiting may be nine too many."""
    w = world(1, {"not_after": NOW + timedelta(seconds=5)})
    w.pace = Pace(rate_per_second=1, next_free=(NOW.timestamp() + 9) * 1000)
    w.send(*messages(1))
    assert w.row(0).error.code == "DeadlinePassed"
    assert w.accepted == []
    assert taken_now(w) == 0


PACE = CampaignPace(timezone="Europe/Berlin")
"""Monday to Friday, 9 to 17 o'clock."""


@pytest.mark.parametrize(
    ("slot", "now", "outside"),
    [
        ("2026-11-30T15:59:00", "2026-11-30T16:14:00", False),
        ("2026-11-30T15:59:00", "2026-11-30T16:16:00", True),
        ("2026-11-30T08:00:00", "2026-11-30T07:44:00", True),
        ("2026-11-30T08:00:00", "2026-12-01T10:00:00", True),
        ("2026-11-29T10:00:00", "2026-11-29T23:00:00", False),
    ],
)
def test_a_task_goes_within_15_minutes_of_the_window_that_its_slot_lay_in(slot, now, outside):
    """Times in UTC; the last slot is a Sunday's, in no window: a person chose it."""
    at = datetime.fromisoformat(slot).replace(tzinfo=UTC).timestamp()
    assert outside_window(PACE, int(at), datetime.fromisoformat(now).replace(tzinfo=UTC)) is outside


def test_a_window_may_end_at_midnight():
    """22:00 to 00:00 belongs to the day it begins in, and its quarter of an hour to the next."""
    slot = datetime(2026, 11, 30, 22, 30, tzinfo=UTC)
    pace = CampaignPace.model_validate({"windows": [{"start": "22:00", "end": "00:00"}], "timezone": "UTC"})
    closing = datetime(2026, 12, 1, 0, 0, tzinfo=UTC)
    assert not outside_window(pace, int(slot.timestamp()), closing + timedelta(minutes=14))
    assert outside_window(pace, int(slot.timestamp()), closing + timedelta(minutes=16))


def test_outside_its_window_a_task_stays_pending_for_the_reconciler():
    """Acknowledged: the queue has no place to wait until morning."""
    w = world(1, {"pace": PACE})
    w.pass_time(9 * 3600)
    assert w.send(*messages(1)) == []
    assert statuses(w) == ["Pending"]
    assert w.accepted == []


# pace


def test_emails_are_spaced_by_the_rate():
    """Ten at 5 a second: one each 200 ms."""
    w = world(10)
    w.pace = Pace(rate_per_second=5, daily_cap=100)
    w.send(*messages(10))
    times = [at for at, _ in w.accepted]
    assert {b - a for a, b in itertools.pairwise(times)} == {200_000}
    assert w.calls["reserve pace"] == 1


def test_a_wait_of_ten_seconds_or_more_is_the_queues():
    """Nothing is reserved; the messages come back when the bucket is free."""
    w = world()
    w.pace = Pace(rate_per_second=1, next_free=(NOW.timestamp() + 20) * 1000)
    before = w.pace
    assert len(w.send(*messages())) == 3
    assert all(20 <= seconds <= 25 for seconds in w.delayed.values())
    assert w.pace == before
    assert w.now() == NOW


def test_only_what_fits_into_the_time_left_is_reserved():
    """At one e-mail in 5 s, 30 s hold five; the other five stay in the queue and were never counted."""
    w = world(10)
    w.pace = Pace(rate_per_second=0.2, daily_cap=100)
    kept = w.send(*messages(10))
    assert len(w.accepted) + len(kept) == 10
    assert 4 <= len(w.accepted) <= 5
    assert taken_now(w) == len(w.accepted)
    assert w.now() <= NOW + timedelta(seconds=30)


def test_nothing_is_claimed_without_time_for_ses():
    """Eight seconds are less than SES's timeouts and an outcome need."""
    w = world(1)
    assert len(w.send(*messages(1), limit=timedelta(seconds=8))) == 1
    assert w.calls["Pending to Running"] == 0
    assert statuses(w) == ["Pending"]


def test_a_claim_that_took_too_long_is_given_back():
    """After the claim 8 s are left: too few for SES."""
    w = world(1)
    effect = w.call

    def slow(name, run):
        result = effect(name, run)
        if name == "Pending to Running":
            w.pass_time(22)
        return result

    w.call = slow
    assert len(w.send(*messages(1))) == 1
    assert w.asked == []
    assert statuses(w) == ["Pending"]
    assert w.row(0).claim is None


def test_a_missed_slot_is_lost_and_never_made_up_for():
    """A claim of 450 ms at 10 a second: each e-mail still begins inside a slot of its own, 100 ms apart or more."""
    w = world(5)
    w.pace = Pace(rate_per_second=10, daily_cap=100)
    effect = w.call

    def slow(name, run):
        result = effect(name, run)
        if name == "Pending to Running":
            w.pass_time(0.45)
        return result

    w.call = slow
    assert w.send(*messages(5)) == []
    times = [at for at, _ in w.accepted]
    assert len(times) == 5
    assert min(b - a for a, b in itertools.pairwise(times)) >= 100_000
    assert taken_now(w) == 5


def test_quiet_hours_hold_at_send_too():
    """A quarter of an hour into them the task waits to be planned again; who has no zone has the pace's."""
    quiet = {"quiet_hours": {"start": "21:00", "end": "08:00"}}
    for minutes, expected in ((10, "Finished"), (20, "Pending")):
        w = world(1, quiet)
        w.rows["advent", task(0).task] = task(0, timezone="Asia/Tokyo")  # 18 o'clock
        w.pass_time(3 * 3600 + minutes * 60)
        assert w.send(*messages(1)) == []
        assert statuses(w) == [expected]


def test_a_slot_that_a_person_put_into_quiet_hours_is_kept():
    """Whoever chose it knew."""
    w = world(1, {"quiet_hours": {"start": "09:00", "end": "12:00"}})
    w.send(*messages(1))
    assert statuses(w) == ["Finished"]


# the second look


@pytest.mark.parametrize(
    "change", [{"paused": True}, {"state": CampaignState.CANCELLING}, {"state": CampaignState.ENQUEUED}], ids=str
)
def test_the_campaign_is_read_again_after_a_wait_for_pace(change):
    """Paused or cancelled while the sender waited: nothing is claimed and nothing sent."""
    w = world()
    w.pace = Pace(rate_per_second=1, daily_cap=100, next_free=(NOW.timestamp() + 5) * 1000)
    effect = w.call

    def stopped_meanwhile(name, run):
        if name == "sleep":
            w.campaigns["advent"] = w.campaigns["advent"].model_copy(update=change)
        return effect(name, run)

    w.call = stopped_meanwhile
    w.send(*messages())
    assert w.asked == []
    assert w.calls["Pending to Running"] == 0
    assert statuses(w) == ["Pending"] * 3
    assert taken_now(w) == 0


@pytest.mark.parametrize("change", [{"paused": True}, {"state": CampaignState.CANCELLING}], ids=str)
def test_the_campaign_is_read_again_between_claim_and_ses(change):
    """Paused or cancelled while the claim was written: the task goes back, and SES is not asked."""
    w = world(1)
    effect = w.call

    def stopped_meanwhile(name, run):
        if name == "Pending to Running":
            w.pass_time(1)
            w.campaigns["advent"] = w.campaigns["advent"].model_copy(update=change)
        return effect(name, run)

    w.call = stopped_meanwhile
    w.send(*messages(1))
    assert w.asked == []
    assert statuses(w) == ["Pending"]
    assert taken_now(w) == 0


def test_after_a_look_that_took_too_long_ses_is_not_asked_any_more():
    """At two e-mails a minute the slot is open still, but this invocation may end before SES answers: Pending again."""
    w = world(1)
    w.pace = Pace(rate_per_second=1 / 30, daily_cap=100)
    effect = w.call

    def slowly(name, run):
        if name == "Pending to Running":
            w.pass_time(1)  # the first look is stale by now
        if name == "get campaign" and statuses(w) == ["Running"]:
            w.pass_time(21)
        return effect(name, run)

    w.call = slowly
    w.send(*messages(1))
    assert w.asked == []
    assert statuses(w) == ["Pending"]
    assert taken_now(w) == 0


# claim, SES, outcome


def test_one_invocation_claims_a_task_delivered_twice_once():
    """Two copies of a message in one batch are one e-mail."""
    w = world(1)
    copies = [record(message(0), f"m{n}") for n in range(2)]
    assert w.send(*copies) == []
    assert len(w.accepted) == 1


def test_a_lost_reply_to_the_claim_is_our_own_claim():
    """DynamoDB did it, boto3 asked again and met our own token: the e-mail goes out, once."""
    w = world(1)
    effect = w.call

    def twice(name, run):
        if name == "Pending to Running":
            effect(name, run)
        return effect(name, run)

    w.call = twice
    assert w.send(*messages(1)) == []
    assert len(w.accepted) == 1
    assert statuses(w) == ["Finished"]


def test_a_claim_that_nobody_answered_is_given_back():
    """The write was done and all its replies were lost: provably unsent, so Pending again, and the message stays."""
    w = world(1)
    effect = w.call

    def lost(name, run):
        result = effect(name, run)
        if name == "Pending to Running":
            raise ConnectionError
        return result

    w.call = lost
    assert len(w.send(*messages(1))) == 1
    assert statuses(w) == ["Pending"]
    assert w.asked == []


@pytest.mark.parametrize(
    ("answer", "status", "stays"),
    [
        (Unsent("EndpointConnectionError"), "Pending", True),
        (NotNow("TooManyRequestsException"), "Pending", True),
        (QuotaUsedUp("TooManyRequestsException"), "Pending", False),
        (Rejected("MessageRejected", "no"), "Failed", False),
        (SendingStopped("AccountSuspendedException", "no"), "Pending", False),
        (MaybeSent("ReadTimeoutError"), "Running", False),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, Exception) else str(value),
)
def test_what_ses_says_decides_between_again_never_and_nobody_knows(answer, status, stays):
    """DESIGN section 5, rule 3."""
    w = world(1)
    w.answers.append(answer)
    batch = messages(1)
    assert w.send(*batch) == ([batch[0].message_id] if stays else [])
    assert statuses(w) == [status]
    assert (w.row(0).claim is not None) == (status != "Pending")
    assert (w.row(0).error.code if w.row(0).error else None) == ("MessageRejected" if status == "Failed" else None)


def test_one_bad_address_never_touches_the_other_nine():
    """Rejected, unrenderable, nobody knows: the others are sent in the same invocation."""
    w = world(10)
    w.answers.extend([Rejected("BadRequestException", "no"), MaybeSent("500"), Unsent("ConnectTimeoutError")])
    batch = messages(10)
    batch[5] = record(message(5, data={}))
    kept = w.send(*batch)
    assert statuses(w) == ["Failed", "Running", "Pending", "Finished", "Finished", "Failed"] + ["Finished"] * 4
    assert kept == [batch[2].message_id]
    assert w.row(5).error.code == "TemplateError"
    assert "first_name" in w.row(5).error.message
    assert w.counts["advent"] == {"finished": 6, "failed": 2}


def test_a_rate_error_stops_the_batch_and_keeps_its_messages():
    """SES takes no more: nobody else of this batch is claimed, and nothing of the cap is lost for those."""
    w = world(5)
    w.answers.extend([lambda: None, NotNow("TooManyRequestsException")])
    kept = w.send(*messages(5))
    assert len(kept) == 4
    assert len(w.asked) == 2
    assert all(seconds >= 2 for seconds in w.delayed.values())
    assert taken_now(w) == 2


def test_a_suspended_account_pauses_the_campaign_once_with_the_reason():
    """The first refusal pauses; the others see it and keep their tasks."""
    w = world(5)
    w.answers.extend([SendingStopped("SendingPausedException", "Sending is paused for this account")] * 5)
    assert w.send(*messages(5)) == []
    assert w.campaigns["advent"].paused
    assert w.campaigns["advent"].error.code == "SendingPausedException"
    assert w.calls["pause campaign"] == 1
    assert len(w.asked) == 1
    assert statuses(w) == ["Pending"] * 5


def test_an_outcome_that_cannot_be_written_is_left_to_evidence():
    """SES took it, DynamoDB is gone: Running, acknowledged, never sent again."""
    w = world(2)
    effect = w.call

    def broken(name, run):
        if name == "Running to Finished":
            raise ConnectionError
        return effect(name, run)

    w.call = broken
    assert w.send(*messages(2)) == []
    w.call = effect
    w.send(*messages(2))
    assert statuses(w) == ["Running", "Running"]
    assert len(w.accepted) == 2


def test_an_outcome_writes_subject_message_id_and_time():
    """The row answers: did this customer get it, what and when?"""
    w = world(1)
    w.send(*messages(1))
    row = w.row(0)
    assert (row.subject, row.message_id) == ("Hello Name 0", "ses-1")
    assert row.sent_at.startswith("2026-11-30T09:00:0")
    assert row.claim.token == "token-0"


def test_two_writes_a_task_and_a_share_of_two_more():
    """Ten e-mails: ten claims, ten outcomes, one reservation, one count."""
    w = world(10)
    w.send(*messages(10))
    reads = {
        "get campaign": 1,
        "read rows": 1,
        "get template": 10,
        "sleep": w.calls["sleep"],
    }
    writes = {"reserve pace": 1, "Pending to Running": 10, "Running to Finished": 10, "count": 1}
    assert w.calls == reads | writes | {"send email": 10}


# the queue


def test_a_message_waits_half_as_long_as_it_has_waited_already():
    """So a backlog is not handed out over and over, and never waits longer than a quarter of an hour."""
    for waited, low, high in ((0, 20, 25), (200, 100, 125), (5 * 3600, 900, 900)):
        w = world(1)
        w.pace = Pace(rate_per_second=1, next_free=(NOW.timestamp() + 20) * 1000)
        w.send(record(message(0), "m", first_received=NOW - timedelta(seconds=waited)))
        (seconds,) = w.delayed.values()
        assert low <= seconds <= high


def test_after_too_many_receives_the_reconciler_has_it():
    """Nothing circles in the queue for ever: acknowledged, Pending."""
    w = world(1)
    w.pace = Pace(rate_per_second=1, next_free=(NOW.timestamp() + 20) * 1000)
    assert w.send(record(message(0), receives=MOST_RECEIVES)) == []
    assert statuses(w) == ["Pending"]


def test_a_message_whose_task_is_not_its_recipients_is_buried():
    """The address decides the key: a message that says otherwise was not made by us."""
    w = world(2)
    swapped = record(message(0, to=address(1)))
    assert w.send(swapped) == []
    assert w.buried[swapped.message_id].startswith("MalformedMessage")
    assert w.asked == []


def test_messages_of_two_campaigns_share_a_batch():
    """Each obeys its own record."""
    other = campaign(campaign_id="winter", paused=True)
    w = World([campaign(), other], [task(0), task(0, campaign_id="winter")])
    assert w.send(record(message(0)), record(message(0, campaign="winter"))) == []
    assert w.rows["advent", task(0).task].status is TaskStatus.FINISHED
    assert w.rows["winter", task(0).task].status is TaskStatus.PENDING


# bad input


OTHERS = ["Finished"] * 9


def with_one_other(body, **changes):
    """Ten tasks, whose first one's message is ``body``."""
    w = world(10, **changes)
    w.send(record(body), *messages(10)[1:])
    return w


@pytest.mark.parametrize(
    ("html", "data", "why"),
    [
        (
            "{% for n in first_name %}{% for m in first_name %}{{ m }}{% endfor %}{% endfor %}",
            {"first_name": "x" * 5000},
            "steps",
        ),
        ("{{ first_name }}" * 400, {"first_name": "x" * 200_000}, "bytes"),
        ("{{ first_name | date }}", {"first_name": "no date"}, "date"),
        ("{{ first_name }}", {"first_name": ""}, "first_name"),
    ],
    ids=["loop", "200 KB value", "filter", "missing"],
)
def test_one_task_whose_data_its_template_cannot_take_fails_alone(html, data, why):
    """A template that does not end, a value that makes the e-mail too large, one that is none: the others go."""
    w = world(10)
    w.prepared = w.prepared.model_copy(update={"html": f"<p>{html}</p>"})
    w.send(record(message(0, data=data)), *messages(10)[1:])
    assert w.row(0).status is TaskStatus.FAILED
    assert w.row(0).error.code == "TemplateError"
    assert why in w.row(0).error.message
    if why != "date":
        assert statuses(w)[1:] == OTHERS


def test_a_value_of_200_kb_is_sent_where_the_template_shows_it_once():
    """It is large, and no error."""
    w = with_one_other(message(0, data={"first_name": "Ana", "story": "x" * 200_000}))
    assert statuses(w) == ["Finished", *OTHERS]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "\x00",
        '{"campaign": "advent"}',
        "[" * 100_000,
        message(0).model_dump_json().replace('"step":0', '"step":"zero"'),
        message(0).model_dump_json().replace('"step":0', '"step":-1'),
        message(0).model_dump_json().replace('"step":0', '"step":1' + "0" * 400),
        message(0).model_dump_json().replace('"revision":0', '"revision":0,"bcc":"all@example.com"'),
        message(0).model_dump_json().replace("advent", "../../advent"),
        message(0).model_dump_json().replace("advent", "Advent{{7*7}}"),
        message(0, to="").model_dump_json(),
        message(0, to="person.0@example.com\r\nBcc: all@example.com").model_dump_json(),
        message(0, task="0-zz").model_dump_json(),
    ],
    ids=lambda body: body[:40] + body[-10:],
)
def test_a_malformed_message_is_buried_with_a_reason_and_the_other_nine_are_sent(body):
    """The reason names a field and a rule, never a value."""
    w = with_one_other(body)
    assert statuses(w) == ["Pending", *OTHERS]
    (reason,) = w.buried.values()
    assert reason.startswith("MalformedMessage: ")
    assert "example.com" not in reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"campaign": "nobody"}, "UnknownCampaign"),
        ({"step": 7, "task": task(0).task.replace("0-", "7-", 1)}, "UnknownTask"),
    ],
    ids=str,
)
def test_a_message_for_nobody_is_buried_and_the_other_nine_are_sent(changes, reason):
    """A campaign or a task that does not exist."""
    w = with_one_other(message(0, **changes))
    assert statuses(w) == ["Pending", *OTHERS]
    assert [found.split(":")[0] for found in w.buried.values()] == [reason]


def test_an_address_that_ses_refuses_fails_alone():
    """With SES's reason."""
    w = world(10)
    w.answers.append(Rejected("BadRequestException", "Local address contains control or whitespace"))
    w.send(*messages(10))
    assert statuses(w) == ["Failed", *OTHERS]
    assert w.row(0).error.code == "BadRequestException"


# what an e-mail has to say


def test_every_email_has_its_own_way_out_and_says_who_sends_it():
    """The link is in the two headers and the template, the address in the template."""
    w = world(2)
    html = '<p>{{ first_name }} {{ postal_address }} <a href="{{ unsubscribe_url }}">x</a></p>'
    w.prepared = w.prepared.model_copy(update={"html": html})
    # A column of that name is not what counts.
    w.send(*[record(message(n, data={"first_name": "Ana", "unsubscribe_url": "https://evil"})) for n in range(2)])
    links = []
    for _, email in w.accepted:
        headers = dict(email.headers)
        links.append(headers["List-Unsubscribe"].strip("<>"))
        assert links[-1].startswith("https://api.example.com/u/advent.0-")
        assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        assert links[-1] in email.html.replace("&#x2f;", "/")
        assert "Hauptstr. 1, 10115 Berlin" in email.html
        assert "evil" not in email.html
    assert len(set(links)) == 2


@pytest.mark.parametrize("missing", [{"keys_readable": False}, {"postal_address": None}], ids=str)
def test_without_a_way_out_or_an_imprint_nothing_is_claimed(missing):
    """The key or the setting cannot be read: the messages come again, and nothing of the cap is lost."""
    w = world(2)
    before = {name: getattr(w, name) for name in missing}
    vars(w).update(missing)
    batch = messages(2)
    assert sorted(w.send(*batch)) == sorted(r.message_id for r in batch)
    assert w.calls["Pending to Running"] == 0
    assert statuses(w) == ["Pending"] * 2
    assert taken_now(w) == 0
    vars(w).update(before)
    w.send(*batch)
    assert statuses(w) == ["Finished"] * 2


def test_a_line_break_in_a_value_never_becomes_a_header():
    """One task fails with the reason, the other is sent."""
    w = world(2)
    w.send(record(message(0, data={"first_name": "x\r\nBcc: everybody@example.com"})), record(message(1)))
    assert statuses(w) == ["Failed", "Finished"]
    assert w.row(0).error.code == "TemplateError"


def test_a_template_that_cannot_be_read_keeps_the_message_and_claims_nothing():
    """S3's trouble is nobody's failure."""
    w = world(1)
    effect = w.call

    def broken(name, run):
        if name == "get template":
            raise ConnectionError
        return effect(name, run)

    w.call = broken
    assert len(w.send(*messages(1))) == 1
    assert w.calls["Pending to Running"] == 0
    assert taken_now(w) == 0


def test_trouble_with_one_row_is_not_trouble_with_the_next():
    """DynamoDB fails one claim for good; the other two tasks are sent."""
    w = world(3)
    effect, broken = w.call, []

    def once(name, run):
        if name == "Pending to Running" and not broken:
            broken.append(name)
            raise ConnectionError
        return effect(name, run)

    w.call = once
    assert len(w.send(*messages(3))) == 1
    assert sorted(statuses(w)) == ["Finished", "Finished", "Pending"]


def test_what_cannot_be_buried_stays_in_the_queue():
    """The dead-letter queue is away: the message comes again."""
    w = world(1)
    effect = w.call

    def broken(name, run):
        if name == "bury message":
            raise ConnectionError
        return effect(name, run)

    w.call = broken
    assert w.send(record("{", "m")) == ["m"]


def test_when_rows_cannot_be_read_nothing_is_done():
    """The invocation fails, and all its messages come again."""
    w = world(1)

    def broken(name, run):
        if name == "read rows":
            raise ConnectionError
        return run()

    w.call = broken
    with pytest.raises(ConnectionError):
        w.send(record("{", "m"), *messages(1))
    assert w.buried == {}


# between reading and claiming


@pytest.mark.parametrize("change", [{"generation": 2}, {"revision": 1}, {"status": TaskStatus.CANCELLED}], ids=str)
def test_a_row_that_changes_before_its_claim_is_not_sent_by_the_old_message(change):
    """Launched again, changed or cancelled while the sender reserved pace."""
    w = world(1)
    effect = w.call

    def meanwhile(name, run):
        if name == "reserve pace":
            key = ("advent", task(0).task)
            w.rows[key] = w.rows[key].model_copy(update=change)
        return effect(name, run)

    w.call = meanwhile
    assert w.send(*messages(1)) == []
    assert w.asked == []
    assert w.row(0).claim is None


def test_a_second_delivery_while_the_outcome_is_unknown_sends_nothing():
    """Running with another invocation's token is somebody else's, even for the same process."""
    w = world(1)
    w.answers.append(lambda: (_ for _ in ()).throw(MaybeSent("ReadTimeoutError")))
    sender = w.sender()
    for n in range(3):
        assert sender.handle([record(message(0), f"m{n}")], w.now() + timedelta(seconds=30)) == []
    assert len(w.asked) == 1
