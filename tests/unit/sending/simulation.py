"""Many processes at once in one `World`: each external call is a point where another goes on, time passes, or one dies.

Senders run with the real SES adapter over a client that answers whatever botocore's model knows, reconcilers are the
real `Reconciler`; beside them somebody pauses, resumes, cancels, suppresses and changes the pace. One process runs at
a time; which, and what befalls it, is read from bytes, so that a history can be repeated and shrunk. Time is virtual.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from botocore.session import get_session

from carillon import keys
from carillon.adapters.mail import SesMail
from carillon.addresses import canonical
from carillon.consent.suppressions import exits
from carillon.delivery import sequences
from carillon.delivery.claims import RowConflict
from carillon.delivery.enriching import EnrichmentFailed, EnrichmentUnreachable
from carillon.delivery.envelopes import Record
from carillon.delivery.sending import SCHEDULE_SECONDS
from carillon.delivery.standing import Standing, standing
from carillon.errors import CampaignStateConflict
from carillon.launch.enrolment import schedule_for
from carillon.lifecycle.reconciling import GRACE_BEHIND_A_QUEUE, Reconcile, Reconciler
from carillon.shapes import BatchLine, Campaign, Message, Problem, Schedule, Task, instant
from carillon.timing.pace import Pace, Refusal, Refused
from carillon.transitions import TERMINAL, CampaignState, TaskStatus, may_follow
from tests.unit.lifecycle.fakes import FakeScheduler, FakeTemplates
from tests.unit.sending.examples import NOW, address, campaign, message, task
from tests.unit.sending.fakes import LIMIT, FakeCampaigns, FakeImprint, FakeLinks, World

STEP = {"template": "advent.html", "subject": "Hello {{ first_name }}"}
CANCEL_WAITS = LIMIT
"""From saying so until a cancel is acknowledged: whoever has read ``dispatching`` has ended by then."""
CHANGED = {"first_name": "Renamed"}
GARBAGE = ("{", message(0, campaign="nobody").model_dump_json(), message(99).model_dump_json())
"""What the queue should not hold: no message, one of no campaign, one of no task."""


@dataclass(frozen=True)
class Answer:
    """What SES, or the way there, answers instead of taking an e-mail; ``in_doubt``: or after it has taken one."""

    name: str
    error: Callable[[], Exception]
    in_doubt: bool = False


def _says(code: str, status: int, text: str = "no", in_doubt: bool = False) -> Answer:
    answer: Any = {"Error": {"Code": code, "Message": text}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return Answer(f"{code} ({text})", lambda: ClientError(answer, "SendEmail"), in_doubt)


def _every_answer() -> tuple[Answer, ...]:
    model = get_session().get_service_model("sesv2").operation_model("SendEmail")
    return (
        *(_says(shape.name, shape.metadata["error"]["httpStatusCode"]) for shape in model.error_shapes),
        _says("TooManyRequestsException", 429, "Daily message quota exceeded."),
        _says("MessageRejected", 400, "Email address is not verified: shop@example.com"),
        _says("AccessDeniedException", 403),
        Answer("no address", lambda: EndpointConnectionError(endpoint_url="ses")),
        Answer("no connection", lambda: ConnectTimeoutError(endpoint_url="ses")),
        Answer("timeout", lambda: ReadTimeoutError(endpoint_url="ses"), True),
        Answer("hung up", lambda: ConnectionClosedError(endpoint_url="ses"), True),
        _says("InternalFailure", 500, in_doubt=True),
        _says("ServiceUnavailable", 503, in_doubt=True),
    )


ANSWERS = _every_answer()
"""Every error that botocore's model names for SendEmail, those that only their text tells apart, and no answer."""


