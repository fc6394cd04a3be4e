"""What an operator may ask of campaigns, apart from how it travels: the HTTP API's other half."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from carillon import campaigns, keys
from carillon.errors import CarillonError, InvalidCursor
from carillon.shapes import Campaign, CampaignId, CampaignSpec, Problem, Shape, Task, TemplateName, instant
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


class UploadMissing(CarillonError):
    """The list or a template has not been uploaded."""


class IdempotencyKeyReused(CarillonError):
    """The key belongs to a creation with another body."""


# What travels


class CampaignCreated(Shape):
    """Answer to a creation."""

    campaign_id: CampaignId


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


class Counts(Shape):
    """The truth, counted over the rows. ``balance``: every enrolled task is accounted for."""

    enrolled: int
    pending: int
    running: int
    finished: int
    failed: int
    cancelled: int
    balance: bool


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

    def counts(self, campaign_id: str) -> Mapping[TaskStatus, int]:
        """How many rows there are in each status."""
        ...


class Uploads(Protocol):
    """Upload links (`carillon.adapters.uploads.Uploads`)."""

    def link(self, key: str, content_type: str, most_bytes: int, seconds: int) -> tuple[str, dict[str, str]]:
        """URL and form fields of a presigned POST."""
        ...

    def exists(self, key: str) -> bool:
        """Whether it has been uploaded."""
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
        *,
        launch_machine: str,
        cancel_machine: str,
        retention_days: int,
    ) -> None:
        self._store = store
        self._rows = rows
        self._uploads = uploads
        self._executions = executions
        self._launch_machine = launch_machine
        self._cancel_machine = cancel_machine
        self._retention_days = retention_days

    def create(self, spec: CampaignSpec, now: datetime, idempotency_key: str | None = None) -> CampaignCreated:
        """A new campaign. With an idempotency key, the same creation again (within a day) is the same campaign.

        Raises:
            IdempotencyKeyReused: the key came with another spec before.
        """
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
        return CampaignCreated(campaign_id=campaign_id)

    def get(self, campaign_id: str) -> dict[str, Any]:
        """The campaign's record: spec, state, summary, live counters."""
        return view(self._store.get(campaign_id))

    def list(
        self, state: CampaignState | None, month: str | None, cursor: str | None, limit: int, now: datetime
    ) -> CampaignPage:
        """Campaigns in a state, or created in a month (``2026-11``, UTC; this month unless said).

        Raises:
            InvalidCursor: the cursor is none of this listing's.
        """
        if state is not None:
            found, following = self._store.by_state(state, limit=limit, cursor=cursor)
        else:
            found, following = self._store.by_created(month or instant(now)[:7], limit=limit, cursor=cursor)
        return CampaignPage(campaigns=[view(campaign) for campaign in found], cursor=following)

    def upload_link(self, campaign_id: str, upload: ListUpload | TemplateUpload, now: datetime) -> UploadLink:
        """A link that the list or a template is uploaded by, before the launch.

        Raises:
            ActionRefused: the campaign has been launched; what it sends is settled.
        """
        campaign = self._store.get(campaign_id)
        _allow(campaign, LAUNCHABLE, "takes no uploads any more")
        if isinstance(upload, ListUpload):
            key, content_type, most_bytes = _list_key(campaign_id, upload.format), LIST_TYPES[upload.format], LIST_BYTES
        else:
            key, content_type, most_bytes = _template_key(campaign_id, upload.name), "text/html", TEMPLATE_BYTES
        url, fields = self._uploads.link(key, content_type, most_bytes, LINK_SECONDS)
        expires_at = datetime.fromtimestamp(now.timestamp() + LINK_SECONDS, UTC)
        return UploadLink(url=url, fields=fields, expires_at=instant(expires_at), most_bytes=most_bytes)

    def launch(self, campaign_id: str, now: datetime, *, resume: bool = False) -> Started:
        """Start `launch_campaign`: the first time, or (``resume``) for the tasks that are Pending still.

        Raises:
            ActionRefused: the campaign's state does not allow it, or it is past its retention.
            UploadMissing: something that it needs has not been uploaded.
            CampaignStateConflict: somebody else asked for the same at this moment.
        """
        campaign = self._store.get(campaign_id)
        _allow(campaign, RESUMABLE if resume else LAUNCHABLE, f"cannot be {'resumed' if resume else 'launched'}")
        if campaign.expires_at <= now.timestamp():
            raise ActionRefused(f"campaign {campaign_id} is past its retention: create a new campaign")
        if not resume:
            self._need_uploads(campaign)
        name = keys.execution(campaign_id, campaign.generation + 1, self._store.next_attempt(campaign))
        self._executions.start(self._launch_machine, name, {"campaign_id": campaign_id, "resume": resume})
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
        _allow(campaign, PAUSABLE, "cannot be paused")
        return view(self._store.pause(campaign_id, campaign.generation, True, now=now))

    def tasks(self, campaign_id: str, status: TaskStatus | None, cursor: str | None, limit: int) -> TaskPage:
        """A page of the campaign's tasks, of one status if asked.

        Raises:
            InvalidCursor: the cursor is none of this listing's.
        """
        self._store.get(campaign_id)
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

    def counts(self, campaign_id: str) -> Counts:
        """Every row of the campaign, counted: reading them all, so of millions it outlasts the gateway's patience."""
        campaign = self._store.get(campaign_id)
        counts = {status.name.lower(): n for status, n in self._rows.counts(campaign_id).items()}
        return Counts(enrolled=campaign.enrolled, **counts, balance=sum(counts.values()) == campaign.enrolled)

    def _need_uploads(self, campaign: Campaign) -> None:
        templates = sorted({step.template for step in campaign.spec.steps})
        needed = {"the list": [_list_key(campaign.campaign_id, form) for form in LIST_TYPES]} | {
            f"template {name}": [_template_key(campaign.campaign_id, name)] for name in templates
        }
        missing = [what for what, any_of in needed.items() if not any(map(self._uploads.exists, any_of))]
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
    """A campaign as the API shows it."""
    return campaign.model_dump(mode="json", by_alias=True, exclude={"attempts"})


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
