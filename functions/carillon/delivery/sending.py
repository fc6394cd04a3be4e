"""The sender: what becomes of a batch of messages whose minute has come (DESIGN sections 5 and 6).

Per task at most one e-mail is accepted, whoever dies when, because a row goes from Pending to Running once
(`carillon.delivery.claims`), SES is asked once per claim, and what may have been accepted is never tried again.
A message that is acknowledged while its task is Pending is not lost: resume or reconcile plans the task again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from os.path import basename
from typing import Any, Protocol
from zlib import crc32

from carillon.consent.suppressions import EVERY_TOPIC, exits
from carillon.content.emails import Email, Mail, NotNow, QuotaUsedUp, Rejected, SendingStopped, Unsent, compose
from carillon.content.templates import Rendered, TemplateError
from carillon.delivery import claims, enriching, sequences
from carillon.delivery.claims import Change, RowConflict, Rows
from carillon.delivery.enriching import Enrichers, EnrichmentFailed, EnrichmentUnreachable
from carillon.delivery.envelopes import Envelope, Record, open_record
from carillon.delivery.slots import Cadence, Clock, Slots
from carillon.delivery.standing import Standing, Verdict, judge, past_deadline, standing
from carillon.errors import CampaignNotFound, CampaignStateConflict, PlanRefused
from carillon.launch.enrolment import CREATION_LEAD, schedule_for
from carillon.shapes import BatchLine, Campaign, Enrichment, Problem, Schedule
from carillon.timing.pace import SECOND_US, PaceSettings, Refusal, Refused
from carillon.transitions import TaskError, TaskStatus

_log = logging.getLogger(__name__)

SES_SECONDS = 7
"""At most 2 s to connect and 5 s for SES's answer: `carillon.adapters.mail` holds to it."""
OUTCOME_SECONDS = 2
"""To write the outcome, and the batch's end, after SES's last answer."""
SCHEDULE_SECONDS = 3
"""To make one schedule: `carillon.adapters.schedules` holds to it."""
LOOK_IS_FRESH = timedelta(milliseconds=500)
"""A campaign that was read longer ago is read again before a claim and before SES: somebody may have stopped it."""
UNTIL_LAUNCHED = 10
"""Seconds that a message stays away while its campaign is still being launched."""
NOT_NOW = 2
"""Seconds that a message stays away, at the least, when SES takes no more or cannot be reached."""
LONGEST_DELAY = 900
"""Seconds. Coming back every quarter of an hour, a message lives for days before the next bound ends it."""
ASKED_NOT_TO = "the address asked not to be mailed, or bounced for good"
LEFT_SEQUENCE = "the recipient has left this campaign's sequence"
MOST_RECEIVES = 500
"""After these the message is given up and the reconciler plans the task anew: nothing circles for ever."""


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
    """A step's templates, compiled (`carillon.content.templates.Renderer`)."""

    def render(self, data: Mapping[str, Any], given: Mapping[str, Any] = ...) -> Rendered:
        """The e-mail for ``data`` and what Carillon gives itself, or `carillon.content.templates.TemplateError`."""
        ...


class Templates(Protocol):
    """The port to prepared templates."""

    def renderer(self, campaign_id: str, prepared: str, step: int) -> Renders:
        """The step's renderer, as the campaign's preparation ``prepared`` made it."""
        ...


class Links(Protocol):
    """The port to signed links (`carillon.consent.unsubscribing.Links`)."""

    def unsubscribe(self, campaign_id: str, task: str, topic: str, address_hash: str) -> str:
        """Where this recipient leaves the topic: an https URL, ASCII."""
        ...


class Imprint(Protocol):
    """The port to what every e-mail says of its sender (`carillon.adapters.imprint.SenderImprint`)."""

    def postal_address(self) -> str:
        """As it was at most some seconds ago; LookupError if there is none."""
        ...


class Schedules(Protocol):
    """The port to Scheduler (`carillon.adapters.schedules.Schedules`)."""

    def create(self, schedule: Schedule) -> bool:
        """Create it, within `SCHEDULE_SECONDS`; False when one of that name is there."""
        ...


