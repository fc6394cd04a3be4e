"""What becomes of an accepted message, recipient by recipient: the simulator's addresses, the account's
suppression list, or a profile of the recipient's mailbox provider, drawn from the seed and the message id."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from local.ses.address import Address
from local.ses.events import Accepted, Happening, timestamp
from local.ses.settings import SesSettings

# SES gives up on a message after 14 hours (MaxDeliverySeconds is at most 50,400 s: botocore sesv2).
GIVE_UP_SECONDS = 50_400
_MTA = "a7-19.smtp-out.amazonses.com"
_WINDOWS = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/132.0.0.0"
_IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_2 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)"
_MAC = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)"
_BROWSERS = (_WINDOWS, _IPHONE, _MAC)
_GOOGLE_PROXY = "Mozilla/5.0 (Windows NT 5.1; rv:11.0) Gecko Firefox/11.0 (via ggpht.com GoogleImageProxy)"
_PREFETCH = "Mozilla/5.0"
_SOFT_BOUNCES = (
    ("MailboxFull", "4.2.2", "smtp; 452 4.2.2 mailbox over quota"),
    ("General", "4.4.7", "smtp; 421 4.4.7 delivery expired"),
)
_MAX_TRACKED_LINKS = 250
_ANCHOR = re.compile(r"<a\s([^>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([\w:-]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+)))?""")


@dataclass(frozen=True)
class Tracking:
    """What SES watches in a message: whether opens count, and the links whose clicks do."""

    opens: bool
    links: tuple[tuple[str, dict[str, list[str]] | None], ...]


def tracking(html: str | None, overrides: dict[str, Any]) -> Tracking:
    """What is tracked in ``html``: nothing without HTML; not the links with ``ses:no-track``.

    ``overrides`` are the request's ``ConfigurationOverrides.Tracking``.
    """
    if html is None:
        return Tracking(False, ())
    links = []
    if overrides.get("ClickTrackingEnabled") != "DISABLED":
        for anchor in _ANCHOR.finditer(html):
            attributes = {
                match[1].lower(): next((value for value in match.groups()[1:] if value is not None), "")
                for match in _ATTRIBUTE.finditer(anchor[1])
            }
            href = unescape(attributes.get("href", ""))
            if href.startswith(("http://", "https://")) and "ses:no-track" not in attributes:
                links.append((href, _link_tags(attributes.get("ses:tags"))))
    return Tracking(overrides.get("OpenTrackingEnabled") != "DISABLED", tuple(links[:_MAX_TRACKED_LINKS]))


def _link_tags(text: str | None) -> dict[str, list[str]] | None:
    if not text:
        return None
    pairs = (pair.partition(":") for pair in text.split(";") if ":" in pair)
    return {key.strip(): [value.strip()] for key, _, value in pairs}


def happenings(
    message: Accepted,
    recipients: Sequence[tuple[Address, str | None]],
    tracked: Tracking,
    settings: SesSettings,
) -> Iterator[Happening]:
    """All that will happen to ``message``, in no order; each recipient comes with the reason (BOUNCE,
    COMPLAINT or None) for which the account's list holds it."""
    yield Happening(message.at, "Send", message, {})
    for recipient, listed in recipients:
        draw = random.Random(f"{settings.seed}/{message.message_id}/{recipient.spec}")  # noqa: S311
        fate = _Fate(message, recipient, tracked, draw)
        if listed is not None:
            yield fate.listed(listed)
        elif recipient.simulator is not None:
            yield from fate.simulated(recipient.simulator)
        else:
            yield from fate.drawn(settings)


