"""SES, asked exactly once for each e-mail.

SendEmail has no idempotency token and boto3 by default sends up to three times (AWS_CONTRACTS 3), so this client never
tries again, and each exception of botocore is sorted by one question: can SES have taken the e-mail?
"""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parseaddr
from functools import cache
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
)

from carillon.adapters import clock
from carillon.content.emails import Email, MailError, MaybeSent, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent

if TYPE_CHECKING:
    from mypy_boto3_sesv2 import SESV2Client
    from mypy_boto3_sesv2.type_defs import SendEmailRequestTypeDef

ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=2, read_timeout=5)
"""`carillon.delivery.sending.SES_SECONDS` is the sum of the timeouts."""

IDLE_SECONDS = 4
"""A connection that has been idle this long is closed first. Servers commonly hang up after 5 s at the earliest, and a
frozen function does not hear it: a request into such a socket could end with a reset, which proves nothing."""

_UNSENT = (EndpointConnectionError, ConnectTimeoutError, NoCredentialsError, CredentialRetrievalError)
"""Raised before a byte of the request is written: no address, no TCP connection, or nothing to sign with. Not here:
SSLError, ReadTimeoutError, ConnectionClosedError, ProxyConnectionError, which can also come later."""

_MEANINGS: dict[str, type[MailError]] = {
    # SES v2, every error that botocore's model names for SendEmail
    "TooManyRequestsException": NotNow,
    "LimitExceededException": NotNow,
    "AccountSuspendedException": SendingStopped,
    "SendingPausedException": SendingStopped,
    "MailFromDomainNotVerifiedException": SendingStopped,
    # the one thing that a request of ours names and that may not exist is the configuration set
    "NotFoundException": SendingStopped,
    "MessageRejected": Rejected,
    "BadRequestException": Rejected,
    # what SES v1 calls the same, and may well shine through
    "AccountSendingPausedException": SendingStopped,
    "ConfigurationSetSendingPausedException": SendingStopped,
    "ConfigurationSetDoesNotExist": SendingStopped,
    "ConfigurationSetDoesNotExistException": SendingStopped,
    # any service's
    "ThrottlingException": NotNow,
    "Throttling": NotNow,
    "ValidationException": Rejected,
    "SerializationException": Rejected,
}
"""By the error's name, for answers below 500. Two of them say in words alone what they mean: see `_meaning`."""

_BY_STATUS: dict[int, type[MailError]] = {
    # Nobody was asked: our own permission, credentials or clock. A person mends that, the task waits.
    401: NotNow,
    403: NotNow,
    413: Rejected,
    429: NotNow,
}
"""Names that we do not know."""

_NOT_VERIFIED = "address is not verified"
"""SES's text of a MessageRejected for an identity, with the identities behind it (its developer guide, "Amazon SES
email sending errors")."""


class SesMail:
    """`carillon.content.emails.Mail` on SES v2."""

    def __init__(
        self,
        configuration_set: str,
        client: SESV2Client | None = None,
        epoch: Callable[[], float] = clock.epoch,
    ) -> None:
        self._configuration_set = configuration_set
        self._client = client or _sending_client()
        self._epoch = epoch
        """Time of day: it goes on while Lambda freezes the process, unlike a monotonic clock."""
        self._used = 0.0

    def send(self, email: Email) -> str:
        """See `carillon.content.emails.Mail.send`."""
        request = _request(email, self._configuration_set)
        if not 0 <= self._epoch() - self._used < IDLE_SECONDS:
            self._client.close()
        try:
            return self._client.send_email(**request)["MessageId"]
        except _UNSENT as error:
            raise Unsent(type(error).__name__) from error
        except ParamValidationError:
            # botocore's own check, before anything is sent; its text would quote the e-mail.
            raise Rejected("BadRequestException", "the e-mail does not fit SES's model") from None
        except ClientError as error:
            raise _meaning(error, email) from error
        except Exception as error:
            raise MaybeSent(type(error).__name__) from error
        finally:
            self._used = self._epoch()


def _meaning(error: ClientError, email: Email) -> MailError:
    """What SES's answer says. Only the answers that SES is known to give before it takes an e-mail prove anything."""
    code = error.response["Error"]["Code"]
    text = error.response["Error"].get("Message", "")
    status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
    if status >= 500:
        return MaybeSent(code)
    meaning = _MEANINGS.get(code) or _BY_STATUS.get(status, MaybeSent)
    if meaning is NotNow and "daily message quota" in text.lower():
        # SES has one error for both quotas; only its text tells "Maximum sending rate exceeded" from this.
        meaning = QuotaUsedUp
    if meaning is Rejected and _NOT_VERIFIED in text.lower() and not _is_recipients(text.lower(), email):
        meaning = SendingStopped
    return meaning(code, text) if meaning in (Rejected, SendingStopped) else meaning(code)


def _is_recipients(text: str, email: Email) -> bool:
    """Whether ``text`` names the recipient alone: in the sandbox that one has to be verified too."""
    return email.to.lower() in text and parseaddr(email.sender)[1].lower() not in text


def _request(email: Email, configuration_set: str) -> SendEmailRequestTypeDef:
    request: SendEmailRequestTypeDef = {
        "FromEmailAddress": email.sender,
        "Destination": {"ToAddresses": [email.to]},
        "Content": {
            "Simple": {
                "Subject": {"Data": email.subject, "Charset": "UTF-8"},
                "Body": {
                    "Html": {"Data": email.html, "Charset": "UTF-8"},
                    "Text": {"Data": email.text, "Charset": "UTF-8"},
                },
                "Headers": [{"Name": name, "Value": text} for name, text in email.headers],
            }
        },
        "EmailTags": [{"Name": name, "Value": text} for name, text in email.tags],
        "ConfigurationSetName": configuration_set,
    }
    if email.reply_to is not None:
        request["ReplyToAddresses"] = [email.reply_to]
    return request


@cache
def _sending_client() -> SESV2Client:
    return boto3.client("sesv2", config=ONCE)
