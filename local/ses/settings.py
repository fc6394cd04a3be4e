"""What differs from one SES account to the next: access, quotas, identities, and how mailboxes behave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Behaviour:
    """What the mailboxes of one domain do with mail, each as a fraction of the recipients (0 to 1).

    ``bounced`` (Permanent) and ``soft_bounced`` (Transient, which for SES is final too) are taken from all
    recipients and ``complained``, ``opened``, ``clicked`` from those delivered. ``delayed`` ones are
    delivered, later. ``clicked`` is at most ``opened``: whoever clicks has opened. ``prefetched`` is opened
    by a machine seconds after delivery, as Apple Mail Privacy Protection does.
    """

    bounced: float = 0.0
    soft_bounced: float = 0.0
    delayed: float = 0.0
    complained: float = 0.0
    opened: float = 0.0
    clicked: float = 0.0
    prefetched: float = 0.0


ORDINARY = Behaviour(
    bounced=0.008,
    soft_bounced=0.004,
    delayed=0.01,
    complained=0.0005,
    opened=0.32,
    clicked=0.04,
    prefetched=0.15,
)
# Gmail supplies no complaint data to SES, and fetches images through its proxy when a person opens.
GMAIL = Behaviour(bounced=0.006, soft_bounced=0.003, delayed=0.005, opened=0.35, clicked=0.04)


@dataclass(frozen=True)
class SesSettings:
    """One account in one Region.

    ``identities`` exist from the start; ``verified_domains`` are those whose DNS is in order, so that an
    identity on them (or below them) is verified as soon as it exists, while any other stays pending.
    ``production_access=False`` is the sandbox: recipients must be verified too.

    ``max_send_rate`` is recipients per second and ``max_24_hour_send`` recipients in any 24 hours (-1:
    unlimited). SES tolerates short bursts above the rate without saying how short; here it is
    ``burst_seconds`` worth of it.

    ``calls_per_second`` bounds each operation but the sending ones, which AWS fixes at 1 and does not raise.
    ``seed`` and the message id decide what becomes of a message.
    """

    identities: tuple[str, ...] = ()
    verified_domains: frozenset[str] = frozenset({"example.com"})
    production_access: bool = True
    max_send_rate: float = 200.0
    max_24_hour_send: float = 1_000_000.0
    burst_seconds: float = 1.0
    calls_per_second: float = 1.0
    seed: str = "carillon"
    behaviour: Behaviour = ORDINARY
    behaviour_by_domain: Mapping[str, Behaviour] = field(
        default_factory=lambda: MappingProxyType({"gmail.com": GMAIL, "googlemail.com": GMAIL})
    )

    def behaviour_of(self, domain: str) -> Behaviour:
        """How mailboxes at ``domain`` (lower case) behave."""
        return self.behaviour_by_domain.get(domain, self.behaviour)