@dataclass(frozen=True)
class _Fate:
    message: Accepted
    recipient: Address
    tracked: Tracking
    draw: random.Random

    def listed(self, reason: str) -> Happening:
        if reason == "COMPLAINT":
            return self._complaint(self.message.at + 1.0, subtype="OnAccountSuppressionList")
        return self._bounce(
            self.message.at + 1.0,
            "Permanent",
            "OnAccountSuppressionList",
            "5.1.1",
            "smtp; the address is on the account's suppression list: nothing was sent",
            mta="dns; amazonses.com",
        )

    def simulated(self, behaviour: str) -> Iterator[Happening]:
        soon = self.message.at + 1.5
        match behaviour:
            case "bounce":
                yield self._hard_bounce(soon)
            case "suppressionlist":
                yield self._bounce(
                    soon,
                    "Permanent",
                    "Suppressed",
                    "5.1.1",
                    "smtp; the address is on the global suppression list",
                    mta="dns; amazonses.com",
                )
            case "complaint":
                yield self._delivery(soon)
                yield self._complaint(soon + 2.0)
            case _:
                # An out-of-office answer goes to the sender by mail, so ooto@ looks like success@ here.
                yield self._delivery(soon)

    def drawn(self, settings: SesSettings) -> Iterator[Happening]:
        behaviour = settings.behaviour_of(self.recipient.domain)
        chance = self.draw.random()
        first_try = self.message.at + self.draw.uniform(0.6, 4.0)
        if chance < behaviour.bounced:
            yield self._hard_bounce(first_try)
            return
        chance -= behaviour.bounced
        if chance < behaviour.soft_bounced:
            subtype, status, diagnostic = self.draw.choice(_SOFT_BOUNCES)
            yield self._delay(self.message.at + self.draw.uniform(300, 900), subtype, status, diagnostic)
            yield self._bounce(
                self.message.at + GIVE_UP_SECONDS, "Transient", subtype, status, diagnostic, f"dsn; {_MTA}"
            )
            return
        chance -= behaviour.soft_bounced
        delivered = first_try
        if chance < behaviour.delayed:
            delayed = self.message.at + self.draw.uniform(300, 900)
            yield self._delay(delayed, "TransientCommunicationFailure", "4.7.1", "smtp; 451 4.7.1 try later")
            delivered = delayed + self.draw.uniform(600, 5_400)
        yield self._delivery(delivered)
        if self.draw.random() < behaviour.complained:
            yield self._complaint(delivered + self.draw.uniform(300, 86_400))
        yield from self._engagement(delivered, settings)

    def _engagement(self, delivered: float, settings: SesSettings) -> Iterator[Happening]:
        behaviour = settings.behaviour_of(self.recipient.domain)
        if self.tracked.opens and self.draw.random() < behaviour.prefetched:
            yield self._open(delivered + self.draw.uniform(2, 15), _PREFETCH)
        chance = self.draw.random()
        if chance >= behaviour.opened:
            return
        opened = delivered + 60 + min(self.draw.expovariate(1 / 7_200), 3 * 86_400)
        browser = self.draw.choice(_BROWSERS)
        if self.tracked.opens:
            at_google = self.recipient.domain in ("gmail.com", "googlemail.com")
            yield self._open(opened, _GOOGLE_PROXY if at_google else browser)
        if self.tracked.links and chance < behaviour.clicked:
            link, tags = self.draw.choice(self.tracked.links)
            clicked = opened + self.draw.uniform(4, 90)
            yield Happening(
                clicked,
                "Click",
                self.message,
                {
                    "timestamp": timestamp(clicked),
                    "ipAddress": self._reader_ip(),
                    "userAgent": browser,
                    "link": link,
                    "linkTags": tags,
                },
            )

    def _delivery(self, at: float) -> Happening:
        details = {
            "timestamp": timestamp(at),
            "processingTimeMillis": round((at - self.message.at) * 1000),
            "recipients": [self.recipient.spec],
            "smtpResponse": f"250 2.0.0 OK {int(at)} - accepted",
            "reportingMTA": _MTA,
        }
        return Happening(at, "Delivery", self.message, details, over_smtp=True)

    def _hard_bounce(self, at: float) -> Happening:
        return self._bounce(at, "Permanent", "General", "5.1.1", "smtp; 550 5.1.1 user unknown", f"dsn; {_MTA}")

    def _bounce(self, at: float, kind: str, subtype: str, status: str, diagnostic: str, mta: str) -> Happening:
        details = {
            "feedbackId": self._feedback_id(at),
            "bounceType": kind,
            "bounceSubType": subtype,
            "bouncedRecipients": [
                {
                    "emailAddress": self.recipient.spec,
                    "action": "failed",
                    "status": status,
                    "diagnosticCode": diagnostic,
                }
            ],
            "timestamp": timestamp(at),
            "reportingMTA": mta,
        }
        return Happening(at, "Bounce", self.message, details, over_smtp=mta.startswith("dsn"))

    def _delay(self, at: float, subtype: str, status: str, diagnostic: str) -> Happening:
        details = {
            "timestamp": timestamp(at),
            "delayType": subtype,
            "expirationTime": timestamp(self.message.at + GIVE_UP_SECONDS),
            "reportingMTA": _MTA,
            "delayedRecipients": [
                {"emailAddress": self.recipient.spec, "status": status, "diagnosticCode": diagnostic}
            ],
        }
        return Happening(at, "DeliveryDelay", self.message, details)

    def _complaint(self, at: float, subtype: str | None = None) -> Happening:
        details: dict[str, Any] = {
            "feedbackId": self._feedback_id(at),
            "complaintSubType": subtype,
            "complainedRecipients": [{"emailAddress": self.recipient.spec}],
            "timestamp": timestamp(at),
        }
        if subtype is None:
            details |= {
                "userAgent": "ExampleFBL/1.0",
                "complaintFeedbackType": "abuse",
                "arrivalDate": timestamp(at),
            }
        return Happening(at, "Complaint", self.message, details)

    def _open(self, at: float, agent: str) -> Happening:
        details = {"timestamp": timestamp(at), "ipAddress": self._reader_ip(), "userAgent": agent}
        return Happening(at, "Open", self.message, details)

    def _reader_ip(self) -> str:
        return f"203.0.113.{self.draw.randrange(1, 255)}"

    def _feedback_id(self, at: float) -> str:
        return message_id(at, self.draw.randbytes(16))


def message_id(at: float, randomness: bytes) -> str:
    """SES's form of an id: milliseconds in hexadecimal, something random, a counter that is always zero."""
    return f"0100{int(at * 1000):012x}-{uuid.UUID(bytes=randomness, version=4)}-000000"
