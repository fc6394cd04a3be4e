"""What an operator may ask of campaigns, apart from how it travels: the HTTP API's other half."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field

from carillon import addresses, campaigns, keys
from carillon.content import syntax
from carillon.errors import CarillonError, InvalidCursor
from carillon.launch import direct, readiness
from carillon.shapes import Campaign, CampaignId, CampaignSpec, Problem, Shape, Task, TemplateName, instant
from carillon.timing.pace import Pace, WarmUp
from carillon.transitions import CANCELLABLE, LAUNCHABLE, PAUSABLE, RESUMABLE, CampaignState, TaskStatus

LIST_BYTES = 1024**3
"""Ten million recipients at 100 bytes; PrepareList holds the file and what it makes of it on its own disk."""

LIST_TYPES = {"csv": "text/csv", "jsonl": "application/jsonl"}
"""Content types, by the ending of the list's key, which says how it is read."""

TEMPLATE_BYTES = 512_000
"""SES's own limit for a template is 500 KB (AWS_CONTRACTS 3)."""

LINK_SECONDS = 3600
"""An upload may *begin* this long after its link was given: never more than an hour (DESIGN section 10)."""

IDEMPOTENCY_SECONDS = 24 * 3600
PAGE = 100
QUERIES_A_PAGE = 2 * keys.SHARDS
"""A filtered listing of a large campaign may find nothing in many pages: it hands back a cursor in good time."""

ADVICE = {
    CampaignState.CREATED: "it has not been launched: upload the list and the templates, then launch it",
    CampaignState.SCHEDULED: "it is waiting for its launch: launch it now, or cancel it",
    CampaignState.ENQUEUED: "it is being launched: wait until it is dispatching, or cancel it",
    CampaignState.DISPATCHING: "it is sending: pause it, cancel it, or resume it if it is paused",
    CampaignState.ABORTED: "its launch broke and its error says why: resume it or cancel it",
    CampaignState.FAILED: "its preparation failed and its error says why: mend that in a new campaign",
    CampaignState.CANCELLING: "it is being cancelled: nothing more is sent",
    CampaignState.CANCELLED: "it has been cancelled: create a new campaign",
    CampaignState.COMPLETED: "it is over: create a new campaign",
}
"""What to do about a campaign that is in the wrong state for what was asked."""


class ActionRefused(CarillonError):
    """The campaign's state, or its age, does not allow what was asked."""


class InvalidRequest(CarillonError):
    """What was asked cannot be meant so."""


class PlanMissing(CarillonError):
    """Nobody has asked for a plan of this campaign yet."""


class PlanOutdated(CarillonError):
    """The plan that a launch is bound to is not what would be launched now."""


class RejectsMissing(CarillonError):
    """No launch has prepared this campaign's list yet."""


class UploadMissing(CarillonError):
    """The list or a template has not been uploaded."""


class IdempotencyKeyReused(CarillonError):
    """The key belongs to a creation with another body."""


# What travels


class CampaignCreated(Shape):
    """Answer to a creation. ``notes``: what the chosen route gives up."""

    campaign_id: CampaignId
    notes: tuple[str, ...] = ()


class CampaignPage(Shape):
    """Campaigns, newest first. ``cursor``: ask again with it for what follows; None: that was all."""

    campaigns: list[dict[str, Any]]
    cursor: str | None


class ListUpload(Shape):
    """The recipients; either may be gzipped."""

    kind: Literal["list"]
    format: Literal["csv", "jsonl"] = "csv"
    """``jsonl``: one JSON object a line, the columns are its keys."""


class TemplateUpload(Shape):
    """A template, as HTML, under the name that a step calls it by."""

    kind: Literal["template"]
    name: TemplateName


Upload = Annotated[ListUpload | TemplateUpload, Field(discriminator="kind")]


class UploadLink(Shape):
    """A presigned POST: send ``fields`` as a form to ``url``, with the file last as ``file``."""

    url: str
    fields: dict[str, str]
    expires_at: str
    most_bytes: int


class Launch(Shape):
    """How to launch. ``plan``: the hash of the plan that was looked at; what has changed since is refused."""

    plan: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class PlanView(Shape):
    """The newest plan, or how far it is. ``rejects_url`` is good for an hour."""

    state: Literal["planning", "planned", "failed"]
    execution: str | None
    """While it is planning: whose result this will be."""
    plan: dict[str, Any] | None
    error: Problem | None
    rejects_url: str | None


