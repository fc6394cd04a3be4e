"""Many senders at once in one `World`: each external call is a point where another goes on, time passes, or one dies.

One actor runs at a time; which, and what befalls it, is read from a string of bytes, so that a history can be
repeated and shrunk. Time is virtual. A sender that passes its time limit is killed, as Lambda would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from carillon.content.emails import MailError, MaybeSent, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent
from carillon.delivery.envelopes import Record
from carillon.shapes import Task
from carillon.transitions import CampaignState, TaskStatus, may_follow
from tests.unit.sending.examples import campaign, message, record, task
from tests.unit.sending.fakes import LIMIT, World

ANSWERS: list[Callable[[], MailError]] = [
    lambda: Unsent("ConnectTimeoutError"),
    lambda: NotNow("TooManyRequestsException"),
    lambda: QuotaUsedUp("TooManyRequestsException"),
    lambda: Rejected("MessageRejected", "no"),
    lambda: SendingStopped("AccountSuspendedException", "no"),
    lambda: MaybeSent("ReadTimeoutError"),
]


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, no handler and no `finally` with a call in it."""


class Actor(threading.Thread):
    """One process."""

    def __init__(self, simulation: Simulation, work: Callable[[], object], dies_at: int | None) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Semaphore(0)
        self.wakes_at = simulation.now_us
        self.dies_at = dies_at
        self.over = False
        self.error: BaseException | None = None
        self._simulation = simulation
        self._work = work

    def run(self) -> None:
        self.turn.acquire()
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self._simulation.main.release()

    def wait(self) -> None:
        """Let another go on."""
        self._simulation.main.release()
        self.turn.acquire()
        if self.dies_at is not None and self._simulation.now_us >= self.dies_at:
            raise Killed


