"""Every shape that crosses a boundary: API → campaign record → machines → functions → queue → rows.

Instants are ISO 8601 in UTC with a ``Z`` and whole seconds (`instant`), except ``slot``, which is
epoch seconds: it is compared, added to and sorted. Zones are IANA names.
Keys in DynamoDB are built in `carillon.keys`.
"""

from __future__ import annotations

import datetime as dt
import re
from email.utils import parseaddr
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from carillon import zones
from carillon.transitions import CampaignState, TaskStatus

CampaignId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{2,39}$")]
"""At most 40, for ``campaign-{id}-g{n}`` is a schedule group's name: 64 of ``[0-9a-zA-Z-_.]`` (AWS_CONTRACTS 1)."""

ColumnName = Annotated[str, Field(min_length=1, max_length=255)]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
TemplateName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]

_UNSAFE_HEADER = re.compile(r"[\r\n\x00]")


def _header_safe(value: str) -> str:
    if _UNSAFE_HEADER.search(value):
        raise ValueError("must be one line: a line break could become a header of its own")
    return value


def _mailbox(value: str) -> str:
    local, _, domain = parseaddr(value)[1].rpartition("@")
    if not local or "." not in domain:
        raise ValueError("must be one e-mail address: write it as Name <name@example.com>")
    return value


def _plannable[T: dt.date](value: T) -> T:
    if not 2000 <= value.year < 2100:  # at the calendar's ends there is no day before or after to plan with
        raise ValueError("must lie between 2000 and 2099")
    return value


HeaderText = Annotated[str, Field(min_length=1, max_length=900), AfterValidator(_header_safe)]
Mailbox = Annotated[HeaderText, Field(max_length=320), AfterValidator(_mailbox)]
Instant = Annotated[AwareDatetime, AfterValidator(_plannable)]
ZoneName = Annotated[str, Field(max_length=64), AfterValidator(zones.known)]


class Shape(BaseModel):
    """Immutable, and closed: a field that nobody knows is an error, never silently dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def instant(moment: dt.datetime) -> str:
    """``moment`` (aware) as ``2026-11-29T08:30:00Z``: UTC, whole seconds."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# What a person writes


class Asap(Shape):
    """As soon as the pace allows."""

    kind: Literal["asap"]


class At(Shape):
    """One instant for everybody."""

    kind: Literal["at"]
    at: Instant


class LocalTime(Shape):
    """A date and wall time in each recipient's own zone; ``time_column`` may give the time (HH:MM) instead."""

    kind: Literal["local_time"]
    date: Annotated[dt.date, AfterValidator(_plannable)]
    time: dt.time | None = None
    time_column: ColumnName | None = None

    @model_validator(mode="after")
    def _one_source(self) -> LocalTime:
        if (self.time is None) == (self.time_column is None):
            raise ValueError("give either time or time_column")
        if self.time is not None and self.time.tzinfo is not None:
            raise ValueError("time is a wall time in the recipient's zone: leave the offset out")
        return self


Rule = Annotated[Asap | At | LocalTime, Field(discriminator="kind")]


class Step(Shape):
    """One e-mail of the campaign: which template, which subject, when."""

    template: TemplateName
    subject: HeaderText
    preheader: HeaderText | None = None
    rule: Rule


class ListSpec(Shape):
    """How to read the list; what is left out is found from the header."""

    address_column: ColumnName | None = None
    timezone_column: ColumnName | None = None
    fallback_timezone: ZoneName | None = None


class Window(Shape):
    """A stretch of the day, wall time of the pace's zone; ``end`` is exclusive and may be 24:00 as 00:00."""

    start: dt.time
    end: dt.time

    @model_validator(mode="after")
    def _forward(self) -> Window:
        if self.start.tzinfo is not None or self.end.tzinfo is not None:
            raise ValueError("start and end are wall times of the pace's zone: leave the offset out")
        if self.end != dt.time(0) and self.end <= self.start:
            raise ValueError("end must be after start: write a window that crosses midnight as two, and 24:00 as 00:00")
        return self


class CampaignPace(Shape):
    """How this campaign spreads over its days: N a day, evenly over its windows."""

    per_day: Annotated[int, Field(ge=1, le=10_000_000)] = 20
    weekdays: Annotated[tuple[Annotated[int, Field(ge=1, le=7)], ...], Field(min_length=1)] = (1, 2, 3, 4, 5)
    """ISO: Monday is 1."""
    windows: Annotated[tuple[Window, ...], Field(min_length=1)] = (Window(start=dt.time(9), end=dt.time(17)),)
    timezone: ZoneName = "Europe/Berlin"


class CampaignSpec(Shape):
    """What the campaign is: a list, one or more steps, a pace."""

    name: Annotated[HeaderText, Field(max_length=200)]
    from_: Annotated[Mailbox, Field(alias="from")]
    reply_to: Mailbox | None = None
    topic: TopicName
    route: Literal["guarded"] = "guarded"
    list: ListSpec = ListSpec()
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=20)]
    pace: CampaignPace | None = None
    """None: as fast as the identity's pace allows."""
    not_after: Instant | None = None


