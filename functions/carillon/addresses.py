"""E-mail addresses: cleaned, judged, and brought to the one form by which a person is recognised.

Plain ASCII addresses are judged by a regular expression that runs inside DuckDB (`verdict_sql`); only the odd ones
(international domains, ``Name <address>``, ``mailto:``) come through Python, at some 60 µs each.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from email_validator import EmailNotValidError, validate_email

_NO_WIDTH = (
    "\u180e\u200b\u200c\u200d\u2060\ufeff"
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # direction marks
    "\xad"  # soft hyphen
)
INVISIBLE = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
) + _NO_WIDTH
"""What is taken off both ends of an address or a zone: it cannot be seen, so nobody meant it."""

_ATEXT = "A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
PLAIN = rf"[{_ATEXT}]+(?:\.[{_ATEXT}]+)*@(?:{_LABEL}\.)+{_LABEL}"
"""Dot-atom local part, two or more labels. Lengths and an all-digit last label are judged beside it; no look-around
and nothing that RE2, which DuckDB uses, does not know."""

LONGEST = 254
LONGEST_LOCAL = 64

_plain = re.compile(PLAIN)
_IN_BRACKETS = re.compile(r'(?:"[^"<>]*"\s*|[^"<>@,;]*)<([^<>]+)>')
_BETWEEN_ADDRESSES = re.compile(r"[,;/\s]+")
_LOCAL_BEYOND_ASCII = re.compile(rf"[\w{_ATEXT}]+(?:\.[\w{_ATEXT}]+)*")
_DROP_NO_WIDTH = dict.fromkeys(map(ord, _NO_WIDTH))


def verdict_sql(column: str) -> str:
    """An SQL expression: what `judge` says of a cleaned cell. SQL's own ``judge`` is asked for the odd ones alone."""
    quoted = PLAIN.replace("'", "''")
    return f"""CASE
        WHEN regexp_full_match({column}, '{quoted}') THEN CASE
            WHEN contains(lower({column}), 'xn--') THEN nullif(judge({column}), '')
            WHEN length({column}) <= {LONGEST} AND position('@' IN {column}) <= {LONGEST_LOCAL + 1}
                AND NOT (ascii(right({column}, 1)) BETWEEN 48 AND 57 AND regexp_matches({column}, '\\.[0-9]+$'))
            THEN {column}
        END
        WHEN strlen({column}) <> length({column}) OR contains({column}, '<') OR lower(left({column}, 7)) = 'mailto:'
        THEN nullif(judge({column}), '')
    END"""


def clean(written: str) -> str:
    """``written`` without what is invisible at its ends."""
    return written.strip(INVISIBLE)


def canonical(deliverable: str) -> str:
    """The form that makes two addresses the same person: all of it lower-cased."""
    return deliverable.lower()


def judge(written: str) -> str | None:
    """The address to send to (local part as written, domain as A-labels), or None: not one deliverable address.

    A local part beyond ASCII needs SMTPUTF8, which SES does not offer, so nobody could be sent to there.
    """
    address = clean(written).translate(_DROP_NO_WIDTH)
    if bracketed := _IN_BRACKETS.fullmatch(address):
        address = clean(bracketed[1])
    elif address[:7].lower() == "mailto:":
        address = clean(address[7:])
    local, at, domain = address.rpartition("@")
    if not at or not local.isascii():
        return None
    if not domain.isascii() or "xn--" in domain.lower():
        domain = _a_labels(domain)
    address = f"{local}@{domain}"
    fits = len(address) <= LONGEST and len(local) <= LONGEST_LOCAL and not domain.rpartition(".")[2].isdigit()
    return address if fits and _plain.fullmatch(address) else None


def fault(written: str) -> str:
    """Why `judge` finds none in ``written``: ``multiple_addresses``, ``needs_smtputf8`` or ``invalid_address``."""
    several = [part for part in _BETWEEN_ADDRESSES.split(clean(written)) if part]
    if len(several) > 1 and all(judge(part) for part in several):
        return "multiple_addresses"
    local, at, domain = clean(written).rpartition("@")
    if at and not local.isascii() and judge(f"x@{domain}") and _LOCAL_BEYOND_ASCII.fullmatch(local):
        return "needs_smtputf8"
    return "invalid_address"


@lru_cache(maxsize=10_000)
def _a_labels(domain: str) -> str:
    """``domain`` by IDNA 2008 after NFC; empty when it is none."""
    try:
        checked = validate_email(
            f"x@{unicodedata.normalize('NFC', domain)}", check_deliverability=False, globally_deliverable=False
        )
    except EmailNotValidError:
        return ""
    return checked.ascii_domain or ""
