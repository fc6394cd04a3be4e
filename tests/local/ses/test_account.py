"""Identities, configuration sets, the suppression list, and the faults that a test can order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from local.clock import Clock
from local.ports import AwsError
from local.ses.faults import MESSAGES, ConnectionDropped, Fault
from local.ses.mailbox import accepted
from local.ses.service import SimpleEmail

from .conftest import ALL_TYPES, ROLE, STREAM, ListeningFirehose, email

type MakeSes = Callable[..., SimpleEmail]


def refusal(ses: SimpleEmail, operation: str, **params: Any) -> AwsError:
    with pytest.raises(AwsError) as refused:
        ses.handle(operation, params)
    return refused.value


def test_a_domain_is_verified_when_its_dns_is_in_order(make_ses: MakeSes) -> None:
    """Botocore sesv2 VerificationStatus: PENDING until SES finds the records; which domains have them is a
    setting of the account."""
    ses = make_ses(verified_domains=frozenset({"example.com"}))
    created = ses.handle("CreateEmailIdentity", {"EmailIdentity": "Shop.Example.com"})
    assert (created["IdentityType"], created["VerifiedForSendingStatus"]) == ("DOMAIN", True)
    pending = ses.handle("CreateEmailIdentity", {"EmailIdentity": "me@example.net"})
    assert (pending["IdentityType"], pending["VerifiedForSendingStatus"]) == ("EMAIL_ADDRESS", False)
    assert ses.handle("GetEmailIdentity", {"EmailIdentity": "me@example.net"})["VerificationStatus"] == "PENDING"
    assert refusal(ses, "SendEmail", **email(FromEmailAddress="me@example.net")).code == "MessageRejected"
    assert ses.handle("SendEmail", email(FromEmailAddress="news@shop.example.com"))["MessageId"]


def test_identities_are_listed_filtered_and_deleted(ses: SimpleEmail) -> None:
    """Botocore sesv2 ListEmailIdentities: by name, type and status; NotFoundException for the unknown."""
    ses.handle("CreateEmailIdentity", {"EmailIdentity": "me@example.net"})
    listed = ses.handle("ListEmailIdentities", {})["EmailIdentities"]
    assert [(each["IdentityName"], each["SendingEnabled"]) for each in listed] == [
        ("mail.example.com", True),
        ("me@example.net", False),
    ]
    pending = ses.handle("ListEmailIdentities", {"Filter": {"VERIFICATION_STATUS": "PENDING"}})
    assert [each["IdentityName"] for each in pending["EmailIdentities"]] == ["me@example.net"]
    assert refusal(ses, "CreateEmailIdentity", EmailIdentity="me@example.net").code == "AlreadyExistsException"
    ses.handle("DeleteEmailIdentity", {"EmailIdentity": "me@example.net"})
    assert refusal(ses, "GetEmailIdentity", EmailIdentity="me@example.net").status == 404
    assert refusal(ses, "DeleteEmailIdentity", EmailIdentity="me@example.net").status == 404
    assert refusal(ses, "CreateEmailIdentity", EmailIdentity="no domain").code == "BadRequestException"


def test_an_identity_may_have_a_configuration_set_of_its_own(ses: SimpleEmail, tmp_path: Path) -> None:
    """Botocore sesv2 CreateEmailIdentity: used for messages that name none; it must exist."""
    params = {"EmailIdentity": "shop.example.com", "ConfigurationSetName": "events"}
    assert refusal(ses, "CreateEmailIdentity", **params | {"ConfigurationSetName": "none"}).status == 404
    ses.handle("CreateEmailIdentity", params)
    ses.handle("SendEmail", email(FromEmailAddress="a@shop.example.com", ConfigurationSetName=None))
    ses.handle("SendEmail", email(ConfigurationSetName=None))
    used = [line["configuration_set"] for line in accepted(tmp_path / "mailbox")]
    assert used == ["events", None]


def test_configuration_sets_are_kept_listed_and_deleted(ses: SimpleEmail) -> None:
    """Botocore sesv2: names are unique, at most 64 letters, digits, '_' and '-' (contract sheet, section 3)."""
    options = {"TlsPolicy": "REQUIRE"}
    ses.handle("CreateConfigurationSet", {"ConfigurationSetName": "a-1", "DeliveryOptions": options})
    assert ses.handle("GetConfigurationSet", {"ConfigurationSetName": "a-1"})["DeliveryOptions"] == options
    assert ses.handle("ListConfigurationSets", {})["ConfigurationSets"] == ["a-1", "events"]
    assert refusal(ses, "CreateConfigurationSet", ConfigurationSetName="a-1").code == "AlreadyExistsException"
    for name in ("a.b", "x" * 65, ""):
        assert refusal(ses, "CreateConfigurationSet", ConfigurationSetName=name).code == "BadRequestException"
    ses.handle("DeleteConfigurationSet", {"ConfigurationSetName": "a-1"})
    assert refusal(ses, "GetConfigurationSet", ConfigurationSetName="a-1").status == 404


def define(ses: SimpleEmail, name: str = "other", **definition: Any) -> dict[str, Any]:
    target = {"KinesisFirehoseDestination": {"IamRoleArn": ROLE, "DeliveryStreamArn": STREAM}}
    whole = {"Enabled": True, "MatchingEventTypes": ALL_TYPES} | (definition or target)
    params = {"ConfigurationSetName": "events", "EventDestinationName": name, "EventDestination": whole}
    return ses.handle("CreateConfigurationSetEventDestination", params)


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"SnsDestination": {"TopicArn": "arn:aws:sns:us-east-1:1:t"}}, "SnsDestination"),
        ({"EventBridgeDestination": {"EventBusArn": "arn:aws:events:us-east-1:1:b"}}, "EventBridgeDestination"),
        ({"PinpointDestination": {"ApplicationArn": "arn"}}, "PinpointDestination"),
        ({"Enabled": True}, "exactly one destination"),
        (
            {"KinesisFirehoseDestination": {"IamRoleArn": "role", "DeliveryStreamArn": STREAM}},
            "IamRoleArn",
        ),
        (
            {"KinesisFirehoseDestination": {"IamRoleArn": ROLE, "DeliveryStreamArn": "stream"}},
            "DeliveryStreamArn",
        ),
        (
            {
                "MatchingEventTypes": [],
                "KinesisFirehoseDestination": {"IamRoleArn": ROLE, "DeliveryStreamArn": STREAM},
            },
            "event type",
        ),
        (
            {
                "MatchingEventTypes": ["SENT"],
                "KinesisFirehoseDestination": {"IamRoleArn": ROLE, "DeliveryStreamArn": STREAM},
            },
            "enum value set",
        ),
    ],
)
def test_an_event_destination_is_one_that_is_reached(ses: SimpleEmail, definition: dict[str, Any], words: str) -> None:
    """SES refuses none or several destinations and unknown event types; this cloud, by name, all but Firehose."""
    with pytest.raises(AwsError, match=words) as refused:
        define(ses, **definition)
    assert refused.value.code == "BadRequestException"


def test_a_configuration_set_has_at_most_ten_event_destinations(ses: SimpleEmail) -> None:
    """Contract sheet, section 3; names are unique in their set."""
    for number in range(9):
        define(ses, f"d{number}")
    with pytest.raises(AwsError, match="LimitExceededException"):
        define(ses, "d9")
    ses.handle(
        "DeleteConfigurationSetEventDestination",
        {"ConfigurationSetName": "events", "EventDestinationName": "d8"},
    )
    with pytest.raises(AwsError, match="AlreadyExistsException"):
        define(ses, "d0")
    define(ses, "d9")


def test_the_suppression_list_is_kept_paged_and_filtered(ses: SimpleEmail, clock: Clock) -> None:
    """Botocore sesv2 ListSuppressedDestinations: by reason and date, with tokens; unknown ones are 404."""
    begin = clock.now()
    for number in range(3):
        ses.handle("PutSuppressedDestination", {"EmailAddress": f"u{number}@example.org", "Reason": "BOUNCE"})
        clock.advance(3_600)
    ses.handle("PutSuppressedDestination", {"EmailAddress": "U0@example.org", "Reason": "COMPLAINT"})

    def listed(**params: Any) -> list[str]:
        page = ses.handle("ListSuppressedDestinations", params)
        return [each["EmailAddress"] for each in page["SuppressedDestinationSummaries"]]

    assert listed(Reasons=["BOUNCE"]) == ["u1@example.org", "u2@example.org"]
    assert listed(Reasons=["COMPLAINT"]) == ["U0@example.org"]
    assert listed(EndDate=begin + timedelta(hours=1.5)) == ["u1@example.org"]
    first = ses.handle("ListSuppressedDestinations", {"PageSize": 2})
    assert len(first["SuppressedDestinationSummaries"]) == 2
    assert len(listed(PageSize=2, NextToken=first["NextToken"])) == 1
    assert refusal(ses, "ListSuppressedDestinations", NextToken="?").code == "InvalidNextTokenException"
    ses.handle("DeleteSuppressedDestination", {"EmailAddress": "u1@example.org"})
    assert refusal(ses, "GetSuppressedDestination", EmailAddress="u1@example.org").status == 404
    assert refusal(ses, "DeleteSuppressedDestination", EmailAddress="u1@example.org").status == 404


def test_reasons_decide_whether_the_list_counts(ses: SimpleEmail, tmp_path: Path) -> None:
    """Botocore sesv2: the account's SuppressedReasons, which a configuration set may override."""
    ses.handle("PutSuppressedDestination", {"EmailAddress": "ana@example.org", "Reason": "BOUNCE"})

    def suppressed() -> list[str]:
        ses.handle("SendEmail", email())
        last: list[str] = list(accepted(tmp_path / "mailbox"))[-1]["suppressed"]
        return last

    assert suppressed() == ["ana@example.org"]
    ses.handle("PutAccountSuppressionAttributes", {"SuppressedReasons": ["COMPLAINT"]})
    assert suppressed() == []
    options = {"ConfigurationSetName": "events", "SuppressedReasons": ["BOUNCE"]}
    ses.handle("PutConfigurationSetSuppressionOptions", options)
    assert suppressed() == ["ana@example.org"]