class RejectsView(Shape):
    """Where ``rejects.csv`` is read: everybody who is not written to, with line and reason. Good for an hour."""

    url: str


class Started(Shape):
    """An execution to watch: its end is seen on the campaign's state."""

    campaign_id: CampaignId
    execution: str


class TaskView(Shape):
    """One e-mail to one recipient, and what became of it."""

    task: str
    step: int
    address: str
    timezone: str | None
    slot: str
    status: TaskStatus
    generation: int
    revision: int
    subject: str | None
    message_id: str | None
    sent_at: str | None
    error: Problem | None


class TaskPage(Shape):
    """Tasks in the order of their keys. A page may be short, or empty, and still have a cursor."""

    tasks: list[TaskView]
    cursor: str | None


UNREACHED = frozenset({CampaignState.ENQUEUED, CampaignState.ABORTED, CampaignState.CANCELLING, CampaignState.FAILED})
"""Where a task may have no row: its launch is under way, broke, or is being cancelled."""


class Counts(Shape):
    """The truth, counted over the rows. ``balance``: every enrolled task is accounted for.

    ``unenrolled`` tasks have no row (yet): in order while a launch is under way, broken or being cancelled, and nowhere
    else; so a campaign just cancelled half-way through its launch is in balance when `cancel_campaign` has ended.
    """

    enrolled: int
    unenrolled: int
    pending: int
    running: int
    finished: int
    failed: int
    cancelled: int
    balance: bool


def _unique_days(steps: tuple[WarmUp, ...]) -> tuple[WarmUp, ...]:
    if len({step.day for step in steps}) < len(steps):
        raise ValueError("must name each day once")
    return steps


def _printable(text: str) -> str:
    text = text.strip()
    if not text or any(not c.isprintable() and c != "\n" for c in text):
        raise ValueError("must be text, on as many lines as it takes")
    return text


class IdentityPace(Shape):
    """How fast the stack's sending identity may send: what an operator sets. Senders obey with their next batch."""

    rate_per_second: Annotated[float, Field(ge=0.001, le=100_000)]
    daily_cap: Annotated[int, Field(ge=0, le=1_000_000_000)]
    """E-mails a calendar day of the stack's zone."""
    warm_up: Annotated[tuple[WarmUp, ...], Field(max_length=366), AfterValidator(_unique_days)] = ()
    paused: bool = False
    """All campaigns stop; cleared, what has come due meanwhile is planned again by `reconcile_tasks`."""


class IdentityPaceView(IdentityPace):
    """The pace, and SES's own quota as the newest preparation saw it (-1: unlimited, null: not known yet)."""

    max_24_hour_send: int | None


class Sender(Shape):
    """Who sends, as every e-mail has to say: the placeholder ``postal_address``."""

    postal_address: Annotated[str, Field(max_length=500), AfterValidator(_printable)]


class SenderView(Shape):
    """The sender as it is set; null: no campaign can be launched before it is."""

    postal_address: str | None


# Ports


class Store(campaigns.Campaigns, Protocol):
    """The campaign records (`carillon.adapters.campaigns.CampaignStore`)."""

    def create(self, campaign: Campaign) -> bool:
        """Put if absent."""
        ...

    def remember(self, key: str, campaign_id: str, fingerprint: str, expires_at: int) -> tuple[str, str]:
        """Tie an idempotency key; the id and fingerprint that it is tied to."""
        ...

    def next_attempt(self, seen: Campaign) -> int:
        """A number for an execution's name, for one of those who saw the campaign as it is."""
        ...

    def pause(
        self, campaign_id: str, generation: int, paused: bool, *, now: datetime, error: Problem | None = None
    ) -> Campaign:
        """Set the flag."""
        ...

    def record_plan(self, campaign_id: str, plan: Mapping[str, Any], *, now: datetime) -> Campaign:
        """Put what is known of a plan on the record."""
        ...

    def by_created(
        self, month: str, *, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Campaign], str | None]:
        """A page of a month's campaigns."""
        ...


class Rows(Protocol):
    """The task rows (`carillon.adapters.enrolment.CampaignRows`)."""

    def page(
        self,
        campaign_id: str,
        number: int,
        statuses: Sequence[TaskStatus] = (),
        *,
        after: str | None = None,
        limit: int = 0,
    ) -> tuple[list[Task], str | None]:
        """One page of a shard, and the task after which the next one starts."""
        ...

    def find(self, campaign_id: str, task: str) -> Task | None:
        """One row."""
        ...

    def counts(self, campaign_id: str) -> Mapping[TaskStatus, int]:
        """How many rows there are in each status."""
        ...