class Simulation(World):
    """A world whose calls are interleaved and go wrong as ``fate`` says; at its end all goes well."""

    def __init__(self, fate: bytes, tasks: int = 3) -> None:
        super().__init__([campaign()], [task(n) for n in range(tasks)])
        self.main = threading.Semaphore(0)
        self.acknowledged_at: int | None = None
        """When a cancel was acknowledged."""
        self.begun: list[int] = []
        """When each e-mail began to go to SES."""
        self._fate = iter(fate)
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._seen = dict(self.rows)

    def choose(self) -> int:
        """The next byte of fate; 0, which means "all well", when there is none left."""
        return next(self._fate, 0)

    def all_well(self) -> None:
        """Fate is over: what is running, and what starts now, meets no trouble."""
        self._fate = iter(b"")

    # calls

    def call[T](self, name: str, effect: Callable[[], T]) -> T:
        actor = self._current
        assert actor is not None
        if name == "send email":
            self.begun.append(self.now_us)
        before = self.choose()
        self._pass_some_time(before)
        actor.wait()
        fault = self.choose()
        if fault >= 248:
            raise Killed
        if 240 <= fault < 248 and name != "send email":
            raise ConnectionError(f"{name}: never arrived")
        if name == "send email":
            return self._post(effect, fault)
        try:
            result = super().call(name, effect)
            if 224 <= fault < 232 and " to " in name:
                result = effect()  # the reply was lost, and boto3 asks again
        finally:
            self.check()
        if 232 <= fault < 240:
            raise ConnectionError(f"{name}: no reply, however often")
        after = self.choose()
        self._pass_some_time(after)
        actor.wait()
        if after >= 250:
            raise Killed
        return result

    def _post[T](self, effect: Callable[[], T], fault: int) -> T:
        if 160 <= fault < 220:
            answer = ANSWERS[fault % len(ANSWERS)]()
            if isinstance(answer, MaybeSent) and fault % 2:
                effect()
            raise answer
        result = effect()
        assert self.acknowledged_at is None, "accepted after a cancel was acknowledged"
        self._current.wait()  # type: ignore[union-attr]
        if fault >= 220:
            raise Killed
        return result

    def _pass_some_time(self, fate: int) -> None:
        self.now_us += {7: 700_000, 8: 3_000_000, 9: 9_000_000}.get(fate % 64, 1_000 * (fate % 5))

    # actors

    def start(self, work: Callable[[], object], limit: timedelta | None = None) -> None:
        """Add an actor; it is killed ``limit`` after now."""
        dies_at = None if limit is None else self.now_us + limit // timedelta(microseconds=1)
        actor = Actor(self, work, dies_at)
        self._actors.append(actor)
        actor.start()

    def run(self) -> None:
        """Until every actor is over."""
        while alive := [actor for actor in self._actors if not actor.over]:
            awake = [actor for actor in alive if actor.wakes_at <= self.now_us]
            if not awake:
                self.now_us = min(actor.wakes_at for actor in alive)
                continue
            self._current = awake[self.choose() % len(awake)]
            self._current.turn.release()
            self.main.acquire()
            self.check()
        self._current = None
        errors = [actor.error for actor in self._actors if actor.error]
        self._actors.clear()
        for error in errors:
            if not isinstance(error, ConnectionError):
                raise error

    def sleep(self, seconds: float) -> None:
        """The running actor sleeps."""
        assert self._current is not None
        self._current.wakes_at = self.now_us + round(seconds * 1_000_000)
        self._current.wait()

    # laws

    def check(self) -> None:
        """Every row moves only as the table of transitions allows, and SES took nobody's e-mail twice."""
        assert self.rows.keys() == self._seen.keys(), "enrolled is not what the rows say"
        for key, row in self.rows.items():
            if row is not self._seen[key]:
                _legal(self._seen[key], row)
        self._seen = dict(self.rows)
        twice = [name for name, times in self.accepted_by_task().items() if times > 1]
        assert not twice, f"accepted more than once: {twice}"

    def check_rate(self, rate: float) -> None:
        """In no sliding second do e-mails begin that are more than the rate and one."""
        for n, first in enumerate(self.begun):
            together = sum(1 for other in self.begun[n:] if other < first + 1_000_000)
            assert together <= rate + 1, f"{together} in a second at {rate}/s"

    def check_end(self) -> None:
        """Finished: accepted once. Failed, Cancelled, Pending: never. Running: nobody could know."""
        accepted = self.accepted_by_task()
        for row in self.rows.values():
            if row.status is TaskStatus.FINISHED:
                assert accepted[row.task] == 1
            elif row.status is not TaskStatus.RUNNING:
                assert accepted[row.task] == 0, f"{row.status}, but accepted"

    def check_nobody_is_forgotten(self, in_queue: set[str]) -> None:
        """After a round in which all went well, what is Pending is in the queue, or its campaign does not send."""
        if self.campaigns["advent"].state is CampaignState.DISPATCHING:
            for row in self.rows.values():
                assert row.status is not TaskStatus.PENDING or row.task in in_queue


class SimulatedClock:
    """Sleeping lets the others go on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def now(self) -> Any:
        return self._simulation.now()

    def sleep(self, seconds: float) -> None:
        self._simulation.sleep(seconds)


def _legal(before: Task, after: Task) -> None:
    if before.status is not after.status:
        error = after.error or before.error
        assert may_follow(before.status, after.status, error.code if error else None), f"{before} → {after}"
    else:
        assert before.status is TaskStatus.PENDING, "only a Pending row is planned anew"


def history(fate: bytes, tasks: int = 3, **ports: Any) -> Simulation:
    """Two rounds of up to three senders at once, each with messages drawn from all that were ever sent (again, late,
    in any order, of old generations), beside somebody who pauses and resumes, or cancels; then all goes well.

    ``ports`` replaces a port of every sender, made from the simulation: how a protection is taken away.
    """
    simulation = Simulation(fate, tasks)
    rate = 1.0 + simulation.choose() % 32
    simulation.pace = simulation.pace.model_copy(update={"rate_per_second": rate})
    every = [message(n) for n in range(tasks)]
    send = _senders(simulation, ports)
    for turn in range(2):
        for number in range(1 + simulation.choose() % 3):
            picks = [simulation.choose() for _ in range(1 + simulation.choose() % 4)]
            send([record(every[p % len(every)], f"{turn}-{number}-{n}") for n, p in enumerate(picks)])
        match simulation.choose() % 8:
            case 1 | 2:
                simulation.start(lambda: _resume(simulation, every))
            case 3:
                simulation.start(lambda: _cancel(simulation))
        simulation.run()
    _resume_if_paused(simulation, every)
    late = {f"late-{n}": m for n, m in enumerate(every)}
    simulation.all_well()
    kept = send([record(m, message_id) for message_id, m in late.items()])
    simulation.run()
    simulation.check_end()
    simulation.check_nobody_is_forgotten({late[message_id].task for message_id in kept})
    simulation.check_rate(rate)
    return simulation


def rush(fate: bytes, rate: float, senders: int = 5, each: int = 6) -> Simulation:
    """So many senders at once, each with messages of its own; how long each call takes is fate's."""
    simulation = Simulation(fate, senders * each)
    simulation.pace = simulation.pace.model_copy(update={"rate_per_second": rate})
    send = _senders(simulation, {})
    for number in range(senders):
        send([record(message(n), f"m{n}") for n in range(number * each, (number + 1) * each)])
    simulation.run()
    simulation.check_end()
    simulation.check_rate(rate)
    return simulation


