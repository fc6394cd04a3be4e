"""Whether the account may send for a campaign at all: its sender's identity, and what SES says of the account."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parseaddr
from typing import Literal, Protocol

from carillon import addresses
from carillon.errors import IdentityNotVerified
from carillon.shapes import CampaignSpec, instant

type PricePlan = Literal["NONE", "ESSENTIALS", "PRO", "ENTERPRISE"]
"""SES's; ``NONE`` is à la carte."""


@dataclass(frozen=True)
class Account:
    """What SES says of this account in this Region."""

    production: bool
    """False: the sandbox, where recipients have to be verified too."""
    enabled: bool
    """False: SES has paused the account's sending, or somebody has."""
    max_24_hour_send: int
    """Recipients in any 24 hours; -1: any number."""
    max_send_rate: float
    """Recipients a second."""
    price_plan: PricePlan


class Identities(Protocol):
    """The port to what SES knows of the account (`carillon.adapters.identities.Identities`)."""

    def verified(self, identity: str) -> bool | None:
        """Whether SES lets us send as an address or a domain; None: it is not registered."""
        ...

    def account(self) -> Account:
        """The account as it is now."""
        ...


def check_domain(spec: CampaignSpec, sending_domain: str) -> str:
    """The campaign's From address, if it is of the stack's sending domain or one below it.

    Raises:
        IdentityNotVerified: it is not; with cause and fix.
    """
    address = addresses.judge(parseaddr(spec.from_)[1])
    if address is None:
        raise IdentityNotVerified("from is no address that mail can come from: write it as Name <name@example.com>")
    domain = address.rpartition("@")[2].lower()
    if domain != sending_domain and not domain.endswith(f".{sending_domain}"):
        raise IdentityNotVerified(
            f"from is an address of {domain}, and this stack may send for {sending_domain} alone: take an "
            f"address of that domain, or the stack that sends for {domain}"
        )
    return address


def check_identity(spec: CampaignSpec, sending_domain: str, identities: Identities) -> None:
    """See that SES would take the campaign's From address.

    Raises:
        IdentityNotVerified: with cause and fix.
    """
    address = check_domain(spec, sending_domain)
    domain = address.rpartition("@")[2].lower()
    labels = domain.split(".")
    waiting = None
    # The likeliest first: SES answers one such question a second.
    for identity in (*(".".join(labels[n:]) for n in range(len(labels) - 1)), address):
        verified = identities.verified(identity)
        if verified:
            return
        if verified is False and identity != address:
            waiting = waiting or identity
    cause = f"the verification of {waiting} is not complete" if waiting else f"{domain} is not registered"
    raise IdentityNotVerified(
        f"SES does not let this account send from {domain}: {cause}. Create the identity in SES, in this "
        "Region, and publish its DKIM records"
    )


def objections(account: Account) -> list[str]:
    """Why SES would refuse this account's e-mails, whatever the campaign; with the fix."""
    found = []
    if not account.production:
        found.append(
            "the account is in SES's sandbox in this Region, where e-mails reach verified addresses alone: request "
            "production access (SES console, Account dashboard, or aws sesv2 put-account-details "
            "--production-access-enabled), and launch when it has been granted"
        )
    if not account.enabled:
        found.append(
            "SES has paused sending for this account in this Region: see its Account dashboard for the reason, and "
            "switch sending on again (aws sesv2 put-account-sending-attributes --sending-enabled)"
        )
    return found


def unaddressed(postal_address: str | None) -> list[str]:
    """Why nobody may be written to without the sender's postal address; with the fix."""
    if postal_address and postal_address.strip():
        return []
    return [
        "the sender has no postal_address, which every commercial e-mail has to show: set it by PUT /settings/sender"
    ]


def forgotten(last_slot: int, expires_at: int) -> list[str]:
    """Why there can be no slot at ``last_slot`` in a campaign whose record and rows DynamoDB's TTL deletes from
    ``expires_at`` on (both in epoch seconds); with the fix."""
    if last_slot < expires_at:
        return []
    last, end = (instant(datetime.fromtimestamp(moment, UTC)) for moment in (last_slot, expires_at))
    reason = (
        f"the last e-mail would go on {last}, and this stack keeps the campaign until {end}: take nearer targets, or "
        "raise RetentionDays and create it anew"
    )
    return [reason]
