"""SES's quotas: recipients per second and per rolling 24 hours, on the clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local.clock import Clock
from local.ports import AwsError
from local.ses.mailbox import accepted
from local.ses.quota import DAY_SECONDS, RateLimit, RollingCount
from local.ses.service import SimpleEmail

from .conftest import email, simple

type MakeSes = Callable[..., SimpleEmail]
SIMULATOR = "success@simulator.amazonses.com"


class StillClock(Clock):
    """A clock that only tests move: the machine's own seconds would refill a bucket."""

    def time(self) -> float:
        return 1_900_000_000.0 + self.offset


@pytest.fixture
def clock() -> Clock:
    return StillClock()


def refused(ses: SimpleEmail, to: str | list[str] = "ana@example.org") -> AwsError:
    with pytest.raises(AwsError) as error:
        ses.handle("SendEmail", email(to))
    return error.value


def test_beyond_the_rate_is_429(make_ses: MakeSes, clock: Clock) -> None:
    """Contract sheet, section 3: TooManyRequestsException 429 "Maximum sending rate exceeded"."""
    ses = make_ses(max_send_rate=5)
    for _ in range(5):
        ses.handle("SendEmail", email())
    error = refused(ses)
    assert (error.code, error.status, error.message) == (
        "TooManyRequestsException",
        429,
        "Maximum sending rate exceeded.",
    )
    clock.advance(0.21)
    ses.handle("SendEmail", email())
    assert refused(ses).status == 429


def test_the_rate_counts_recipients(make_ses: MakeSes, clock: Clock) -> None:
    """Contract sheet, section 3: rate and quota count recipients, not calls."""
    ses = make_ses(max_send_rate=5)
    ses.handle("SendEmail", email([f"u{number}@example.org" for number in range(4)]))
    assert refused(ses, ["a@example.org", "b@example.org"]).status == 429
    ses.handle("SendEmail", email())


def test_a_message_to_more_than_a_second_allows_can_still_go(make_ses: MakeSes, clock: Clock) -> None:
    """Fifty recipients at one a second: taken when nothing else was sent, and paid for afterwards."""
    ses = make_ses(max_send_rate=1)
    ses.handle("SendEmail", email([f"u{number}@example.org" for number in range(50)]))
    clock.advance(49)
    assert refused(ses).status == 429
    clock.advance(1)
    ses.handle("SendEmail", email())


def test_beyond_the_daily_quota_is_429_until_a_day_has_passed(make_ses: MakeSes, clock: Clock) -> None:
    """Contract sheet, section 3: "Daily message quota exceeded", over a rolling 24 hours."""
    ses = make_ses(max_24_hour_send=3)
    ses.handle("SendEmail", email())
    clock.advance(timedelta(hours=12).total_seconds())
    ses.handle("SendEmail", email(["a@example.org", "b@example.org"]))
    assert refused(ses).message == "Daily message quota exceeded."
    assert ses.handle("GetAccount", {})["SendQuota"] == {
        "Max24HourSend": 3.0,
        "MaxSendRate": 200.0,
        "SentLast24Hours": 3.0,
    }
    clock.advance(timedelta(hours=12, seconds=1).total_seconds())
    assert ses.handle("GetAccount", {})["SendQuota"]["SentLast24Hours"] == 2.0
    ses.handle("SendEmail", email())
    assert refused(ses).status == 429


def test_refused_calls_count_nothing(make_ses: MakeSes, clock: Clock, tmp_path: Path) -> None:
    """Contract sheet, section 3: a refused call is not accepted, not billed, and takes nothing of a quota."""
    ses = make_ses(max_24_hour_send=2, max_send_rate=2)
    for _ in range(5):
        with pytest.raises(AwsError):
            ses.handle("SendEmail", email("not an address"))
        assert refused(ses, ["a@example.org", "b@example.org", "c@example.org"]).status == 429
    assert ses.handle("GetAccount", {})["SendQuota"]["SentLast24Hours"] == 0.0
    ses.handle("SendEmail", email(["a@example.org", "b@example.org"]))
    assert len(list(accepted(tmp_path / "mailbox"))) == 1


def test_the_simulator_counts_for_the_rate_only(make_ses: MakeSes, clock: Clock) -> None:
    """Contract sheet, section 3: simulator addresses are not in the daily quota."""
    ses = make_ses(max_24_hour_send=1, max_send_rate=3)
    for _ in range(3):
        ses.handle("SendEmail", email(SIMULATOR))
    assert refused(ses, SIMULATOR).message == "Maximum sending rate exceeded."
    assert ses.handle("GetAccount", {})["SendQuota"]["SentLast24Hours"] == 0.0


def test_suppressed_recipients_count_for_the_daily_quota(make_ses: MakeSes, clock: Clock) -> None:
    """Contract sheet, section 3: a listed address counts against the daily quota."""
    ses = make_ses(max_24_hour_send=1)
    ses.handle("PutSuppressedDestination", {"EmailAddress": "ana@example.org", "Reason": "BOUNCE"})
    ses.handle("SendEmail", email())
    assert refused(ses).message == "Daily message quota exceeded."


def test_minus_one_is_no_daily_quota(make_ses: MakeSes, clock: Clock) -> None:
    """Botocore sesv2 SendQuota: -1 signifies an unlimited quota."""
    ses = make_ses(max_24_hour_send=-1, max_send_rate=1_000)
    for _ in range(100):
        ses.handle("SendEmail", email(Content=simple(Body={"Text": {"Data": "x"}})))
    assert ses.handle("GetAccount", {})["SendQuota"]["Max24HourSend"] == -1.0


def test_every_other_operation_answers_once_a_second(make_ses: MakeSes, clock: Clock) -> None:
    """Contract sheet, section 3: 1 call/s, not adjustable, so nobody may ask SES about every recipient."""
    ses = make_ses(calls_per_second=1)
    ses.handle("GetAccount", {})
    with pytest.raises(AwsError) as error:
        ses.handle("GetAccount", {})
    assert (error.value.code, error.value.status) == ("TooManyRequestsException", 429)
    clock.advance(1)
    ses.handle("GetAccount", {})


@given(
    rate=st.integers(1, 50),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 20)), min_size=1, max_size=60),
)
@settings(max_examples=60, deadline=None)
def test_no_stretch_of_time_holds_more_than_the_rate_and_one_burst(rate: int, steps: list[tuple[float, int]]) -> None:
    """A law of the bucket: in t seconds at most rate · t plus a second's worth, plus one large message."""
    limit, now, taken = RateLimit(rate, 1.0), 0.0, []
    for wait, count in steps:
        now += wait
        if limit.permits(count, now):
            limit.take(count)
            taken.append((now, count))
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            span = taken[end][0] - taken[start][0]
            total = sum(count for _, count in taken[start : end + 1])
            assert total <= rate * span + rate + max(count for _, count in taken) + 1e-6


@given(steps=st.lists(st.tuples(st.floats(0, 40_000), st.integers(1, 50)), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_rolling_sum_is_that_of_the_last_day(steps: list[tuple[float, int]]) -> None:
    """A law of the sum: everything of the last 24 hours, and nothing that is a second older than that."""
    count, now, taken = RollingCount(), 0.0, []
    for wait, number in steps:
        now += wait
        count.add(number, now)
        taken.append((now, number))
        least = sum(number for at, number in taken if at > now - DAY_SECONDS)
        most = sum(number for at, number in taken if at > now - DAY_SECONDS - 1)
        assert least <= count.at(now) <= most
