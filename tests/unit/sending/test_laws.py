"""At most once, in turn and in balance, at every interleaving and crash (DESIGN section 6)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carillon.transitions import CampaignState
from tests.unit.sending.simulation import ANSWERS, GARBAGE, Answer, Simulation, history, random_fate, resume, rush

REJECTED = next(answer for answer in ANSWERS if answer.name.startswith("MessageRejected (no)"))
NOT_NOW = next(answer for answer in ANSWERS if answer.name.startswith("TooManyRequestsException (no)"))
STOPPED = next(answer for answer in ANSWERS if answer.name.startswith("AccountSuspendedException"))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 400))
def test_nobody_is_mailed_twice_and_every_task_is_accounted_for(seed, size):
    """Senders and reconcilers at once, killed at any call, replies lost, messages twice and late, sequences, beside
    people who pause, resume, cancel, suppress, change data and the pace.

    The laws are asserted by the simulation after every call: accepted ≤ 1 per task and in turn, counted at SES; as many
    rows as were enrolled, moved only as the table allows; nothing accepted after a cancel's acknowledgement; no message
    acknowledged without a reason. In the end whatever is unfinished has a reason, and a pass of the reconciler with
    senders that meet no trouble finishes it, all but what nobody can know.
    """
    history(random_fate(seed)[:size])


def test_when_nothing_goes_wrong_everybody_is_mailed_once():
    """The same history with no fate at all: three tasks, three e-mails, all Finished."""
    simulation = history(b"")
    assert sorted(simulation.accepted_by_task().values()) == [1, 1, 1]
    assert {str(row.status) for row in simulation.rows.values()} == {"Finished"}
    assert simulation.campaigns["advent"].state is CampaignState.COMPLETED


EVERY_CALL = {
    *("get campaign", "read rows", "enrich", "bury message", "reserve pace", "get template", "read link keys"),
    *("read sender setting", "Pending to Running", "send email", "Running to Pending", "Pending to Failed together"),
    *("Running to Failed together", "Running to Finished together", "create schedule", "pause campaign"),
    *("give back pace", "count", "delay messages"),
}
"""Of a sender; an outcome alone is what is written where one together with the next step's was in trouble."""

TROUBLES = {
    "killed before": (255, 0),
    "never arrived": (244, 0),
    "asked again": (228, 0),
    "reply lost": (236, 0),
    "killed after": (0, 255),
}


def calls_of_a_sender(number: int = 0, trouble: tuple[int, int] = (0, 0)) -> Simulation:
    """Two batches that make a sender call everything it can call; ``trouble`` befalls the call of that number.

    One person is sent to, one refused, two put off and one suppressed; then SES stops the campaign.
    """
    asked = {"function": "carillon-enrichment-points", "provides": ["points"], "if_failing": "send_without"}
    simulation = Simulation(people=5, steps=2, enrichment=asked)
    simulation.suppress(4)
    for body in GARBAGE:
        simulation.post(body)
    simulation.struck = {number: trouble}
    simulation.script.extend([None, (REJECTED, False), (NOT_NOW, False), (STOPPED, False)])
    try:
        for _ in range(2):
            simulation.deliver(picked=[letter for letter in simulation.letters if not letter.gone])
            simulation.run()
        if not number:
            return simulation
        resume(simulation, lambda seconds: None)
        simulation.close()
    except BaseException as error:
        error.add_note(f"call {number}, {trouble}, {simulation.faults}")
        raise
    finally:
        simulation.end()
    return simulation


def test_a_sender_may_be_stopped_before_and_after_each_of_its_calls():
    """Killed before or after, unreachable, its reply lost, or asked again by boto3: one by one, every call there is."""
    untroubled = calls_of_a_sender().calls
    assert set(untroubled) == EVERY_CALL
    struck = {name: set() for name in TROUBLES}
    for how, trouble in TROUBLES.items():
        for number in range(1, untroubled.total() + 1):
            faults = calls_of_a_sender(number, trouble).faults
            struck[how] |= {fault.partition(": ")[2] for fault in faults if how in fault}
    assert struck["killed before"] == struck["killed after"] | {"send email"} >= EVERY_CALL
    assert struck["never arrived"] == struck["reply lost"] | {"enrich"} >= EVERY_CALL - {"send email"}
    assert struck["asked again"] >= EVERY_CALL - {"send email", "enrich", "create schedule"}


def every_answer() -> Iterator[tuple[Answer, bool]]:
    for answer in ANSWERS:
        yield answer, False
        if answer.in_doubt:
            yield answer, True


def test_whatever_ses_answers_is_sent_again_only_if_it_was_provably_not_taken():
    """Every error of botocore's model for SendEmail, timeouts before and after acceptance, 5xx: with all messages
    handed out again, whoever was refused for now is sent to, and whoever is in doubt is left alone."""
    for answer, taken in every_answer():
        simulation = Simulation(people=2, steps=2)
        simulation.script.append((answer, taken))
        try:
            simulation.deliver(picked=simulation.letters[:1])
            simulation.run()
            resume(simulation, lambda seconds: None)
            simulation.deliver(picked=simulation.letters)
            simulation.run()
            simulation.close()
        finally:
            simulation.end()
        first = next(row for row in simulation.rows.values() if row.step == 1)
        times = simulation.accepted_by_task()[first.task]
        assert (str(first.status), times) in (
            [("Running", int(taken))] if answer.in_doubt else [("Finished", 1), ("Failed", 0)]
        ), answer.name


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rate=st.integers(1, 20), seed=st.integers(0, 1_000_000))
def test_many_senders_together_keep_the_rate(rate, seed):
    """Thirty e-mails by five senders whose calls take from nothing to 3 s: in any sliding second the rate and one."""
    rush(unhurried(seed), rate)


def unhurried(seed: int) -> bytes:
    """A fate in which one call in eight takes 0.7 s, one in forty 3 s, and nothing else goes wrong."""
    return bytes(Random(seed).choices([0, 1, 2, 3, 7, 8], [20, 20, 20, 20, 10, 2], k=3000))
