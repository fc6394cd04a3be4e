"""Addresses as SES takes them: RFC 5322 syntax, an ASCII local part, the domain in Punycode.

SES words its refusals as the Java mail library does ("Missing final '@domain'").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from local.ses.shared import bad

SIMULATOR_DOMAIN = "simulator.amazonses.com"
SIMULATORS = frozenset({"success", "bounce", "complaint", "ooto", "suppressionlist"})

_LOCAL_LIMIT, _DOMAIN_LIMIT = 64, 255  # octets: RFC 5321, 4.5.3.1
_ATOM = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]+")
_QUOTED_LOCAL = re.compile(r'"(?:[^"\\\r\n]|\\[\x20-\x7e])*"')
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_SPACE_OR_CONTROL = re.compile(r"[\x00-\x20\x7f\xa0]")
_QUOTED_NAME = re.compile(r'"(?:[^"\\\r\n]|\\[^\r\n])*"')
_BARE_NAME = re.compile(r"[^\"<>@,;:\\\[\]()\r\n]*")


@dataclass(frozen=True)
class Address:
    """One mailbox: ``written`` as the caller gave it, ``spec`` without its display name."""

    written: str
    spec: str
    local: str
    domain: str

    @property
    def simulator(self) -> str | None:
        """Which behaviour of the mailbox simulator this asks for (a ``+label`` does not matter), if any."""
        name = self.local.partition("+")[0].lower()
        return name if self.domain == SIMULATOR_DOMAIN and name in SIMULATORS else None


def parse(text: str) -> Address:
    """``text`` as one address, with or without a display name; ``domain`` is in lower case.

    Raises:
        AwsError: ``BadRequestException`` that says what is wrong, never the address itself.
    """
    written = text.strip()
    spec = written
    if written.endswith(">"):
        name, opened, spec = written[:-1].rpartition("<")
        name = name.strip()
        if not opened:
            raise bad("Illegal address")
        if not name.isascii():
            raise bad("Display name holds non-ASCII characters: use the encoded-word syntax of RFC 2047")
        if not (_QUOTED_NAME.fullmatch(name) or _BARE_NAME.fullmatch(name)):
            raise bad("Illegal address")
    if not spec:
        raise bad("Empty address")
    local, at, domain = spec.rpartition("@")
    if not at or not domain:
        raise bad("Missing final '@domain'")
    if not local:
        raise bad("Missing local name")
    _check_local(local)
    _check_domain(domain)
    return Address(written, spec, local, domain.lower())


def _check_local(local: str) -> None:
    if not local.isascii():
        # SES has no SMTPUTF8 (botocore sesv2, Destination).
        raise bad("Local address contains non-ASCII characters")
    if len(local) > _LOCAL_LIMIT:
        raise bad(f"Local address is longer than {_LOCAL_LIMIT} characters")
    if _QUOTED_LOCAL.fullmatch(local):
        return
    if _SPACE_OR_CONTROL.search(local):
        raise bad("Local address contains control or whitespace")
    if not _ATOM.fullmatch(local):
        raise bad("Local address contains illegal character")
    for wrong, where in ((local.startswith("."), "starts with dot"), (local.endswith("."), "ends with dot")):
        if wrong:
            raise bad(f"Local address {where}")
    if ".." in local:
        raise bad("Local address contains dot-dot")


def _check_domain(domain: str) -> None:
    if not domain.isascii():
        raise bad("Domain contains illegal character: encode it in Punycode")
    if _SPACE_OR_CONTROL.search(domain):
        raise bad("Domain contains control or whitespace")
    if domain.startswith("."):
        raise bad("Domain starts with dot")
    if domain.endswith("."):
        raise bad("Domain ends with dot")
    if ".." in domain:
        raise bad("Domain contains dot-dot")
    labels = domain.split(".")
    if len(domain) > _DOMAIN_LIMIT or len(labels) < 2 or not all(_LABEL.fullmatch(label) for label in labels):
        raise bad("Domain contains illegal character")
