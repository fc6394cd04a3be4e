"""The pace: caps and counters, the bucket's plan, and slots that no two e-mails share."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon.timing.pace import Grant, Pace, Refusal, Refused, Reservation, epoch_us, hour_key, reserve

UTC_ZONE = ZoneInfo("UTC")
NOW = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
FOR_EVER = epoch_us(NOW) * 2


def plan(pace: Pace, wanted: int = 10, *, lead_us: int = 0, last_send_us: int = FOR_EVER, zone: ZoneInfo = UTC_ZONE):
    return reserve(pace, wanted, NOW, zone, lead_us=lead_us, last_send_us=last_send_us)


def test_without_settings_the_pace_is_that_of_a_new_ses_account():
    """1 e-mail a second and 200 a day: nobody outpaces a sandbox by forgetting to say how fast."""
    assert (Pace().rate_per_second, Pace().daily_cap, Pace().paused) == (1, 200, False)


def test_a_ramp_lowers_the_cap_from_entry_to_entry_and_ends_after_its_last_day():
    """An entry holds until the next; before the first and after the last day the cap is the cap."""
    ramp = [{"day": "2026-11-10", "cap": 50}, {"day": "2026-11-13", "cap": 100}]
    pace = Pace.model_validate({"daily_cap": 70, "warm_up": ramp})
    caps = {day: pace.cap_on(date(2026, 11, day)) for day in (9, 10, 12, 13, 14)}
    assert caps == {9: 70, 10: 50, 12: 50, 13: 70, 14: 70}


def test_the_caps_day_is_the_stacks():
    """23:30 and 00:30 in Berlin are two days, though one in UTC; 24 hours of SES know no zone."""
    hours = {"2026112922": 5, "2026112923": 7, "2026113009": 1}
    pace = Pace(daily_cap=10, hours=hours)
    assert pace.room(NOW, UTC_ZONE) == 9
    assert pace.room(NOW, ZoneInfo("Europe/Berlin")) == 2
    assert Pace(daily_cap=100, max_24_hour_send=20, hours=hours).room(NOW, UTC_ZONE) == 7
    assert Pace(daily_cap=100, max_24_hour_send=-1, hours=hours).room(NOW, UTC_ZONE) == 99


def test_a_day_of_25_hours_is_counted_whole():
    """The end of summer time in Berlin: 22:00 UTC to 23:00 UTC the next day."""
    berlin = ZoneInfo("Europe/Berlin")
    hours = {"2026102421": 1, "2026102422": 10, "2026102522": 100, "2026102523": 1000}
    assert Pace(hours=hours).taken_on(date(2026, 10, 25), berlin) == 110


def test_the_24_hours_hold_every_counter_that_has_a_minute_in_them():
    """At 9:30 yesterday's 9 o'clock counts whole: never more than SES's own sum allows."""
    hours = {"2026112908": 1, "2026112909": 10, "2026113009": 100}
    assert Pace(hours=hours).taken_last_24_hours(NOW) == 110


@pytest.mark.parametrize(
    ("pace", "refusal"),
    [
        (Pace(paused=True), Refusal.PAUSED),
        (Pace(daily_cap=3, hours={hour_key(NOW): 3}), Refusal.OVER_CAP),
        (Pace(next_free=epoch_us(NOW) / 1000 + 10_001), Refusal.BUSY),
    ],
)
def test_nothing_is_reserved_when_paused_over_the_cap_or_for_a_long_wait(pace, refusal):
    """In this order."""
    refused = plan(pace)
    assert isinstance(refused, Refused)
    assert refused.why is refusal
    assert (refused.wait_us > 10_000_000) == (refusal is Refusal.BUSY)


def test_a_plan_takes_no_more_than_wanted_allowed_and_in_time():
    """The least of the three."""
    second = 1_000_000
    assert plan(Pace(), 7).count == 7
    assert plan(Pace(daily_cap=4), 7).count == 4
    assert plan(Pace(), 7, last_send_us=epoch_us(NOW) + 2 * second).count == 3


def test_counters_too_old_to_matter_are_forgotten():
    """26 hours are kept: a day of 25 hours, and what is begun."""
    old, kept = hour_key(NOW - timedelta(hours=27)), hour_key(NOW - timedelta(hours=26))
    reservation = plan(Pace(hours={old: 1, kept: 1}))
    assert reservation.forget == (old,)


def test_an_emails_slot_is_its_own_and_a_missed_one_is_lost():
    """Three slots of 10: the second is missed, the third is taken, then none is left."""
    grant = Grant(100, 10, 3, "h")
    assert grant.take(95) == 100
    assert grant.take(121) == 120
    assert grant.over(120, 129) is False
    assert grant.over(120, 130) is True
    assert grant.take(121) is None


@settings(max_examples=60, deadline=None)
@given(rate=st.integers(1, 60), seed=st.integers(0, 1_000_000))
def test_in_any_sliding_second_senders_together_exceed_the_rate_by_at_most_one(rate, seed):
    """However many reserve, whenever, and however late each of their e-mails is."""
    late_senders_keep_the_rate(rate, seed)


def late_senders_keep_the_rate(rate: int, seed: int) -> None:
    """Twenty senders within 3 s, each e-mail up to 0.4 s late."""
    chance = Random(seed)
    senders = [
        (chance.randrange(3_000_000), chance.randint(1, 10), [chance.randrange(400_000) for _ in range(10)])
        for _ in range(20)
    ]
    pace, start = Pace(rate_per_second=rate, daily_cap=100_000), epoch_us(NOW)
    grants: list[tuple[int, Grant, list[int]]] = []
    for after, wanted, delays in sorted(senders, key=lambda s: s[0]):
        now = NOW + timedelta(microseconds=after)
        reservation = reserve(pace, wanted, now, UTC_ZONE, lead_us=20_000, last_send_us=start + 20_000_000)
        if isinstance(reservation, Refused):
            continue
        assert isinstance(reservation, Reservation)
        first = max(pace.next_free_us, reservation.earliest_us)
        pace = pace.model_copy(update={"next_free": (first + reservation.advance_us) / 1000})
        grants.append((after, Grant(first, reservation.interval_us, reservation.count, reservation.hour), delays))
    sent: list[int] = []
    for after, grant, delays in grants:
        clock = start + after
        for delay in delays:
            clock += delay
            slot = grant.take(clock)
            if slot is None:
                break
            clock = max(clock, slot)
            if not grant.over(slot, clock):
                sent.append(clock)
    sent.sort()
    for n, at in enumerate(sent):
        assert sum(1 for other in sent[n:] if other < at + 1_000_000) <= rate + 1
