"""The sender: what becomes of a batch of messages whose minute has come (DESIGN sections 5 and 6).

Per task at most one e-mail is accepted, whoever dies when, because a row goes from Pending to Running once
(`carillon.claims`), SES is asked once per claim, and what may have been accepted is never tried again.
A message that is acknowledged while its task is Pending is not lost: resume or reconcile plans the task again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from math import ceil
from os.path import basename
from typing import Any, Protocol
from zlib import crc32
from zoneinfo import ZoneInfo

from pydantic import ValidationError

from carillon import claims, keys
from carillon.addresses import canonical
from carillon.claims import Change, RowConflict, Rows, SuppressionKey, TaskKey
from carillon.emails import Email, Mail, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent, compose
from carillon.errors import CampaignNotFound, CampaignStateConflict
from carillon.pace import SECOND_US, PaceSettings, Refusal, Refused
from carillon.shapes import Campaign, CampaignPace, Message, Problem, Task
from carillon.slots import Cadence, Clock, Slots
from carillon.templates import Rendered, TemplateError
from carillon.transitions import CampaignState, TaskError, TaskStatus

_log = logging.getLogger(__name__)

SES_SECONDS = 7
"""At most 2 s to connect and 5 s for SES's answer: `carillon.adapters.mail` holds to it."""
OUTCOME_SECONDS = 2
"""To write the outcome, and the batch's end, after SES's last answer."""
LOOK_IS_FRESH = timedelta(milliseconds=500)
"""A campaign that was read longer ago is read again before a claim and before SES: somebody may have stopped it."""
OUTSIDE_WINDOW = timedelta(minutes=15)
"""How far outside its window a task may still go; later it waits to be planned again."""
UNTIL_LAUNCHED = 10
"""Seconds that a message stays away while its campaign is still being launched."""
NOT_NOW = 2
"""Seconds that a message stays away, at the least, when SES takes no more or cannot be reached."""
LONGEST_DELAY = 900
"""Seconds. Coming back every quarter of an hour, a message lives for days before the next bound ends it."""
MOST_RECEIVES = 500
"""After these the message is given up and the reconciler plans the task anew: nothing circles for ever."""


@dataclass(frozen=True)
class Record:
    """One message as the queue hands it out."""

    message_id: str
    receipt: str
    body: str
    receives: int
    first_received: datetime
    """Aware."""


class Campaigns(Protocol):
    """The port to campaign records (`carillon.adapters.campaigns.CampaignStore`)."""

    def get(self, campaign_id: str, *, consistent: bool = True) -> Campaign:
        """The campaign as it is now; `CampaignNotFound` if there is none."""
        ...

    def pause(self, campaign_id: str, generation: int, paused: bool, *, now: datetime, error: Problem | None) -> object:
        """Set the flag, with the reason; `CampaignStateConflict` if someone else decided."""
        ...

    def count(self, campaign_id: str, **deltas: int) -> None:
        """Add to the advisory counters."""
        ...


class Queue(Protocol):
    """The port to the send queue."""

    def delay(self, seconds: Mapping[Record, int]) -> None:
        """Hand out each message again after so many seconds, and not before."""

    def bury(self, record: Record, reason: str) -> None:
        """Put the message into the dead-letter queue. ``reason`` has no address in it."""


class Renders(Protocol):
    """A step's templates, compiled (`carillon.templates.Renderer`)."""

    def render(self, data: Mapping[str, Any]) -> Rendered:
        """The e-mail for ``data``, or `carillon.templates.TemplateError`."""
        ...


class Templates(Protocol):
    """The port to prepared templates."""

    def renderer(self, campaign_id: str, prepared: str, step: int) -> Renders:
        """The step's renderer, as the campaign's preparation ``prepared`` made it."""
        ...


class Standing(Enum):
    """What a campaign's record says about its messages."""

    SEND = auto()
    BACK_TO_QUEUE = auto()
    ACKNOWLEDGE = auto()


def standing(campaign: Campaign) -> Standing:
    """Whether ``campaign`` sends, is about to, or does not."""
    if campaign.state is CampaignState.ENQUEUED:
        return Standing.BACK_TO_QUEUE
    if campaign.state is not CampaignState.DISPATCHING or campaign.paused:
        return Standing.ACKNOWLEDGE
    return Standing.SEND


class Verdict(Enum):
    """What a row says about its message."""

    SEND = auto()
    DROP = auto()


def judge(campaign: Campaign, message: Message, row: Task, suppressed: bool, now: datetime) -> Verdict | Problem:
    """Send it, drop it (the row stays as it is), or fail the task with the problem."""
    current = row.generation == message.generation and row.revision == message.revision
    if row.status is not TaskStatus.PENDING or not current:
        return Verdict.DROP
    if suppressed:
        return Problem(code=TaskError.SUPPRESSED, message="the address asked not to be mailed, or bounced for good")
    if overdue := past_deadline(campaign, now):
        return overdue
    if campaign.spec.pace and outside_window(campaign.spec.pace, message.slot, now):
        return Verdict.DROP
    return Verdict.SEND


