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

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from carillon import zones
from carillon.transitions import CampaignState, TaskStatus

CampaignId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{2,39}$")]
"""At most 40, for ``campaign-{id}-g{n}`` is a schedule group's name: 64 of ``[0-9a-zA-Z-_.]`` (AWS_CONTRACTS 1)."""

ColumnName = Annotated[str, Field(min_length=1, max_length=255)]
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
TemplateName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]

_UNSAFE_HEADER = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


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


def _wall(value: dt.time) -> dt.time:
    if value.tzinfo is not None:
        raise ValueError("is a wall time: leave the offset out")
    return value


WallTime = Annotated[dt.time, AfterValidator(_wall)]
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


_OFFSET = re.compile(
    r"(?P<sign>[+-]?)P(?:(\d{1,4})W)?(?:(\d{1,4})D)?(?:T(?=\d)(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,7})S)?)?"
)
LONGEST_OFFSET = 3700
"""Days: a little more than ten years, so that no sum leaves the calendar."""


class Offset(Shape):
    """A stretch of time, written as ISO 8601 (``-P3D``, ``PT36H``): ``days`` on the wall clock, then ``seconds``.

    A day is the next day at the same wall time, whatever the clocks do meanwhile; PT24H is 86,400 seconds. Months and
    years are refused, for they have no length.
    """

    days: int = 0
    seconds: int = 0

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        match = _OFFSET.fullmatch(given)
        if match is None or given.endswith(("P", "T")):
            raise ValueError(
                "must be an ISO 8601 duration of weeks, days, hours, minutes and seconds: P3D, -P1W, PT36H"
            )
        sign = -1 if match["sign"] == "-" else 1
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        return {"days": sign * (7 * weeks + days), "seconds": sign * (3600 * hours + 60 * minutes + seconds)}

    @model_validator(mode="after")
    def _bounded(self) -> Offset:
        if abs(self.days) + abs(self.seconds) // 86_400 > LONGEST_OFFSET:
            raise ValueError("must be at most ten years")
        return self

    @model_serializer
    def _written(self) -> str:
        days, seconds = abs(self.days), abs(self.seconds)
        sign = "-" if self.days < 0 or self.seconds < 0 else ""
        return f"{sign}P{days}D" + (f"T{seconds}S" if seconds else "")


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
    time: WallTime | None = None
    time_column: ColumnName | None = None

    @model_validator(mode="after")
    def _one_source(self) -> LocalTime:
        if (self.time is None) == (self.time_column is None):
            raise ValueError("give either time or time_column")
        return self


class ColumnDate(Shape):
    """A date or date-time of the list, moved by ``offset``: three days before ``renewal_date``, at 09:00 local.

    ``time`` is a wall time in the recipient's zone and is needed where the column holds dates alone; a date-time
    that names no zone is wall time in the recipient's zone too.
    """

    kind: Literal["column"]
    column: ColumnName
    offset: Offset = Offset()
    time: WallTime | None = None


class Event(Shape):
    """An instant of the campaign, moved by ``offset``: a day before the sale opens. Days are the stack's zone's."""

    kind: Literal["event"]
    at: Instant
    offset: Offset = Offset()


class AfterPrevious(Shape):
    """``offset`` after this recipient's previous step went out, wall clock kept over the days of it.

    Enrolled with the others, but scheduled only when that step is Finished: until then its slot is a forecast.
    """

    kind: Literal["after_previous"]
    offset: Offset

    @model_validator(mode="after")
    def _later(self) -> AfterPrevious:
        if self.offset.days < 0 or self.offset.seconds < 0 or not (self.offset.days or self.offset.seconds):
            raise ValueError("offset must be positive: the next step comes after the one before, P3D for three days")
        return self


Rule = Annotated[Asap | At | LocalTime | ColumnDate | Event | AfterPrevious, Field(discriminator="kind")]


class Step(Shape):
    """One e-mail of the campaign: which template, which subject, when."""

    template: TemplateName
    subject: HeaderText
    preheader: HeaderText | None = None
    rule: Rule


