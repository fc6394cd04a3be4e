"""At most once and in balance, at every interleaving and crash (DESIGN section 6)."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.sending.simulation import history, rush

FATES = st.binary(min_size=0, max_size=240)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FATES)
def test_nobody_is_mailed_twice_and_every_task_is_accounted_for(fate):
    """Senders at once, killed at any call, replies lost, messages twice and late, beside a resume or a cancel.

    The laws are asserted by the simulation after every step: accepted ≤ 1 per task, counted at SES; as many rows as
    were enrolled, moved only as the table allows; nothing accepted after a cancel's acknowledgement.
    """
    history(fate)


def test_when_nothing_goes_wrong_everybody_is_mailed_once():
    """The same history with no fate at all: three tasks, three e-mails, all Finished."""
    simulation = history(b"")
    assert sorted(simulation.accepted_by_task().values()) == [1, 1, 1]
    assert {str(row.status) for row in simulation.rows.values()} == {"Finished"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rate=st.integers(1, 20), seed=st.integers(0, 1_000_000))
def test_many_senders_together_keep_the_rate(rate, seed):
    """Thirty e-mails by five senders whose calls take from nothing to 3 s: in any sliding second the rate and one."""
    rush(unhurried(seed), rate)


def unhurried(seed: int) -> bytes:
    """A fate in which one call in eight takes 0.7 s, one in forty 3 s, and nothing else goes wrong."""
    return bytes(Random(seed).choices([0, 1, 2, 3, 7, 8], [20, 20, 20, 20, 10, 2], k=3000))