def test_an_operation_that_is_not_here_is_refused_by_name(ses: SimpleEmail) -> None:
    """Nothing pretends: an operation of SES that this cloud does not have says so."""
    assert "CreateContactList" in refusal(ses, "CreateContactList", ContactListName="l").message
    with pytest.raises(AwsError, match="UnknownOperationException"):
        ses.handle("SendTelegram", {})


@pytest.mark.parametrize("code", MESSAGES)
def test_every_documented_error_can_be_ordered(ses: SimpleEmail, tmp_path: Path, code: str) -> None:
    """Botocore sesv2 SendEmail: each of its errors with its status, once, and nothing is accepted."""
    fault = ses.faults.add(Fault(code))
    error = refusal(ses, "SendEmail", **email())
    status = {"TooManyRequestsException": 429, "NotFoundException": 404, "InternalServiceErrorException": 500}
    assert (error.code, error.status) == (code, status.get(code, 400))
    assert list(accepted(tmp_path / "mailbox")) == []
    assert ses.handle("SendEmail", email())["MessageId"]
    assert fault.hits == 1


def test_a_fault_can_be_for_certain_addresses_and_a_number_of_calls(ses: SimpleEmail) -> None:
    """The next two messages to one domain fail, others do not, and then it is over."""
    ses.control({"fault": {"code": "MessageRejected", "times": 2, "address": r"@bad\.example$"}})
    ses.handle("SendEmail", email("a@good.example"))
    for _ in range(2):
        assert refusal(ses, "SendEmail", **email("a@bad.example")).code == "MessageRejected"
    ses.handle("SendEmail", email("a@bad.example"))
    ses.control({"fault": {"code": "SendingPausedException", "times": None}})
    for _ in range(3):
        assert refusal(ses, "SendEmail", **email()).code == "SendingPausedException"
    assert ses.control({"clear_faults": True})["faults"] == []
    ses.handle("SendEmail", email())