class ListSpec(Shape):
    """How to read the list; what is left out is found from the file."""

    address_column: ColumnName | None = None
    timezone_column: ColumnName | None = None
    fallback_timezone: ZoneName | None = None
    locale_column: ColumnName | None = None
    """BCP 47 or CLDR names (``de-AT``, ``pt_BR``): what dates, numbers and amounts are written in."""
    fallback_locale: Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8}){0,3}$")] = "en"
    encoding: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,39}$")] | None = None
    """Any text encoding that Python knows by this name; overrides what the file's bytes say."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1, pattern=r"[^\r\n\"]")] | None = None
    segment: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    """An SQL condition over the columns: who is left out of it is counted as ``outside_segment``."""


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
    holidays: Annotated[str, Field(pattern=r"^[A-Z]{2}(-[A-Z0-9]{1,3})?$")] | None = None
    """Country, or country and subdivision (``DE``, ``DE-BY``), on whose public holidays nothing goes out."""


class QuietHours(Shape):
    """Hours of each recipient's own day in which nothing goes out; they may cross midnight (21:00 to 08:00)."""

    start: WallTime
    end: WallTime

    @model_validator(mode="after")
    def _some_left(self) -> QuietHours:
        if self.start == self.end:
            raise ValueError("start and end are the same: that leaves either nothing or everything")
        return self


class OrderBy(Shape):
    """Who goes first among equal targets; numbers by size where every filled cell is one, and empty cells last."""

    column: ColumnName
    direction: Literal["ascending", "descending"] = "ascending"


class Utm(Shape):
    """Parameters that are added to every web link that has none of that name, for the site's own analytics."""

    source: Annotated[str, Field(min_length=1, max_length=100)]
    medium: Annotated[str, Field(min_length=1, max_length=100)] = "email"
    campaign: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """None: the campaign's name."""
    content: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    term: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class Enrichment(Shape):
    """A function of the account that is asked for more values, batch by batch, before rendering."""

    function: Annotated[str, Field(pattern=r"^carillon-enrichment-[A-Za-z0-9-_]{1,44}(:[A-Za-z0-9-_]{1,64})?$")]
    """Its name, perhaps with an alias: the sender's role may invoke ``carillon-enrichment-*`` alone."""
    provides: Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=50)]
    """Names that templates may use as if they were columns."""
    if_failing: Literal["fail", "send_without"] = "fail"
    """``fail``: those tasks are Failed ``EnrichmentFailed``; ``send_without``: as if it had answered nothing."""


class CampaignSpec(Shape):
    """What the campaign is: a list, one or more steps, a pace."""

    name: Annotated[HeaderText, Field(max_length=200)]
    from_: Annotated[Mailbox, Field(alias="from")]
    reply_to: Mailbox | None = None
    topic: TopicName
    route: Literal["guarded", "direct"] = "guarded"
    """``direct``: Scheduler → SES without task rows; at least once, and account-level suppression only."""
    list: ListSpec = ListSpec()
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=20)]
    pace: CampaignPace | None = None
    """None: as fast as the identity's pace allows."""
    quiet_hours: QuietHours | None = None
    within: Offset | None = None
    """How late a slot may fall after its target."""
    if_late: Literal["next_day", "late", "skip"] = "next_day"
    """What becomes of a target that is past at planning, or that no slot ``within`` fits: the next day at the same wall
    time, late all the same, or nothing (and the capacity goes to the next in line)."""
    not_after: Instant | None = None
    """A hard deadline, which the sender enforces too."""
    order: OrderBy | None = None
    """None: mailbox domains are interleaved."""
    utm: Utm | None = None
    enrichment: Enrichment | None = None

    @field_validator("steps")
    @classmethod
    def _sequences(cls, steps: tuple[Step, ...], info: ValidationInfo) -> tuple[Step, ...]:
        if isinstance(steps[0].rule, AfterPrevious):
            raise ValueError("the first step has no previous one: give it another rule")
        if info.data.get("route") == "direct" and any(isinstance(step.rule, AfterPrevious) for step in steps):
            raise ValueError("after_previous needs the guarded route: on the direct one nobody sees a step finish")
        return steps

    @field_validator("within")
    @classmethod
    def _forward(cls, within: Offset | None) -> Offset | None:
        if within is not None and (within.days < 0 or within.seconds < 0):
            raise ValueError("must not be negative: it says how late a slot may fall after its target")
        return within

    @field_validator("enrichment")
    @classmethod
    def _asked(cls, enrichment: Enrichment | None, info: ValidationInfo) -> Enrichment | None:
        if enrichment is not None and info.data.get("route") == "direct":
            raise ValueError("enrichment needs the guarded route: on the direct one nobody asks for values")
        return enrichment


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
    attempts: int = 0
    """Executions started so far: the last part of an execution's name."""
    error: Problem | None = None
    enrolled: int = 0
    """Tasks of the first generation's manifest: the balance is counted against this, never against the rows."""
    prepared: str | None = None
    """The first preparation's folder (`carillon.keys.preparation`): templates, recipients and the list are in it, and
    its manifest says who was enrolled. Written once."""
    prepared_generation: int = 0
    """The newest generation that has been prepared: of two preparations of one generation the first counts."""
    summary: dict[str, Any] | None = None
    """`PrepareListResult` of that generation."""
    plan: dict[str, Any] | None = None
    """`Plan` of the newest dry run."""
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    """Advisory live counters (one ADD a batch); the truth is the rows."""
    expires_at: int


