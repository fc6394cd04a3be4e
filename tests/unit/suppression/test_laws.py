"""Whoever is suppressed is neither enrolled nor sent to, in whatever spelling either side writes the address."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.addresses import canonical, judge
from carillon.consent.suppressions import hash_of
from tests.unit.list.conftest import NOW, World, aws, world  # noqa: F401  (fixtures)
from tests.unit.list.test_preparation import ready
from tests.unit.sending import examples, fakes

SPELLINGS = (
    ("ana@example.com", "ANA@EXAMPLE.COM", " ana@Example.com ", "<Ana@example.com>", "Ana <ana@example.com>"),
    ("jo@bücher.example", "JO@BÜCHER.example", "jo@xn--bcher-kva.example", "Jo@XN--BCHER-KVA.Example"),
    ("li@straße.example", "LI@xn--strae-oqa.example", "mailto:li@Straße.example"),
    ("o'neil+news@mail.example", "O'Neil+News@mail.example", "\u200bo'neil+news@MAIL.example\u00a0"),
)
PAIRS = [
    pytest.param(a, b, id=f"{n}-{i}-{j}")
    for n, s in enumerate(SPELLINGS)
    for i, a in enumerate(s)
    for j, b in enumerate(s)
]


@pytest.mark.parametrize("topic", ["offers", "*"])
@pytest.mark.parametrize("turn", range(5))
def test_a_suppressed_person_is_never_enrolled(world: World, topic: str, turn: int) -> None:  # noqa: F811
    """Each spelling on the list against another in the suppression: the reader's SQL and our hash agree."""
    ready(world)
    listed = [spellings[turn % len(spellings)] for spellings in SPELLINGS]
    world.upload("email,name\n" + "".join(f'"{address}",N\n' for address in listed) + "free@example.com,N\n")
    for spellings in SPELLINGS:
        hashed = hash_of(spellings[(turn + 1) % len(spellings)])
        assert hashed is not None
        world.suppressions.add(hashed, topic, "asked", NOW)

    result = world.prepare()

    assert (result.rejected, result.count) == ({"suppressed": len(SPELLINGS)}, 1)
    assert [line.address for line in world.lines(world.first())] == ["free@example.com"]


@pytest.mark.parametrize(("enrolled", "suppressed"), PAIRS)
def test_a_suppressed_person_is_never_sent_to(enrolled: str, suppressed: str) -> None:
    """Suppressed after the enrolment: the sender finds the row by the address that it would send to."""
    to = judge(enrolled)
    hashed = hash_of(suppressed)
    assert to is not None
    assert hashed is not None
    name = keys.task_id(0, canonical(to))
    stage: Any = fakes.World([examples.campaign()], [examples.task(0, task=name, step=0, address=to)])
    stage.suppressed = {(hashed, "offers")}
    stage.send(examples.record(examples.message(0, task=name, step=0, to=to)))
    assert stage.accepted == []
    (row,) = stage.rows.values()
    assert (row.status, row.error.code) == ("Failed", "Suppressed")


@settings(deadline=None)
@given(st.sampled_from(SPELLINGS), st.sampled_from(SPELLINGS))
def test_two_people_are_never_taken_for_one(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Nobody is suppressed for somebody else's wish."""
    same = {hash_of(spelling) for spelling in (*one, *other)}
    assert len(same) == (1 if one is other else 2)