@pytest.mark.parametrize("fault", [{"code": "Odd"}, {"code": "MessageRejected", "when": "after"}, {"colour": "red"}])
def test_a_fault_that_cannot_be_is_refused(ses: SimpleEmail, fault: dict[str, Any]) -> None:
    """An error always comes instead of acceptance, and is one that SES has."""
    with pytest.raises((ValueError, TypeError)):
        ses.control({"fault": fault})


@pytest.mark.parametrize(("when", "count"), [("before", 0), ("after", 1)])
def test_a_dropped_connection_leaves_what_was_accepted(
    ses: SimpleEmail, firehose: ListeningFirehose, tmp_path: Path, when: str, count: int
) -> None:
    """Contract sheet, section 3: a reset may or may not have been accepted; the mailbox and the events know."""
    ses.control({"fault": {"when": when}})
    with pytest.raises(ConnectionDropped):
        ses.handle("SendEmail", email())
    ses.publish_due()
    assert len(list(accepted(tmp_path / "mailbox"))) == count
    assert firehose.types() == ["Send"] * count


def test_clearing_the_faults_lets_go_of_a_call_that_hangs(ses: SimpleEmail) -> None:
    """A test need not wait for the whole of a hang that it ordered."""
    ses.faults.add(Fault(hang_seconds=60))
    ended = threading.Event()

    def send() -> None:
        with pytest.raises(ConnectionDropped):
            ses.handle("SendEmail", email())
        ended.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not ended.wait(0.1)
    ses.faults.clear()
    assert ended.wait(5)
    thread.join()


def test_concurrent_sends_are_all_kept(make_ses: MakeSes, tmp_path: Path) -> None:
    """The log has one whole line for each acceptance, whoever writes at the same time."""
    ses = make_ses(max_send_rate=1_000_000)

    def send(worker: int) -> None:
        for number in range(50):
            ses.handle("SendEmail", email(f"u{worker}-{number}@example.org"))

    threads = [threading.Thread(target=send, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = list(accepted(tmp_path / "mailbox"))
    assert len({line["message_id"] for line in lines}) == len(lines) == 400
    assert len(list((tmp_path / "mailbox").rglob("*.eml"))) == 400