class Uploads(Protocol):
    """Links to the bucket (`carillon.adapters.uploads.Uploads`)."""

    def link(self, key: str, content_type: str, most_bytes: int, seconds: int) -> tuple[str, dict[str, str]]:
        """URL and form fields of a presigned POST."""
        ...

    def version(self, key: str) -> str | None:
        """The version that was uploaded last; None: none was."""
        ...

    def download(self, key: str, name: str, seconds: int) -> str:
        """URL of a presigned GET, to be saved under ``name``."""
        ...


class Settings(Protocol):
    """The stack's settings (`carillon.adapters.settings.SettingsTable`)."""

    def pace(self) -> Pace:
        """The identity's pace, and what has been taken of it."""
        ...

    def set_pace(self, rate_per_second: float, daily_cap: int, warm_up: Sequence[WarmUp], paused: bool) -> None:
        """Set these four, and nothing beside them."""
        ...

    def postal_address(self) -> str | None:
        """The sender's."""
        ...

    def set_postal_address(self, text: str) -> None:
        """Set it."""
        ...


class Executions(Protocol):
    """Step Functions (`carillon.adapters.executions.Executions`)."""

    def start(self, machine: str, name: str, given: Mapping[str, Any]) -> str | None:
        """Start an execution; None when its name has been used up."""
        ...


