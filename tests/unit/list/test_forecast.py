"""What a timetable means: hours, costs and quotas."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carillon.launch import forecast, prices
from carillon.launch.forecast import Quotas
from carillon.launch.readiness import Account
from carillon.launch.timetable import Timetable
from carillon.shapes import Fit
from carillon.timing import ledger, rules
from carillon.timing.clocks import Clocks
from carillon.timing.ledger import NOTHING, Taken
from carillon.timing.pace import Pace
from carillon.timing.planning import Limits, Planned, Request

NOON = int(datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp())
DAY, HOUR = 86_400, 3_600


def timetable(
    slots: list[int], zone: str = "UTC", taken: Taken = NOTHING, sent: dict[str, int] | None = None
) -> Timetable:
    """A plan with these slots (-1: none)."""
    clocks = Clocks()
    at = np.array(slots, dtype=np.int64)
    targets = rules.Targets(at, at, at)
    zones = np.full(len(at), clocks.number(zone))
    limits = Limits(None, 1.0, None, "UTC", taken, sent=ledger.sent(sent or {}))
    request = Request(targets, zones, clocks, now=NOON, earliest=NOON, limits=limits)
    none = np.zeros(len(at), dtype=np.int8)
    return Timetable(request, Planned(slots=at, targets=targets, reason=none, past=0, next_day=0, late=0))


def fits(slots: list[int], *, pace: Any = None, taken: Taken = NOTHING, **of: Any) -> dict[str, Fit]:
    """Each quota by the first word after its service."""
    account = Account(**{
        "production": True, "enabled": True, "max_24_hour_send": 10, "max_send_rate": 14.0, "price_plan": "NONE", **of
    })  # fmt: skip
    pace = pace or Pace(rate_per_second=1)
    made = timetable(slots, taken=taken, sent=pace.hours)
    found = forecast.fits(made, len(slots), pace, account, Quotas(schedules=100))
    return {fit.quota.partition(": ")[2]: fit for fit in found}


def test_hours_are_counted_in_utc_and_in_each_recipients_own_day() -> None:
    """A zone at half an hour falls into another hour, and sometimes another day."""
    made = forecast.histogram(timetable([NOON, NOON + 7 * 3600, -1], "Asia/Kolkata"))
    assert {day: [h for h, n in enumerate(hours) if n] for day, hours in made.utc.items()} == {"2026-12-01": [12, 19]}
    assert {day: [h for h, n in enumerate(hours) if n] for day, hours in made.local.items()} == {
        "2026-12-01": [17],
        "2026-12-02": [0],
    }


def test_who_goes_long_after_the_moment_meant_is_counted() -> None:
    """Not within the hour, not who has no slot, and not who goes as soon as possible, however long that takes."""
    slots = np.array([NOON + HOUR, NOON + 2 * HOUR, NOON + 32 * HOUR + 1800, -1, NOON + 50 * HOUR], dtype=np.int64)
    made = timetable([NOON + HOUR] * 4 + [NOON])
    late = replace(made, planned=replace(made.planned, slots=slots))
    [sentence] = forecast.lateness(late)
    assert sentence.startswith("1 e-mail would go more than an hour after")
    assert "31 h 30 min" in sentence
    assert forecast.lateness(made) == []


def test_nothing_planned_has_no_hours_and_no_ends() -> None:
    """Not a zero at the epoch."""
    made = timetable([-1])
    assert forecast.histogram(made).utc == {}
    assert forecast.ends(made.planned.slots) == {"first_slot": None, "last_slot": None}
    assert forecast.eta(made.planned.slots) is None


@given(st.lists(st.integers(0, 3 * DAY), min_size=1, max_size=40))
def test_the_most_of_any_24_hours_is_found(seconds: list[int]) -> None:
    """As counting from every e-mail on finds it, to the minute."""
    minutes = [second // 60 for second in seconds]
    expected = max(sum(start <= m < start + 1440 for m in minutes) for start in minutes)
    assert fits([NOON - NOON % DAY + s for s in seconds])["e-mails in 24 hours"].needed == expected


def test_other_campaigns_and_what_was_sent_count_towards_the_24_hours() -> None:
    """SES counts the account's, not the campaign's."""
    taken = Taken(np.array([NOON // 60 + 5]), np.array([3]))
    fit = fits([NOON + 60] * 4, pace=Pace(hours={"2026120111": 4, "2026113003": 5}), taken=taken)["e-mails in 24 hours"]
    assert (fit.needed, fit.fits) == (11, False)  # what went 33 hours before does not count
    assert "cancel one" in str(fit.fix)
    assert "11 in 24 hours" in str(fit.fix)


def test_an_unlimited_account_always_fits() -> None:
    """SES says -1."""
    fit = fits([NOON] * 50, max_24_hour_send=-1)["e-mails in 24 hours"]
    assert (fit.limit, fit.fits, fit.fix) == (None, True, None)


@pytest.mark.parametrize(
    ("slots", "quota", "fix"),
    [
        ([NOON + n for n in range(101)], "schedules in the Region", "to at least 101"),
        ([NOON] * 60_001, "invocations in the fullest minute", "1,001 a second"),
    ],
)
def test_what_scheduler_does_not_carry_is_named_with_what_to_request(slots: list[int], quota: str, fix: str) -> None:
    """The number that the plan needs, in the quota's own words."""
    fit = fits(slots, max_24_hour_send=-1)[quota]
    assert not fit.fits
    assert fix in str(fit.fix)


