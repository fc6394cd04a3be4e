"""The SES client, real botocore over real HTTP: one request for each e-mail, whatever happens to it.

What SES answers is by botocore's model of sesv2 (error names and their HTTP status) and AWS_CONTRACTS 3.
"""

from __future__ import annotations

import contextlib
import socket

import boto3
import pytest
from botocore.config import Config
from botocore.session import get_session

from carillon.adapters.mail import _MEANINGS, IDLE_SECONDS, ONCE, SesMail
from carillon.content.emails import Email, MailError, MaybeSent, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent
from carillon.delivery.sending import SES_SECONDS
from tests.unit.sending.ses_server import wait_for

EMAIL = Email("a@example.com", "b@example.com", None, "Hi", "<p>Hi</p>", "Hi", (("List-Id", "<o.example.com>"),), ())
NO_ANSWERS = [
    "hang",
    "close",
    (500, "InternalFailure", "no"),
    (503, "ServiceUnavailable", "no"),
    (429, "TooManyRequestsException", "Maximum sending rate exceeded."),
    (400, "LimitExceededException", "no"),
]
"""All of these boto3 repeats when it is left to itself (AWS_CONTRACTS 3, probed)."""


NOT_VERIFIED = "Email address is not verified. The following identities failed the check in region EU-WEST-1"
"""SES's words (developer guide, "Amazon SES email sending errors"); the identities follow. `EMAIL` is from a to b."""


def client(url: str, **config):
    return boto3.client(
        "sesv2",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=ONCE.merge(Config(read_timeout=0.2, **config)),
    )


def requests_for(ses, answer, **config) -> int:
    """How many requests SES gets for one e-mail that is answered by ``answer`` each time."""
    ses.script.extend([answer] * 3)
    with contextlib.suppress(MailError):
        SesMail("carillon", client(ses.url, **config)).send(EMAIL)
    wait_for(lambda: ses.requests)
    return len(ses.requests)


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=str)
def test_ses_is_asked_once_whatever_it_answers(ses, answer):
    """`total_max_attempts=1`: read timeout, cut connection, 500, 503, 429 and LimitExceeded are one request each."""
    assert requests_for(ses, answer) == 1


@pytest.mark.parametrize("answer", ["close", (500, "InternalFailure", "no")], ids=str)
def test_the_protection_is_needed(ses, answer):
    """With boto3's own attempts the same e-mail would be sent more than once: this test can tell."""
    assert requests_for(ses, answer, retries={"mode": "standard", "total_max_attempts": 3}) == 3


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        ("hang", MaybeSent),
        ("close", MaybeSent),
        ((500, "InternalFailure", ""), MaybeSent),
        ((503, "ThrottlingException", ""), MaybeSent),
        ((400, "SomethingNew", ""), MaybeSent),
        ((408, "RequestTimeoutException", ""), MaybeSent),
        ((429, "TooManyRequestsException", "Maximum sending rate exceeded."), NotNow),
        ((429, "TooManyRequestsException", "Daily message quota exceeded."), QuotaUsedUp),
        ((400, "ThrottlingException", "Rate exceeded"), NotNow),
        ((400, "LimitExceededException", "too many"), NotNow),
        ((403, "AccessDeniedException", "not authorised"), NotNow),
        ((400, "MessageRejected", "The message contains invalid content."), Rejected),
        ((400, "MessageRejected", f"{NOT_VERIFIED}: a@example.com"), SendingStopped),
        ((400, "MessageRejected", f"{NOT_VERIFIED}: B@example.com"), Rejected),
        ((400, "MessageRejected", f"{NOT_VERIFIED}: Shop <A@Example.com>, b@example.com"), SendingStopped),
        ((400, "MessageRejected", "Email address is not verified."), SendingStopped),
        ((400, "BadRequestException", "Illegal address"), Rejected),
        ((404, "NotFoundException", "Configuration set <carillon> does not exist."), SendingStopped),
        ((400, "MailFromDomainNotVerifiedException", "no"), SendingStopped),
        ((400, "ConfigurationSetSendingPausedException", "no"), SendingStopped),
        ((400, "AccountSendingPausedException", "no"), SendingStopped),
        ((400, "AccountSuspendedException", "no"), SendingStopped),
        ((400, "SendingPausedException", "no"), SendingStopped),
    ],
    ids=str,
)
def test_an_answer_means_what_it_proves(ses, answer, meaning):
    """Only what SES says before it takes an e-mail proves that it did not; the rest is `MaybeSent`."""
    ses.script.append(answer)
    with pytest.raises(MailError) as caught:
        SesMail("carillon", client(ses.url)).send(EMAIL)
    assert type(caught.value) is meaning
    if isinstance(answer, tuple):
        assert caught.value.code == answer[1]


def test_every_error_of_sess_model_has_a_meaning():
    """What botocore names for SendEmail stands in the one table."""
    operation = get_session().get_service_model("sesv2").operation_model("SendEmail")
    assert {shape.name for shape in operation.error_shapes} <= _MEANINGS.keys()


def test_a_refused_connection_is_provably_unsent():
    """Nobody listens: no byte of the request was written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unsent):
        SesMail("carillon", client(url)).send(EMAIL)


def test_a_connection_that_times_out_is_provably_unsent():
    """A full backlog never answers the handshake: connect timeout, before the request."""
    with socket.socket() as server, contextlib.ExitStack() as clients:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            waiting = clients.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Unsent) as caught:
            SesMail("carillon", client(url, connect_timeout=0.2)).send(EMAIL)
        assert caught.value.code == "ConnectTimeoutError"


def test_without_credentials_nothing_is_sent(ses, monkeypatch):
    """What cannot be signed does not leave."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    unsigned = boto3.session.Session().client("sesv2", endpoint_url=ses.url, region_name="eu-west-1", config=ONCE)
    with pytest.raises(Unsent):
        SesMail("carillon", unsigned).send(EMAIL)
    assert ses.requests == []


def test_an_email_that_does_not_fit_the_model_is_rejected_unsent(ses):
    """botocore's own check comes before the request; its text, which quotes the e-mail, is not passed on."""
    wrong = Email("a@example.com", "b@example.com", None, None, "h", "t", (), ())
    with pytest.raises(Rejected) as caught:
        SesMail("carillon", client(ses.url)).send(wrong)
    assert ses.requests == []
    assert "example.com" not in caught.value.message


def test_a_connection_is_kept_while_busy_and_made_anew_after_idling(ses):
    """A socket that may have gone stale is never written to: its reset would leave an e-mail in doubt."""
    now = [1_000_000.0]
    mail = SesMail("carillon", client(ses.url), lambda: now[0])
    for idle, connections in ((0, 1), (IDLE_SECONDS - 0.1, 1), (IDLE_SECONDS, 2), (-60, 3)):
        now[0] += idle
        mail.send(EMAIL)
        assert ses.connections == connections
    assert len(ses.accepted) == 4


def test_timeouts_are_within_what_the_sender_reckons_with():
    """5 s or less each, and together what a claim leaves room for."""
    assert max(ONCE.connect_timeout, ONCE.read_timeout) <= 5
    assert ONCE.connect_timeout + ONCE.read_timeout <= SES_SECONDS