def _senders(simulation: Simulation, ports: Mapping[str, Any]) -> Callable[[list[Record]], list[str]]:
    """What starts one more invocation of the sender, in a process of its own; in the end the list that it returns
    has the messages that stay in the queue."""
    made = {name: make(simulation) for name, make in ports.items()}

    def send(drawn: list[Record]) -> list[str]:
        sender = simulation.sender(clock=SimulatedClock(simulation), **made)
        deadline, kept = simulation.now() + LIMIT, list[str]()
        simulation.start(lambda: kept.extend(sender.handle(drawn, deadline)), LIMIT)
        return kept

    return send


def _resume(simulation: Simulation, every: list) -> None:
    """Pause, and later launch again what is Pending then at generation + 1: rows first, then messages."""
    there = simulation.campaigns["advent"]
    if there.state is not CampaignState.DISPATCHING:
        return
    simulation.campaigns["advent"] = there.model_copy(update={"paused": True})
    simulation.sleep(simulation.choose() / 50)
    _launch_again(simulation, every, lambda: simulation.sleep(simulation.choose() / 1000))


def _resume_if_paused(simulation: Simulation, every: list) -> None:
    if simulation.campaigns["advent"].paused:
        _launch_again(simulation, every, lambda: None)


def _launch_again(simulation: Simulation, every: list, pause: Callable[[], None]) -> None:
    there = simulation.campaigns["advent"]
    if there.state is not CampaignState.DISPATCHING:
        return
    generation = there.generation + 1
    enqueued = {"state": CampaignState.ENQUEUED, "generation": generation, "paused": False}
    simulation.campaigns["advent"] = there.model_copy(update=enqueued)
    for key, row in list(simulation.rows.items()):
        pause()
        row = simulation.rows[key]
        if row.status is TaskStatus.PENDING:
            simulation.rows[key] = row.model_copy(update={"generation": generation})
            (old,) = [m for m in every if m.task == row.task][-1:]
            every.append(old.model_copy(update={"generation": generation}))
    if simulation.campaigns["advent"].state is CampaignState.ENQUEUED:
        dispatching = simulation.campaigns["advent"].model_copy(update={"state": CampaignState.DISPATCHING})
        simulation.campaigns["advent"] = dispatching


def _cancel(simulation: Simulation) -> None:
    """DESIGN section 7: say so, wait one time limit of the sender, acknowledge, sweep."""
    there = simulation.campaigns["advent"]
    if there.state is not CampaignState.DISPATCHING:
        return
    simulation.campaigns["advent"] = there.model_copy(update={"state": CampaignState.CANCELLING})
    simulation.sleep(LIMIT.total_seconds())
    done = simulation.campaigns["advent"].model_copy(update={"state": CampaignState.CANCELLED})
    simulation.campaigns["advent"] = done
    simulation.acknowledged_at = simulation.now_us
    for key, row in simulation.rows.items():
        if row.status is TaskStatus.PENDING:
            simulation.rows[key] = row.model_copy(update={"status": TaskStatus.CANCELLED})