def test_a_rate_above_ses_s_is_named_with_both_ways_out() -> None:
    """Slower, or a quota increase."""
    fit = fits([NOON], pace=Pace(rate_per_second=20))["e-mails a second"]
    assert not fit.fits
    assert "14 or less" in str(fit.fix)
    assert "20 a second" in str(fit.fix)


@pytest.mark.parametrize(
    ("plan", "emails", "usd"),
    [
        ("NONE", 1_000_000, 100.0),
        ("ESSENTIALS", 1_000_000, 160.0),
        ("ESSENTIALS", 12_000_000, 1_600.0 + 280.0),
        ("PRO", 1_000, 0.22),
        ("ENTERPRISE", 1_000, 0.23),
    ],
)
def test_ses_costs_what_its_price_plan_says(plan: str, emails: int, usd: float) -> None:
    """AWS_CONTRACTS 7; Essentials in tiers."""
    assert prices.ses(plan, emails)[0] == pytest.approx(usd)


def test_every_cost_names_its_price_with_date_and_source() -> None:
    """What cannot be traced is not shown."""
    costs = forecast.costs(1_000_000, 3_600, "ESSENTIALS")
    assert costs[0].usd == pytest.approx(160.0)
    assert all("2026" in cost.price and "USD" in cost.price for cost in costs)
    assert 5 < sum(cost.usd for cost in costs[1:]) < 20


def test_the_direct_route_pays_for_no_sender_and_no_rows() -> None:
    """Beside SES a million e-mails cost what Scheduler asks, the events and the launch."""
    costs = {cost.service: cost.usd for cost in forecast.costs(1_000_000, 7_200, "ESSENTIALS", direct=True)}
    assert set(costs) == {"SES", "EventBridge Scheduler", "Lambda", "Step Functions", "S3", "Firehose"}
    assert sum(costs.values()) - costs["SES"] < 3


def test_a_refusal_says_quota_need_and_fix() -> None:
    """And what fits is not refused."""
    good = Fit(quota="a", limit=1, needed=1, fits=True)
    bad = Fit(quota="b", limit=12_000_000, needed=13_000_000, fits=False, fix="ask")
    refused = forecast.refusals([good, bad])
    assert refused == ["b: the plan needs 13,000,000 and the quota is 12,000,000: ask"]