# What the Campaigns table holds


class Problem(Shape):
    """Why something ended as it did: a name to act on, and cause and fix in words."""

    code: str
    message: str


class Campaign(BaseModel):
    """A row of Campaigns. Writers name the state and generation that they expect (DESIGN section 13)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    campaign_id: CampaignId
    spec: CampaignSpec
    state: CampaignState
    generation: int = 0
    """Launches and resumes so far."""
    paused: bool = False
    created_at: str
    changed_at: str
    execution: str | None = None
    """ARN of the newest launch execution that claimed the campaign."""
    map_run: str | None = None
    attempts: int = 0
    """Executions started so far: the last part of an execution's name."""
    error: Problem | None = None
    enrolled: int = 0
    """Tasks of the first generation's manifest: the balance is counted against this, never against the rows."""
    summary: dict[str, Any] | None = None
    """`PrepareListResult` of the newest preparation."""
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    """Advisory live counters (one ADD a batch); the truth is the rows."""
    expires_at: int


# What travels through a launch


class BatchLine(Shape):
    """One line of ``batches/g{n}/{batch}.jsonl``: a task to enrol. ``input`` is the personalisation data."""

    task: str
    step: int
    address: str
    timezone: str | None
    slot: int
    revision: int
    input: dict[str, Any]


class ManifestLine(Shape):
    """One line of ``manifest.jsonl``: the Distributed Map's item."""

    batch: int
    key: str
    count: int
    first_slot: int


class Prepare(Shape):
    """Input of PrepareList."""

    campaign_id: CampaignId
    generation: int
    now: str | None = None
    """Pins the planner's now (a dry run); None: the clock."""


class PrepareListResult(Shape):
    """What PrepareList found and wrote; also ``summary.json`` and the campaign's ``summary``."""

    rows: int
    valid: int
    rejected: dict[str, int]
    """By reason of the samples' vocabulary (``duplicate``, ``invalid_address``, ``suppressed``, …)."""
    warnings: dict[str, int] = {}
    """Accepted all the same, by the samples' vocabulary (``timezone_fallback``, ``too_few_fields_padded``, …)."""
    past: int
    """Targets that were already past and took the next day."""
    unplanned: dict[str, int] = {}
    """Tasks that got no slot, by reason: ``not_after``."""
    count: int
    """Tasks in the manifest of this generation."""
    batches: int
    bucket: str
    manifest_key: str
    manifest_version: str
    first_slot: str | None
    last_slot: str | None
    columns: list[dict[str, str]]
    """Glue columns of ``recipients/``: ``{"Name", "Type"}``; the list's own headers with safe names."""
    recipients_location: str
    """``s3://…/`` of the Parquet."""
    address_column: str
    list_version: str


class EnrolBatch(Shape):
    """Input of EnrolBatch: one manifest line of one generation."""

    campaign_id: CampaignId
    generation: int
    batch: int
    key: str
    count: int


class Schedule(Shape):
    """One CreateSchedule. ``at`` is UTC ``yyyy-mm-ddThh:mm:ss`` with seconds 00; ``input`` is finished text."""

    name: str
    group: str
    at: str
    client_token: str
    input: str


class EnrolBatchResult(Shape):
    """At most 200 KB as JSON: Step Functions takes 256 KiB."""

    schedules: list[Schedule]
    enrolled: int
    """Tasks of the batch that have a row now."""
    settled: int
    """Of these, how many are terminal or Running already, and so get no schedule."""


class ConfirmFanOut(Shape):
    """Input of ConfirmFanOut."""

    campaign_id: CampaignId
    generation: int
    map_run: str
    manifest_key: str
    """The first manifest of the generation, whatever round this is."""
    results_prefix: str
    """Prefix that ResultWriter wrote under; all rounds of a generation share it."""
    round: int


class ConfirmFanOutResult(Shape):
    """``remaining`` batches go through FanOut again with ``manifest_key``; 0 of them: all is scheduled."""

    remaining: int
    manifest_key: str | None = None
    manifest_version: str | None = None
    refused: int


class Message(Shape):
    """The body of a message in the send queue."""

    campaign: CampaignId
    generation: int
    revision: int
    task: str
    step: int
    to: str
    slot: int
    data: dict[str, Any]


class CancelTasks(Shape):
    """Input of CancelTasks: sweep one shard's Pending rows to Cancelled."""

    campaign_id: CampaignId
    shard: int


class CancelTasksResult(Shape):
    """How many rows this sweep cancelled, and how many are Running still."""

    cancelled: int
    running: int


# What the Tasks table holds


class Claim(Shape):
    """Who is sending. ``token`` is fresh for every invocation of the sender."""

    token: str
    at: str


class Task(BaseModel):
    """A row of Tasks."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    campaign_id: CampaignId
    task: str
    step: int
    address: str
    timezone: str | None = None
    slot: int
    status: TaskStatus
    generation: int
    revision: int
    batch: int
    client_token: str
    claim: Claim | None = None
    subject: str | None = None
    message_id: str | None = None
    sent_at: str | None = None
    error: Problem | None = None
    override: dict[str, Any] | None = None
    expires_at: int
