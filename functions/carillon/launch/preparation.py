"""Preparing a launch: the list is read, every slot planned, and all of it written where the fan-out finds it.

Nothing is enrolled here, and nothing that is written counts before the last write, which puts the summary on the
campaign's record, if the campaign is still this launch's. A dry run goes the same way and takes and enrols nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from carillon import campaigns, keys
from carillon.content.templates import Prepared
from carillon.content.typesetting import for_ses
from carillon.errors import CampaignStateConflict, IdentityNotVerified, PlanRefused
from carillon.launch import batches, direct, forecast, publishing, readiness, resuming, roster, timetable
from carillon.launch.forecast import Quotas
from carillon.launch.publishing import Target
from carillon.launch.readiness import Account, Identities
from carillon.launch.resuming import Archive, Rows
from carillon.launch.roster import Roster
from carillon.launch.tasks import TaskTable
from carillon.launch.timetable import Terms, Timetable
from carillon.recipients.lists import RecipientList, open_database
from carillon.shapes import (
    Campaign,
    CampaignSpec,
    Fingerprint,
    Plan,
    Prepare,
    PrepareListResult,
    instant,
)
from carillon.timing import ledger, planning
from carillon.timing.ledger import Ledger
from carillon.timing.pace import Pace
from carillon.transitions import LAUNCHABLE, CampaignState


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

    def record_plan(self, campaign_id: str, plan: Mapping[str, Any], *, now: datetime) -> Campaign:
        """Put a dry run's result on the record of a campaign that has not been launched."""
        ...


class Objects(Archive, Target, Protocol):
    """The port to the bucket (`carillon.adapters.objects.Objects`)."""


class Suppressions(Protocol):
    """The port to the suppression list (`carillon.adapters.suppressed.SuppressionLookup`)."""

    def suppressed(self, pages: Iterable[Sequence[str]], count: int, topic: str) -> set[str]:
        """Address hashes that are not to be mailed about ``topic``: of the ``count`` on ``pages`` all, maybe others."""
        ...


class PaceSettings(Protocol):
    """The port to the pace item (`carillon.adapters.settings.PaceTable`)."""

    def read(self) -> Pace:
        """The item; defaults where there is none."""
        ...

    def record_quota(self, max_24_hour_send: int) -> None:
        """Note SES's quota for the senders."""
        ...


