"""SendEmail: what it takes, what it refuses, and what lies in the mailbox afterwards."""

from __future__ import annotations

import email as mime
import email.policy
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from local.clock import Clock
from local.ports import AwsError
from local.ses.mailbox import accepted
from local.ses.service import SimpleEmail

from .conftest import ListeningFirehose, email, simple

type MakeSes = Callable[..., SimpleEmail]


def kept(folder: Path) -> list[dict[str, Any]]:
    return list(accepted(folder / "mailbox"))


def read(folder: Path, line: dict[str, Any]) -> Any:
    raw = (folder / "mailbox" / line["eml"]).read_bytes()
    return mime.message_from_bytes(raw, policy=email_policy)


email_policy = mime.policy.default


def refusal(ses: SimpleEmail, params: dict[str, Any]) -> AwsError:
    with pytest.raises(AwsError) as refused:
        ses.handle("SendEmail", params)
    return refused.value


def test_an_accepted_email_lies_in_the_mailbox_before_the_answer(
    ses: SimpleEmail, clock: Clock, tmp_path: Path
) -> None:
    """The answer's MessageId names a line of accepted.jsonl and an .eml file under the day (UTC)."""
    before = clock.time()
    answer = ses.handle("SendEmail", email(EmailTags=[{"Name": "campaign", "Value": "c-1"}]))
    (line,) = kept(tmp_path)
    at = datetime.fromtimestamp(line["accepted_at"], UTC)
    assert line["message_id"] == answer["MessageId"]
    assert before <= line["accepted_at"] <= clock.time()
    assert line["destination"] == ["ana@example.org"]
    assert line["tags"] == {"campaign": "c-1"}
    assert line["configuration_set"] == "events"
    assert line["eml"] == f"{at:%Y-%m-%d}/{at:%H%M%S}-{answer['MessageId']}.eml"
    assert (tmp_path / "mailbox" / line["eml"]).exists()


def test_the_message_has_the_headers_of_the_request(ses: SimpleEmail, tmp_path: Path) -> None:
    """From, Reply-To, Subject, List-* and both bodies are in the e-mail as RFC 5322 and MIME have them."""
    headers = [
        {"Name": "List-Unsubscribe", "Value": "<https://u.example.com/o/1>"},
        {"Name": "List-Unsubscribe-Post", "Value": "List-Unsubscribe=One-Click"},
        {"Name": "List-Id", "Value": "Shop <shop.example.com>"},
    ]
    content = simple(
        Headers=headers,
        Subject={"Data": "Grüße zum Frühling", "Charset": "UTF-8"},
        Body={"Text": {"Data": "Schön"}, "Html": {"Data": "<p>Schön</p>"}},
    )
    for body in content["Simple"]["Body"].values():
        body["Charset"] = "UTF-8"
    ses.handle("SendEmail", email(ReplyToAddresses=["help@mail.example.com"], Content=content))
    message = read(tmp_path, kept(tmp_path)[0])
    assert message["From"] == "Example Shop <news@mail.example.com>"
    assert message["To"] == "ana@example.org"
    assert message["Reply-To"] == "help@mail.example.com"
    assert message["Subject"] == "Grüße zum Frühling"
    for header in headers:
        assert message[header["Name"]] == header["Value"]
    assert message.get_body(("plain",)).get_content().strip() == "Schön"
    assert message.get_body(("html",)).get_content().strip() == "<p>Schön</p>"


