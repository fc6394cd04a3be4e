"""The pace item on DynamoDB: one conditional write, exact for any number of senders, obeying new settings at once."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carillon.adapters.items import from_item, to_item
from carillon.adapters.settings import PaceTable
from carillon.timing.pace import Grant, Refusal, Refused, epoch_us, hour_key

START = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)


class Counted:
    """The client, one call at a time (as DynamoDB takes the writes of one item), with a count of each."""

    def __init__(self, client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.exceptions = client.exceptions

    def __getattr__(self, name):
        def call(**arguments):
            with self._lock:
                self.calls[name] += 1
                return getattr(self._client, name)(**arguments)

        return call


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(dynamodb):
    return Counted(dynamodb)


def put(client, **settings) -> None:
    client.put_item(TableName="Settings", Item=to_item({"name": "pace", **settings}))
    client.calls.clear()


def item(client) -> dict:
    return from_item(client.get_item(TableName="Settings", Key={"name": {"S": "pace"}})["Item"])


def table(client, clock, zone: str = "UTC") -> PaceTable:
    return PaceTable(client, "Settings", ZoneInfo(zone), clock)


def take(pace: PaceTable, wanted: int = 5, seconds: float = 30) -> Grant | Refused:
    return pace.reserve(wanted, lead_us=0, last_send_us=epoch_us(START) + round(seconds * 1_000_000))


def test_the_first_reservation_makes_the_item(client, clock):
    """With the defaults, where nobody has written any settings."""
    grant = take(table(client, clock), 3)
    assert (grant.start_us, grant.count, grant.interval_us) == (epoch_us(START), 3, 1_000_000)
    assert item(client) == {
        "name": "pace",
        "rate_per_second": 1,
        "daily_cap": 200,
        "next_free": epoch_us(START) // 1000 + 3000,
        "hours": {"2026113009": 3},
    }


def test_an_operator_may_write_settings_alone(client, clock):
    """What the bucket needs is added; what was written is kept."""
    put(client, rate_per_second=5, daily_cap=50, paused=False)
    assert take(table(client, clock)).interval_us == 200_000
    assert item(client)["daily_cap"] == 50


def test_a_warm_sender_reserves_with_one_write_and_no_read(client, clock):
    """Whether the bucket is busy (it follows) or idle (it begins anew)."""
    pace = table(client, clock)
    first = take(pace)
    client.calls.clear()
    second = take(pace)
    assert second.start_us == first.start_us + 5_000_000
    clock.now += timedelta(seconds=60)
    third = take(pace, seconds=90)
    assert third.start_us == epoch_us(clock.now)
    assert client.calls == {"update_item": 2}


def test_senders_follow_each_other_whatever_they_saw_last(client, clock):
    """Two warm senders, each with an old view, get slots one after the other."""
    one, other = table(client, clock), table(client, clock)
    slots = []
    for pace in (one, other, other, one, other):
        grant = take(pace, 2, seconds=1000)
        if isinstance(grant, Grant):
            slots += [grant.start_us + n * grant.interval_us for n in range(grant.count)]
    assert slots == [epoch_us(START) + n * 1_000_000 for n in range(10)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rate_per_second": 50}, 20_000),
        ({"paused": True}, Refusal.PAUSED),
        ({"daily_cap": 5}, Refusal.OVER_CAP),
        ({"warm_up": [{"day": "2026-11-30", "cap": 5}]}, Refusal.OVER_CAP),
        ({"max_24_hour_send": 5}, Refusal.OVER_CAP),
    ],
    ids=str,
)
def test_new_settings_are_obeyed_by_the_next_batch(client, clock, change, expected):
    """A write between two batches of one warm sender, which reads nothing."""
    pace = table(client, clock)
    take(pace, 5)
    client.put_item(TableName="Settings", Item=to_item(item(client) | change))
    clock.now += timedelta(seconds=6)
    got = take(pace, 5)
    assert (got.interval_us if isinstance(got, Grant) else got.why) == expected


def test_a_refusal_rests_on_the_item_as_it_is_now(client, clock):
    """Un-paused, raised, or a new day: a warm sender that was refused reads again."""
    put(client, rate_per_second=10, daily_cap=5, paused=True)
    pace = table(client, clock)
    assert take(pace).why is Refusal.PAUSED
    client.put_item(TableName="Settings", Item=to_item(item(client) | {"paused": False}))
    assert take(pace).count == 5
    assert take(pace).why is Refusal.OVER_CAP
    clock.now += timedelta(hours=15)
    assert take(pace, seconds=16 * 3600).count == 5


def test_the_cap_is_exact_when_the_hour_turns_between_two_views(client, clock):
    """One sender last looked before others took the rest of the day's cap, hours ago."""
    put(client, rate_per_second=1000, daily_cap=20)
    idle, busy = table(client, clock), table(client, clock)
    take(idle, 5)
    for _ in range(3):
        clock.now += timedelta(hours=1)
        take(busy, 5, seconds=5 * 3600)
    clock.now += timedelta(hours=1)
    assert take(idle, 5, seconds=5 * 3600).why is Refusal.OVER_CAP
    assert sum(item(client)["hours"].values()) == 20


def test_what_is_given_back_may_be_taken_again(client, clock):
    """Its share of the cap returns; its time does not."""
    put(client, rate_per_second=10, daily_cap=5)
    pace = table(client, clock)
    grant = take(pace)
    pace.give_back(grant.hour, 2)
    assert item(client)["hours"] == {hour_key(START): 3}
    assert take(pace).count == 2
    pace.give_back("2026010100", 1)
    assert item(client)["hours"] == {hour_key(START): 5}


def test_old_counters_go_away(client, clock):
    """The item stays small: one write unit."""
    put(client, rate_per_second=10, daily_cap=5, next_free=0, hours={"2026112806": 7, "2026113008": 1})
    take(table(client, clock), 2)
    assert item(client)["hours"] == {"2026113008": 1, "2026113009": 2}


def test_the_quota_that_preparation_saw_is_kept_beside_the_settings(client, clock):
    """And the planner reads it with them."""
    pace = table(client, clock)
    take(pace, 1)
    pace.record_quota(50_000)
    assert pace.read().max_24_hour_send == 50_000
    assert pace.read().taken_on(START.date(), ZoneInfo("UTC")) == 1


def test_threads_together_never_exceed_the_rate_or_the_cap(client, clock):
    """Eight senders at once, each with its own view: every slot once, one interval apart, 100 in all."""
    put(client, rate_per_second=200, daily_cap=100)
    slots: list[int] = []

    def sender() -> None:
        pace = table(client, clock)
        while isinstance(grant := take(pace, 3), Grant):
            slots.extend(grant.start_us + n * grant.interval_us for n in range(grant.count))

    threads = [threading.Thread(target=sender) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slots.sort()
    assert slots == [epoch_us(START) + n * 5_000 for n in range(100)]
    for at in slots:
        assert sum(1 for other in slots if at <= other < at + 1_000_000) <= 200 + 1
    assert client.calls["update_item"] < 100