class CampaignApi:
    """Everything that the API does, one method a route."""

    def __init__(
        self,
        store: Store,
        rows: Rows,
        uploads: Uploads,
        executions: Executions,
        settings: Settings,
        *,
        launch_machine: str,
        cancel_machine: str,
        retention_days: int,
        sending_domain: str,
    ) -> None:
        self._store = store
        self._rows = rows
        self._uploads = uploads
        self._executions = executions
        self._settings = settings
        self._launch_machine = launch_machine
        self._cancel_machine = cancel_machine
        self._retention_days = retention_days
        self._sending_domain = sending_domain.lower()

    def create(self, spec: CampaignSpec, now: datetime, idempotency_key: str | None = None) -> CampaignCreated:
        """A new campaign. With an idempotency key, the same creation again (within a day) is the same campaign.

        What the stack can never send is refused here already, and not when the list has been prepared.

        Raises:
            IdempotencyKeyReused: the key came with another spec before.
            TemplateRejected: a subject or preheader cannot be parsed.
            IdentityNotVerified: the From address is not of the stack's sending domain.
        """
        readiness.check_domain(spec, self._sending_domain)
        for step in spec.steps:
            syntax.check_subject(step)
        campaign_id = new_id(now)
        if idempotency_key is not None:
            fingerprint = hashlib.sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()
            expires_at = int(now.timestamp()) + IDEMPOTENCY_SECONDS
            campaign_id, first = self._store.remember(idempotency_key, campaign_id, fingerprint, expires_at)
            if first != fingerprint:
                raise IdempotencyKeyReused(
                    "this Idempotency-Key came with another campaign before: send the same body again, or another key"
                )
        campaign = Campaign(
            campaign_id=campaign_id,
            spec=spec,
            state=CampaignState.CREATED,
            created_at=instant(now),
            changed_at=instant(now),
            expires_at=int(now.timestamp()) + self._retention_days * 86400,
        )
        self._store.create(campaign)
        return CampaignCreated(campaign_id=campaign_id, notes=direct.NOTES if spec.route == "direct" else ())

    def get(self, campaign_id: str) -> dict[str, Any]:
        """The campaign's record: spec, state, summary, live counters."""
        return view(self._store.get(campaign_id))

    def list(
        self, state: CampaignState | None, month: str | None, cursor: str | None, limit: int, now: datetime
    ) -> CampaignPage:
        """Campaigns in a state, or created in a month (``2026-11``, UTC; this month unless said).

        Raises:
            InvalidCursor: the cursor is none of this listing's.
            InvalidRequest: both are asked for.
        """
        if state is not None and month is not None:
            raise InvalidRequest("ask for a state or for a month, not for both: no index knows them together")
        if state is not None:
            found, following = self._store.by_state(state, limit=limit, cursor=cursor)
        else:
            found, following = self._store.by_created(month or instant(now)[:7], limit=limit, cursor=cursor)
        return CampaignPage(campaigns=[view(campaign) for campaign in found], cursor=following)

    def upload_link(self, campaign_id: str, upload: ListUpload | TemplateUpload, now: datetime) -> UploadLink:
        """A link that the list or a template is uploaded by, before the launch.

        Raises:
            ActionRefused: the campaign has been launched; what it sends is settled.
            InvalidRequest: no step calls the template by that name.
        """
        campaign = self._store.get(campaign_id)
        _allow(campaign, LAUNCHABLE, "takes no uploads any more")
        if isinstance(upload, ListUpload):
            key, content_type, most_bytes = _list_key(campaign_id, upload.format), LIST_TYPES[upload.format], LIST_BYTES
        else:
            named = {step.template for step in campaign.spec.steps}
            if upload.name not in named:
                raise InvalidRequest(f"no step names a template {upload.name}: the steps name {_listed(named)}")
            key, content_type, most_bytes = _template_key(campaign_id, upload.name), "text/html", TEMPLATE_BYTES
        url, fields = self._uploads.link(key, content_type, most_bytes, LINK_SECONDS)
        expires_at = datetime.fromtimestamp(now.timestamp() + LINK_SECONDS, UTC)
        return UploadLink(url=url, fields=fields, expires_at=instant(expires_at), most_bytes=most_bytes)

    def plan(self, campaign_id: str, now: datetime) -> Started:
        """Start a dry run, an execution of `launch_campaign`; `planned` says how far it is.

        Raises:
            ActionRefused: the campaign has been launched, or is past its retention.
            UploadMissing: something that it needs has not been uploaded.
            CampaignStateConflict: somebody else asked for the same at this moment.
        """
        campaign = self._launchable(campaign_id, now, LAUNCHABLE, "cannot be planned any more")
        name = f"{campaign_id}-plan-{self._store.next_attempt(campaign)}"
        self._store.record_plan(campaign_id, {"execution": name}, now=now)
        self._executions.start(self._launch_machine, name, {"campaign_id": campaign_id, "plan": True})
        return Started(campaign_id=campaign_id, execution=name)

    def planned(self, campaign_id: str) -> PlanView:
        """The newest plan, or why there is none.

        Raises:
            PlanMissing: nobody has asked for one.
        """
        plan = self._store.get(campaign_id).plan
        if plan is None:
            raise PlanMissing(f"campaign {campaign_id} has no plan yet: POST /campaigns/{campaign_id}/plan makes one")
        whole = "hash" in plan
        return PlanView(
            state="planned" if whole else "failed" if "error" in plan else "planning",
            execution=plan.get("execution"),
            plan=plan if whole else None,
            error=plan.get("error"),
            rejects_url=self._uploads.download(plan["rejects_key"], "rejects.csv", LINK_SECONDS) if whole else None,
        )

    def rejects(self, campaign_id: str) -> RejectsView:
        """A link to whom the launch leaves out.

        Raises:
            RejectsMissing: nothing has been prepared yet.
        """
        prepared = self._store.get(campaign_id).prepared
        if prepared is None:
            raise RejectsMissing(
                f"campaign {campaign_id} has not been prepared yet: launch it, or plan it: POST "
                f"/campaigns/{campaign_id}/plan has a link of its own"
            )
        key = f"{keys.preparation(campaign_id, prepared)}rejects.csv"
        return RejectsView(url=self._uploads.download(key, "rejects.csv", LINK_SECONDS))

    def launch(self, campaign_id: str, now: datetime, *, resume: bool = False, plan: str | None = None) -> Started:
        """Start `launch_campaign`: the first time, or (``resume``) for the tasks that are Pending still.

        ``plan`` is the hash that the launch is bound to.

        Raises:
            ActionRefused: the campaign's state does not allow it, or it is past its retention.
            UploadMissing: something that it needs has not been uploaded.
            PlanOutdated: ``plan`` is not what would be launched.
            CampaignStateConflict: somebody else asked for the same at this moment.
        """
        if resume:
            campaign = self._launchable(campaign_id, now, RESUMABLE, "cannot be resumed")
            _guarded(campaign, "cannot be resumed: nobody knows who has been written to")
        else:
            campaign = self._launchable(campaign_id, now, LAUNCHABLE, "cannot be launched")
        bound = {}
        if plan is not None:
            self._need_plan(campaign, plan)
            bound = {"expected": plan}
        name = keys.execution(campaign_id, campaign.generation + 1, self._store.next_attempt(campaign))
        self._executions.start(self._launch_machine, name, {"campaign_id": campaign_id, "resume": resume, **bound})
        return Started(campaign_id=campaign_id, execution=name)

    def cancel(self, campaign_id: str) -> Started:
        """Start `cancel_campaign`; while it runs, a second cancel is the same execution.

        Raises:
            ActionRefused: there is nothing to cancel.
        """
        campaign = self._store.get(campaign_id)
        _allow(campaign, CANCELLABLE | {CampaignState.CANCELLING}, "cannot be cancelled")
        name, given = f"{campaign_id}-cancel", {"campaign_id": campaign_id}
        if self._executions.start(self._cancel_machine, name, given) is None:
            # An earlier cancel ended without an end to the campaign: it takes another name.
            name = f"{name}-{self._store.next_attempt(campaign)}"
            self._executions.start(self._cancel_machine, name, given)
        return Started(campaign_id=campaign_id, execution=name)

    def pause(self, campaign_id: str, now: datetime) -> dict[str, Any]:
        """Stop sending for now; a resume goes on, with the tasks that are Pending then.

        Raises:
            ActionRefused: the campaign is not under way.
        """
        campaign = self._store.get(campaign_id)
        _guarded(campaign, "cannot be paused: its schedules call SES by themselves. Cancel it")
        _allow(campaign, PAUSABLE, "cannot be paused")
        return view(self._store.pause(campaign_id, campaign.generation, True, now=now))

    def tasks(self, campaign_id: str, status: TaskStatus | None, cursor: str | None, limit: int) -> TaskPage:
        """A page of the campaign's tasks, of one status if asked.

        Raises:
            InvalidCursor: the cursor is none of this listing's.
            ActionRefused: the campaign keeps no tasks.
        """
        _guarded(self._store.get(campaign_id), NO_TASKS)
        shard, after = _task_position(cursor)
        statuses = () if status is None else (status,)
        found: list[Task] = []
        for _ in range(QUERIES_A_PAGE):
            if shard == keys.SHARDS or len(found) == limit:
                break
            page, after = self._rows.page(campaign_id, shard, statuses, after=after, limit=limit - len(found))
            found += page
            shard += after is None
        following = None if shard == keys.SHARDS else f"{shard}.{after or ''}"
        return TaskPage(tasks=[_task_view(task) for task in found], cursor=following)

    def tasks_of(self, campaign_id: str, address: str) -> TaskPage:
        """The tasks of one person, by their keys: did this customer get it?

        Raises:
            InvalidRequest: that is no address.
            ActionRefused: the campaign keeps no tasks.
        """
        campaign = self._store.get(campaign_id)
        _guarded(campaign, NO_TASKS)
        deliverable = addresses.judge(address)
        if deliverable is None:
            raise InvalidRequest("address: is no e-mail address that a list could hold")
        person = addresses.canonical(deliverable)
        steps = range(1, len(campaign.spec.steps) + 1)
        found = [self._rows.find(campaign_id, keys.task_id(step, person)) for step in steps]
        return TaskPage(tasks=[_task_view(task) for task in found if task is not None], cursor=None)

    def counts(self, campaign_id: str) -> Counts:
        """Every row of the campaign, counted: reading them all, so of millions it outlasts the gateway's patience.

        Raises:
            ActionRefused: the campaign keeps no tasks.
        """
        campaign = self._store.get(campaign_id)
        _guarded(campaign, NO_TASKS)
        counts = {status.name.lower(): n for status, n in self._rows.counts(campaign_id).items()}
        rows, enrolled = sum(counts.values()), campaign.enrolled
        if rows > enrolled:  # a preparation has ended since, or there are rows that nobody planned
            enrolled = self._store.get(campaign_id).enrolled
        unenrolled = max(enrolled - rows, 0)
        balance = rows + unenrolled == enrolled and (unenrolled == 0 or campaign.state in UNREACHED)
        return Counts(enrolled=enrolled, unenrolled=unenrolled, **counts, balance=balance)

    def pace(self) -> IdentityPaceView:
        """How fast the identity may send."""
        pace = self._settings.pace()
        return IdentityPaceView.model_validate(pace.model_dump(include=set(IdentityPaceView.model_fields)))

    def set_pace(self, pace: IdentityPace) -> IdentityPaceView:
        """Set how fast the identity may send; what has been taken of it stays taken."""
        self._settings.set_pace(pace.rate_per_second, pace.daily_cap, pace.warm_up, pace.paused)
        return self.pace()

    def sender(self) -> SenderView:
        """Who sends."""
        return SenderView(postal_address=self._settings.postal_address())

    def set_sender(self, sender: Sender) -> SenderView:
        """Set who sends; e-mails that go out from now on say so."""
        self._settings.set_postal_address(sender.postal_address)
        return self.sender()

    def _launchable(self, campaign_id: str, now: datetime, states: Collection[CampaignState], refusal: str) -> Campaign:
        campaign = self._store.get(campaign_id)
        _allow(campaign, states, refusal)
        if campaign.expires_at <= now.timestamp():
            raise ActionRefused(f"campaign {campaign_id} is past its retention: create a new campaign")
        if campaign.generation == 0:
            self._need_uploads(campaign)
        return campaign

    def _need_plan(self, campaign: Campaign, wanted: str) -> None:
        """See that ``wanted`` is the newest plan and what it read still the newest.

        PrepareList would refuse the launch too, but then the campaign has failed.
        """
        plan = campaign.plan or {}
        if plan.get("hash") != wanted:
            raise PlanOutdated(
                f"this is not the hash of the newest plan: look at GET /campaigns/{campaign.campaign_id}/plan again"
            )
        versions = plan["uploads"].items()
        prefix = keys.upload(campaign.campaign_id, "")
        changed = [name for name, seen in versions if self._uploads.version(prefix + name) != seen]
        if changed:
            raise PlanOutdated(
                f"uploaded again since the plan was made: {', '.join(sorted(changed))}. Plan it again: POST "
                f"/campaigns/{campaign.campaign_id}/plan, and launch with the new hash"
            )

    def _need_uploads(self, campaign: Campaign) -> None:
        templates = sorted({step.template for step in campaign.spec.steps})
        needed = {"the list": [_list_key(campaign.campaign_id, form) for form in LIST_TYPES]} | {
            f"template {name}": [_template_key(campaign.campaign_id, name)] for name in templates
        }
        missing = [what for what, any_of in needed.items() if not any(map(self._uploads.version, any_of))]
        if missing:
            raise UploadMissing(
                f"not uploaded yet: {', '.join(missing)}. Get a link for each by POST "
                f"/campaigns/{campaign.campaign_id}/uploads, upload, and launch again"
            )


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_id(now: datetime) -> str:
    """Short, sortable by creation until 2059, and not guessable in passing: ``mk2x9b1q-7f3a``."""
    number, digits = int(now.timestamp() * 1000), ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits.rjust(8, "0") + "-" + "".join(secrets.choice(_DIGITS) for _ in range(4))


