"""The laws as a stateful model: Hypothesis plays people, Scheduler, queue and fate, one move at a time.

Processes are left where they are between moves, in the midst of a call, so whatever a rule does happens beside them.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from carillon.consent.suppressions import exits
from carillon.transitions import TaskStatus
from tests.unit.sending import simulation
from tests.unit.sending.simulation import ANSWERS, GARBAGE, Simulation, random_fate

FATES = st.builds(lambda seed, size: random_fate(seed)[:size], st.integers(0, 2**32 - 1), st.integers(0, 200))
"""From a seed: bytes that Hypothesis draws are short and alike, and then little goes wrong."""
PEOPLE = st.integers(0, 2)


class Sending(RuleBasedStateMachine):
    """One campaign to three people, with as many steps and senders as Hypothesis likes."""

    world: Simulation

    @initialize(steps=st.integers(1, 3), rate=st.integers(1, 30), garbage=st.booleans())
    def launched(self, steps, rate, garbage):
        self.world = Simulation(steps=steps)
        self.world.change_pace(rate_per_second=float(rate))
        for body in GARBAGE if garbage else ():
            self.world.post(body)

    @rule(picks=st.lists(st.integers(0, 30), min_size=1, max_size=5), fate=FATES, steps=st.integers(0, 60))
    def deliver(self, picks, fate, steps):
        """Messages, however old and whoever has them already, reach one more sender."""
        letters = self.world.letters
        self.world.feed(fate)
        self.world.deliver(picked=[letters[n % len(letters)] for n in picks])
        self.world.run(steps)

    @rule(copies=st.integers(1, 3), fate=FATES, steps=st.integers(0, 100))
    def deliver_what_waits(self, copies, fate, steps):
        """A batch as the queue has it, to several senders at once."""
        if waiting := [letter for letter in self.world.letters if not letter.gone]:
            self.world.feed(fate)
            for _ in range(copies):
                self.world.deliver(picked=waiting[:10])
            self.world.run(steps)

    @rule(answer=st.sampled_from(ANSWERS), taken=st.booleans())
    def ses_will_answer(self, answer, taken):
        """To the next e-mail, and if that leaves a doubt, perhaps after it has taken it."""
        self.world.script.append((answer, taken))

    @rule(steps=st.integers(1, 100))
    def go_on(self, steps):
        """Those who are at work take so many more steps."""
        self.world.run(steps)

    @rule()
    def come_to_an_end(self):
        """All who are at work finish."""
        self.world.run()

    @rule(fate=FATES, steps=st.integers(0, 40))
    def reconcile(self, fate, steps):
        """A pass of the reconciler, perhaps beside another."""
        self.world.feed(fate)
        self.world.reconcile()
        self.world.run(steps)

    @rule(seconds=st.sampled_from([1, 60, 1200, 3600, 7 * 3600, 86_400]), fate=st.binary(max_size=3))
    def pass_time(self, seconds, fate):
        """Whoever is at work is out of time then; what is due by then reaches the queue, or is lost by Scheduler."""
        self.world.feed(fate)
        self.world.pass_time(seconds)
        self.world.fire()

    @precondition(lambda self: self.world.taken)
    @rule()
    def pause(self):
        self.world.pause()

    @rule()
    def resume(self):
        """At the next generation, of which all that goes on knows nothing."""
        simulation.resume(self.world, lambda seconds: None)

    @precondition(lambda self: len(self.world.taken) > 1)
    @rule(steps=st.integers(0, 40))
    def cancel(self, steps):
        """Said now, and acknowledged when all who have read ``dispatching`` are over."""
        self.world.start(lambda: simulation.cancel(self.world))
        self.world.run(steps)

    @rule(n=PEOPLE, leaves=st.booleans())
    def suppress(self, n, leaves):
        """Unsubscribed from the topic, or out of the sequence alone."""
        self.world.suppress(n, exits("advent") if leaves else "offers")

    @rule(n=PEOPLE, step=st.integers(0, 2))
    def revise(self, n, step):
        self.world.revise(n, 1 + step % len(self.world.campaigns["advent"].spec.steps))

    @rule(
        rate=st.integers(1, 30),
        cap=st.sampled_from([1000, 1000, 1000, 3, 1, 0]),
        paused=st.sampled_from([False, False, False, True]),
    )
    def set_pace(self, rate, cap, paused):
        self.world.change_pace(rate_per_second=float(rate), daily_cap=cap, paused=paused)

    @invariant()
    def laws(self):
        """In balance; at most once and in turn, counted at SES; and at the pace."""
        self.world.check()
        assert not self.world.broken, self.world.broken[0]
        assert len(self.world.rows) == sum(self.statuses().values()) == self.world.enrolled
        assert max(self.world.accepted_by_task().values(), default=0) <= 1
        self.world.check_rate()

    def statuses(self) -> dict[TaskStatus, int]:
        rows = self.world.rows.values()
        return {status: sum(row.status is status for row in rows) for status in TaskStatus}

    def teardown(self):
        """Whatever is unfinished has its reason, and is finished when all goes well."""
        if not hasattr(self, "world"):
            return
        try:
            if not self.world.broken:
                self.world.close()
        finally:
            self.world.end()


TestSending = Sending.TestCase
TestSending.settings = settings(
    max_examples=200, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