def past_deadline(campaign: Campaign, now: datetime) -> Problem | None:
    """Why it is too late for any e-mail of ``campaign``, if it is."""
    deadline = campaign.spec.not_after
    if deadline is None or now <= deadline:
        return None
    return Problem(code=TaskError.DEADLINE_PASSED, message=f"not sent before the campaign's not_after, {deadline}")


def outside_window(pace: CampaignPace, slot: int, now: datetime) -> bool:
    """Whether ``now`` is more than `OUTSIDE_WINDOW` away from the window that ``slot`` (epoch seconds) lies in.

    A slot that lies in none was set by a person, and is kept.
    """
    zone = ZoneInfo(pace.timezone)
    day = datetime.fromtimestamp(slot, zone).date()
    if day.isoweekday() not in pace.weekdays:
        return False
    for window in pace.windows:
        end_day = day + timedelta(days=window.end <= window.start)  # 00:00 is the day's end
        start = datetime.combine(day, window.start, zone).timestamp()
        end = datetime.combine(end_day, window.end, zone).timestamp()
        if start <= slot < end:
            slack = OUTSIDE_WINDOW.total_seconds()
            return not start - slack <= now.timestamp() < end + slack
    return False


@dataclass(frozen=True)
class _Envelope:
    record: Record
    message: Message
    address_hash: str

    def suppressions(self, topic: str) -> set[SuppressionKey]:
        """What would keep this address from being mailed about ``topic``."""
        return {(self.address_hash, topic), (self.address_hash, "*")}


@dataclass(frozen=True)
class Sender:
    """All that sending needs; one lives as long as the process, and learns how fast it is."""

    campaigns: Campaigns
    rows: Rows
    pace: PaceSettings
    templates: Templates
    mail: Mail
    queue: Queue
    clock: Clock
    sending_domain: str
    token: Callable[[], str]
    """A claim token that nobody has had before."""
    cadence: Cadence

    def handle(self, records: Sequence[Record], deadline: datetime) -> list[str]:
        """Send what may be sent of ``records`` before ``deadline``, the invocation's end (aware).

        Returns:
            Message ids that stay in the queue; the others are done with.

        Raises:
            Exception: a campaign or the rows cannot be read; then nothing has been done.
        """
        batch = _Batch(self, deadline)
        batch.work(records)
        return batch.close()