def view(campaign: Campaign) -> dict[str, Any]:
    """A campaign as the API shows it; its plan, which may be long, has a route of its own."""
    return campaign.model_dump(mode="json", by_alias=True, exclude={"attempts", "plan"})


def authorised(header: str | None, tokens: Collection[str]) -> bool:
    """Whether an Authorization header carries one of ``tokens``; the time taken does not say how nearly."""
    scheme, _, given = (header or "").partition(" ")
    matches = [hmac.compare_digest(given.strip().encode(), token.encode()) for token in tokens]
    return scheme.lower() == "bearer" and any(matches)


def _allow(campaign: Campaign, states: Collection[CampaignState], refusal: str) -> None:
    if campaign.state not in states:
        raise ActionRefused(
            f"campaign {campaign.campaign_id} is {campaign.state} and {refusal}: {ADVICE[campaign.state]}"
        )


NO_TASKS = "keeps no tasks: its numbers come from SES's events alone"


def _guarded(campaign: Campaign, refusal: str) -> None:
    if campaign.spec.route == "direct":
        raise ActionRefused(f"campaign {campaign.campaign_id} goes by the direct route and {refusal}")


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _list_key(campaign_id: str, form: str) -> str:
    return keys.upload(campaign_id, f"list.{form}")


def _template_key(campaign_id: str, name: str) -> str:
    return keys.upload(campaign_id, f"templates/{name}")


def _task_position(cursor: str | None) -> tuple[int, str | None]:
    shard, dot, after = (cursor or "0.").partition(".")
    known = not after or (after[:1].isdigit() and _shard_of(after) == shard)
    if not dot or not shard.isdecimal() or int(shard) >= keys.SHARDS or not known:
        raise InvalidCursor
    return int(shard), after or None


def _shard_of(task: str) -> str | None:
    try:
        return str(keys.shard(task))
    except ValueError:
        return None


def _task_view(task: Task) -> TaskView:
    shown = task.model_dump(include=set(TaskView.model_fields)) | {
        "slot": instant(datetime.fromtimestamp(task.slot, UTC))
    }
    return TaskView.model_validate(shown)
