"""What SES knows of this account's identities and quota. These calls are limited to one a second: few, not in loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_sesv2 import SESV2Client


class Identities:
    """`carillon.preparation.Identities` on SES."""

    def __init__(self, client: SESV2Client | None = None) -> None:
        self._client = client or aws.ses()

    def verified(self, identity: str) -> bool | None:
        """Whether SES lets us send as ``identity`` (an address or a domain); None: it is not registered."""
        try:
            return self._client.get_email_identity(EmailIdentity=identity)["VerifiedForSendingStatus"]
        except self._client.exceptions.NotFoundException:
            return None

    def max_24_hour_send(self) -> int:
        """How many e-mails the account may send in 24 hours; -1: any number."""
        return int(self._client.get_account()["SendQuota"]["Max24HourSend"])