def test_no_line_of_a_message_is_longer_than_smtp_allows(ses: SimpleEmail, tmp_path: Path) -> None:
    """An HTML line of 5,000 characters is encoded so that no line exceeds 998 octets (RFC 5321)."""
    content = simple(Body={"Html": {"Data": "<p>" + "word " * 1_000 + "</p>"}})
    ses.handle("SendEmail", email(Content=content))
    raw = (tmp_path / "mailbox" / kept(tmp_path)[0]["eml"]).read_bytes()
    assert max(len(line) for line in raw.split(b"\r\n")) <= 998


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ana", "Missing final '@domain'"),
        ("@example.org", "Missing local name"),
        ("a na@example.org", "Local address contains control or whitespace"),
        ("ana..b@example.org", "Local address contains dot-dot"),
        (".ana@example.org", "Local address starts with dot"),
        ("ana@example..org", "Domain contains dot-dot"),
        ("ana@.example.org", "Domain starts with dot"),
        ("ana@exam ple.org", "Domain contains control or whitespace"),
        ("ana@example", "Domain contains illegal character"),
        ("anä@example.org", "Local address contains non-ASCII characters"),
        ("ana@exämple.org", "Domain contains illegal character: encode it in Punycode"),
        ("Anä <ana@example.org>", "Display name holds non-ASCII characters"),
        ("a@b.org, c@d.org", "Local address contains control or whitespace"),
    ],
)
def test_a_wrong_address_is_refused(ses: SimpleEmail, tmp_path: Path, address: str, words: str) -> None:
    """Botocore sesv2 Destination: a 7-bit local part, the domain in Punycode; syntax as RFC 5322 has it."""
    refused = refusal(ses, email(address))
    assert refused.code == "BadRequestException"
    assert refused.message.startswith(words)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    "address", ["o'brien+tag@example.org", '"odd one"@example.org', "Ana <ana@xn--exmple-cua.org>"]
)
def test_an_unusual_but_right_address_is_taken(ses: SimpleEmail, address: str) -> None:
    """RFC 5322 atoms and quoted local parts, and a domain in Punycode, are addresses."""
    assert ses.handle("SendEmail", email(address))["MessageId"]


def test_fifty_recipients_are_the_most(ses: SimpleEmail) -> None:
    """Contract sheet, section 3: at most 50 recipients, To, Cc and Bcc together."""
    to = [f"u{number}@example.org" for number in range(48)]
    more = {"ToAddresses": to, "CcAddresses": ["c@example.org"], "BccAddresses": ["b@example.org"]}
    assert ses.handle("SendEmail", email(Destination=more))["MessageId"]
    more["BccAddresses"].append("b2@example.org")
    assert refusal(ses, email(Destination=more)).message == "Recipient count exceeds 50."
    assert refusal(ses, email(Destination={})).code == "BadRequestException"


def test_long_headers_are_folded(ses: SimpleEmail, tmp_path: Path) -> None:
    """RFC 5321: no line beyond 998 octets, also with fifty recipients in one To header; all of them are read."""
    to = [f"Somebody Number {number} <somebody-{number}@department.example.org>" for number in range(50)]
    ses.handle("SendEmail", email(to))
    line = kept(tmp_path)[0]
    raw = (tmp_path / "mailbox" / line["eml"]).read_bytes()
    assert max(len(each) for each in raw.split(b"\r\n")) <= 998
    assert len(read(tmp_path, line)["To"].addresses) == 50


@pytest.mark.parametrize("charset", ["klingon", "utf-16"])
def test_a_charset_that_mail_does_not_have_is_refused(ses: SimpleEmail, charset: str) -> None:
    """Botocore sesv2 Content: a charset such as UTF-8, ISO-8859-1 or Shift_JIS."""
    content = simple(Body={"Text": {"Data": "Hi", "Charset": charset}})
    assert refusal(ses, email(Content=content)).code == "BadRequestException"


