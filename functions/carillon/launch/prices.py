"""List prices in US dollars, us-east-1: the one table that costs are reckoned from.

Other Regions differ by some per cent, free tiers are left out, and nothing here knows an account's discounts: it is
what to expect, not an invoice. ``source`` says where each price is from and when it was looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """``usd`` for ``per`` of ``unit``."""

    usd: float
    per: int
    unit: str
    source: str

    def of(self, quantity: float) -> float:
        """What ``quantity`` costs."""
        return quantity / self.per * self.usd

    def __str__(self) -> str:
        return f"USD {self.usd:g} / {self.per:,} {self.unit} ({self.source})"


_PRICE_LIST = "AWS price list of 2026-07-22, third party"
_DOCUMENTED = "AWS documentation, 2026-11"
_KNOWN = "not read again since 2026-11: see the AWS calculator"

MILLION = 1_000_000

SES_TIERS: Mapping[str, tuple[tuple[int | None, Price], ...]] = {
    "NONE": ((None, Price(0.10, 1_000, "e-mails", _PRICE_LIST)),),
    "ESSENTIALS": (
        (10 * MILLION, Price(0.16, 1_000, "e-mails", _PRICE_LIST)),
        (50 * MILLION, Price(0.14, 1_000, "e-mails", _PRICE_LIST)),
        (None, Price(0.11, 1_000, "e-mails", _PRICE_LIST)),
    ),
    "PRO": ((None, Price(0.22, 1_000, "e-mails, beside USD 105 a month", _PRICE_LIST)),),
    "ENTERPRISE": ((None, Price(0.23, 1_000, "e-mails, beside USD 500 a month", _PRICE_LIST)),),
}
"""By SES's price plan: up to how many e-mails a month which price; None: any number. À la carte is ``NONE``, and
ESSENTIALS what accounts new since 2026-07-21 have. Where its second tier ends is not known: 50 M is a guess."""

SCHEDULER = Price(1.00, MILLION, "invocations", _KNOWN)
TRANSITIONS = Price(0.025, 1_000, "state transitions", _DOCUMENTED)
EXPRESS = Price(1.00, MILLION, "Express executions", _KNOWN)
EXPRESS_TIME = Price(0.00001667, 1, "GB-seconds", _KNOWN)
LAMBDA = Price(0.20, MILLION, "invocations", _KNOWN)
LAMBDA_TIME = Price(0.0000133334, 1, "GB-seconds on Arm", _KNOWN)
WRITES = Price(0.625, MILLION, "write units", "third party, 2026-11")
READS = Price(0.125, MILLION, "read units", "third party, 2026-11")
PUTS = Price(0.005, 1_000, "PUT requests", _KNOWN)
GETS = Price(0.0004, 1_000, "GET requests", _KNOWN)
FIREHOSE = Price(0.029, 1, "GB, each record rounded up to 5 KB", _KNOWN)
SQS = Price(0.40, MILLION, "requests", _KNOWN)


def ses(plan: str, emails: int) -> tuple[float, Price]:
    """What ``emails`` of one month cost under an SES price plan, and the price of the first of them."""
    tiers = SES_TIERS[plan]
    usd, before = 0.0, 0
    for up_to, price in tiers:
        end = emails if up_to is None else min(emails, up_to)
        usd += price.of(max(end - before, 0))
        before = end
    return usd, tiers[0][1]