@dataclass(frozen=True)
class Sender:
    """All that sending needs; one lives as long as the process, and learns how fast it is."""

    campaigns: Campaigns
    rows: Rows
    pace: PaceSettings
    templates: Templates
    mail: Mail
    queue: Queue
    links: Links
    imprint: Imprint
    enrichers: Enrichers
    schedules: Schedules
    clock: Clock
    sending_domain: str
    send_queue_url: str
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


_COUNTED = {TaskStatus.FINISHED: "finished", TaskStatus.FAILED: "failed", TaskStatus.CANCELLED: "cancelled"}


class _Batch:
    """One invocation."""

    def __init__(self, sender: Sender, deadline: datetime) -> None:
        self._sender = sender
        self._now = sender.clock.now
        self._looks: dict[str, tuple[datetime, Campaign | None]] = {}
        self._kept: dict[Record, int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._next_steps: list[Schedule] = []
        self._deadline = deadline
        self._last_send = deadline - timedelta(seconds=SES_SECONDS + OUTCOME_SECONDS)
        self._slots = Slots(sender.pace, sender.clock, sender.cadence, self._last_send)

    def work(self, records: Sequence[Record]) -> None:
        """From messages to outcomes, in the order of DESIGN section 5."""
        unusable: list[tuple[Record, str]] = []
        sending: list[Envelope] = []
        for record in records:
            envelope = open_record(record)
            if isinstance(envelope, str):
                unusable.append((record, envelope))
            elif (campaign := self._look(envelope)) is None:
                unusable.append((record, "UnknownCampaign: no record of that id"))
            elif self._sends(envelope, campaign):
                envelope.campaign = campaign
                sending.append(envelope)
        self._read(sending)
        ready: list[Envelope] = []
        for envelope in sending:
            if envelope.row is None:
                unusable.append((envelope.record, "UnknownTask: no row of that key"))
            elif not self._settled(envelope):
                ready.append(envelope)
        for record, reason in unusable:
            self._bury(record, reason)
        self._send_all(deque(self._enriched(ready)))

    def close(self) -> list[str]:
        """Schedule next steps, give back, count, delay; none of these may undo what was sent."""
        for schedule in self._next_steps:
            self._quietly("schedule a next step: the reconciler will", partial(self._schedule, schedule))
        self._quietly("give back pace", self._slots.give_back)
        for campaign_id, deltas in self._counts.items():
            self._quietly("count", partial(self._sender.campaigns.count, campaign_id, **deltas))
        if self._kept:
            self._quietly("delay messages", partial(self._sender.queue.delay, self._kept))
        return [record.message_id for record in self._kept]

    def _schedule(self, schedule: Schedule) -> None:
        if self._now() + timedelta(seconds=SCHEDULE_SECONDS) > self._deadline:
            raise TimeoutError
        self._sender.schedules.create(schedule)

    # before the claim

    def _look(self, envelope: Envelope, *, fresh_at: datetime | None = None) -> Campaign | None:
        """The campaign, or None if there is none: as it is at ``fresh_at``, or was when this batch first asked."""
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

    def _sends(self, envelope: Envelope, campaign: Campaign | None) -> bool:
        match standing(campaign) if campaign else Standing.ACKNOWLEDGE:
            case Standing.BACK_TO_QUEUE:
                self._keep(envelope.record, UNTIL_LAUNCHED)
            case Standing.SEND:
                return True
        return False

    def _read(self, sending: Sequence[Envelope]) -> None:
        """One read of all that the rows and suppressions say: at most three keys of each for every message."""
        if not sending:
            return
        tasks = {envelope.task_key for envelope in sending}
        unwanted: dict[Envelope, dict[tuple[str, str], str]] = {}
        followers: dict[Envelope, tuple[str, str]] = {}
        for envelope in sending:
            campaign, address_hash = envelope.campaign, envelope.address_hash
            keys = {(address_hash, topic): ASKED_NOT_TO for topic in (campaign.spec.topic, EVERY_TOPIC)}
            if sequences.is_sequence(campaign.spec):
                keys[address_hash, exits(campaign.campaign_id)] = LEFT_SEQUENCE
                for step in sequences.following(campaign.spec, envelope.message.step):
                    followers[envelope] = campaign.campaign_id, sequences.task_of(envelope.message.task, step)
                    break
            unwanted[envelope] = keys
        asked = {key for keys in unwanted.values() for key in keys}
        rows, suppressed = self._sender.rows.read(tasks | set(followers.values()), asked)
        for envelope in sending:
            envelope.row = rows.get(envelope.task_key)
            envelope.next_row = rows.get(followers[envelope]) if envelope in followers else None
            envelope.suppression = next((why for key, why in unwanted[envelope].items() if key in suppressed), None)

    def _settled(self, envelope: Envelope) -> bool:
        """Whether the message is done with before any pace is taken."""
        assert envelope.row is not None
        verdict = judge(envelope.campaign, envelope.message, envelope.row, envelope.suppression, self._now())
        if isinstance(verdict, Problem):
            self._fail_unclaimed(envelope, verdict)
        return verdict is not Verdict.SEND

    def _fail_unclaimed(self, envelope: Envelope, problem: Problem) -> None:
        try:
            self._conclude(envelope, claims.fail_unclaimed(envelope.message, problem))
        except Exception as error:
            self._trouble("fail the task", envelope, error)
            self._keep(envelope.record, NOT_NOW)

    # enrichment

    def _enriched(self, ready: Sequence[Envelope]) -> list[Envelope]:
        """``ready`` with what the campaigns' functions say; whom that fails or puts off is left out."""
        together: dict[tuple[str, int], list[Envelope]] = {}
        for envelope in ready:
            if envelope.campaign.spec.enrichment:
                together.setdefault((envelope.message.campaign, envelope.message.step), []).append(envelope)
        out: set[Envelope] = set()
        for some in together.values():
            if self._now() + timedelta(seconds=enriching.SECONDS) > self._last_send:
                for envelope in some:
                    self._keep(envelope.record, NOT_NOW)
                out.update(some)
                continue
            answer = self._ask(some)
            out.update(envelope for envelope in some if not self._enrich(envelope, answer))
        return [envelope for envelope in ready if envelope not in out]

    def _ask(self, some: Sequence[Envelope]) -> Any:
        """What the function of their campaign and step answers, or why it does not."""
        campaign, message = some[0].campaign, some[0].message
        columns = {envelope.message.task: envelope.message.data for envelope in some}
        asking = enriching.question(campaign.campaign_id, message.step, columns)
        try:
            return self._sender.enrichers.ask(_enrichment(campaign).function, asking)
        except Exception as error:
            self._trouble("ask the campaign's function for values", some[0], error)
            known = isinstance(error, EnrichmentFailed | EnrichmentUnreachable)
            return error if known else EnrichmentUnreachable(f"the function cannot be asked: {type(error).__name__}")

    def _enrich(self, envelope: Envelope, answer: Any) -> bool:
        """Whether the message goes on, with what ``answer`` says about it or without."""
        enrichment = _enrichment(envelope.campaign)
        try:
            if isinstance(answer, Exception):
                raise answer
            envelope.enriched = enriching.values(enrichment, answer, envelope.message.task)
        except (EnrichmentFailed, EnrichmentUnreachable) as error:
            waited = self._now() - envelope.record.first_received
            if isinstance(error, EnrichmentUnreachable) and waited < enriching.PATIENCE:
                self._keep(envelope.record, NOT_NOW)
                return False
            if enrichment.if_failing == "fail":
                self._fail_unclaimed(envelope, Problem(code=TaskError.ENRICHMENT_FAILED, message=str(error)))
                return False
        return True

    # the claim, and what follows

    def _send_all(self, ready: deque[Envelope]) -> None:
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

    def _send(self, envelope: Envelope, left: int) -> Refused | None:
        """One e-mail, from the second look to its outcome; what is returned holds for all that are left.

        Raises:
            Exception: before SES was asked, and the claim has been given back.
        """
        message, sender = envelope.message, self._sender
        campaign = self._look(envelope, fresh_at=self._now())
        if campaign is None or not self._sends(envelope, campaign):
            return None
        if overdue := past_deadline(campaign, self._now()):
            self._fail_unclaimed(envelope, overdue)
            return None
        assert campaign.prepared is not None, "a campaign that dispatches has been prepared"
        renderer = sender.templates.renderer(message.campaign, campaign.prepared, message.step)
        topic = campaign.spec.topic
        unsubscribe_url = sender.links.unsubscribe(message.campaign, message.task, topic, envelope.address_hash)
        given = {"unsubscribe_url": unsubscribe_url, "postal_address": sender.imprint.postal_address()}
        token = sender.token()
        try:
            began = self._now()
            if not claims.claim(sender.rows, message, token, began):
                return None
            try:
                rendered = renderer.render(message.data, {**envelope.enriched, **given})
                email = compose(campaign.spec, message, rendered, sender.sending_domain, unsubscribe_url)
            except TemplateError as error:
                problem = Problem(code=TaskError.TEMPLATE_ERROR, message=str(error))
                self._conclude(envelope, claims.fail(message, token, problem))
                return None
            sender.cadence.ready_took(self._now() - began)
            on_time = False
            while not on_time:
                if refused := self._slots.draw_near(left):
                    self._settle(claims.release(message, token))
                    self._put_off(envelope, refused)
                    return refused
                campaign = self._look(envelope, fresh_at=max(self._slots.opening, self._now()))
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

    def _post(self, envelope: Envelope, campaign: Campaign, token: str, email: Email) -> Refused | None:
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
            self._conclude(envelope, change)
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

    def _conclude(self, envelope: Envelope, change: Change) -> None:
        """Write an outcome, and in the same transaction what it means for the steps that wait for it.

        The outcome alone where that does not go through: the reconciler makes good what the others miss.
        """
        also, schedule = self._consequences(envelope, change)
        together = bool(also)
        if together:
            try:
                self._sender.rows.apply_together([change, *also])
                for done in (change, *also):
                    self._count(done)
            except Exception as error:
                self._trouble("write the outcome together with the next steps'", envelope, error)
                together = False
        if not together:
            # Found written, it was by the transaction, and its reply was lost.
            together = self._settle(change)
        if together and schedule:
            self._next_steps.append(schedule)

    def _consequences(self, envelope: Envelope, change: Change) -> tuple[list[Change], Schedule | None]:
        """What is written with an outcome: the next step's release, and its schedule; or the end of the sequence."""
        message, row = envelope.message, envelope.next_row
        spec = envelope.campaign.spec
        if change.after is TaskStatus.FAILED:
            return sequences.end(spec, message), None
        if change.after is not TaskStatus.FINISHED or row is None or not sequences.may_go_on(row, message.generation):
            return [], None
        earliest = int(self._now().timestamp()) + CREATION_LEAD
        try:
            slot = sequences.slot_after(spec, row, change.sets["sent_at"], earliest)
        except PlanRefused as error:
            self._trouble("find a slot for the next step", envelope, error)
            return [], None
        line = BatchLine(
            task=row.task,
            step=row.step,
            address=row.address,
            timezone=row.timezone,
            slot=slot,
            revision=row.revision,
            input=message.data,
        )
        schedule = schedule_for(
            row.campaign_id,
            row.generation,
            line,
            self._sender.send_queue_url,
            not_before=earliest,
            client_token=row.client_token,
        )
        return [sequences.release(row, slot)], schedule

    def _settle(self, change: Change) -> bool:
        """Do ``change`` if the row is as expected; whether it was an outcome and is found written already."""
        try:
            self._sender.rows.apply(change)
        except RowConflict as conflict:
            return claims.is_done(change, conflict.found)
        self._count(change)
        return False

    def _count(self, change: Change) -> None:
        if counter := _COUNTED.get(change.after):
            counts = self._counts.setdefault(change.campaign_id, {})
            counts[counter] = counts.get(counter, 0) + 1

    # what stays in the queue

    def _put_off(self, envelope: Envelope, refused: Refused) -> None:
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

    def _quietly(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            _log.error(f"cannot {what}", extra=_kind(error))

    def _trouble(self, what: str, envelope: Envelope, error: Exception) -> None:
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


def _enrichment(campaign: Campaign) -> Enrichment:
    enrichment = campaign.spec.enrichment
    assert enrichment is not None
    return enrichment
