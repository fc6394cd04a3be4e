"""The demo's list: invented people in many zones, with the faults that real files have.

The file's truth travels with it, so that the demo can say whether each valid recipient got exactly one e-mail
and nobody else got any.
"""

from __future__ import annotations

import csv
import io
import random
from dataclasses import dataclass

ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Chicago",
    "America/Los_Angeles",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Tokyo",
    "Australia/Sydney",
    "Pacific/Auckland",
    "Africa/Nairobi",
)
FALLBACK_ZONE = "Europe/Berlin"

_FIRST = ("Ada", "Björn", "Chloé", "Dmitri", "Esi", "Fatima", "Gwen", "Hiroshi", "Inés", "Jun", "Kofi", "Léa")
_LAST = ("Okafor", "O'Neill", "Müller", "da Silva", "Nguyễn", "Smith, Jr.", "Kowalska", "Ivanov", "Tanaka")
_CITIES = ('Weil "am" Rhein', "São Paulo", "Kathmandu", "Line\nBreak City", "Auckland", "Nairobi")


@dataclass(frozen=True)
class DemoList:
    """A CSV file and what is true of it."""

    content: bytes
    valid: frozenset[str]
    """Addresses, as they are to be mailed, that must get exactly one e-mail."""
    suppressed: frozenset[str]
    """Addresses that are in order, but have unsubscribed: nothing may be sent to them."""
    rejects: int
    """Records that must be in ``rejects.csv`` (duplicates among them)."""


def make(rows: int = 500, seed: int = 20261129, first: int = 0) -> DemoList:
    """A list of ``rows`` records, the first numbered ``first``; about one in twelve is faulty.

    The same arguments give the same bytes.
    """
    chance = random.Random(seed)  # noqa: S311  (invented people, not secrets)
    text = io.StringIO()
    text.write("\ufeff")  # Excel's byte-order mark, which breaks the first header of most importers
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(["Email", "First Name", "Last Name", "City", "Time Zone", "Renewal, Date", "Score"])
    valid: set[str] = set()
    suppressed: set[str] = set()
    rejects = 0
    for number in range(first, first + rows):
        first_name, last_name = chance.choice(_FIRST), chance.choice(_LAST)
        address = f"reader.{number:04d}@mail{number % 7}.example"
        zone = ZONES[number % len(ZONES)]
        row = [address, first_name, last_name, chance.choice(_CITIES), zone, "2027-03-14", f"=1+{number}"]
        match number % 60:
            case 7:
                row[0] = f"\u00a0{address.upper()} "  # NBSP and capitals: still one good address
                valid.add(address.upper())
            case 13 if valid:
                row[0] = sorted(valid)[number % len(valid)].swapcase()  # somebody's second entry
                rejects += 1
            case 19:
                row[0] = address.replace("@", " at ")
                rejects += 1
            case 29:
                row[0] = ""
                rejects += 1
            case 31:
                row[4] = ""  # no zone: the fallback applies
                valid.add(address)
            case 43:
                row += ["one", "too many"]
                rejects += 1
            case 53:
                suppressed.add(address)
            case 59:
                row[1] = ""  # no first name: the template has a default
                valid.add(address)
            case _:
                valid.add(address)
        writer.writerow(row)
        if number % 97 == 0:
            text.write("\r\n")
    return DemoList(text.getvalue().encode(), frozenset(valid), frozenset(suppressed), rejects)


def both() -> tuple[DemoList, DemoList]:
    """The lists of the demo's two campaigns, which share nobody.

    Who bounces or complains in the first is on SES's suppression list, and rightly left out of the second.
    """
    return make(500), make(160, seed=7, first=600)
