"""An e-mail as SES is to get it, and what SES's answers mean for the task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import formataddr, parseaddr
from typing import Protocol

import idna

from carillon.content.templates import Rendered, TemplateError
from carillon.shapes import CampaignSpec, Message


@dataclass(frozen=True)
class Email:
    """One recipient's e-mail. All but subject, html and text is printable ASCII."""

    sender: str
    to: str
    reply_to: str | None
    subject: str
    html: str
    text: str
    headers: tuple[tuple[str, str], ...]
    tags: tuple[tuple[str, str], ...]


def compose(
    spec: CampaignSpec, message: Message, rendered: Rendered, sending_domain: str, unsubscribe_url: str
) -> Email:
    """The e-mail of ``message``; see `list_headers` for ``sending_domain`` and ``unsubscribe_url``.

    Raises:
        TemplateError: something would break out of its header.
    """
    email = Email(
        sender=ascii_address(spec.from_),
        to=message.to,
        reply_to=spec.reply_to and ascii_address(spec.reply_to),
        subject=rendered.subject,
        html=rendered.html,
        text=rendered.text,
        headers=list_headers(spec.topic, sending_domain, unsubscribe_url),
        tags=(("campaign", message.campaign), ("task", message.task), ("step", str(message.step))),
    )
    _refuse_breakouts(email)
    return email


_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_IN_HEADER = re.compile("[ -~]{1,995}")
"""SES's own rule for a header's value (AWS_CONTRACTS 3)."""
_IN_TAG = re.compile("[A-Za-z0-9_-]{1,256}")


def _refuse_breakouts(email: Email) -> None:
    """The last line of defence: specs, lists and templates have been checked before."""
    lines = {"from": email.sender, "to": email.to, "reply_to": email.reply_to or "-"} | dict(email.headers)
    for name, value in lines.items():
        if not _IN_HEADER.fullmatch(value):
            raise TemplateError(f"{name} would be no line of printable ASCII")
    if _CONTROL.search(email.subject):
        raise TemplateError("the subject has a control character: take it out of the value that it uses")
    for name, value in email.tags:
        if not _IN_TAG.fullmatch(value):
            raise TemplateError(f"the tag {name} would have other characters than letters, digits, _ and -")


def list_headers(topic: str, sending_domain: str, unsubscribe_url: str) -> tuple[tuple[str, str], ...]:
    """What tells mailbox providers which list this is (RFC 2919), and where a POST unsubscribes a recipient with one
    click (RFC 8058)."""
    return (
        ("List-Id", f"<{topic}.{sending_domain}>"),
        ("List-Unsubscribe", f"<{unsubscribe_url}>"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
    )


def ascii_address(written: str) -> str:
    """``written`` (an address, perhaps with a name) for SES: name as encoded words, domain in lower case as A-labels.

    Lower case, because IAM compares the From address with the stack's domain letter by letter. What it cannot read it
    leaves alone: SES refuses it, and the task says so.
    """
    if written.isascii():
        before, at, domain = written.rpartition("@")
        return f"{before}{at}{domain.lower()}"
    name, address = parseaddr(written)
    local, at, domain = address.rpartition("@")
    try:
        address = f"{local}{at}{idna.encode(domain, uts46=True).decode()}"
        return formataddr((name, address)) if name else address
    except UnicodeError:
        return written


class Mail(Protocol):
    """SES, asked once: whoever implements it never tries again by itself."""

    def send(self, email: Email) -> str:
        """SES's message id.

        Raises:
            Unsent, NotNow, QuotaUsedUp, Rejected, SendingStopped: SES provably did not take it.
            MaybeSent: nobody knows.
        """


class MailError(Exception):
    """SES did not say yes. ``code`` is the error's name; ``message`` is SES's text, which may hold an address."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.message = message


class Unsent(MailError):
    """The request never reached SES."""


class NotNow(MailError):
    """SES takes no more for the moment."""


class QuotaUsedUp(MailError):
    """SES takes no more until its last 24 hours have room again."""


class Rejected(MailError):
    """SES said no to this e-mail, for good."""


class SendingStopped(MailError):
    """SES takes nothing of this campaign until a person has acted: on the account, the identity or the set."""


class MaybeSent(MailError):
    """SES may have taken it: no answer, or one that does not say."""
