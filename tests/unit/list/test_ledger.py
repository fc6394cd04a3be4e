"""Two plans never take the same capacity, whoever reads and writes first; and a cancel gives back its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import zones
from carillon.adapters.ledger import KEPT, LedgerTable
from carillon.errors import LedgerConflict, PlanRefused
from carillon.timing import ledger, planning
from carillon.timing.clocks import Clocks
from carillon.timing.curve import Ints
from carillon.timing.ledger import Day, Taken, by_day, decode, encode, others, reserve
from carillon.timing.planning import Limits, Request, plan
from carillon.timing.rules import Targets

MONDAY = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())
TODAY = date(2026, 11, 30)
DAYS = [TODAY + timedelta(days=n) for n in range(10)]


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


class InMemory:
    """The Settings table's ledger items, with the condition that DynamoDB would check."""

    def __init__(self) -> None:
        self.items: dict[date, Day] = {}

    def read(self, days: Iterable[date]) -> list[Day]:
        return [self.items.get(day, Day(day, 0, {})) for day in days]

    def take(self, campaign_id: str, day: Day, entry: bytes | None) -> None:
        now = self.items.get(day.day, Day(day.day, 0, {}))
        if now.version != day.version:
            raise LedgerConflict(str(day.day))
        kept = {taker: stored for taker, stored in now.takers.items() if taker != campaign_id}
        self.items[day.day] = Day(day.day, now.version + 1, kept if entry is None else {**kept, campaign_id: entry})

    def give_back(self, campaign_id: str, days: Iterable[date]) -> None:
        for day in days:
            if day in self.items:
                kept = {taker: entry for taker, entry in self.items[day].takers.items() if taker != campaign_id}
                self.items[day] = replace(self.items[day], takers=kept)

    def per_minute(self) -> Counter[int]:
        taken = others(self.items.values(), "")
        return Counter(dict(zip(taken.minutes.tolist(), taken.counts.tolist(), strict=True)))


def planner(count: int, target: int, cap: int, cap_zone: str) -> Callable[[Taken], Ints]:
    """A campaign of ``count`` e-mails, due at once, of an identity that sends one in ten seconds, ``cap`` a day."""

    def plan_on(taken: Taken) -> Ints:
        clocks = Clocks()
        zone = np.full(count, clocks.number("UTC"))
        at = np.full(count, target, dtype=np.int64)
        of = Limits(None, 0.1, lambda _: cap, cap_zone, taken)
        return plan(Request(Targets(at, zone, at), zone, clocks, MONDAY, MONDAY, of)).slots

    return plan_on


def test_slots_are_counted_by_day_and_minute() -> None:
    """Whoever has none counts nowhere, and what is stored is what was counted."""
    found = by_day(ints(MONDAY, MONDAY + 59, -1, MONDAY + 60, MONDAY + 86_400 + 3_600))
    assert {day: Counter(np.flatnonzero(n).tolist()) for day, n in found.items()} == {
        TODAY: {0: 1, 1: 1},
        TODAY + timedelta(days=1): {60: 1},
    }
    assert found[TODAY][:3].tolist() == [2, 1, 0]
    assert decode(encode(found[TODAY])).tolist() == found[TODAY].tolist()
    assert by_day(ints(-1)) == {}


def test_what_others_have_taken_is_their_sum_and_not_ones_own() -> None:
    """Minutes in order, over days, and none that is empty."""
    entry = encode(by_day(ints(MONDAY, MONDAY + 120))[TODAY])
    days = [Day(TODAY + timedelta(days=1), 1, {"b": entry}), Day(TODAY, 3, {"a": entry, "b": entry, "own": entry})]
    found = others(days, "own")
    minute = MONDAY // 60
    assert found.minutes.tolist() == [minute, minute + 2, minute + 1440, minute + 1442]
    assert found.counts.tolist() == [2, 2, 1, 1]
    assert found.between(MONDAY, MONDAY + 120) == 2
    assert found.between(MONDAY + 1, MONDAY + 86_401) == 3
    assert others([], "own").minutes.tolist() == []