def test_bcc_recipients_are_not_in_the_headers(ses: SimpleEmail, tmp_path: Path) -> None:
    """Nobody who reads the message learns who got a blind copy; the log of acceptances knows."""
    destination = {"ToAddresses": ["a@example.org"], "BccAddresses": ["hidden@example.org"]}
    ses.handle("SendEmail", email(Destination=destination))
    line = kept(tmp_path)[0]
    assert line["destination"] == ["a@example.org", "hidden@example.org"]
    assert b"hidden" not in (tmp_path / "mailbox" / line["eml"]).read_bytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [("a.b", "x"), ("campaign", "Spring sale"), ("campaign", "a@b"), ("", "x"), ("x", "v" * 257)],
)
def test_tags_hold_letters_digits_underscores_and_dashes(ses: SimpleEmail, name: str, value: str) -> None:
    """Botocore sesv2 MessageTag: ASCII letters, digits, '_' and '-', at most 256 characters."""
    refused = refusal(ses, email(EmailTags=[{"Name": name, "Value": value}]))
    assert refused.code == "BadRequestException"


def headers_of(*pairs: tuple[str, str]) -> dict[str, Any]:
    return email(Content=simple(Headers=[{"Name": name, "Value": value} for name, value in pairs]))


@pytest.mark.parametrize(
    "pairs",
    [
        [(f"X-{number}", "v") for number in range(16)],
        [("X:Y", "v")],
        [("X-Y", "grün")],
        [("X-Y", "a\r\nBcc: victim@example.org")],
        [("X" * 127, "v")],
        [("X-Y", "v" * 996)],
        [("X" * 100, "v" * 900)],
    ],
    ids=["16 headers", "colon", "non-ASCII", "line break", "long name", "long value", "long together"],
)
def test_headers_outside_the_models_limits_are_refused(ses: SimpleEmail, pairs: list[tuple[str, str]]) -> None:
    """Botocore sesv2 MessageHeader and MessageHeaderList: patterns, lengths, 996 together, at most 15."""
    assert refusal(ses, headers_of(*pairs)).code == "BadRequestException"


@pytest.mark.parametrize("name", ["From", "to", "Subject", "MIME-Version", "Content-Type"])
def test_a_header_that_ses_writes_itself_is_a_duplicate(ses: SimpleEmail, name: str) -> None:
    """SES's guide, "header fields": these may stand once, and SES writes them from the request."""
    assert refusal(ses, headers_of((name, "x"))).message == f"Duplicate header '{name}'."


def test_a_header_that_may_stand_once_is_refused_twice(ses: SimpleEmail, tmp_path: Path) -> None:
    """SES's guide, "header fields": List-Unsubscribe may stand once; others may be repeated."""
    twice = ("List-Unsubscribe", "<https://u.example.com/1>"), ("list-unsubscribe", "<https://u.example.com/2>")
    assert refusal(ses, headers_of(*twice)).message == "Duplicate header 'list-unsubscribe'."
    ses.handle("SendEmail", headers_of(("X-Note", "1"), ("X-Note", "2")))
    assert read(tmp_path, kept(tmp_path)[0]).get_all("X-Note") == ["1", "2"]


def test_date_and_message_id_are_overwritten(ses: SimpleEmail, tmp_path: Path) -> None:
    """SES's guide, "header fields": SES puts its own Date and Message-ID in the place of the caller's."""
    answer = ses.handle("SendEmail", headers_of(("Message-ID", "<mine@example.com>"), ("Date", "yesterday")))
    message = read(tmp_path, kept(tmp_path)[0])
    assert message["Message-ID"] == f"<{answer['MessageId']}@email.amazonses.com>"
    assert len(message.get_all("Message-ID")) == len(message.get_all("Date")) == 1
    assert message["Date"].datetime.tzinfo is not None


def test_the_log_of_acceptances_survives_a_restart(make_ses: MakeSes, tmp_path: Path) -> None:
    """accepted.jsonl is append-only: a cloud that is started again over the same folder adds to it."""
    answers = [make_ses().handle("SendEmail", email())["MessageId"] for _ in range(2)]
    assert [line["message_id"] for line in kept(tmp_path)] == answers