# What travels through a launch


class BatchLine(Shape):
    """One line of ``batches/{number}.jsonl``: a task to enrol. ``input`` is the personalisation data."""

    task: str
    step: int
    address: str
    timezone: str | None
    slot: int
    revision: int
    waits: bool = False
    """Enrolled without a schedule: the step before has to be Finished first, and ``slot`` is a forecast."""
    input: dict[str, Any]
    """Of a step that others follow by `AfterPrevious`, their data as well."""


class ManifestLine(Shape):
    """One line of ``manifest.jsonl``: the Distributed Map's item."""

    batch: str
    """``{attempt}/{number}``: `carillon.keys.batch` says where its lines are."""
    count: int
    first_slot: int


class Prepare(Shape):
    """Input of PrepareList."""

    campaign_id: CampaignId
    generation: int
    now: str | None = None
    """Pins the planner's now; None: the clock."""
    plan: bool = False
    """A dry run: everything is planned and shown, nothing is taken, enrolled or sent."""
    expected: str | None = None
    """The hash of the plan that was looked at: a list, template or spec that has changed since is refused."""


class PrepareListResult(Shape):
    """What PrepareList found and wrote; also ``summary.json`` and the campaign's ``summary``."""

    rows: int
    valid: int
    rejected: dict[str, int]
    """By reason of the samples' vocabulary (``duplicate``, ``invalid_address``, ``suppressed``, …)."""
    outside_segment: int = 0
    """Whom the segment leaves out: not rejected, only not meant."""
    warnings: dict[str, int] = {}
    """Accepted all the same, by the samples' vocabulary (``timezone_fallback``, ``too_few_fields_padded``, …)."""
    template_warnings: list[str] = []
    """What a person should look at, in sentences."""
    past: int
    """Targets that were already past; what became of them is the campaign's ``if_late``."""
    next_day: int = 0
    """Tasks that had to be put off to another day because no slot was ``within``."""
    late: int = 0
    """Tasks with a slot later than ``within`` allows, as ``if_late`` has it."""
    unplanned: dict[str, int] = {}
    """Tasks that got no slot, by reason (`carillon.timing.planning.REASONS`)."""
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


class Histogram(Shape):
    """E-mails by hour: for each day that has some, 24 counts."""

    utc: dict[str, list[int]]
    local: dict[str, list[int]]
    """In each recipient's own day."""


class Cost(Shape):
    """What one service will cost, from its list price."""

    service: str
    what: str
    """What is counted, and how much of it."""
    usd: float
    price: str
    """The price as the table has it, with date and source."""