_DRAWN = ANSWERS + 3 * tuple(answer for answer in ANSWERS if answer.in_doubt)
"""Doubt is what the laws are about."""


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, no handler and no `finally` with a call in it."""


@dataclass(eq=False)
class Letter:
    """A message of the queue, and whether somebody has acknowledged it: it may be handed out again all the same."""

    number: int
    body: str
    arrived: datetime
    receives: int = 0
    gone: bool = False

    def record(self) -> Record:
        """As it is handed out once more."""
        self.receives += 1
        return Record(f"m{self.number}", f"r{self.number}-{self.receives}", self.body, self.receives, self.arrived)

    @property
    def message(self) -> Message | None:
        """None: it is garbage."""
        return None if self.body in GARBAGE else Message.model_validate_json(self.body)


class Actor(threading.Thread):
    """One process. It begins after ``delay`` seconds, and is killed ``limit`` later, as Lambda would."""

    def __init__(
        self, simulation: Simulation, work: Callable[[], object], limit: timedelta | None, delay: float
    ) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Semaphore(0)
        self.wakes_at = simulation.now_us + round(delay * 1_000_000)
        self.dies_at = None if limit is None else self.wakes_at + limit // timedelta(microseconds=1)
        self.error: BaseException | None = None
        self.excuses: set[str] = set()
        """What it met that lets it leave a task Pending and acknowledge its message."""
        self.troubles: list[str] = []
        """Faults that befell it."""
        self.claimed: set[str] = set()
        """Tasks that it claimed and has not settled."""
        self.owed: set[str] = set()
        """Tasks that it gave a slot, and no schedule yet."""
        self._simulation = simulation
        self._work = work

    def run(self) -> None:
        self.turn.acquire()
        try:
            self.look_at_the_time()
            self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self._simulation.leave(self)

    def wait(self) -> None:
        """Let another go on, or go on."""
        chosen = self._simulation.choose_actor()
        if chosen is not self:
            self._simulation.hand_over(chosen)
            self.turn.acquire()
        self.look_at_the_time()

    def look_at_the_time(self) -> None:
        """Die if it is time."""
        if self._simulation.is_over:
            raise Killed
        if self.dies_at is not None and self._simulation.now_us >= self.dies_at:
            self.die("out of time")

    def die(self, how: str) -> None:
        self._simulation.faults[how] += 1
        self.troubles.append(how)
        raise Killed


class Simulation(World):
    """A world whose calls are interleaved and go wrong as fate says, and its laws."""

    def __init__(self, fate: Iterable[int] = (), people: int = 3, steps: int = 1, **spec: Any) -> None:
        after = {"kind": "after_previous", "offset": "PT1H"}
        spec["steps"] = [{**STEP, "rule": after if step else {"kind": "asap"}} for step in range(steps)]
        rows = [row_of(step, n) for step in range(1, steps + 1) for n in range(people)]
        super().__init__([campaign(spec, enrolled=len(rows))], rows)
        self.enrolled = len(rows)
        self.lines = {row.task: _line(row, {"first_name": f"Name {n % people}"}) for n, row in enumerate(rows)}
        self.scheduler = FakeScheduler({keys.group("advent", 1): {}})
        self.letters: list[Letter] = []
        self.taken: list[tuple[int, str]] = []
        """When SES took which task's e-mail (microseconds)."""
        self.begun: list[int] = []
        """When each e-mail began to go to SES."""
        self.rates: list[tuple[int, float]] = [(0, self.pace.rate_per_second)]
        self.acknowledged_at: int | None = None
        """When a cancel was acknowledged."""
        self.script: deque[tuple[Answer, bool] | None] = deque()
        """SES's next answers, and whether it has taken the e-mail all the same; None: it takes it."""
        self.struck: dict[int, tuple[int, int]] = {}
        """By number of a call (from 1): what befalls it before and after it is done, instead of fate."""
        self.faults: Counter[str] = Counter()
        self.explained: Counter[str] = Counter()
        """Why tasks were unfinished when their history was over."""
        self.broken: list[str] = []
        """Laws that were broken: kept aside, for the sender survives any exception."""
        self.watches_rows = True
        """Whether the table of transitions is a law."""
        self.main = threading.Semaphore(0)
        self.is_over = False
        self._doubts: dict[str, str] = {}
        """Why a task may be Running with nobody at work on it."""
        self._left: dict[str, str] = {}
        """Why a task may be Pending with nothing on its way to it."""
        self._missed: dict[str, str] = {}
        """Why a task may wait for a step that is over."""
        self._fate = deque(fate)
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._steps = -1
        self._errors: list[BaseException] = []
        self._seen = dict(self.rows)
        for row in rows:
            if not row.waits:
                self.post(self._message(row).model_dump_json())

    # fate

    def choose(self) -> int:
        """The next byte of fate; 0, which means "all well", when there is none left."""
        return self._fate.popleft() if self._fate else 0

    def feed(self, fate: Iterable[int]) -> None:
        """What befalls those who go on from here."""
        self._fate.extend(fate)

    def all_well(self) -> None:
        """Fate is over: what is running, and what starts now, meets no trouble."""
        self._fate.clear()
        self.script.clear()
        self.struck.clear()

    # processes

    def start(self, work: Callable[[], object], limit: timedelta | None = None, delay: float = 0.0) -> None:
        """Add a process."""
        actor = Actor(self, work, limit, delay)
        self._actors.append(actor)
        actor.start()

    def run(self, steps: int = -1) -> None:
        """Until every process is over, or so many steps have been taken."""
        self._steps = steps
        if (first := self.choose_actor()) is not None:
            self.hand_over(first)
            self.main.acquire()
        self._steps = -1
        self._current = None
        self.check()
        assert not self.broken, self.broken[0]
        errors, self._errors = self._errors, []
        for error in errors:
            if not isinstance(error, ConnectionError):
                raise error

    def choose_actor(self) -> Actor | None:
        """Who goes on; None: nobody."""
        self._current = None
        if self._steps == 0 or not self._actors or self.broken:
            return None
        self._steps -= 1
        awake = [actor for actor in self._actors if actor.wakes_at <= self.now_us]
        if not awake:
            self.now_us = min(actor.wakes_at for actor in self._actors)
            awake = [actor for actor in self._actors if actor.wakes_at <= self.now_us]
        self._current = awake[self.choose() % len(awake)] if len(awake) > 1 else awake[0]
        return self._current

    def hand_over(self, chosen: Actor | None) -> None:
        """Let ``chosen`` run, or whoever called `run`."""
        (chosen.turn if chosen else self.main).release()

    def leave(self, actor: Actor) -> None:
        """``actor`` is over; what it leaves undone is its troubles' fault."""
        if self.is_over:
            return
        self._actors.remove(actor)
        if actor.error:
            self._errors.append(actor.error)
            actor.troubles.append("an error")
        for name in actor.claimed:
            if actor.troubles:
                self._doubts.setdefault(name, actor.troubles[-1])
        for name in actor.owed:
            late = actor.dies_at is not None and self.now_us > actor.dies_at - SCHEDULE_SECONDS * 1_000_000
            if actor.troubles or late:
                self._left[name] = "no schedule was made for its slot"
        self.hand_over(self.choose_actor())

    def end(self) -> None:
        """Let go of all processes, whatever they are at."""
        self.is_over = True
        for actor in self._actors:
            actor.turn.release()

    def sleep(self, seconds: float) -> None:
        """The running process sleeps."""
        assert self._current is not None
        self._current.wakes_at = self.now_us + round(seconds * 1_000_000)
        self._current.wait()

    # calls

    def call[T](self, name: str, effect: Callable[[], T]) -> T:
        """Fate strikes before it, while it is asked, after it was done and before the reply, and after the reply."""
        actor = self._current
        assert actor is not None
        self.calls[name] += 1
        number = self.calls.total()
        sending = name == "send email"
        if sending:
            self.begun.append(self.now_us)
        self._pass_some_time(self.choose())
        actor.wait()
        fault = self.struck[number][0] if number in self.struck else self.choose()
        if fault >= 248:
            actor.die(f"killed before: {name}")
        if 240 <= fault < 248 and not sending:
            self._trouble(actor, f"never arrived: {name}")
            raise ConnectionError(f"{name}: never arrived")
        scripted = self.script.popleft() if sending and self.script else None
        if scripted or (sending and 150 <= fault < 240):
            answer, taken = scripted or (_DRAWN[self.choose() % len(_DRAWN)], bool(fault % 2))
            if answer.in_doubt and taken:
                effect()
                self._trouble(actor, f"taken, and then: {answer.name}")
            else:
                self._trouble(actor, f"not taken: {answer.name}")
            raise answer.error()
        try:
            result = effect()
            if 224 <= fault < 232 and not sending and name not in _ASKED_ONCE:
                self.faults[f"reply lost, asked again: {name}"] += 1
                if "together" not in name:  # its ClientRequestToken makes the second one nothing
                    result = effect()
        except RowConflict:
            actor.excuses.add("its row changed in between")
            raise
        finally:
            self.check()
        self._notice(actor, name, result)
        if 232 <= fault < 240:
            self._trouble(actor, f"reply lost: {name}")
            raise ConnectionError(f"{name}: no reply, however often")
        after = self.struck[number][1] if number in self.struck else self.choose()
        self._pass_some_time(after)
        actor.wait()
        if after >= 250:
            actor.die(f"killed after: {name}")
        return result

    def take(self, name: str) -> str:
        """SES accepts the e-mail of a task."""
        self._hold(self.acknowledged_at is None, "accepted after a cancel was acknowledged")
        self._hold(all(name != other for _, other in self.taken), f"accepted more than once: {name}")
        before = self._before(self.rows["advent", name])
        self._hold(before is None or before.status is TaskStatus.FINISHED, f"out of turn: {name}")
        self.taken.append((self.now_us, name))
        return f"ses-{len(self.taken)}"

    def _trouble(self, actor: Actor, what: str) -> None:
        self.faults[what] += 1
        actor.troubles.append(what)
        if what.startswith("not taken"):
            actor.excuses.add("SES sends no more for now")

    def _notice(self, actor: Actor, name: str, result: Any) -> None:
        """What the process now knows that lets it leave a task Pending."""
        match name:
            case "get campaign" if result is None or standing(result) is Standing.ACKNOWLEDGE:
                actor.excuses.add("its campaign did not send")
            case "reserve pace" if isinstance(result, Refused) and result.why is not Refusal.BUSY:
                actor.excuses.add(f"the identity's pace: {result.why}")
            case "read rows" if any(row.status is TaskStatus.RUNNING for row in result[0].values()):
                actor.excuses.add("another had claimed it")

    def _pass_some_time(self, fate: int) -> None:
        self.now_us += {7: 700_000, 8: 3_000_000, 9: 9_000_000}.get(fate % 64, 1_000 * (fate % 5))

    # the queue and Scheduler

    def post(self, body: str) -> None:
        """One more message on the queue."""
        self.letters.append(Letter(len(self.letters), body, self.now()))

    def fire(self) -> None:
        """Scheduler sends what is due; what fate says, it gives up."""
        for group in list(self.scheduler.groups.values()):
            for name, schedule in list(group.items()):
                if _due(schedule) <= self.now().timestamp():
                    del group[name]
                    if self.choose() >= 240:
                        self.faults["Scheduler gave up"] += 1
                        self._left[name] = "Scheduler gave up"
                    else:
                        self.post(json.loads(schedule.input)["MessageBody"])

    def deliver(self, ports: Mapping[str, Any] | None = None, picked: Sequence[Letter] | None = None) -> None:
        """Start a sender, with ``picked`` or with what fate draws from all that was ever on the queue: again, late, in
        any order, of old generations."""

        def work() -> None:
            letters = picked
            if letters is None:
                self.fire()
                drawn = [self.choose() for _ in range(1 + self.choose() % 4)]
                letters = [self.letters[n % len(self.letters)] for n in drawn]
            actor = self._current
            assert actor is not None
            records = [letter.record() for letter in letters]
            sender = self.sender(**{name: make(self) for name, make in ({**_PORTS, **(ports or {})}).items()})
            kept = sender.handle(records, self.now() + LIMIT)
            for letter in letters:
                if f"m{letter.number}" not in kept:
                    self._acknowledge(letter, actor)

        self.start(work, LIMIT, delay=(0, 0, 0.5, 2)[self.choose() % 4])

    def _acknowledge(self, letter: Letter, actor: Actor) -> None:
        """A message may go when its task is settled, or for a reason that leaves the task to a resume or reconcile."""
        letter.gone = True
        sent = letter.message
        if sent is None:
            known = f"m{letter.number}" in self.buried or "its campaign did not send" in actor.excuses
            self._hold(known, "garbage that is in no dead-letter queue")
            return
        row = self.rows["advent", sent.task]
        if row.status is TaskStatus.PENDING and not row.waits and _is_current(sent, row):
            self._hold(bool(actor.excuses), f"acknowledged for no reason: {row.task} by one who met {actor.troubles}")
            self._left[row.task] = min(actor.excuses, default="")
        elif row.status is TaskStatus.RUNNING:
            self._left[row.task] = "a copy of its message went while another had claimed it"

    # laws

    def _hold(self, law: bool, otherwise: str) -> None:
        if not law:
            self.broken.append(otherwise)
            raise Killed

    def check(self) -> None:
        """Every row moves only as the table of transitions allows, is one of those enrolled, and in turn."""
        if self.rows.keys() != self._seen.keys() or len(self.rows) != self.enrolled:
            self._break("enrolled is not what the rows say")
        for key, row in self.rows.items():
            before = self._seen[key]
            if row is not before:
                self._seen[key] = row
                self._moved(before, row)

    def _break(self, what: str) -> None:
        if self.watches_rows:
            self.broken.append(what)

    def _moved(self, before: Task, after: Task) -> None:
        actor, name = self._current, after.task
        if before.status is after.status:
            if before.status is not TaskStatus.PENDING:
                self._break(f"only a Pending row is planned anew: {before} → {after}")
        else:
            error = after.error or before.error
            if not may_follow(before.status, after.status, error.code if error else None):
                self._break(f"{before} → {after}")
        previous = self._before(after)
        over = previous is not None and previous.status in TERMINAL and previous.status is not TaskStatus.FINISHED
        if previous is not None and not after.waits and previous.status is not TaskStatus.FINISHED:
            self._break(f"released out of turn: {name}")
        if after.error == sequences.NOT_SENT and not over:
            self._break(f"ended out of turn: {name}")
        if actor is None:
            return
        if after.status is TaskStatus.RUNNING:
            actor.claimed.add(name)
        elif before.status is TaskStatus.RUNNING:
            actor.claimed.discard(name)
            self._doubts.pop(name, None)
        planned = (before.waits and not after.waits) or before.client_token != after.client_token
        if planned and after.status is TaskStatus.PENDING and not after.waits:
            actor.owed.add(name)
        following = self.rows.get(("advent", sequences.task_of(name, after.step + 1)))
        if after.status in TERMINAL and following is not None and following.waits and actor.troubles:
            self._missed[following.task] = actor.troubles[-1]
        elif after.status in TERMINAL and following is not None and actor.excuses:
            self._missed[following.task] = min(actor.excuses)

    def _before(self, row: Task) -> Task | None:
        """The row of the step that ``row``'s comes after."""
        return self.rows["advent", sequences.task_of(row.task, row.step - 1)] if row.step > 1 else None

    def check_rate(self) -> None:
        """In no sliding second do e-mails begin that are more than the rate and one; of two rates the higher counts
        for as long as a sender may live that took its slots under it."""
        limit = LIMIT // timedelta(microseconds=1)
        last = 0
        for n, first in enumerate(self.begun):
            last = max(last, n)
            while last < len(self.begun) and self.begun[last] < first + 1_000_000:
                last += 1
            ends = [at for at, _ in self.rates[1:]] + [first + 2_000_000]
            rate = max(
                r
                for (at, r), end in zip(self.rates, ends, strict=True)
                if at <= first + 1_000_000 and end > first - limit
            )
            assert last - n <= rate + 1, f"{last - n} in a second at {rate}/s"

    def check_end(self) -> None:
        """Finished: accepted once. Failed, Cancelled, Pending: never. Running: nobody could know."""
        accepted = self.accepted_by_task()
        for row in self.rows.values():
            if row.status is TaskStatus.FINISHED:
                assert accepted[row.task] == 1
            elif row.status is TaskStatus.RUNNING:
                assert row.task in self._doubts, f"Running, and nothing has gone wrong: {row.task}"
            else:
                assert accepted[row.task] == 0, f"{row.status}, but accepted"
        assert self.acknowledged_at is None or not self._pending(), "Pending in a campaign that is cancelled"

    def accepted_by_task(self) -> Counter[str]:
        """How often SES took each task's e-mail: counted at SES, never at the rows."""
        return Counter(name for _, name in self.taken)

    def _pending(self) -> list[Task]:
        return [row for row in self.rows.values() if row.status is TaskStatus.PENDING]

    def explain(self) -> None:
        """Every unfinished task has a reason that was seen while it happened."""
        for row in self.rows.values():
            if row.status is TaskStatus.RUNNING:
                self.explained[f"Running: {self._doubts[row.task].partition(':')[0]}"] += 1
            elif row.status is TaskStatus.PENDING:
                self.explained[f"Pending: {self._why_pending(row)}"] += 1

    def _why_pending(self, row: Task) -> str:
        before = self._before(row)
        if row.waits and before is not None:
            if before.status not in TERMINAL:
                return f"the step before is {before.status}"
            assert row.task in self._missed, f"waits for nothing, and nothing has gone wrong: {row.task}"
            return "its release was missed"
        current = [m for x in self.letters if not x.gone and (m := x.message) and m.task == row.task]
        if any(_is_current(sent, row) for sent in current):
            return "its message is in the queue"
        if row.task in self.scheduler.groups.get(keys.group("advent", row.generation), {}):
            return "its schedule is yet to come"
        if row.generation != self.campaigns["advent"].generation:
            return "a resume passed it by, for it was Running then"
        assert row.task in self._left, f"forgotten: {row.task}, {row}"
        return self._left[row.task]

    def close(self, ports: Mapping[str, Any] | None = None) -> None:
        """The history is over: what is unfinished is explained, and a resume, reconcilers and senders that meet no
        trouble finish it, all but what nobody can know."""
        self.all_well()
        self.run()
        self.check_end()
        self.explain()
        self.change_pace(paused=False, daily_cap=100_000)
        if self.campaigns["advent"].paused:
            resume(self, lambda _: None)
        for _ in range(2 + 2 * len(self.campaigns["advent"].spec.steps)):
            if not [letter for letter in self.letters if not letter.gone] and not self._pending():
                break
            self.pass_time(GRACE_BEHIND_A_QUEUE + 3600)
            self.reconcile()
            self.run()
            self.pass_time(4 * 3600)
            self.fire()
            waiting = [letter for letter in self.letters if not letter.gone]
            for n in range(0, len(waiting), 10):
                self.deliver(ports, waiting[n : n + 10])
            self.run()
        self.reconcile()
        self.run()
        self.check_end()
        self.check_rate()
        running = [row.task for row in self.rows.values() if row.status is TaskStatus.RUNNING]
        people = {name.partition("-")[2] for name in running}
        for row in self._pending():
            assert row.waits, f"cannot be finished: {row}"
            assert row.task.partition("-")[2] in people, f"waits for ever: {row}"
        if not running:
            assert self.campaigns["advent"].state in (CampaignState.COMPLETED, CampaignState.CANCELLED)

    # what people do

    def change_pace(self, **changes: Any) -> None:
        """As an operator does, in one write."""
        self.pace = self.pace.model_copy(update=changes)
        if "rate_per_second" in changes:
            self.rates.append((self.now_us, changes["rate_per_second"]))

    def suppress(self, n: int, topic: str = "offers") -> None:
        """Person ``n`` unsubscribes."""
        self.suppressed.add((keys.address_hash(canonical(address(n))), topic))

    def pause(self) -> None:
        """A person pauses the campaign."""
        there = self.campaigns["advent"]
        if there.state is CampaignState.DISPATCHING:
            self.campaigns["advent"] = there.model_copy(update={"paused": True})

    def revise(self, n: int, step: int = 1) -> None:
        """Somebody changes the data of person ``n``: messages of the revision before are worth nothing."""
        name = row_of(step, n).task
        row = self.rows["advent", name]
        if row.status is not TaskStatus.PENDING or self.campaigns["advent"].state is not CampaignState.DISPATCHING:
            return
        self.rows["advent", name] = row.model_copy(update={"revision": row.revision + 1})
        self.lines[name] = self.lines[name].model_copy(update={"revision": row.revision + 1, "input": CHANGED})
        if not row.waits:
            self.post(self._message(self.rows["advent", name]).model_dump_json())

    def reconcile(self) -> None:
        """Start a pass of the reconciler."""
        ports = SimulatedReconciling(self)
        reconciler = Reconciler(
            ports,
            ports,
            ports,
            SimulatedSchedules(self),
            ports,
            ports,
            "Europe/Berlin",
            FakeTemplates(),
        )
        self.start(lambda: reconciler.run(Reconcile(campaign_id="advent"), self.now()))

    def _message(self, row: Task) -> Message:
        line = self.lines[row.task]
        schedule = schedule_for(row.campaign_id, row.generation, line, "q")
        return Message.model_validate_json(json.loads(schedule.input)["MessageBody"])