def test_a_non_ascii_subject_needs_a_charset(ses: SimpleEmail) -> None:
    """Botocore sesv2 Content: 7-bit ASCII unless a charset is given."""
    assert refusal(ses, email(Content=simple(Subject={"Data": "Grüße"}))).code == "BadRequestException"
    content = simple(Subject={"Data": "Grüße", "Charset": "UTF-8"})
    assert ses.handle("SendEmail", email(Content=content))["MessageId"]


def test_an_unverified_sender_is_rejected_in_awss_words(ses: SimpleEmail, tmp_path: Path) -> None:
    """Contract sheet, section 3: MessageRejected (400) for an unverified identity, with the Region in capitals."""
    refused = refusal(ses, email(FromEmailAddress="news@example.net"))
    assert (refused.code, refused.status) == ("MessageRejected", 400)
    assert refused.message == (
        "Email address is not verified. The following identities failed the check in region US-EAST-1: news@example.net"
    )
    assert kept(tmp_path) == []


def test_a_verified_domain_covers_what_is_below_it(make_ses: MakeSes) -> None:
    """A domain identity lets every address at it and at its subdomains send."""
    ses = make_ses(identities=("example.com",))
    assert ses.handle("SendEmail", email(FromEmailAddress="a@deep.mail.example.com"))["MessageId"]
    assert refusal(ses, email(FromEmailAddress="a@notexample.com")).code == "MessageRejected"


def test_in_the_sandbox_recipients_must_be_verified_too(make_ses: MakeSes) -> None:
    """Botocore sesv2 GetAccountResponse: without production access only verified identities get mail; the
    mailbox simulator always does."""
    ses = make_ses(production_access=False)
    assert ses.handle("GetAccount", {})["ProductionAccessEnabled"] is False
    assert refusal(ses, email("ana@example.org")).message.endswith("US-EAST-1: ana@example.org")
    assert ses.handle("SendEmail", email("colleague@mail.example.com"))["MessageId"]
    assert ses.handle("SendEmail", email("success@simulator.amazonses.com"))["MessageId"]


def test_a_configuration_set_that_does_not_exist_is_not_found(ses: SimpleEmail) -> None:
    """Botocore sesv2 SendEmail: NotFoundException (404)."""
    refused = refusal(ses, email(ConfigurationSetName="nowhere"))
    assert (refused.code, refused.status) == ("NotFoundException", 404)
    assert refused.message == "Configuration set <nowhere> does not exist."


def test_sending_can_be_paused_for_the_account_and_for_a_configuration_set(ses: SimpleEmail) -> None:
    """Botocore sesv2 SendingPausedException (400); GetAccount says so."""
    ses.handle("PutAccountSendingAttributes", {"SendingEnabled": False})
    assert ses.handle("GetAccount", {})["SendingEnabled"] is False
    assert refusal(ses, email()).code == "SendingPausedException"
    ses.handle("PutAccountSendingAttributes", {"SendingEnabled": True})
    ses.handle("PutConfigurationSetSendingOptions", {"ConfigurationSetName": "events", "SendingEnabled": False})
    assert refusal(ses, email()).code == "SendingPausedException"
    assert ses.handle("SendEmail", email(ConfigurationSetName=None))["MessageId"]


@pytest.mark.parametrize(
    "member",
    [
        {"EndpointId": "abc.xyz"},
        {"TenantName": "t"},
        {"ListManagementOptions": {"ContactListName": "l"}},
        {"FromEmailAddressIdentityArn": "arn:aws:ses:us-east-1:1:identity/example.com"},
    ],
)
def test_what_this_cloud_does_not_do_is_refused_by_name(ses: SimpleEmail, member: dict[str, Any]) -> None:
    """Nothing is silently ignored: a member without meaning here is named in the refusal."""
    assert next(iter(member)) in refusal(ses, email(**member)).message