@dataclass(frozen=True)
class Preparation:
    """All that a preparation needs of the world."""

    campaigns: Campaigns
    objects: Objects
    suppressions: Suppressions
    identities: Identities
    pace: PaceSettings
    ledger: Ledger
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
    quotas: Quotas
    memory_limit: str
    """What DuckDB may use, in its own words (``2GB``)."""
    ses_templates: direct.Templates | None
    """None: nobody launches from here."""
    postal_address: Callable[[], str | None]
    """The sender's; None: nobody has set one."""

    def prepare(self, request: Prepare) -> PrepareListResult:
        """Prepare a launch, or a resume when an earlier generation was prepared already.

        Doing it again for a generation that is prepared changes nothing and answers the same; of two that do it at
        once, one counts, and what the other wrote is nobody's.

        Raises:
            CampaignStateConflict: the campaign is not enqueued at this generation (any more).
            ListRejected, TemplateRejected, IdentityNotVerified, PlanRefused, LedgerConflict: with cause and fix.
        """
        campaign = self.campaigns.get(request.campaign_id)
        campaigns.expect(campaign, {CampaignState.ENQUEUED}, request.generation)
        if campaign.prepared_generation == request.generation:
            self._keep_templates(campaign, request)
            return PrepareListResult.model_validate(campaign.summary)
        attempt = keys.attempt(request.generation, self.nonce())
        readiness.check_identity(campaign.spec, self.sending_domain, self.identities)
        account = self.identities.account()
        self.pace.record_quota(account.max_24_hour_send)
        _refuse(self._objections(campaign.spec, account, self.pace.read()))
        first: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="carillon-") as directory:
            if campaign.prepared:
                result = self._resume(campaign, campaign.prepared, request, attempt, account, Path(directory))
            else:
                result = self._first(campaign, request, attempt, account, Path(directory))
                first = {"prepared": attempt, "enrolled": result.count}
        try:
            counted = self.campaigns.record_preparation(
                request.campaign_id,
                request.generation,
                now=datetime.fromtimestamp(self.now(), UTC),
                summary=result.model_dump(),
                **first,
            )
        except CampaignStateConflict as conflict:
            # A newer generation has replaced what was taken here; a cancel may have looked before it was taken.
            if conflict.found is None or conflict.found.generation == request.generation:
                self.ledger.give_back(request.campaign_id, timetable.days(result.first_slot, result.last_slot))
            raise
        found = PrepareListResult.model_validate(counted.summary)
        if found.manifest_key != result.manifest_key:
            # What was taken here has replaced what the preparation that counts had taken.
            slots = resuming.slots(counted, found, self.objects)
            days = timetable.days(*_span(found, result))
            ledger.reserve(self.ledger, request.campaign_id, days, self.cap_zone, lambda _: slots)
        self._keep_templates(counted, request)
        return found

    def plan(self, request: Prepare, slots_to: Path | None = None) -> Plan:
        """What a launch would do now: the same way, up to what it would take, enrol or send.

        ``slots_to``: a file for every e-mail's target and slot (`timetable.write_slots`).

        What a launch would be refused for is in the plan (`Plan.refusals`), but for a list, template or pace that
        nothing can be planned with.

        Raises:
            CampaignStateConflict: the campaign has been launched.
            ListRejected, TemplateRejected, PlanRefused: with cause and fix.
        """
        campaign = self.campaigns.get(request.campaign_id)
        campaigns.expect(campaign, LAUNCHABLE)
        spec, campaign_id, now = campaign.spec, campaign.campaign_id, self._now(request)
        prefix = keys.plan(campaign_id, self.nonce())
        unverified = self._unverified(spec)
        account = self.identities.account()
        with tempfile.TemporaryDirectory(prefix="carillon-") as directory:
            work = Path(directory)
            found, tasks, overhead = self._enlist(campaign, campaign.generation + 1, now, work, prefix)
            terms = self._terms(account)
            made = timetable.look(timetable.request(tasks, spec, terms, now), self.ledger, campaign_id)
            slots = made.planned.slots
            if slots_to is not None:
                timetable.write_slots(tasks, made, work / "slots.csv")
                shutil.move(work / "slots.csv", slots_to)
            schedules, waiting = tasks.planned(slots)
            quotas = forecast.fits(made, schedules, terms.pace, account, self.quotas)
            count = schedules + waiting
            cost = forecast.costs(
                count,
                batches.count(tasks.sizes(), slots, overhead),
                account.price_plan,
                direct=spec.route == "direct",
            )
            publishing.write_rejects(self.objects, found.recipients, f"{prefix}rejects.csv", work)
            result = Plan(
                hash=roster.digest(found.fingerprint),
                fingerprint=found.fingerprint,
                uploads={found.name: found.version, **found.templates.versions},
                now=instant(datetime.fromtimestamp(now, UTC)),
                reading=found.recipients.decisions(),
                rows=found.recipients.rows,
                valid=found.recipients.count(),
                **forecast.counted(found.recipients.rejected()),
                past=made.planned.past,
                next_day=made.planned.next_day,
                late=made.planned.late,
                skipped=made.planned.unplanned(),
                planned=count,
                forecast=waiting,
                **forecast.ends(slots),
                eta=forecast.eta(slots),
                histogram=forecast.histogram(made),
                cost=cost,
                cost_usd=sum(each.usd for each in cost),
                price_plan=account.price_plan,
                quotas=quotas,
                list_warnings=found.recipients.warnings(),
                warnings=[*found.warnings, *forecast.lateness(made)],
                refusals=[
                    *unverified,
                    *self._objections(spec, account, terms.pace),
                    *forecast.refusals(quotas),
                    *readiness.forgotten(int(slots.max(initial=-1)), campaign.expires_at),
                    *([] if count else [_nobody_planned(spec, len(slots))]),
                ],
                rejects_key=f"{prefix}rejects.csv",
            )
            found.recipients.close()
        self.objects.put(f"{prefix}plan.json", result.model_dump_json(indent=1).encode(), "application/json")
        self.campaigns.record_plan(campaign_id, result.model_dump(), now=datetime.fromtimestamp(self.now(), UTC))
        return result

    def _first(
        self, campaign: Campaign, request: Prepare, attempt: str, account: Account, work: Path
    ) -> PrepareListResult:
        spec, campaign_id = campaign.spec, campaign.campaign_id
        prefix = keys.preparation(campaign_id, attempt)
        found, tasks, overhead = self._enlist(campaign, request.generation, self._now(request), work, prefix)
        _check_unchanged(request, campaign, found.fingerprint)
        with self._reserved(tasks, request, campaign, account) as made:
            slots = made.planned.slots
            if not (slots >= 0).any():
                raise PlanRefused(_nobody_planned(spec, len(slots)))
            columns = publishing.write_roster(self.objects, found, campaign_id, attempt, work)
            written = publishing.write_batches(self.objects, tasks, slots, campaign_id, attempt, overhead)
        counts = forecast.counted(found.recipients.rejected())
        result = PrepareListResult(
            rows=found.recipients.rows,
            valid=found.recipients.count(),
            rejected=counts["rejected"],
            outside_segment=counts["outside_segment"],
            warnings=found.recipients.warnings(),
            template_warnings=found.warnings,
            columns=columns,
            recipients_location=f"s3://{self.objects.bucket}/{prefix}recipients/",
            address_column=found.recipients.address_column.label,
            list_version=found.version,
            **_became(made),
            **written,
        )
        self.objects.put(
            keys.summary(campaign_id, attempt), result.model_dump_json(indent=1).encode(), "application/json"
        )
        found.recipients.close()
        return result

    def _resume(
        self, campaign: Campaign, prepared: str, request: Prepare, attempt: str, account: Account, work: Path
    ) -> PrepareListResult:
        """Plan again, from now, what the first preparation enrolled and nobody has settled.

        A target that is past by now takes the next day, as at a launch; ``asap`` stays as soon as possible. Whoever
        cannot go before ``not_after`` any more is due right after it: the sender fails those tasks, which are
        counted as enrolled, with ``DeadlinePassed``. Whom the campaign would rather skip is cancelled.
        """
        spec, campaign_id = campaign.spec, campaign.campaign_id
        first = PrepareListResult.model_validate_json(self.objects.read(keys.summary(campaign_id, prepared)) or b"")
        database = open_database(work, self.memory_limit)
        tasks = TaskTable(database)
        resuming.take_over(tasks, campaign, prepared, first, self.objects, self.rows, work)
        with self._reserved(tasks, request, campaign, account) as made:
            slots = made.planned.slots
            expired = made.planned.reason == planning.NOT_AFTER
            if expired.any():
                assert spec.not_after is not None
                slots[expired] = max(int(spec.not_after.timestamp()) + 1, self._now(request))
            if (slots < 0).any():
                resuming.cancel(campaign, tasks.named(slots < 0), first, self.objects, self.rows)
            overhead = batches.schedule_overhead(campaign_id, request.generation, self.queue_url)
            written = publishing.write_batches(self.objects, tasks, slots, campaign_id, attempt, overhead)
        database.close()
        return first.model_copy(update={**_became(made), **written})

    def _enlist(
        self, campaign: Campaign, generation: int, now: int, work: Path, prefix: str
    ) -> tuple[Roster, TaskTable, int]:
        """Who is written to, their tasks, and the bytes that each has beside its data (`batches.schedule_overhead`).

        Where that is nobody, the rejects are written under ``prefix`` all the same.
        """
        spec, campaign_id = campaign.spec, campaign.campaign_id
        templates = roster.typeset(campaign_id, spec, self.objects)
        if spec.route == "direct":
            overhead = direct.schedule_overhead(campaign)
            for prepared in templates.prepared:
                direct.addressed(for_ses(prepared), self.postal_address())
        else:
            overhead = batches.schedule_overhead(campaign_id, generation, self.queue_url)
        found = roster.read(
            campaign_id, spec, self.objects, templates, work, overhead=overhead, now=now, memory_limit=self.memory_limit
        )
        self._drop_suppressed(found.recipients, spec.topic)
        if not found.recipients.count():
            publishing.write_rejects(self.objects, found.recipients, f"{prefix}rejects.csv", work)
            raise roster.nobody(found.recipients)
        tasks = TaskTable(found.recipients.database)
        for draft in found.drafts:
            tasks.add(draft)
        return found, tasks, overhead

    def _objections(self, spec: CampaignSpec, account: Account, pace: Pace) -> list[str]:
        """Why nothing could be launched, whatever the list."""
        return [
            *readiness.objections(account),
            *readiness.unaddressed(self.postal_address()),
            *direct.objections(spec, pace),
        ]

    def _unverified(self, spec: CampaignSpec) -> list[str]:
        try:
            readiness.check_identity(spec, self.sending_domain, self.identities)
        except IdentityNotVerified as refusal:
            return [str(refusal)]
        return []

    def _keep_templates(self, campaign: Campaign, request: Prepare) -> None:
        """Have SES keep the templates of a direct campaign, as the preparation that counts has written them.

        Raises:
            CampaignStateConflict: somebody has decided about the campaign meanwhile, so they are taken away again.
        """
        names = direct.template_names(campaign)
        if not names:
            return
        assert self.ses_templates is not None
        for step, name in enumerate(names, 1):
            key = keys.template(campaign.campaign_id, str(campaign.prepared), step)
            prepared = Prepared.model_validate_json(self.objects.read(key) or b"")
            self.ses_templates.put_template(name, direct.addressed(for_ses(prepared), self.postal_address()))
        try:
            self._still_ours(request)
        except CampaignStateConflict:
            direct.forget(campaign, self.ses_templates)
            raise

    def _drop_suppressed(self, recipients: RecipientList, topic: str) -> None:
        found = self.suppressions.suppressed(recipients.hashes(), recipients.count(), topic)
        recipients.refuse_hashes(found, "suppressed")

    def _terms(self, account: Account) -> Terms:
        return Terms(self.pace.read(), account.max_24_hour_send, self.cap_zone, self.quotas.creations_per_second)

    @contextmanager
    def _reserved(
        self, tasks: TaskTable, request: Prepare, campaign: Campaign, account: Account
    ) -> Iterator[Timetable]:
        """Plan, and take the capacity; what breaks inside gives it back. The campaign is looked at again before: a list
        takes minutes."""
        terms = self._terms(account)
        wanted = timetable.request(tasks, campaign.spec, terms, self._now(request))
        self._still_ours(request)

        def acceptable(made: Timetable) -> None:
            schedules, _ = tasks.planned(made.planned.slots)
            quotas = forecast.fits(made, schedules, terms.pace, account, self.quotas)
            last_slot = int(made.planned.slots.max(initial=-1))
            _refuse([*forecast.refusals(quotas), *readiness.forgotten(last_slot, campaign.expires_at)])

        made = timetable.reserve(wanted, self.ledger, campaign.campaign_id, acceptable)
        taken = made.days()
        try:
            yield made
        except Exception:
            self.ledger.give_back(campaign.campaign_id, taken)
            raise

    def _now(self, request: Prepare) -> int:
        return int(datetime.fromisoformat(request.now).timestamp() if request.now else self.now())

    def _still_ours(self, request: Prepare) -> None:
        campaigns.expect(self.campaigns.get(request.campaign_id), {CampaignState.ENQUEUED}, request.generation)


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        raise PlanRefused("; ".join(reasons))


