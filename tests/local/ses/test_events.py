"""What SES tells about a message, when, and to whom: the records of ``fixtures/events.jsonl`` are the shape
that SES's developer guide documents, one for each kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.clock import Clock
from local.ports import AwsError
from local.ses.message import EICAR
from local.ses.service import SimpleEmail
from local.ses.settings import Behaviour

from .conftest import REGION, ROLE, ListeningFirehose, email, simple

type MakeSes = Callable[..., SimpleEmail]

DOCUMENTED = [json.loads(line) for line in (Path(__file__).parent / "fixtures" / "events.jsonl").open()]
DETAILS = {
    "Send": "send",
    "Delivery": "delivery",
    "Bounce": "bounce",
    "Complaint": "complaint",
    "Reject": "reject",
    "Open": "open",
    "Click": "click",
    "DeliveryDelay": "deliveryDelay",
    "Rendering Failure": "failure",
}
LINKS = (
    '<p><a href="https://shop.example.com/spring?a=1&amp;b=2" ses:tags="slot:hero;sku:A-19;">look</a>'
    '<a ses:no-track href="https://u.example.com/o/1">unsubscribe</a><a href="mailto:x@example.com">mail</a></p>'
)


def documented(event_type: str, **details: Any) -> dict[str, Any]:
    """The documented record of ``event_type`` whose details have these values."""
    return next(
        record
        for record in DOCUMENTED
        if record["eventType"] == event_type
        and all(record[DETAILS[event_type]].get(key) == value for key, value in details.items())
    )


def shape(value: Any, key: str = "") -> Any:
    """Names and types, whatever the values; message tags and link tags are free."""
    if key in ("tags", "linkTags"):
        return type(value).__name__
    if isinstance(value, dict):
        return {name: shape(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", value):
        return "timestamp"
    return type(value).__name__


def events_of(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose, params: dict[str, Any], days: float = 8
) -> list[dict[str, Any]]:
    """Everything that is told of a message within ``days``."""
    ses.handle("SendEmail", params)
    clock.advance(days * 86_400)
    ses.publish_due()
    return firehose.events


def assert_documented(event: dict[str, Any], record: dict[str, Any]) -> None:
    """``event`` has the members and types of ``record``; headers only their form."""
    assert shape(event) == shape(record)
    for tag in ("ses:operation", "ses:configuration-set", "ses:source-ip", "ses:from-domain"):
        assert len(event["mail"]["tags"][tag]) == 1
    # "Sometimes", says the sheet; a message that was delivered did go out from somewhere.
    assert event["eventType"] != "Delivery" or event["mail"]["tags"]["ses:outgoing-ip"]


SIMULATED = {
    "success": [("Send", {}), ("Delivery", {})],
    "ooto+label": [("Send", {}), ("Delivery", {})],
    "bounce": [("Send", {}), ("Bounce", {"bounceType": "Permanent", "bounceSubType": "General"})],
    "complaint+x": [("Send", {}), ("Delivery", {}), ("Complaint", {"complaintSubType": None})],
    "suppressionlist": [("Send", {}), ("Bounce", {"bounceType": "Permanent", "bounceSubType": "Suppressed"})],
}


@pytest.mark.parametrize("mailbox", SIMULATED)
def test_the_simulator_behaves_as_its_address_says(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose, mailbox: str
) -> None:
    """Contract sheet, section 3: success@, bounce@, complaint@, ooto@, suppressionlist@, with any +label."""
    events = events_of(ses, clock, firehose, email(f"{mailbox}@simulator.amazonses.com"))
    assert [event["eventType"] for event in events] == [kind for kind, _ in SIMULATED[mailbox]]
    for event, (kind, details) in zip(events, SIMULATED[mailbox], strict=True):
        assert_documented(event, documented(kind, **details))
    assert ses.handle("ListSuppressedDestinations", {})["SuppressedDestinationSummaries"] == []


def test_mail_is_described_as_documented(ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose) -> None:
    """Contract sheet, section 4: acceptance time, source, destination, headers, tags as lists."""
    headers = [{"Name": "List-Unsubscribe", "Value": "<https://u.example.com/o/1>"}]
    tags = [{"Name": "campaign", "Value": "c-1"}, {"Name": "step", "Value": "1"}]
    before = clock.now()
    (send, delivery) = events_of(
        ses, clock, firehose, email(Content=simple(Headers=headers), EmailTags=tags), days=0.01
    )
    mail = send["mail"]
    assert mail["timestamp"][:16] == f"{before:%Y-%m-%dT%H:%M}"
    assert mail["source"] == "Example Shop <news@mail.example.com>"
    assert mail["sourceArn"] == f"arn:aws:ses:{REGION}:111122223333:identity/mail.example.com"
    assert mail["destination"] == ["ana@example.org"]
    assert mail["commonHeaders"] == {
        "from": ["Example Shop <news@mail.example.com>"],
        "to": ["ana@example.org"],
        "messageId": mail["messageId"],
        "subject": "Spring catalogue is here",
    }
    assert {"name": "List-Unsubscribe", "value": "<https://u.example.com/o/1>"} in mail["headers"]
    assert mail["tags"]["campaign"] == ["c-1"]
    assert mail["tags"]["ses:configuration-set"] == ["events"]
    assert mail["tags"]["ses:from-domain"] == ["mail.example.com"]
    assert delivery["delivery"]["recipients"] == ["ana@example.org"]
    assert re.fullmatch(r"0100[0-9a-f]{12}-[0-9a-f-]{36}-000000", mail["messageId"])


def test_a_record_is_one_line(ses: SimpleEmail, firehose: ListeningFirehose) -> None:
    """Contract sheet, section 4: SES ends each Firehose record with a newline, and no other is in it."""
    ses.handle("SendEmail", email())
    ses.publish_due()
    ((params, role),) = firehose.calls
    assert params["DeliveryStreamName"] == "events"
    assert role == ROLE
    assert firehose.sources == {f"arn:aws:ses:{REGION}:111122223333:configuration-set/events"}
    data = params["Records"][0]["Data"]
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


def test_headers_beyond_ten_kilobytes_are_cut_off(ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose) -> None:
    """Contract sheet, section 4: headersTruncated is a boolean on the wire."""
    headers = [{"Name": f"X-{number}", "Value": "v" * 900} for number in range(15)]
    send = events_of(ses, clock, firehose, email(Content=simple(Headers=headers)))[0]
    assert send["mail"]["headersTruncated"] is True
    assert sum(len(each["name"] + each["value"]) for each in send["mail"]["headers"]) <= 10_240


@pytest.mark.parametrize(
    ("reason", "kind", "details"),
    [
        ("BOUNCE", "Bounce", {"bounceType": "Permanent", "bounceSubType": "OnAccountSuppressionList"}),
        ("COMPLAINT", "Complaint", {"complaintSubType": "OnAccountSuppressionList"}),
    ],
)
def test_a_listed_address_is_accepted_and_gets_nothing(
    ses: SimpleEmail,
    clock: Clock,
    firehose: ListeningFirehose,
    reason: str,
    kind: str,
    details: dict[str, Any],
) -> None:
    """Contract sheet, section 3: SendEmail succeeds, Send is told, then OnAccountSuppressionList."""
    ses.handle("PutSuppressedDestination", {"EmailAddress": "Ana@example.org", "Reason": reason})
    send, outcome = events_of(ses, clock, firehose, email("ana@example.org"))
    assert send["eventType"] == "Send"
    assert_documented(outcome, documented(kind, **details))


def test_a_virus_is_rejected_after_acceptance(ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose) -> None:
    """Contract sheet, section 3: the EICAR file makes SES tell Reject, and nothing else."""
    raw = b"From: news@mail.example.com\r\nTo: ana@example.org\r\nSubject: x\r\n\r\n" + EICAR + b"\r\n"
    params = {"Content": {"Raw": {"Data": raw}}, "ConfigurationSetName": "events"}
    (reject,) = events_of(ses, clock, firehose, params)
    assert reject["eventType"] == "Reject"
    assert reject["reject"] == {"reason": "Bad content"}


def test_opens_and_clicks_come_later_and_only_where_they_can(
    make_ses: MakeSes, clock: Clock, firehose: ListeningFirehose
) -> None:
    """SES's guide: opens and clicks need HTML; a link with ses:no-track is not tracked; ses:tags are told."""
    ses = make_ses(behaviour=Behaviour(opened=1, clicked=1, prefetched=1))
    content = simple(Body={"Html": {"Data": LINKS}})
    events = events_of(ses, clock, firehose, email(Content=content))
    assert [event["eventType"] for event in events] == ["Send", "Delivery", "Open", "Open", "Click"]
    delivered, prefetched, opened, click = events[1:]
    assert_documented(opened, documented("Open"))
    assert_documented(click, documented("Click", linkTags={"slot": ["hero"], "sku": ["A-19"]}))
    assert prefetched["open"]["userAgent"] == "Mozilla/5.0"
    assert click["click"]["link"] == "https://shop.example.com/spring?a=1&b=2"
    assert click["click"]["linkTags"] == {"slot": ["hero"], "sku": ["A-19"]}
    times = [
        delivered["delivery"]["timestamp"],
        prefetched["open"]["timestamp"],
        opened["open"]["timestamp"],
        click["click"]["timestamp"],
    ]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("params", "kinds"),
    [
        (email(Content=simple(Body={"Text": {"Data": "no html"}})), ["Send", "Delivery"]),
        (
            email(ConfigurationOverrides={"Tracking": {"OpenTrackingEnabled": "DISABLED"}}),
            ["Send", "Delivery", "Click"],
        ),
        (
            email(ConfigurationOverrides={"Tracking": {"ClickTrackingEnabled": "DISABLED"}}),
            ["Send", "Delivery", "Open"],
        ),
    ],
    ids=["text only", "opens off", "clicks off"],
)
def test_what_is_not_tracked_is_not_told(
    make_ses: MakeSes, clock: Clock, firehose: ListeningFirehose, params: dict[str, Any], kinds: list[str]
) -> None:
    """Botocore sesv2 ConfigurationOverrides.Tracking switches either off for one message."""
    ses = make_ses(behaviour=Behaviour(opened=1, clicked=1))
    assert [event["eventType"] for event in events_of(ses, clock, firehose, params)] == kinds