class _Batch:
    """One invocation."""

    def __init__(self, sender: Sender, deadline: datetime) -> None:
        self._sender = sender
        self._now = sender.clock.now
        self._looks: dict[str, tuple[datetime, Campaign | None]] = {}
        self._kept: dict[Record, int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        last_send = deadline - timedelta(seconds=SES_SECONDS + OUTCOME_SECONDS)
        self._slots = Slots(sender.pace, sender.clock, sender.cadence, last_send)

    def work(self, records: Sequence[Record]) -> None:
        """From messages to outcomes, in the order of DESIGN section 5."""
        unusable: list[tuple[Record, str]] = []
        sending: list[_Envelope] = []
        for record in records:
            envelope = _open(record)
            if isinstance(envelope, str):
                unusable.append((record, envelope))
            elif (campaign := self._campaign(envelope)) is None:
                unusable.append((record, "UnknownCampaign: no record of that id"))
            elif self._sends(envelope, campaign):
                sending.append(envelope)
        rows, suppressed = self._read(sending)
        ready: deque[_Envelope] = deque()
        for envelope in sending:
            row = rows.get(_task_key(envelope))
            if row is None:
                unusable.append((envelope.record, "UnknownTask: no row of that key"))
            elif self._settled(envelope, row, not suppressed.isdisjoint(self._suppressions(envelope))):
                continue
            else:
                ready.append(envelope)
        for record, reason in unusable:
            self._bury(record, reason)
        self._send_all(ready)

    def close(self) -> list[str]:
        """Give back, count, delay; none of these may undo what was sent."""
        self._quietly("give back pace", self._slots.give_back)
        for campaign_id, deltas in self._counts.items():
            self._quietly("count", partial(self._sender.campaigns.count, campaign_id, **deltas))
        if self._kept:
            self._quietly("delay messages", partial(self._sender.queue.delay, self._kept))
        return [record.message_id for record in self._kept]

    # before the claim

    def _campaign(self, envelope: _Envelope, *, fresh_at: datetime | None = None) -> Campaign | None:
        campaign_id = envelope.message.campaign
        looked = self._looks.get(campaign_id)
        if looked is None or (fresh_at and fresh_at - looked[0] > LOOK_IS_FRESH):
            at = self._now()
            try:
                looked = (at, self._sender.campaigns.get(campaign_id, consistent=True))
            except CampaignNotFound:
                looked = (at, None)
            self._looks[campaign_id] = looked
            self._sender.cadence.look_took(self._now() - at)
        return looked[1]

    def _sends(self, envelope: _Envelope, campaign: Campaign | None) -> bool:
        match standing(campaign) if campaign else Standing.ACKNOWLEDGE:
            case Standing.BACK_TO_QUEUE:
                self._keep(envelope.record, UNTIL_LAUNCHED)
            case Standing.SEND:
                return True
        return False

    def _read(self, sending: Sequence[_Envelope]) -> tuple[Mapping[TaskKey, Task], set[SuppressionKey]]:
        if not sending:
            return {}, set()
        suppressions = {key for envelope in sending for key in self._suppressions(envelope)}
        return self._sender.rows.read({_task_key(envelope) for envelope in sending}, suppressions)

    def _suppressions(self, envelope: _Envelope) -> set[SuppressionKey]:
        campaign = self._campaign(envelope)
        assert campaign is not None
        return envelope.suppressions(campaign.spec.topic)

    def _settled(self, envelope: _Envelope, row: Task, suppressed: bool) -> bool:
        """Whether the message is done with before any pace is taken."""
        campaign = self._campaign(envelope)
        assert campaign is not None
        verdict = judge(campaign, envelope.message, row, suppressed, self._now())
        if isinstance(verdict, Problem):
            self._fail_unclaimed(envelope, verdict)
        return verdict is not Verdict.SEND

    def _fail_unclaimed(self, envelope: _Envelope, problem: Problem) -> None:
        try:
            self._settle(claims.fail_unclaimed(envelope.message, problem), "failed")
        except Exception as error:
            self._trouble("fail the task", envelope, error)
            self._keep(envelope.record, NOT_NOW)

    # the claim, and what follows

    def _send_all(self, ready: deque[_Envelope]) -> None:
        while ready:
            try:
                refused = self._slots.approach(len(ready))
            except Exception as error:
                self._trouble("reserve pace", ready[0], error)
                refused = Refused(Refusal.BUSY, NOT_NOW * SECOND_US)
            if refused is None:
                envelope = ready.popleft()
                try:
                    refused = self._send(envelope, len(ready) + 1)
                except Exception as error:
                    self._trouble("send", envelope, error)
                    self._keep(envelope.record, NOT_NOW)
            if refused is not None:
                for envelope in ready:
                    self._put_off(envelope, refused)
                return

    def _send(self, envelope: _Envelope, left: int) -> Refused | None:
        """One e-mail, from the second look to its outcome; what is returned holds for all that are left.

        Raises:
            Exception: before SES was asked, and the claim has been given back.
        """
        message, sender = envelope.message, self._sender
        campaign = self._campaign(envelope, fresh_at=self._now())
        if campaign is None or not self._sends(envelope, campaign):
            return None
        if overdue := past_deadline(campaign, self._now()):
            self._fail_unclaimed(envelope, overdue)
            return None
        assert campaign.prepared is not None, "a campaign that dispatches has been prepared"
        renderer = sender.templates.renderer(message.campaign, campaign.prepared, message.step)
        token = sender.token()
        try:
            began = self._now()
            if not claims.claim(sender.rows, message, token, began):
                return None
            try:
                rendered = renderer.render(message.data)
            except TemplateError as error:
                problem = Problem(code=TaskError.TEMPLATE_ERROR, message=str(error))
                self._settle(claims.fail(message, token, problem), "failed")
                return None
            email = compose(campaign.spec, message, rendered, sender.sending_domain)
            sender.cadence.ready_took(self._now() - began)
            on_time = False
            while not on_time:
                if refused := self._slots.draw_near(left):
                    self._settle(claims.release(message, token))
                    self._put_off(envelope, refused)
                    return refused
                campaign = self._campaign(envelope, fresh_at=max(self._slots.opening, self._now()))
                if campaign is None or not self._sends(envelope, campaign):
                    self._settle(claims.release(message, token))
                    return None
                on_time = self._slots.enter()
        except Exception:
            self._settle(claims.release(message, token))
            raise
        began = self._now()
        refused = self._post(envelope, campaign, token, email)
        sender.cadence.posting_took(self._now() - began)
        return refused

    def _post(self, envelope: _Envelope, campaign: Campaign, token: str, email: Email) -> Refused | None:
        """Ask SES, once, and write what it said. From here on the message is never tried again unless SES said no."""
        message = envelope.message
        self._slots.sent()
        refused: Refused | None = None
        try:
            message_id = self._sender.mail.send(email)
        except Unsent as error:
            self._trouble("reach SES", envelope, error)
            change = claims.release(message, token)
            self._keep(envelope.record, NOT_NOW)
        except (NotNow, QuotaUsedUp) as error:
            self._trouble("send more", envelope, error)
            change = claims.release(message, token)
            for_now = isinstance(error, NotNow)
            refused = Refused(Refusal.BUSY, NOT_NOW * SECOND_US) if for_now else Refused(Refusal.OVER_CAP)
            self._put_off(envelope, refused)
        except Rejected as error:
            change = claims.fail(message, token, Problem(code=error.code, message=error.message))
        except SendingStopped as error:
            change = claims.release(message, token)
            self._quietly("pause", partial(self._pause, campaign, Problem(code=error.code, message=error.message)))
        except Exception as error:
            self._trouble(
                "learn whether SES took the e-mail: it stays Running, for evidence to settle", envelope, error
            )
            return None
        else:
            change = claims.finish(message, token, email.subject, message_id, self._now())
        try:
            self._settle(change, {TaskStatus.FINISHED: "finished", TaskStatus.FAILED: "failed"}.get(change.after))
        except Exception as error:
            self._trouble(f"write the outcome: {change.after}", envelope, error)
        return refused

    def _pause(self, campaign: Campaign, reason: Problem) -> None:
        self._looks.pop(campaign.campaign_id)
        try:
            self._sender.campaigns.pause(campaign.campaign_id, campaign.generation, True, now=self._now(), error=reason)
        except CampaignStateConflict:
            return
        _log.error("campaign paused itself: SES sends no more", extra={"campaign": campaign.campaign_id})

    def _settle(self, change: Change, counter: str | None = None) -> None:
        try:
            self._sender.rows.apply(change)
        except RowConflict:
            return
        if counter:
            counts = self._counts.setdefault(change.campaign_id, {})
            counts[counter] = counts.get(counter, 0) + 1

    # what stays in the queue

    def _put_off(self, envelope: _Envelope, refused: Refused) -> None:
        """Only a wait for others is the queue's; paused or over the cap, the task waits to be planned again."""
        if refused.why is Refusal.BUSY:
            self._keep(envelope.record, refused.wait_us / SECOND_US)

    def _keep(self, record: Record, at_least: float) -> None:
        """Leave it in the queue for ``at_least`` seconds, or half as long as it has waited, so that a backlog is not
        handed out over and over; spread by id, so that what was put off together does not come back together."""
        if record.receives >= MOST_RECEIVES:
            return
        waited = (self._now() - record.first_received).total_seconds()
        spread = 1 + crc32(record.message_id.encode()) % 256 / 1024
        self._kept[record] = min(LONGEST_DELAY, ceil(max(at_least, waited / 2) * spread))

    def _bury(self, record: Record, reason: str) -> None:
        try:
            self._sender.queue.bury(record, reason)
        except Exception as error:
            _log.error("cannot bury a message", extra={"message_id": record.message_id, **_kind(error)})
            self._keep(record, NOT_NOW)
        else:
            _log.error("buried a message", extra={"message_id": record.message_id, "reason": reason})

    def _quietly(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            _log.error(f"cannot {what}", extra=_kind(error))

    def _trouble(self, what: str, envelope: _Envelope, error: Exception) -> None:
        message = envelope.message
        _log.warning(f"cannot {what}", extra={"campaign": message.campaign, "task": message.task, **_kind(error)})


def _kind(error: Exception) -> dict[str, str]:
    """An error for the log: its name (AWS's, where it has one) and where it was raised, never its text, which may hold
    an address."""
    answer = getattr(error, "response", None) or {}
    name = getattr(error, "code", None) or answer.get("Error", {}).get("Code") or type(error).__name__
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    at = f"{basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}" if frame else "?"
    return {"error": str(name), "at": at}


def _open(record: Record) -> _Envelope | str:
    """The message in ``record``, or the reason why there is none; no value of it is in the reason."""
    try:
        message = Message.model_validate_json(record.body)
    except ValidationError as error:
        wrong = "; ".join(f"{_field(e['loc'])}: {e['type']}" for e in error.errors(include_input=False)[:5])
        return f"MalformedMessage: {wrong}"
    # The row of this task was made for an address that was found good: whatever has its hash needs no second check.
    person = canonical(message.to)
    if message.task != keys.task_id(message.step, person):
        return "MalformedMessage: task is not that of step and to"
    return _Envelope(record, message, keys.address_hash(person))


def _field(loc: tuple[int | str, ...]) -> str:
    """Which field of `Message`; what somebody else called a field may be an address."""
    name = str(loc[0]) if loc else "body"
    return name if name in Message.model_fields else "unknown field"


def _task_key(envelope: _Envelope) -> TaskKey:
    return envelope.message.campaign, envelope.message.task