def test_content_is_exactly_one_of_its_kinds(ses: SimpleEmail) -> None:
    """Botocore sesv2 EmailContent: a Simple, a Raw or a Template message."""
    both = simple() | {"Raw": {"Data": b"From: a@b.org\r\n\r\nx"}}
    assert refusal(ses, email(Content=both)).code == "BadRequestException"
    assert refusal(ses, email(Content={})).code == "BadRequestException"


RAW = (
    b"From: Shop <news@mail.example.com>\r\nTo: ana@example.org\r\nBcc: hidden@example.org\r\n"
    b"Subject: =?utf-8?b?R3LDvMOfZQ==?=\r\nX-SES-CONFIGURATION-SET: events\r\n"
    b"X-SES-MESSAGE-TAGS: campaign=c-1, step=2\r\nContent-Type: text/html\r\n\r\n<p>Hi</p>\r\n"
)


def test_a_raw_message_brings_its_own_sender_and_recipients(ses: SimpleEmail, tmp_path: Path) -> None:
    """Botocore sesv2 RawMessage: headers and body are the caller's; SES's control headers and Bcc go."""
    answer = ses.handle("SendEmail", {"Content": {"Raw": {"Data": RAW}}})
    line = kept(tmp_path)[0]
    assert line["destination"] == ["ana@example.org", "hidden@example.org"]
    assert line["tags"] == {"campaign": "c-1", "step": "2"}
    assert line["configuration_set"] == "events"
    message = read(tmp_path, line)
    assert message["Subject"] == "Grüße"
    assert message["Message-ID"] == f"<{answer['MessageId']}@email.amazonses.com>"
    assert message["Bcc"] is None
    assert not [name for name in message if name.lower().startswith("x-ses-")]


@pytest.mark.parametrize(
    "data",
    [
        RAW.replace(b"From: Shop <news@mail.example.com>\r\n", b""),
        RAW.replace(b"Subject:", b"Subject: one\r\nSubject:"),
        RAW + b"x" * 999 + b"\r\n",
        b"no headers at all",
    ],
    ids=["no From", "two Subjects", "a long line", "no headers"],
)
def test_a_raw_message_that_is_not_one_is_refused(ses: SimpleEmail, data: bytes) -> None:
    """Botocore sesv2 RawMessage: a header, a blank line, a body, all required headers, lines below 1,000."""
    assert refusal(ses, {"Content": {"Raw": {"Data": data}}}).code == "BadRequestException"


def test_a_message_is_at_most_40_megabytes(ses: SimpleEmail) -> None:
    """Contract sheet, section 3: 40 MB as sent, which base64 makes a third larger than the content."""
    body = {"Text": {"Data": ("x" * 998 + "\n") * 41_900}}
    assert ses.handle("SendEmail", email(Content=simple(Body=body)))["MessageId"]
    body["Text"]["Data"] += ("x" * 998 + "\n") * 100
    refused = refusal(ses, email(Content=simple(Body=body)))
    assert re.match(r"Message length is more than 41943040 bytes long", refused.message)


def test_the_service_answers_five_hundred_sends_a_second(make_ses: MakeSes) -> None:
    """The local cloud must not be the brake of a 1,000-recipient minute: 500 SendEmail/s in process, counted
    in CPU time, for the machine may be busy with other things."""
    ses = make_ses(max_send_rate=1_000_000)
    body = {"Html": {"Data": "<p>Grüße</p>\n" * 200, "Charset": "UTF-8"}}
    started = time.process_time()
    for number in range(300):
        ses.handle("SendEmail", email(f"u{number}@example.org", Content=simple(Body=body)))
    assert 300 / (time.process_time() - started) >= 500


def test_a_send_event_and_a_delivery_follow_on_the_clock(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose
) -> None:
    """Contract sheet, section 4: Send at acceptance, Delivery seconds later, one record each."""
    ses.handle("SendEmail", email())
    ses.publish_due()
    assert firehose.types() == ["Send"]
    clock.advance(5)
    ses.publish_due()
    assert firehose.types() == ["Send", "Delivery"]