def test_a_delayed_message_is_told_of_and_then_delivered(
    make_ses: MakeSes, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Contract sheet, section 4: DeliveryDelay has no headers and lists delayedRecipients."""
    events = events_of(make_ses(behaviour=Behaviour(delayed=1)), clock, firehose, email())
    assert [event["eventType"] for event in events] == ["Send", "DeliveryDelay", "Delivery"]
    assert_documented(events[1], documented("DeliveryDelay"))


def test_a_soft_bounce_is_final_after_fourteen_hours(
    make_ses: MakeSes, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Contract sheet, section 4: Transient means that SES has given up; the address is not listed for it."""
    ses = make_ses(behaviour=Behaviour(soft_bounced=1))
    events = events_of(ses, clock, firehose, email(), days=0.5)
    assert [event["eventType"] for event in events] == ["Send", "DeliveryDelay"]
    clock.advance(2.1 * 3_600)
    ses.publish_due()
    bounce = firehose.events[-1]
    assert_documented(bounce, documented("Bounce", bounceType="Transient"))
    assert bounce["bounce"]["timestamp"] == events[1]["deliveryDelay"]["expirationTime"]
    assert ses.handle("ListSuppressedDestinations", {})["SuppressedDestinationSummaries"] == []


def test_hard_bounces_and_complaints_put_the_address_on_the_list(
    make_ses: MakeSes, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Botocore sesv2 SuppressionOptions: SES lists them by itself, and the next message is held back."""
    ses = make_ses(behaviour_by_domain={"gone.example": Behaviour(bounced=1), "cross.example": Behaviour(complained=1)})
    for address in ("a@gone.example", "b@cross.example"):
        events_of(ses, clock, firehose, email(address))
    listed = ses.handle("ListSuppressedDestinations", {})["SuppressedDestinationSummaries"]
    assert [(each["EmailAddress"], each["Reason"]) for each in listed] == [
        ("a@gone.example", "BOUNCE"),
        ("b@cross.example", "COMPLAINT"),
    ]
    about = ses.handle("GetSuppressedDestination", {"EmailAddress": "a@gone.example"})["SuppressedDestination"]
    bounce = next(event for event in firehose.events if event["eventType"] == "Bounce")
    assert about["Attributes"] == {
        "MessageId": bounce["mail"]["messageId"],
        "FeedbackId": bounce["bounce"]["feedbackId"],
    }
    again = events_of(ses, clock, firehose, email("a@gone.example"))[-1]
    assert again["bounce"]["bounceSubType"] == "OnAccountSuppressionList"


def test_only_matching_events_go_to_an_enabled_destination(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Botocore sesv2 EventDestinationDefinition: MatchingEventTypes choose, Enabled false stops all."""
    definition = ses.handle("GetConfigurationSetEventDestinations", {"ConfigurationSetName": "events"})[
        "EventDestinations"
    ][0]
    del definition["Name"]

    def update(**members: Any) -> None:
        ses.handle(
            "UpdateConfigurationSetEventDestination",
            {
                "ConfigurationSetName": "events",
                "EventDestinationName": "archive",
                "EventDestination": definition | members,
            },
        )

    update(MatchingEventTypes=["DELIVERY"])
    assert [event["eventType"] for event in events_of(ses, clock, firehose, email())] == ["Delivery"]
    update(Enabled=False)
    events_of(ses, clock, firehose, email())
    events_of(ses, clock, firehose, email(ConfigurationSetName=None))
    assert firehose.types() == ["Delivery"]


def test_eventbridge_gets_events_on_the_default_bus(make_ses: MakeSes, clock: Clock) -> None:
    """EventBridge's reference: source aws.ses, a detail-type for each event, the record as its detail; botocore
    sesv2 EventBridgeDestination: only the default bus."""
    emitted: list[dict[str, Any]] = []
    ses = make_ses(emit=emitted.append)
    params = {
        "ConfigurationSetName": "events",
        "EventDestinationName": "bus",
        "EventDestination": {
            "Enabled": True,
            "MatchingEventTypes": ["BOUNCE", "COMPLAINT"],
            "EventBridgeDestination": {"EventBusArn": f"arn:aws:events:{REGION}:111122223333:event-bus/mine"},
        },
    }
    with pytest.raises(AwsError, match="default event bus"):
        ses.handle("CreateConfigurationSetEventDestination", params)
    bus = {"EventBusArn": f"arn:aws:events:{REGION}:111122223333:event-bus/default"}
    params["EventDestination"]["EventBridgeDestination"] = bus
    ses.handle("CreateConfigurationSetEventDestination", params)
    ses.handle("SendEmail", email("bounce@simulator.amazonses.com"))
    clock.advance(60)
    ses.publish_due()
    (event,) = emitted
    assert (event["source"], event["detail-type"]) == ("aws.ses", "Email Bounced")
    assert event["resources"] == [f"arn:aws:ses:{REGION}:111122223333:configuration-set/events"]
    assert_documented(event["detail"], documented("Bounce", bounceSubType="General"))


def test_each_recipient_of_a_message_has_an_outcome(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose
) -> None:
    """One Send for the message, and for each recipient what became of it."""
    params = email(["success@simulator.amazonses.com", "bounce@simulator.amazonses.com"])
    events = events_of(ses, clock, firehose, params)
    assert sorted(event["eventType"] for event in events) == ["Bounce", "Delivery", "Send"]
    assert len(events[0]["mail"]["destination"]) == 2


def test_outcomes_follow_the_seed_and_the_message_id(
    make_ses: MakeSes, clock: Clock, firehose: ListeningFirehose
) -> None:
    """The fractions of a profile come out over many messages, and nobody is bounced and delivered."""
    profile = Behaviour(bounced=0.2, opened=0.5)
    ses = make_ses(behaviour=profile, max_send_rate=1_000_000)
    for number in range(1_000):
        ses.handle("SendEmail", email(f"u{number}@example.org"))
    clock.advance(8 * 86_400)
    ses.publish_due()
    by_type: dict[str, set[str]] = {}
    for event in firehose.events:
        by_type.setdefault(event["eventType"], set()).add(event["mail"]["destination"][0])
    assert len(by_type["Send"]) == 1_000
    assert by_type["Bounce"] | by_type["Delivery"] == by_type["Send"]
    assert not by_type["Bounce"] & by_type["Delivery"]
    assert 140 <= len(by_type["Bounce"]) <= 260
    assert 330 <= len(by_type["Open"]) <= 470


def test_records_that_firehose_did_not_take_are_given_again(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Botocore firehose PutRecordBatch: some records may fail; only those are put again, a second later."""
    for number in range(3):
        ses.handle("SendEmail", email(f"u{number}@example.org"))
    firehose.fail_records = 2
    ses.publish_due()
    assert firehose.types() == ["Send"]
    clock.advance(1.1)
    ses.publish_due()
    sent = [event["mail"]["destination"][0] for event in firehose.events if event["eventType"] == "Send"]
    assert sorted(sent) == ["u0@example.org", "u1@example.org", "u2@example.org"]


def test_events_that_nobody_takes_are_dropped_in_the_end(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose, caplog: pytest.LogCaptureFixture
) -> None:
    """A destination that stays closed must not stop the others; the log counts what is lost, and names the
    stream but no address."""
    firehose.refusals = [AwsError("AccessDeniedException", "no", 403) for _ in range(10)]
    ses.handle("SendEmail", email("success@simulator.amazonses.com"))
    for _ in range(10):
        ses.publish_due()
        clock.advance(1.1)
    assert firehose.events == []
    assert "deliverystream/events: AccessDeniedException" in caplog.text
    assert "simulator" not in caplog.text


def test_a_thousand_events_go_in_batches_of_five_hundred(make_ses: MakeSes, firehose: ListeningFirehose) -> None:
    """Botocore firehose PutRecordBatch: at most 500 records a call."""
    ses = make_ses(max_send_rate=1_000_000)
    for number in range(1_001):
        ses.handle("SendEmail", email(f"u{number}@example.org"))
    ses.publish_due()
    assert max(len(params["Records"]) for params, _ in firehose.calls) == 500
    assert firehose.types().count("Send") == 1_001


def test_the_background_publishes_when_the_clock_moves(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Nobody has to call anything: Send comes at once, the rest when its time has come."""
    ses.start()
    ses.handle("SendEmail", email())
    wait(lambda: firehose.types() == ["Send"])
    clock.advance(10)
    wait(lambda: firehose.types() == ["Send", "Delivery"])


def wait(condition: Callable[[], bool]) -> None:
    clock = Clock()
    give_up = clock.time() + 10
    while not condition() and clock.time() < give_up:
        clock.sleep(0.02)
    assert condition()