def test_a_campaign_plans_around_what_another_one_has_taken() -> None:
    """Six in a minute: the second campaign's four find two places left in the first."""
    table = InMemory()
    first = reserve(table, "a", DAYS, "UTC", planner(4, MONDAY, 1000, "UTC"))
    second = reserve(table, "b", DAYS, "UTC", planner(4, MONDAY, 1000, "UTC"))
    assert Counter(first // 60) == {MONDAY // 60: 4}
    assert Counter(second // 60) == {MONDAY // 60: 2, MONDAY // 60 + 1: 2}


def test_a_retry_takes_nothing_twice_and_leaves_nothing_behind() -> None:
    """Planned again for another day, the campaign has that day alone."""
    table = InMemory()
    reserve(table, "a", DAYS, "UTC", planner(4, MONDAY, 1000, "UTC"))
    slots = reserve(table, "a", DAYS, "UTC", planner(4, MONDAY, 1000, "UTC"))
    assert sum(table.per_minute().values()) == len(slots)
    moved = reserve(table, "a", DAYS, "UTC", planner(4, MONDAY + 86_400, 1000, "UTC"))
    assert table.per_minute() == Counter((moved // 60).tolist())


def test_whoever_is_always_too_late_gives_up_with_the_reason() -> None:
    """Bounded: the error is one that a launch can be repeated after."""
    table = InMemory()

    def busy(taken: Taken) -> Ints:
        table.take("other", table.read([TODAY])[0], encode(by_day(ints(MONDAY))[TODAY]))
        return ints(MONDAY)

    with pytest.raises(LedgerConflict):
        reserve(table, "a", DAYS, "UTC", busy)
    assert table.items[TODAY].version == ledger.ATTEMPTS


@pytest.mark.parametrize(("refused_at", "expected"), [(3, PlanRefused), (99, LedgerConflict)])
def test_whoever_gives_up_leaves_nothing_taken(refused_at: int, expected: type[Exception]) -> None:
    """The first of two days was written each time before the second was found changed; that is given back."""
    table = InMemory()
    tomorrow = TODAY + timedelta(days=1)

    def busy(taken: Taken) -> Ints:
        table.take("other", table.read([tomorrow])[0], encode(by_day(ints(MONDAY + 86_400))[tomorrow]))
        if table.items[tomorrow].version == refused_at:
            raise PlanRefused("no room")
        return ints(MONDAY, MONDAY + 86_400)

    with pytest.raises(expected):
        reserve(table, "a", DAYS, "UTC", busy)
    assert not any("a" in day.takers for day in table.items.values())


def test_a_day_with_too_many_campaigns_refuses_the_next_one() -> None:
    """Before anything is written. An entry of noise takes its 3 KB, one of a steady rate a hundredth of that."""
    random = np.random.default_rng(1)
    noise, steady = encode(random.integers(0, 900, 1440)), encode(np.full(1440, 840))
    assert len(noise) < 3_000
    assert len(steady) < 50
    room = ledger.LARGEST_DAY // (len(noise) + 40 + 4)
    table = InMemory()
    table.items[TODAY] = Day(TODAY, 9, {f"{n:040}": noise for n in range(room)})
    reserve(table, "a", DAYS, "UTC", lambda _: ints(MONDAY))
    table.items[TODAY] = Day(TODAY, 9, {f"{n:040}": noise for n in range(room + 1)})
    with pytest.raises(PlanRefused, match=rf"{room + 2} campaigns share 2026-11-30.*other days"):
        reserve(table, "a", DAYS, "UTC", lambda _: ints(MONDAY))
    assert table.items[TODAY].version == 9


class InTurn:
    """A table that several threads use one call at a time, in the order that a random source says."""

    def __init__(self, table: InMemory, random: Random, names: list[str]) -> None:
        self._table, self._random, self._running = table, random, list(names)
        self._waiting: set[str] = set()
        self._turn = threading.Condition()
        self._chosen: str | None = None

    def call[T](self, name: str, what: Callable[[], T]) -> T:
        """Wait for ``name``'s turn: one is chosen once everybody who still runs wants something."""
        with self._turn:
            self._waiting.add(name)
            self._choose()
            self._turn.wait_for(lambda: self._chosen == name)
            self._chosen = None
            self._waiting.discard(name)
            return what()

    def over(self, name: str) -> None:
        with self._turn:
            self._running.remove(name)
            self._choose()

    def _choose(self) -> None:
        if self._chosen is None and self._waiting and self._waiting == set(self._running):
            self._chosen = self._random.choice(sorted(self._waiting))
            self._turn.notify_all()


class OneOfSeveral:
    """The port as one of several planners has it. A day is read and written by itself, as by BatchGetItem."""

    def __init__(self, name: str, table: InMemory, turns: InTurn) -> None:
        self._name, self._table, self._turns = name, table, turns

    def read(self, days: Iterable[date]) -> list[Day]:
        return [self._turns.call(self._name, lambda d=day: self._table.read([d])[0]) for day in days]

    def take(self, campaign_id: str, day: Day, entry: bytes | None) -> None:
        self._turns.call(self._name, lambda: self._table.take(campaign_id, day, entry))

    def give_back(self, campaign_id: str, days: Iterable[date]) -> None:
        self._turns.call(self._name, lambda: self._table.give_back(campaign_id, days))


@given(seed=st.integers(0, 2**32), cap_zone=st.sampled_from(["UTC", "Asia/Kathmandu", "America/New_York"]))
@settings(deadline=None, max_examples=200)
def test_no_interleaving_of_planners_takes_the_same_capacity_twice(seed: int, cap_zone: str) -> None:
    """Every minute and day of the cap holds, plans are what the ledger has, and a cancel takes out its own."""
    random, table = Random(seed), InMemory()
    names = ["a", "b", "c"][: random.choice([2, 2, 3])]
    cap = random.choice([5, 9, 20])
    turns = InTurn(table, random, names)
    plans: dict[str, Ints] = {}
    wanted = {
        name: (random.randint(1, 12), MONDAY + random.choice([0, 18 * 3600, 23 * 3600 + 3540, 86_400]))
        for name in names
    }
    days = DAYS[:2]
    all_days = [TODAY + timedelta(days=n) for n in range(-1, 200)]

    def work(name: str) -> None:
        count, target = wanted[name]
        try:
            plans[name] = reserve(
                OneOfSeveral(name, table, turns), name, days, cap_zone, planner(count, target, cap, cap_zone)
            )
        except LedgerConflict:
            OneOfSeveral(name, table, turns).give_back(name, all_days)
        finally:
            turns.over(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    total = Counter(minute for slots in plans.values() for minute in (slots // 60).tolist())
    assert table.per_minute() == total
    assert max(total.values(), default=0) <= 6
    zone = zones.get(cap_zone)
    moments = [datetime.fromtimestamp(s, UTC).astimezone(zone) for slots in plans.values() for s in slots.tolist()]
    assert max(Counter(moment.date() for moment in moments).values(), default=0) <= cap
    assert len(plans) >= 1, "somebody is always first"

    for name, slots in plans.items():
        table.give_back(name, all_days)
        total -= Counter((slots // 60).tolist())
        assert table.per_minute() == total
        table.give_back(name, all_days)
        assert table.per_minute() == total


@pytest.fixture
def stored(aws: None) -> LedgerTable:
    """The adapter on a table that moto keeps."""
    from tests.unit.list.conftest import client

    return LedgerTable("settings", client("dynamodb"))


def test_a_day_is_written_only_as_it_was_read(stored: LedgerTable) -> None:
    """A version for the day, an entry for each campaign; whoever has read an older one is told."""
    (empty,) = stored.read([TODAY])
    assert empty == Day(TODAY, 0, {})
    stored.take("a", empty, b"one")
    with pytest.raises(LedgerConflict, match="2026-11-30"):
        stored.take("b", empty, b"two")
    (seen,) = stored.read([TODAY])
    stored.take("b", seen, b"two")
    with pytest.raises(LedgerConflict):
        stored.take("a", seen, None)
    (both,) = stored.read([TODAY])
    assert both == Day(TODAY, 2, {"a": b"one", "b": b"two"})
    stored.take("a", both, None)
    assert stored.read([TODAY]) == [Day(TODAY, 3, {"b": b"two"})]


def test_giving_back_takes_out_ones_own_and_makes_no_item(stored: LedgerTable) -> None:
    """Any number of times, also on days that nobody has ever taken anything of."""
    tomorrow = TODAY + timedelta(days=1)
    for day in stored.read([TODAY]):
        stored.take("a", day, b"one")
    for day in stored.read([TODAY]):
        stored.take("b", day, b"two")
    for _ in range(2):
        stored.give_back("a", [TODAY, tomorrow])
    assert stored.read([TODAY, tomorrow]) == [Day(TODAY, 2, {"b": b"two"}), Day(tomorrow, 0, {})]


def test_a_year_of_days_is_read_and_taken_and_its_items_expire(stored: LedgerTable) -> None:
    """BatchGetItem takes a hundred keys; an item outlives its day by forty."""
    from tests.unit.list.conftest import client

    days = [TODAY + timedelta(days=n) for n in range(403)]
    slots = reserve(stored, "a", days, "UTC", lambda _: MONDAY + 86_400 * np.arange(0, 400, 2))
    found = {day.day: day for day in stored.read(days)}
    assert len(found) == 403
    assert sum(bool(day.takers) for day in found.values()) == 200
    assert others(found.values(), "b").minutes.tolist() == (slots // 60).tolist()
    item = client("dynamodb").get_item(TableName="settings", Key={"name": {"S": "ledger#2026-11-30"}})["Item"]
    assert int(item["expires_at"]["N"]) == MONDAY + KEPT == MONDAY + 40 * 86_400


def test_a_forecast_is_in_the_ledger_as_the_plan_shows_it() -> None:
    """What waits for another step takes its minute like all others, and no more than that."""
    clocks = Clocks()
    zone = np.full(2, clocks.number("UTC"))
    at = ints(MONDAY, 0)
    follow = planning.Follow(ints(1), ints(0), _after(days=3))

    def plan_on(taken: Taken) -> Ints:
        of = Limits(None, 1.0, None, "UTC", taken)
        return plan(Request(Targets(at, zone, at), zone, clocks, 0, MONDAY, of, follows=[follow])).slots

    table = InMemory()
    reserve(table, "a", DAYS, "UTC", plan_on)
    assert table.per_minute() == {MONDAY // 60: 1, MONDAY // 60 + 3 * 1440: 1}


def _after(days: int) -> planning.AfterPrevious:
    return planning.AfterPrevious.model_validate({"kind": "after_previous", "offset": f"P{days}D"})