_ASKED_ONCE = {"enrich", "create schedule"}
"""Their clients do not ask again by themselves."""


def _is_current(sent: Message, row: Task) -> bool:
    return (sent.generation, sent.revision) == (row.generation, row.revision)


def _due(schedule: Schedule) -> float:
    return datetime.fromisoformat(f"{schedule.at}+00:00").timestamp() + float(
        json.loads(schedule.input)["DelaySeconds"]
    )


def row_of(step: int, n: int) -> Task:
    """Person ``n``'s task of ``step`` (from 1), as it is enrolled."""
    name = keys.task_id(step, canonical(address(n)))
    return task(n, task=name, step=step, waits=step > 1, client_token=keys.client_token("advent", 1, name, 0))


def _line(row: Task, data: dict[str, Any]) -> BatchLine:
    fields = row.model_dump(include={"task", "step", "address", "timezone", "slot", "revision", "waits"})
    return BatchLine.model_validate(fields | {"input": data})


# ports


class SimulatedClock:
    """Sleeping lets the others go on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def now(self) -> datetime:
        return self._simulation.now()

    def sleep(self, seconds: float) -> None:
        self._simulation.sleep(seconds)


class SimulatedSes:
    """A boto3 client of SES, as `carillon.adapters.mail.SesMail` uses it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def send_email(self, **request: Any) -> dict[str, str]:
        tags = {tag["Name"]: tag["Value"] for tag in request["EmailTags"]}
        return {"MessageId": self._simulation.call("send email", lambda: self._simulation.take(tags["task"]))}

    def close(self) -> None:
        pass


