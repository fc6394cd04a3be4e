"""SES, asked exactly once for each e-mail.

SendEmail has no idempotency token and boto3 by default sends up to three times (AWS_CONTRACTS 3), so this client never
tries again, and each exception of botocore is sorted by one question: can SES have taken the e-mail?
"""

from __future__ import annotations

from collections.abc import Callable
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
from carillon.emails import Email, MailError, MaybeSent, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent

if TYPE_CHECKING:
    from mypy_boto3_sesv2 import SESV2Client
    from mypy_boto3_sesv2.type_defs import SendEmailRequestTypeDef

ONCE = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=2, read_timeout=5)
"""`carillon.sending.SES_SECONDS` is the sum of the timeouts."""

IDLE_SECONDS = 4
"""A connection that has been idle this long is closed first. Servers commonly hang up after 5 s at the earliest, and a
frozen function does not hear it: a request into such a socket could end with a reset, which proves nothing."""

_UNSENT = (EndpointConnectionError, ConnectTimeoutError, NoCredentialsError, CredentialRetrievalError)
"""Raised before a byte of the request is written: no address, no TCP connection, or nothing to sign with. Not here:
SSLError, ReadTimeoutError, ConnectionClosedError, ProxyConnectionError, which can also come later."""

_TOO_MANY = frozenset({"TooManyRequestsException", "LimitExceededException", "ThrottlingException", "Throttling"})
_STOPPED = frozenset({"AccountSuspendedException", "SendingPausedException"})
_REJECTED = frozenset(
    {
        "MessageRejected",
        "BadRequestException",
        "NotFoundException",
        "MailFromDomainNotVerifiedException",
        "ValidationException",
        "SerializationException",
    }
)


class SesMail:
    """`carillon.emails.Mail` on SES v2."""

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
        """See `carillon.emails.Mail.send`."""
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
            raise _meaning(error) from error
        except Exception as error:
            raise MaybeSent(type(error).__name__) from error
        finally:
            self._used = self._epoch()


def _meaning(error: ClientError) -> MailError:
    """What SES's answer says. Only the answers that SES is known to give before it takes an e-mail prove anything."""
    code = error.response["Error"]["Code"]
    text = error.response["Error"].get("Message", "")
    status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
    if status >= 500:
        return MaybeSent(code)
    if code in _STOPPED:
        return SendingStopped(code, text)
    if code in _TOO_MANY or status == 429:
        # SES has one error for both quotas; only its text tells "Maximum sending rate exceeded" from this.
        return QuotaUsedUp(code) if "daily message quota" in text.lower() else NotNow(code)
    if code in _REJECTED or status == 413:
        return Rejected(code, text)
    if status in (401, 403):
        # Nobody was asked: our own permission, credentials or clock. A person mends that, the task waits.
        return NotNow(code)
    return MaybeSent(code)


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
