"""Time zones: IANA names from the pinned tzdata package alone, and what a wall time means in UTC.

A Lambda image's own zone files may be years old, and then a slot is an hour off; so zoneinfo is told to look nowhere
but in the package that the lock file pins.
"""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

zoneinfo.reset_tzpath(to=())

_NOT_PLACES = {"Factory", "localtime", "posixrules"}
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UnknownZone(ValueError):
    """No IANA name; the message suggests one."""


@cache
def names() -> frozenset[str]:
    """Every name of the tz database, links included."""
    return frozenset(zoneinfo.available_timezones() - _NOT_PLACES)


@cache
def _by_lower_case() -> dict[str, str]:
    return {name.lower(): name for name in names()}


def find(written: str) -> str | None:
    """The IANA name that ``written`` is, whatever its case; None for all else, offsets and abbreviations included."""
    return _by_lower_case().get(written.lower())


def known(written: str) -> str:
    """`find`, or a refusal that helps.

    Raises:
        UnknownZone: with a suggestion where one is close.
    """
    name = find(written)
    if name is None:
        raise UnknownZone(
            f"unknown time zone {written!r}: use an IANA name{_suggestion(written)}, not an abbreviation or an offset"
        )
    return name


def _suggestion(written: str) -> str:
    if any(character.isdigit() for character in written):
        return " such as Europe/Berlin"  # an offset: no name near it means the same
    cities = {name.rpartition("/")[2].lower(): name for name in sorted(names()) if "/" in name}
    key = written.lower().replace(" ", "_")
    close = difflib.get_close_matches(key, _by_lower_case(), n=1, cutoff=0.8) or difflib.get_close_matches(
        key, cities, n=1, cutoff=0.8
    )
    if not close:
        return " such as Europe/Berlin"
    return f" (did you mean {_by_lower_case().get(close[0]) or cities[close[0]]}?)"


@cache
def get(name: str) -> ZoneInfo:
    """The zone called ``name`` (exactly), never one that was read before tzdata was pinned."""
    return ZoneInfo.no_cache(name)


def to_utc(zone: str, day: date, wall: time) -> int:
    """Epoch seconds of ``day`` at ``wall`` (naive, whole seconds) in ``zone``.

    A wall time that a clock change skips is the first valid instant after the gap; one that it repeats is the first.
    The offsets in force a day before and after are tried and each answer is checked by going back: for a change that
    moves the date line zoneinfo's own ``fold=0`` answer does not always survive that.
    """
    tz = get(zone)
    local = datetime.combine(day, wall).replace(microsecond=0)
    as_utc = local.replace(tzinfo=UTC)
    offsets = {
        at.utcoffset() or timedelta()
        for at in (
            local.replace(tzinfo=tz, fold=0),
            local.replace(tzinfo=tz, fold=1),
            (as_utc - _DAY).astimezone(tz),
            (as_utc + _DAY).astimezone(tz),
        )
    }
    valid = [moment for moment in (as_utc - offset for offset in offsets) if _wall(moment, tz) == local]
    if valid:
        return _epoch(min(valid))
    # In a gap: the wall clock only jumps forward over `local` here, so "has passed it" can be bisected.
    before, after = _epoch(as_utc - 2 * _DAY), _epoch(as_utc + 2 * _DAY)
    while after - before > 1:
        middle = (before + after) // 2
        if _wall(_EPOCH + timedelta(seconds=middle), tz) >= local:
            after = middle
        else:
            before = middle
    return after


def _wall(moment: datetime, tz: ZoneInfo) -> datetime:
    return moment.astimezone(tz).replace(tzinfo=None)


def _epoch(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1)