class SimulatedLinks(FakeLinks):
    """As if the keys were read for every e-mail."""

    def unsubscribe(self, *said: Any) -> str:
        return self._world.call("read link keys", lambda: super(SimulatedLinks, self).unsubscribe(*said))


class SimulatedImprint(FakeImprint):
    """As if the setting were read for every e-mail."""

    def postal_address(self) -> str:
        return self._world.call("read sender setting", super().postal_address)


class SimulatedSchedules:
    """Scheduler, in whose groups nothing can be made once they are deleted."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def create(self, schedule: Schedule) -> bool:
        return self._simulation.call("create schedule", lambda: self._create(schedule))

    def _create(self, schedule: Schedule) -> bool:
        if schedule.group not in self._simulation.scheduler.groups:
            raise ConnectionError("no such group")
        for actor in self._simulation._actors:
            actor.owed.discard(schedule.name)
        return self._simulation.scheduler.create(schedule)

    def ensure_group(self, group: str) -> None:
        self._simulation.call("ensure group", lambda: self._simulation.scheduler.ensure_group(group))

    def delete_group(self, group: str) -> None:
        self._simulation.call("delete group", lambda: self._simulation.scheduler.delete_group(group))

    def is_group_empty(self, group: str) -> bool:
        return self._simulation.scheduler.is_group_empty(group)


class SimulatedReconciling(FakeCampaigns):
    """The reconciler's campaigns, rows, batches, queue and identity."""

    _world: Simulation
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/send"

    def transition(
        self, campaign_id: str, expected: object, generation: int, to: CampaignState, *, now: datetime, **changes: Any
    ) -> Campaign:
        def effect() -> Campaign:
            world = self._world
            there = world.campaigns[campaign_id]
            if there.state != expected or there.generation != generation:
                raise CampaignStateConflict("someone else decided")
            unfinished = [row.task for row in world.rows.values() if row.status not in TERMINAL]
            world._hold(not unfinished, f"completed with work left: {unfinished}")
            world.campaigns[campaign_id] = there.model_copy(update={"state": to, **changes})
            return world.campaigns[campaign_id]

        return self._world.call("complete campaign", effect)

    def by_state(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def count_refused(self, *_: Any) -> None:
        raise NotImplementedError

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        if number == 0:  # all are in one
            yield self._world.call("walk rows", lambda: sorted(self._world.rows.values(), key=lambda row: row.task))

    def renew(self, task: Task, generation: int, slot: int, client_token: str) -> bool:
        def effect() -> bool:
            there = self._world.rows["advent", task.task]
            if there.status is not TaskStatus.PENDING or there.client_token != task.client_token:
                return False
            planned = {"generation": generation, "slot": slot, "client_token": client_token, "waits": False}
            self._world.rows["advent", task.task] = there.model_copy(update=planned)
            return True

        return self._world.call("renew row", effect)

    def cancel(self, tasks: Sequence[Task], error: Problem | None = None) -> int:
        def effect() -> int:
            pending = [row for row in tasks if self._world.rows["advent", row.task].status is TaskStatus.PENDING]
            for row in pending:
                there = self._world.rows["advent", row.task]
                ended = {"status": TaskStatus.CANCELLED, "error": error}
                self._world.rows["advent", row.task] = there.model_copy(update=ended)
            return len(pending)

        return self._world.call("cancel rows", effect)

    def batch(self, campaign_id: str, name: str) -> list[BatchLine]:
        return self._world.call("read batch", lambda: list(self._world.lines.values()))

    def is_empty(self) -> bool:
        return self._world.call("look at queue", lambda: all(letter.gone for letter in self._world.letters))

    def read(self) -> Pace:
        return self._world.call("read pace", lambda: self._world.pace)


_PORTS: dict[str, Callable[[Simulation], Any]] = {
    "clock": SimulatedClock,
    "mail": lambda simulation: SesMail("carillon", SimulatedSes(simulation), lambda: simulation.now_us / 1e6),
    "links": SimulatedLinks,
    "imprint": SimulatedImprint,
    "schedules": SimulatedSchedules,
}


# what people do, step by step


def resume(simulation: Simulation, pause: Callable[[float], object]) -> None:
    """Launch again what is Pending, at generation + 1 (`carillon.launch.resuming`): read the rows, then raise each that
    is still Pending and make its schedule."""
    there = simulation.campaigns["advent"]
    if there.state is not CampaignState.DISPATCHING:
        return
    generation = there.generation + 1
    enqueued = {"state": CampaignState.ENQUEUED, "generation": generation, "paused": False, "error": None}
    simulation.campaigns["advent"] = there.model_copy(update=enqueued)
    wanted = {row.task: row.waits for row in simulation._pending()}
    simulation.scheduler.ensure_group(keys.group("advent", generation))
    for name, waits in wanted.items():
        pause(simulation.choose() / 1000)
        row = simulation.rows["advent", name]
        if row.status is not TaskStatus.PENDING or row.generation >= generation:
            continue
        slot = int(simulation.now().timestamp())
        token = keys.client_token("advent", generation, name, row.revision)
        raised = row.model_copy(update={"generation": generation, "waits": waits, "slot": slot, "client_token": token})
        simulation.rows["advent", name] = raised
        if waits and not row.waits:
            simulation._missed[name] = "a resume had seen it wait"
        simulation.check()
        if not waits:
            line = simulation.lines[name].model_copy(update={"slot": slot})
            schedule = schedule_for("advent", generation, line, "q", client_token=token)
            simulation.scheduler.create(schedule)
            if simulation._current:
                simulation._current.owed.discard(name)
    simulation.scheduler.delete_group(keys.group("advent", generation - 1))
    if simulation.campaigns["advent"].state is CampaignState.ENQUEUED:
        dispatching = simulation.campaigns["advent"].model_copy(update={"state": CampaignState.DISPATCHING})
        simulation.campaigns["advent"] = dispatching


def pause_and_resume(simulation: Simulation) -> None:
    """Pause, and some seconds later resume."""
    simulation.pause()
    simulation.sleep(simulation.choose() / 50)
    resume(simulation, simulation.sleep)


def cancel(simulation: Simulation) -> None:
    """DESIGN section 7: say so, wait one time limit of the sender, delete the group, acknowledge, sweep."""
    there = simulation.campaigns["advent"]
    if there.state not in (CampaignState.DISPATCHING, CampaignState.ENQUEUED):
        return
    simulation.campaigns["advent"] = there.model_copy(update={"state": CampaignState.CANCELLING})
    simulation.sleep(CANCEL_WAITS.total_seconds())
    simulation.scheduler.delete_group(keys.group("advent", there.generation))
    done = simulation.campaigns["advent"].model_copy(update={"state": CampaignState.CANCELLED})
    simulation.campaigns["advent"] = done
    simulation.acknowledged_at = simulation.now_us
    for row in simulation._pending():
        simulation.rows["advent", row.task] = row.model_copy(update={"status": TaskStatus.CANCELLED})
    simulation.check()


def _enrich(simulation: Simulation) -> Callable[[Mapping[str, Any]], Any]:
    """The campaign's function, which is good, out of reach, or no good, as fate says."""

    def ask(question: Mapping[str, Any]) -> Any:
        match simulation.choose() % 16:
            case 14:
                raise EnrichmentUnreachable("busy")
            case 15:
                raise EnrichmentFailed("broken")
        return {recipient["task"]: {"points": 7} for recipient in question["recipients"]}

    return ask


# histories


def random_fate(seed: int) -> bytes:
    """Trouble at every call, or here and there."""
    random = Random(seed)
    dense = random.choice([0.2, 0.5, 0.8, 1.0])
    return bytes(random.randrange(256) if random.random() < dense else 0 for _ in range(400))


ADVANCES = (0.0, 0.0, 60.0, 20 * 60.0, 3600.0, GRACE_BEHIND_A_QUEUE + 60.0, 86_400.0)


def history(fate: bytes, people: int = 3, **ports: Any) -> Simulation:
    """Rounds of senders at once beside people and reconcilers; then all goes well, and everything is finished.

    ``ports`` replaces a port of every sender, made from the simulation: how a protection is taken away.
    """
    drawn = deque(fate)

    def first() -> int:
        return drawn.popleft() if drawn else 0

    steps, kind, rate = (1, 2, 3, 1)[first() % 4], first() % 8, 1.0 + first() % 32
    spec: dict[str, Any] = {}
    if kind in (1, 2):
        asked = {"function": "carillon-enrichment-points", "provides": ["points"]}
        spec["enrichment"] = asked | {"if_failing": ("fail", "send_without")[kind - 1]}
    if kind == 3:
        spec["not_after"] = instant(NOW + timedelta(hours=2))
    simulation = Simulation(drawn, people, steps, **spec)
    simulation.enricher = _enrich(simulation)
    simulation.change_pace(rate_per_second=rate)
    simulation.rates[:] = simulation.rates[-1:]
    try:
        if kind == 4:
            for body in GARBAGE:
                simulation.post(body)
        for _ in range(2 + simulation.choose() % 2):
            for _ in range(1 + simulation.choose() % 3):
                simulation.deliver(ports)
            for _ in range(1 + simulation.choose() % 2):
                happen(simulation, simulation.choose() % 32)
            simulation.run()
            simulation.pass_time(ADVANCES[simulation.choose() % len(ADVANCES)])
        simulation.close(ports)
    finally:
        simulation.end()
    return simulation


def happen(simulation: Simulation, what: int) -> None:
    """Something that people, or the rule every 30 minutes, do beside the senders; most often nothing."""
    match what:
        case 1 | 2 | 3:
            simulation.start(lambda: pause_and_resume(simulation))
        case 4:
            simulation.start(lambda: cancel(simulation))
        case 5:
            simulation.suppress(simulation.choose() % 3)
        case 6:
            simulation.suppress(simulation.choose() % 3, exits("advent"))
        case 7:
            simulation.change_pace(rate_per_second=1.0 + simulation.choose() % 32)
        case 8:
            simulation.change_pace(daily_cap=simulation.choose() % 4)
        case 9:
            simulation.change_pace(paused=not simulation.pace.paused)
        case 10:
            simulation.pause()
        case 11 | 12 | 13:
            for _ in range(1 + simulation.choose() % 2):
                simulation.reconcile()
        case 14 | 15:
            simulation.revise(
                simulation.choose() % 3, 1 + simulation.choose() % len(simulation.campaigns["advent"].spec.steps)
            )


def rush(fate: bytes, rate: float, senders: int = 5, each: int = 6) -> Simulation:
    """So many senders at once, each with messages of its own; how long each call takes is fate's."""
    simulation = Simulation(fate, senders * each)
    simulation.change_pace(rate_per_second=rate)
    simulation.rates[:] = simulation.rates[-1:]
    try:
        for number in range(senders):
            simulation.deliver(picked=simulation.letters[number * each : (number + 1) * each])
        simulation.run()
        simulation.check_end()
        simulation.check_rate()
    finally:
        simulation.end()
    return simulation