def _check_unchanged(request: Prepare, campaign: Campaign, found: Fingerprint) -> None:
    """See that what is launched is what was planned.

    Raises:
        PlanRefused: naming what has changed.
    """
    if request.expected is None or request.expected == roster.digest(found):
        return
    plan = Plan.model_validate(campaign.plan) if campaign.plan and "error" not in campaign.plan else None
    if plan is None or plan.hash != request.expected:
        raise PlanRefused("the launch is bound to a plan that is not the campaign's newest: look at the newest one")
    raise PlanRefused(
        f"since the plan that was looked at, {' and '.join(roster.changed(plan.fingerprint, found))} changed: plan "
        "again, and launch what that shows"
    )


def _span(*results: PrepareListResult) -> tuple[str | None, str | None]:
    """The first and the last slot of all of them."""
    firsts = [result.first_slot for result in results if result.first_slot]
    lasts = [result.last_slot for result in results if result.last_slot]
    return min(firsts, default=None), max(lasts, default=None)


def _became(made: Timetable) -> dict[str, Any]:
    planned = made.planned
    return {
        "past": planned.past,
        "next_day": planned.next_day,
        "late": planned.late,
        "unplanned": planned.unplanned(),
    }


def _nobody_planned(spec: CampaignSpec, tasks: int) -> str:
    if spec.not_after is not None:
        return (
            f"not one of {tasks:,} e-mails can go before not_after ({instant(spec.not_after)}): create a new campaign "
            "with a later one, or raise the pace"
        )
    return (
        f"all of {tasks:,} e-mails are too late, and if_late skips those: create a new campaign with later targets, "
        "a longer within, or if_late next_day"
    )
