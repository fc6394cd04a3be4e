"""Preparing a launch: the list is read, every slot planned, and all of it written where the fan-out finds it.

Nothing is enrolled here, and nothing that is written counts before the last write, which puts the summary on the
campaign's record, if the campaign is still this launch's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from carillon import addresses, batches, campaigns, enrolment, keys, planning, rules, zones
from carillon.batches import TaskTable
from carillon.clocks import Clocks
from carillon.columns import Column, find
from carillon.curve import Ints
from carillon.errors import IdentityNotVerified, ListRejected, PlanRefused, TemplateRejected
from carillon.lists import RecipientList, open_database
from carillon.pace import Pace
from carillon.shapes import (
    AfterPrevious,
    Campaign,
    CampaignSpec,
    ColumnDate,
    LocalTime,
    ManifestLine,
    Prepare,
    PrepareListResult,
    Rule,
    Task,
    instant,
)
from carillon.templates import Prepared
from carillon.transitions import CampaignState, TaskStatus
from carillon.typesetting import check_placeholders, prepare

_SETTLED = (TaskStatus.RUNNING, TaskStatus.FINISHED, TaskStatus.FAILED, TaskStatus.CANCELLED)


class Campaigns(Protocol):
    """The port to the campaign's record (`carillon.adapters.campaigns.CampaignStore`)."""

    def get(self, campaign_id: str, *, consistent: bool = True) -> Campaign:
        """The campaign as it is now."""
        ...

    def record_preparation(
        self, campaign_id: str, generation: int, *, now: datetime, summary: Mapping[str, Any], **first: Any
    ) -> Campaign:
        """Put the summary on the record, with ``prepared`` and ``enrolled`` of the campaign's first; the campaign as
        it is then: with another summary, if the generation was prepared already."""
        ...


class Objects(Protocol):
    """The port to the bucket (`carillon.adapters.objects.Objects`)."""

    bucket: str

    def version(self, key: str) -> str | None:
        """The newest version of ``key``; None: there is none."""
        ...

    def read(self, key: str) -> bytes | None:
        """What is in ``key``; None: nothing is."""
        ...

    def fetch(self, key: str, version: str, target: Path) -> None:
        """Write that version of ``key`` to a local file."""
        ...

    def copy(self, key: str, version: str, target: str) -> None:
        """Copy that version of ``key``."""
        ...

    def put(self, key: str, content: bytes, content_type: str) -> str:
        """Write ``key``; its new version."""
        ...

    def upload(self, source: Path, key: str, content_type: str) -> None:
        """Write a local file to ``key``."""
        ...

    def upload_all(self, files: Iterable[tuple[Path, str]], content_type: str) -> None:
        """Write many local files."""
        ...


class Suppressions(Protocol):
    """The port to the suppression list (`carillon.adapters.suppressed.SuppressionLookup`)."""

    def suppressed(self, hashes: Sequence[str], topic: str) -> set[str]:
        """Those of ``hashes`` that are not to be mailed about ``topic``."""
        ...


class Identities(Protocol):
    """The port to what SES knows of the account (`carillon.adapters.identities.Identities`)."""

    def verified(self, identity: str) -> bool | None:
        """Whether SES lets us send as an address or a domain; None: it is not registered."""
        ...

    def max_24_hour_send(self) -> int:
        """The account's quota; -1: any number."""
        ...


class PaceSettings(Protocol):
    """The port to the pace item (`carillon.adapters.settings.PaceTable`)."""

    def read(self) -> Pace:
        """The item; defaults where there is none."""
        ...

    def record_quota(self, max_24_hour_send: int) -> None:
        """Note SES's quota for the senders."""
        ...


class Rows(Protocol):
    """The port to the task rows (`carillon.adapters.enrolment.CampaignRows`)."""

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        """Pages of a shard's rows that are in one of ``statuses``."""
        ...