class Fit(Shape):
    """One of the account's quotas beside what the plan needs of it."""

    quota: str
    limit: float | None
    """None: unlimited."""
    needed: float
    fits: bool
    fix: str | None = None
    """Where it does not fit: what to change, or what to request."""


class Fingerprint(Shape):
    """SHA-256 of what a plan was made of."""

    list: str
    templates: dict[str, str]
    spec: str


class Plan(Shape):
    """The whole campaign before anything is sent: the result of a dry run, ``plan.json`` and the campaign's ``plan``.

    Counts are of recipients up to ``outside_segment``, and of e-mails (recipients × steps) from ``past`` on.
    """

    hash: str
    """Of the fingerprint: a launch that is bound to it is refused once anything has changed."""
    fingerprint: Fingerprint
    uploads: dict[str, str]
    """By name (``list.csv``, ``templates/…``): the version that was read, so that the API can tell a newer one."""
    now: str
    """The instant that it was planned for."""
    reading: dict[str, Any]
    """How the list is written and which column holds what (`carillon.recipients.lists.RecipientList.decisions`)."""
    rows: int
    valid: int
    rejected: dict[str, int]
    duplicates: int
    """Of the rejected."""
    suppressed: int
    """Of the rejected."""
    outside_segment: int
    past: int
    next_day: int
    late: int
    skipped: dict[str, int]
    """E-mails without a slot, by reason."""
    planned: int
    forecast: int
    """Of the planned: wait for a step before, so that their slots are forecasts."""
    first_slot: str | None
    last_slot: str | None
    eta: str | None
    """When the last e-mail will have gone: its slot, and a minute for Scheduler's precision."""
    histogram: Histogram
    cost: list[Cost]
    cost_usd: float
    price_plan: str
    quotas: list[Fit]
    list_warnings: dict[str, int]
    warnings: list[str]
    """What a person should look at, in sentences."""
    refusals: list[str]
    """Why a launch would be refused as things are, each with the fix; none: it can be launched."""
    rejects_key: str
    """S3 key of ``rejects.csv``."""


class EnrolBatch(Shape):
    """Input of EnrolBatch: one manifest line of one generation."""

    campaign_id: CampaignId
    generation: int
    batch: str
    count: int
    cancelled: bool = False
    """The campaign is being cancelled: whoever has no row gets one that says so, and no schedule."""


class Schedule(Shape):
    """One CreateSchedule. ``at`` is UTC ``yyyy-mm-ddThh:mm:ss`` with seconds 00; ``input`` is finished text."""

    name: str
    group: str
    at: str
    client_token: str
    input: str
    target: Literal["sqs:sendMessage", "sesv2:sendEmail"] = "sqs:sendMessage"
    """What ``input`` is for: the rest of a universal target's ARN, ``arn:aws:scheduler:::aws-sdk:…``."""
    window: int = 0
    """Minutes after ``at`` over which Scheduler may choose; 0: its own minute."""
    retries: int = 2


class EnrolBatchResult(Shape):
    """At most 200 KB as JSON: Step Functions takes 256 KiB."""

    schedules: list[Schedule]
    enrolled: int
    """Tasks of the batch that have a row now."""
    settled: int
    """Of these, how many get no schedule: they are terminal, Running, or wait for the step before."""


class ConfirmFanOut(Shape):
    """Input of ConfirmFanOut."""

    campaign_id: CampaignId
    generation: int
    map_run: str | None
    """None: the Map Run broke, for more children failed than it tolerates; there is no other round."""
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
    """How many rows this sweep cancelled, how many are Running still, and how many the shard has."""

    cancelled: int
    running: int
    rows: int


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
    batch: str
    """Where the personalisation data are, as the manifest named it."""
    waits: bool = False
    """Pending, and not to be scheduled before the step before is Finished."""
    client_token: str
    claim: Claim | None = None
    subject: str | None = None
    message_id: str | None = None
    sent_at: str | None = None
    error: Problem | None = None
    override: dict[str, Any] | None = None
    expires_at: int
