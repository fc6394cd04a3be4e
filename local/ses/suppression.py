"""The account's suppression list: addresses to which SES accepts mail and sends none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from local.clock import Clock
from local.ses.address import parse
from local.ses.events import Happening
from local.ses.shared import Members, Operations, Output, not_here, page, refused

_ALL_REASONS = ("BOUNCE", "COMPLAINT")


class SuppressionList:
    """Listed addresses, whatever their case, each with its reason. New accounts list both hard bounces and
    complaints by themselves (``reasons``)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, dict[str, Any]] = {}
        self.reasons: Sequence[str] = _ALL_REASONS
        self.operations: Operations = {
            "PutAccountSuppressionAttributes": self.put_attributes,
            "PutSuppressedDestination": self.put,
            "GetSuppressedDestination": self.get,
            "ListSuppressedDestinations": self.list,
            "DeleteSuppressedDestination": self.delete,
        }

    def reset(self) -> None:
        """Nobody listed, as a new account."""
        self._entries.clear()
        self.reasons = _ALL_REASONS

    def reason_for(self, address: str, reasons: Sequence[str]) -> str | None:
        """Why ``address`` gets nothing when listings for ``reasons`` count; None when it does."""
        entry = self._entries.get(address.lower())
        return None if entry is None or entry["Reason"] not in reasons else str(entry["Reason"])

    def learn(self, happening: Happening) -> None:
        """List the addresses of a hard bounce or a complaint, as ``reasons`` say. The simulator's addresses
        never get onto a list."""
        details = happening.details
        if happening.event_type == "Bounce" and details["bounceType"] == "Permanent":
            reason, recipients = "BOUNCE", details["bouncedRecipients"]
        elif happening.event_type == "Complaint":
            reason, recipients = "COMPLAINT", details["complainedRecipients"]
        else:
            return
        for recipient in recipients:
            address = recipient["emailAddress"]
            if reason in self.reasons and address.lower() not in self._entries and not parse(address).simulator:
                self._list(address, reason)
                self._entries[address.lower()]["Attributes"] = {
                    "MessageId": happening.message.message_id,
                    "FeedbackId": details["feedbackId"],
                }

    def put_attributes(self, params: Members) -> Output:
        """PutAccountSuppressionAttributes; what is left out is off."""
        if params.get("ValidationAttributes"):
            raise not_here("ValidationAttributes")
        self.reasons = tuple(params.get("SuppressedReasons") or ())
        return {}

    def put(self, params: Members) -> Output:
        """PutSuppressedDestination; an address that is listed gets the new reason."""
        _no_tenant(params)
        self._list(parse(params["EmailAddress"]).spec, params["Reason"])
        return {}

    def get(self, params: Members) -> Output:
        """GetSuppressedDestination."""
        _no_tenant(params)
        return {"SuppressedDestination": dict(self._listed(params["EmailAddress"]))}

    def delete(self, params: Members) -> Output:
        """DeleteSuppressedDestination."""
        _no_tenant(params)
        self._listed(params["EmailAddress"])
        del self._entries[params["EmailAddress"].lower()]
        return {}

    def list(self, params: Members) -> Output:
        """ListSuppressedDestinations; both dates are inclusive."""
        _no_tenant(params)
        reasons = params.get("Reasons") or _ALL_REASONS
        since = _instant(params.get("StartDate"), datetime.min.replace(tzinfo=UTC))
        until = _instant(params.get("EndDate"), datetime.max.replace(tzinfo=UTC))
        listed = [
            {key: entry[key] for key in ("EmailAddress", "Reason", "LastUpdateTime")}
            for entry in self._entries.values()
            if entry["Reason"] in reasons and since <= entry["LastUpdateTime"] <= until
        ]
        return page("SuppressedDestinationSummaries", listed, params, 100, 1000, "InvalidNextTokenException")

    def _list(self, address: str, reason: str) -> None:
        entry = {"EmailAddress": address, "Reason": reason, "LastUpdateTime": self._clock.now()}
        self._entries[address.lower()] = entry

    def _listed(self, address: str) -> dict[str, Any]:
        entry = self._entries.get(address.lower())
        if entry is None:
            raise refused("NotFoundException", "The email address does not exist on your suppression list.")
        return entry


def _no_tenant(params: Members) -> None:
    if params.get("TenantName"):
        raise not_here("TenantName")


def _instant(value: Any, otherwise: datetime) -> datetime:
    if value is None:
        return otherwise
    return value if isinstance(value, datetime) else datetime.fromtimestamp(float(value), UTC)