@dataclass(frozen=True)
class Preparation:
    """All that a preparation needs of the world."""

    campaigns: Campaigns
    objects: Objects
    suppressions: Suppressions
    identities: Identities
    pace: PaceSettings
    rows: Rows
    now: Callable[[], float]
    """Epoch seconds."""
    nonce: Callable[[], str]
    """Some characters of ``[a-z0-9]`` that nobody has had before."""
    sending_domain: str
    """The one domain that this stack may send for, subdomains included."""
    queue_url: str
    cap_zone: str
    """Whose midnight ends the cap's day."""
    creations_per_second: int
    """The account's quota of CreateSchedule."""
    memory_limit: str
    """What DuckDB may use, in its own words (``2GB``)."""

    def prepare(self, request: Prepare) -> PrepareListResult:
        """Prepare a launch, or a resume when an earlier generation was prepared already.

        Doing it again for a generation that is prepared changes nothing and answers the same; of two that do it at
        once, one counts, and what the other wrote is nobody's.

        Raises:
            CampaignStateConflict: the campaign is not enqueued at this generation (any more).
            ListRejected, TemplateRejected, IdentityNotVerified, PlanRefused: with cause and fix.
        """
        campaign = self.campaigns.get(request.campaign_id)
        campaigns.expect(campaign, {CampaignState.ENQUEUED}, request.generation)
        if campaign.prepared_generation == request.generation:
            return PrepareListResult.model_validate(campaign.summary)
        attempt = keys.attempt(request.generation, self.nonce())
        if campaign.spec.route == "direct":
            raise PlanRefused("the direct route is not built yet: create the campaign with the route guarded")
        self._check_identity(campaign.spec)
        with tempfile.TemporaryDirectory(prefix="carillon-") as directory:
            work = Path(directory)
            first: dict[str, Any] = {}
            if campaign.prepared:
                result = self._resume(campaign, campaign.prepared, request, attempt, work)
            else:
                result = self._first(campaign, request, attempt, work)
                first = {"prepared": attempt, "enrolled": result.count}
        counted = self.campaigns.record_preparation(
            request.campaign_id,
            request.generation,
            now=datetime.fromtimestamp(self.now(), UTC),
            summary=result.model_dump(),
            **first,
        )
        return PrepareListResult.model_validate(counted.summary)

    def _first(self, campaign: Campaign, request: Prepare, attempt: str, work: Path) -> PrepareListResult:
        spec, campaign_id = campaign.spec, campaign.campaign_id
        prefix = keys.preparation(campaign_id, attempt)
        steps = self._typeset(campaign)
        source, version = self._take_list(campaign_id, prefix, work)
        recipients = RecipientList(
            source,
            spec.list,
            work,
            zones_matter=any(isinstance(step.rule, LocalTime) for step in spec.steps),
            memory_limit=self.memory_limit,
        )
        for step, prepared in zip(spec.steps, steps, strict=True):
            check_placeholders(step, prepared, [name for c in recipients.columns for name in c.placeholders])
        times = [_time_column(step.rule, recipients.columns) for step in spec.steps]
        recipients.read()
        overhead = batches.schedule_overhead(campaign_id, request.generation, self.queue_url)
        for prepared, time_column in zip(steps, times, strict=True):
            recipients.refuse_incomplete(prepared)
            recipients.refuse_oversized(prepared, overhead)
            if time_column is not None:
                recipients.refuse_without_time(time_column)
        self._drop_suppressed(recipients, spec.topic)
        valid = recipients.count()
        if not valid:
            raise ListRejected(_nobody(recipients))
        tasks = recipients.tasks()
        for number, (prepared, time_column) in enumerate(zip(steps, times, strict=True), 1):
            recipients.add_tasks(tasks, number, prepared, time_column)
        slots, past = self._plan(tasks, spec, request)
        unplanned = int((slots < 0).sum())
        if unplanned == len(slots):
            raise PlanRefused(
                f"not one of {len(slots):,} e-mails can go before not_after "
                f"({instant(spec.not_after) if spec.not_after else ''}): create a new campaign with a later one, or "
                "raise the pace"
            )
        self._still_ours(request)

        for number, prepared in enumerate(steps, 1):
            self.objects.put(
                keys.template(campaign_id, attempt, number), prepared.model_dump_json().encode(), "application/json"
            )
        columns = recipients.write_recipients(work / "recipients.parquet", times)
        self.objects.upload(
            work / "recipients.parquet", f"{prefix}recipients/recipients.parquet", "application/vnd.apache.parquet"
        )
        recipients.write_rejects(work / "rejects.csv")
        self.objects.upload(work / "rejects.csv", f"{prefix}rejects.csv", "text/csv; charset=utf-8")
        written = self._write_batches(tasks, slots, campaign_id, attempt, overhead, work)
        result = PrepareListResult(
            rows=recipients.rows,
            valid=valid,
            rejected=recipients.rejected(),
            warnings=recipients.warnings(),
            past=past,
            unplanned={"not_after": unplanned} if unplanned else {},
            columns=columns,
            recipients_location=f"s3://{self.objects.bucket}/{prefix}recipients/",
            address_column=recipients.address_column.label,
            list_version=version,
            **written,
        )
        self.objects.put(
            keys.summary(campaign_id, attempt), result.model_dump_json(indent=1).encode(), "application/json"
        )
        recipients.close()
        return result

    def _resume(
        self, campaign: Campaign, prepared: str, request: Prepare, attempt: str, work: Path
    ) -> PrepareListResult:
        """Plan again, from now, what the first preparation enrolled and nobody has settled.

        A target that is past by now takes the next day, as at a launch; ``asap`` stays as soon as possible. Whoever
        cannot go before ``not_after`` any more is due right after it: the sender fails those tasks, which are
        counted as enrolled, with ``DeadlinePassed``.
        """
        spec, campaign_id = campaign.spec, campaign.campaign_id
        first = PrepareListResult.model_validate_json(self.objects.read(keys.summary(campaign_id, prepared)) or b"")
        database = open_database(work, self.memory_limit)
        tasks = TaskTable(database)
        settled = (
            row.task
            for shard in range(keys.SHARDS)
            for page in self.rows.shard(campaign_id, shard, *_SETTLED)
            for row in page
        )
        tasks.take_over(self._lines(campaign_id, first.manifest_key), settled, work)
        self._remember_times(campaign, prepared, tasks, work)
        slots, past = self._plan(tasks, spec, request)
        unplanned = int((slots < 0).sum())
        if unplanned:
            assert spec.not_after is not None
            slots[slots < 0] = max(int(spec.not_after.timestamp()) + 1, int(self._now(request)))
        self._still_ours(request)
        overhead = batches.schedule_overhead(campaign_id, request.generation, self.queue_url)
        written = self._write_batches(tasks, slots, campaign_id, attempt, overhead, work)
        database.close()
        return first.model_copy(
            update={"past": past, "unplanned": {"not_after": unplanned} if unplanned else {}, **written}
        )

    def _remember_times(self, campaign: Campaign, prepared: str, tasks: TaskTable, work: Path) -> None:
        """The wall times that the list gave, which batch lines do not carry."""
        steps = [n for n, step in enumerate(campaign.spec.steps, 1) if _has_time_column(step.rule)]
        if not steps:
            return
        local = work / "recipients.parquet"
        key = f"{keys.preparation(campaign.campaign_id, prepared)}recipients/recipients.parquet"
        self.objects.fetch(key, self.objects.version(key) or "null", local)
        for step in steps:
            tasks.add_walls(step, local)

    def _check_identity(self, spec: CampaignSpec) -> None:
        address = addresses.judge(parseaddr(spec.from_)[1])
        if address is None:
            raise IdentityNotVerified("from is no address that mail can come from: write it as Name <name@example.com>")
        domain = address.rpartition("@")[2].lower()
        if domain != self.sending_domain and not domain.endswith(f".{self.sending_domain}"):
            raise IdentityNotVerified(
                f"from is an address of {domain}, and this stack may send for {self.sending_domain} alone: take an "
                f"address of that domain, or the stack that sends for {domain}"
            )
        labels = domain.split(".")
        waiting = None
        # The likeliest first: SES answers one such question a second.
        for identity in (*(".".join(labels[n:]) for n in range(len(labels) - 1)), address):
            verified = self.identities.verified(identity)
            if verified:
                return
            if verified is False and identity != address:
                waiting = waiting or identity
        cause = f"the verification of {waiting} is not complete" if waiting else f"{domain} is not registered"
        raise IdentityNotVerified(
            f"SES does not let this account send from {domain}: {cause}. Create the identity in SES, in this "
            "Region, and publish its DKIM records"
        )

    def _typeset(self, campaign: Campaign) -> list[Prepared]:
        prepared = []
        for step in campaign.spec.steps:
            source = self.objects.read(keys.upload(campaign.campaign_id, f"templates/{step.template}"))
            if source is None:
                raise TemplateRejected(
                    f"template {step.template!r} has not been uploaded: create a new campaign and upload it to that"
                )
            try:
                prepared.append(prepare(step, source.decode("utf-8-sig")))
            except UnicodeDecodeError:
                raise TemplateRejected(f"template {step.template!r} is not UTF-8: save it as UTF-8") from None
        return prepared

    def _take_list(self, campaign_id: str, prefix: str, work: Path) -> tuple[Path, str]:
        """The list in a local file, and its version; the same bytes are kept under ``prefix``."""
        key = keys.upload(campaign_id, "list.csv")
        version = self.objects.version(key)
        if version is None:
            raise ListRejected("no_list: no list has been uploaded. Create a new campaign and upload it to that.")
        source = work / "source.csv"
        self.objects.fetch(key, version, source)
        self.objects.copy(key, version, f"{prefix}source/list.csv")
        return source, version

    def _drop_suppressed(self, recipients: RecipientList, topic: str) -> None:
        lines: list[int] = []
        for page in recipients.hashes():
            suppressed = self.suppressions.suppressed([digest for _, digest in page], topic)
            lines += [line for line, digest in page if digest in suppressed]
        recipients.refuse(lines, "suppressed")

    def _plan(self, tasks: TaskTable, spec: CampaignSpec, request: Prepare) -> tuple[Ints, int]:
        """The slot of each task by ``n``, and how many targets were past."""
        now = int(self._now(request))
        clocks = Clocks()
        at, clock, wall, zone_of = np.zeros((4, tasks.count()), dtype=np.int64)
        for number, step in enumerate(spec.steps, 1):
            of_step = tasks.of_step(number)
            zone, cells = np.full(len(of_step), clocks.number("UTC")), None
            if isinstance(step.rule, LocalTime):
                different, codes = tasks.clocks(number)
                zone = clocks.numbers(name for name, _ in different)[codes]
                walls = [0 if time is None else rules.seconds(time) for _, time in different]
                cells = rules.Cells(np.array(walls, dtype=np.int64)[codes])
            assert not isinstance(step.rule, ColumnDate | AfterPrevious)
            due = rules.targets(step.rule, zone, clocks, now=now, stack_zone=self.cap_zone, cells=cells)
            at[of_step], clock[of_step], wall[of_step], zone_of[of_step] = due.at, due.clock, due.wall, zone
        pace = self.pace.read()
        quota = self.identities.max_24_hour_send()
        self.pace.record_quota(quota)
        cap_zone = zones.get(self.cap_zone)

        def cap_on(day: date) -> int:
            room = pace.cap_on(day) - pace.taken_on(day, cap_zone)
            return room if quota < 0 else min(room, quota)

        planned = planning.plan(
            planning.Request(
                targets=rules.Targets(at, clock, wall),
                zone=zone_of,
                clocks=clocks,
                now=now,
                earliest=planning.fan_out_ready(now, len(at), self.creations_per_second, enrolment.CREATION_LEAD),
                limits=planning.Limits(spec.pace, pace.rate_per_second, cap_on, self.cap_zone),
                end=int(spec.not_after.timestamp()) if spec.not_after else None,
            )
        )
        return planned.slots, planned.past

    def _now(self, request: Prepare) -> float:
        return datetime.fromisoformat(request.now).timestamp() if request.now else self.now()

    def _still_ours(self, request: Prepare) -> None:
        """Look again before anything is written: a list takes minutes, and someone may have cancelled."""
        campaigns.expect(self.campaigns.get(request.campaign_id), {CampaignState.ENQUEUED}, request.generation)

    def _write_batches(
        self, tasks: TaskTable, slots: Ints, campaign_id: str, attempt: str, overhead: int, work: Path
    ) -> dict[str, Any]:
        """Write batches and then the manifest; what a result says about them."""
        directory = work / "batches"
        directory.mkdir()
        cut = tasks.cut(slots, directory, attempt, overhead)
        names = [keys.batch(campaign_id, line.batch) for line in cut.manifest]
        self.objects.upload_all(zip(cut.files, names, strict=True), "application/jsonl")
        manifest_key = keys.manifest(campaign_id, attempt)
        body = "".join(line.model_dump_json() + "\n" for line in cut.manifest)
        version = self.objects.put(manifest_key, body.encode(), "application/jsonl")
        planned = slots[slots >= 0]
        ends = (int(planned.min()), int(planned.max())) if len(planned) else None
        return {
            "count": len(planned),
            "batches": len(cut.manifest),
            "bucket": self.objects.bucket,
            "manifest_key": manifest_key,
            "manifest_version": version,
            "first_slot": ends and instant(datetime.fromtimestamp(ends[0], UTC)),
            "last_slot": ends and instant(datetime.fromtimestamp(ends[1], UTC)),
        }

    def _lines(self, campaign_id: str, manifest_key: str) -> Iterator[bytes]:
        """Every line of every batch of a manifest."""
        for line in (self.objects.read(manifest_key) or b"").splitlines():
            batch = self.objects.read(keys.batch(campaign_id, ManifestLine.model_validate_json(line).batch))
            if batch is None:
                raise FileNotFoundError(f"a batch of {manifest_key} is gone: its tasks cannot be planned again")
            yield from batch.splitlines()


def _has_time_column(rule: Rule) -> bool:
    return isinstance(rule, LocalTime) and rule.time_column is not None


def _time_column(rule: Rule, columns: Sequence[Column]) -> Column | None:
    if isinstance(rule, LocalTime) and rule.time_column is not None:
        return find(rule.time_column, columns, "time_column")
    return None


def _nobody(recipients: RecipientList) -> str:
    counted = ", ".join(f"{reason}: {count:,}" for reason, count in recipients.rejected().items())
    return (
        f"no_valid_recipients: none of {recipients.rows:,} rows can be written to ({counted}). "
        f"The addresses were taken from the column '{recipients.address_column.label}'."
    )
