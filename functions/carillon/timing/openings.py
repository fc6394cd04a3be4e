"""When a campaign's pace and a recipient's quiet hours let an e-mail go: pure Python, for functions without numpy.

`carillon.timing.planning` plans a whole campaign; here one task is planned anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import cache

from carillon import zones
from carillon.errors import PlanRefused
from carillon.shapes import CampaignPace, CampaignSpec, QuietHours, Window

_LOOKED_AT = 400
"""Days: a pace and quiet hours that leave nothing open for so long never will."""


@cache
def holidays(code: str) -> Container[date]:
    """The public holidays of a country, or a country and subdivision (``DE``, ``DE-BY``), of any year.

    Raises:
        PlanRefused: nobody knows the country, or it has no such subdivision.
    """
    from holidays import country_holidays  # here, for it takes a while that most campaigns need not wait

    country, _, subdivision = code.partition("-")
    try:
        return country_holidays(country, subdiv=subdivision or None)
    except NotImplementedError:
        raise PlanRefused(
            f"pace.holidays: nobody has listed the public holidays of {code}: take a country's ISO 3166 code (DE), "
            "perhaps with one of its subdivisions (DE-BY)"
        ) from None


def open_on(pace: CampaignPace, day: date) -> list[tuple[int, int]]:
    """From when to before when (epoch) ``pace`` is open on ``day`` of its zone: in order, and apart.

    Raises:
        PlanRefused: see `holidays`.
    """
    if day.isoweekday() not in pace.weekdays or (pace.holidays and day in holidays(pace.holidays)):
        return []
    bounds = []
    for start, end in _merged(pace.windows):
        last = day + timedelta(days=end == time(0))
        bounds.append((zones.to_utc(pace.timezone, day, start), zones.to_utc(pace.timezone, last, end)))
    return [(begin, close) for begin, close in bounds if begin < close]  # a clock change may swallow a window


def _merged(windows: Iterable[Window]) -> list[tuple[time, time]]:
    """Windows in order, overlapping ones as one: a second must not count twice."""
    midnight = time(0)
    merged: list[tuple[time, time]] = []
    for window in sorted(windows, key=lambda w: w.start):
        start, end = window.start, window.end
        if merged and (merged[-1][1] == midnight or start <= merged[-1][1]):
            before = merged[-1][1]
            longest = midnight if midnight in (before, end) else max(before, end)
            merged[-1] = (merged[-1][0], longest)
        else:
            merged.append((start, end))
    return merged


def openings(pace: CampaignPace, start: int, planned: Mapping[date, int] | None = None) -> Iterator[int]:
    """Instants (epoch seconds) from ``start`` on for one e-mail each: ``per_day`` evenly over each day's windows.

    ``planned`` says how many e-mails a day of the pace's zone carries already: it gets only what is missing to
    ``per_day``, so that a day after a loss does not carry its own and all that was lost.

    Raises:
        PlanRefused: nothing is open for more than a year, or see `holidays`.
    """
    day = given = _day_of(pace, start)
    while day <= given + timedelta(days=_LOOKED_AT):
        left = pace.per_day - (planned or {}).get(day, 0)
        bounds = open_on(pace, day)
        gap = max(1, -(-sum(end - begin for begin, end in bounds) // pace.per_day))
        for begin, end in bounds:
            start = max(begin, start)
            while start < end and left > 0:
                yield start
                given = day
                start += gap
                left -= 1
        day += timedelta(days=1)
    raise PlanRefused("the pace has no room for more than a year: raise per_day, or give it more windows or weekdays")


def first_opening(spec: CampaignSpec, timezone: str | None, after: int) -> int:
    """The first instant (epoch seconds) not before ``after`` at which the campaign may mail a recipient.

    Inside the pace's windows and weekdays and on none of its holidays, and outside the quiet hours of the recipient,
    whose zone is ``timezone``; for whom none is known those of the pace's zone count.

    Raises:
        PlanRefused: there is none for more than a year, or see `holidays`.
    """
    zone = timezone or (spec.pace or CampaignPace()).timezone
    moment = after
    while moment <= after + _LOOKED_AT * 86_400:
        opened = moment if spec.pace is None else _next_open(spec.pace, moment)
        if opened is None:
            break
        moment = opened if spec.quiet_hours is None else _after_quiet(spec.quiet_hours, zone, opened)
        if moment == opened:
            return moment
    raise PlanRefused(
        "the pace and the recipients' quiet hours leave nothing open for more than a year: give the pace a window "
        "outside quiet_hours"
    )


def _next_open(pace: CampaignPace, moment: int) -> int | None:
    day = _day_of(pace, moment)
    for ahead in range(_LOOKED_AT):
        for begin, end in open_on(pace, day + timedelta(days=ahead)):
            if moment < end:
                return max(begin, moment)
    return None


def is_quiet(quiet: QuietHours, wall: time) -> bool:
    """Whether a clock that shows ``wall`` is in the quiet hours."""
    if quiet.start < quiet.end:
        return quiet.start <= wall < quiet.end
    return wall >= quiet.start or wall < quiet.end


def _after_quiet(quiet: QuietHours, zone: str, moment: int) -> int:
    """``moment``, or the first instant after it at which the recipient's clock may be at the end of the quiet hours."""
    local = datetime.fromtimestamp(moment, UTC).astimezone(zones.get(zone))
    if not is_quiet(quiet, local.time()):
        return moment
    day = local.date() + timedelta(days=local.time() >= quiet.end)
    end = zones.to_utc(zone, day, quiet.end)
    # Where clocks go back over the end it comes twice, and between the two it is quiet again.
    return end if end > moment else moment + quiet_for(local.time(), quiet.end)


def quiet_for(wall: time, end: time) -> int:
    """Seconds from ``wall`` until a clock that nobody changes shows ``end``."""
    return ((_seconds(end) - _seconds(wall) - 1) % 86_400) + 1


def _seconds(wall: time) -> int:
    return wall.hour * 3600 + wall.minute * 60 + wall.second


def _day_of(pace: CampaignPace, moment: int) -> date:
    """The day before the one that ``moment`` lies in: a zone's midnight may come twice."""
    return datetime.fromtimestamp(moment, UTC).astimezone(zones.get(pace.timezone)).date() - timedelta(days=1)
