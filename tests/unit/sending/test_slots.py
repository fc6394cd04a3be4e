"""How a sender keeps its slots: early enough for them, and no more of them than it can use."""

from __future__ import annotations

from datetime import timedelta

from carillon.delivery.slots import Cadence


def ms(n: float) -> timedelta:
    return timedelta(milliseconds=n)


def test_a_sender_that_keeps_up_takes_all_its_slots_at_once():
    """50 ms of work at ten a second: one write for the batch."""
    cadence = Cadence()
    assert cadence.at_once(10) == 10
    for _ in range(20):
        cadence.reply_took(ms(5), 100_000)
        cadence.ready_took(ms(10))
        cadence.posting_took(ms(40))
    assert cadence.at_once(10) == 10


def test_a_sender_slower_than_the_pace_takes_one_slot_at_a_time():
    """50 ms of work at 200 a second: the slots that go by meanwhile are for others."""
    cadence = Cadence()
    for _ in range(20):
        cadence.reply_took(ms(5), 5_000)
        cadence.ready_took(ms(10))
        cadence.posting_took(ms(40))
    assert cadence.at_once(10) == 1


def test_an_email_is_begun_as_early_as_it_takes():
    """Reply and claim take 30 ms, every time: 30 ms before its slot; never less than 20 ms."""
    cadence = Cadence()
    assert cadence.lead_us == 20_000
    for _ in range(20):
        cadence.reply_took(ms(10), 100_000)
        cadence.ready_took(ms(20))
    assert 29_000 <= cadence.lead_us <= 31_000


def test_an_email_is_begun_earlier_where_times_vary():
    """Claims take 10 or 50 ms: the slot is not missed by those that take long."""
    cadence = Cadence()
    for n in range(40):
        cadence.ready_took(ms(50 if n % 2 else 10))
        if n > 20:
            assert cadence.lead_us >= 50_000


def test_a_hiccup_is_forgotten_after_a_dozen_emails():
    """An hour's jump of the clock, or one frozen minute, counts as 2 s and then less and less."""
    cadence = Cadence()
    cadence.reply_took(timedelta(hours=1), 100_000)
    assert cadence.lead_us == 2_000_000
    for _ in range(12):
        cadence.reply_took(ms(5), 100_000)
    assert cadence.lead_us < 40_000
    cadence.ready_took(timedelta(hours=-1))
    assert cadence.lead_us > 0
