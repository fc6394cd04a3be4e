"""What SES knows of this account's identities and quota. These calls are limited to one a second: few, not in loops."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws
from carillon.launch.readiness import Account

if TYPE_CHECKING:
    from mypy_boto3_sesv2 import SESV2Client


class Identities:
    """`carillon.launch.readiness.Identities` on SES."""

    def __init__(self, client: SESV2Client | None = None) -> None:
        self._client = client or aws.ses()
        self._client.meta.events.register("after-call.sesv2.GetAccount", _keep_price_plan, unique_id="price-plan")

    def verified(self, identity: str) -> bool | None:
        """Whether SES lets us send as ``identity`` (an address or a domain); None: it is not registered."""
        try:
            return self._client.get_email_identity(EmailIdentity=identity)["VerifiedForSendingStatus"]
        except self._client.exceptions.NotFoundException:
            return None

    def account(self) -> Account:
        """What SES says of the account. One without a price plan pays à la carte."""
        answer = self._client.get_account()
        quota = answer["SendQuota"]
        return Account(
            production=answer.get("ProductionAccessEnabled", False),
            enabled=answer.get("SendingEnabled", False),
            max_24_hour_send=int(quota["Max24HourSend"]),
            max_send_rate=quota["MaxSendRate"],
            price_plan=answer.get("PricingAttributes", {}).get("CurrentPlan", "NONE"),
        )


def _keep_price_plan(http_response: Any, parsed: dict[str, Any], **_: object) -> None:
    """Lambda's own SDK may be older than SES's price plans, and leaves out what its model does not name."""
    if http_response.status_code == 200 and "PricingAttributes" not in parsed:
        parsed["PricingAttributes"] = json.loads(http_response.content).get("PricingAttributes", {})
