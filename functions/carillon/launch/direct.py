"""The direct route: Scheduler → SES, with a template that SES keeps for each step, and nobody of ours between them.

It is the cheapest way, and promises less: no task rows, at least once instead of at most once, no suppression but the
account's own, and no pause. What Carillon decides about such an e-mail, it decides before the launch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from carillon import campaigns, keys
from carillon.addresses import canonical
from carillon.content.emails import ascii_address, list_headers
from carillon.content.templates import ses_data
from carillon.errors import CampaignNotFound, PlanRefused, TemplateRejected
from carillon.launch.enrolment import LARGEST_LINE, schedule_size
from carillon.shapes import BatchLine, Campaign, CampaignSpec, EnrolBatch, EnrolBatchResult, QuietHours, Schedule
from carillon.transitions import CampaignState

if TYPE_CHECKING:
    from carillon.content.typesetting import SesTemplate
    from carillon.timing.pace import Pace

INVOCATIONS = 1000
"""A second, that Scheduler makes in an account's large Regions (AWS_CONTRACTS 1); windows are wide enough for it."""

CREATION_LEAD = 360
"""Seconds from enrolling to the earliest minute that Scheduler is asked for: longer than a child of the fan-out has
(300), for nobody would plan again a schedule that was made too late to fire."""

RETRIES = 10
"""Of one invocation: SES says "not now" when Scheduler begins a whole minute's e-mails at once."""

EVENT_AGE = 3600
"""Seconds after which Scheduler gives an e-mail up: MaximumEventAgeInSeconds of the launch machine."""

SLOWEST = 1.0
"""E-mails a second: with less, the identity's pace is about single seconds, and Scheduler knows only minutes."""

LONGEST_LINK = 400
"""Characters of an unsubscribe link: its token has at most 211, and the API's address the rest."""

NOTES = (
    "the direct route sends at least once: after a fault of Scheduler or SES a recipient may get an e-mail twice",
    "it keeps no task rows: whether one recipient got it, only SES's events can tell, and counts come from them",
    "who unsubscribes after the launch is still written to; only SES's own suppression list is looked at then",
    "it cannot be paused or resumed, only cancelled, and the breaker and the identity's pause do not reach it",
    "slots are minutes, and the identity's rate holds on the average of some minutes, not in each second",
    "templates may hold plain {{ column }} placeholders and nothing else, and there are no defaults",
)
"""What a person who chooses this route is told when the campaign is created."""


class Links(Protocol):
    """The port to unsubscribe links (`carillon.consent.unsubscribing.Links`)."""

    def unsubscribe(self, campaign_id: str, task: str, topic: str, address_hash: str) -> str:
        """The link of the e-mail ``task``."""
        ...


class Templates(Protocol):
    """The port to SES's templates (`carillon.adapters.ses_templates.SesTemplates`)."""

    def put_template(self, name: str, template: SesTemplate) -> None:
        """Create it, or give the one that is there this content."""
        ...

    def delete_template(self, name: str) -> None:
        """Delete it; one that is gone is fine."""
        ...


def template_name(campaign_id: str, step: int) -> str:
    """What SES calls the template of a step: at most 52 of its 64 characters, all of them ``[A-Za-z0-9_-]``."""
    return f"carillon-{campaign_id}-{step}"


def template_names(campaign: Campaign) -> list[str]:
    """The templates that SES keeps for ``campaign``; none on the guarded route."""
    if campaign.spec.route != "direct":
        return []
    return [template_name(campaign.campaign_id, step) for step in range(1, len(campaign.spec.steps) + 1)]


def addressed(template: SesTemplate, postal_address: str | None) -> SesTemplate:
    """``template`` with the sender's postal address in it, which is the same for everybody.

    Raises:
        TemplateRejected: there is none, or SES would take a part of it for a placeholder.
    """
    if not any("_postal_address}}" in part for part in (template.subject, template.html, template.text)):
        return template
    values = ses_data({"postal_address": postal_address})
    if not values:
        raise TemplateRejected("the sender has no postal address, which a template shows: PUT /settings/sender")
    if "{{" in str(postal_address):
        raise TemplateRejected("the sender's postal address has {{ in it, which SES would fill: take it out")
    subject, html, text = template.subject, template.html, template.text
    for name, value in values.items():
        subject, html, text = (part.replace(f"{{{{{name}}}}}", value) for part in (subject, html, text))
    return type(template)(subject, html, text)


def window(count: int) -> int:
    """Minutes over which Scheduler may spread each of ``count`` e-mails, so that it need not begin them all at once."""
    return min(1440, max(1, math.ceil(count / (60 * INVOCATIONS))))


def latest(count: int) -> int:
    """Seconds after its slot until which one of ``count`` e-mails may go: its minute is rounded up, Scheduler fires
    some time within it and the window, and tries again for a while."""
    return 60 + 60 + 60 * window(count) + EVENT_AGE


def nights(quiet: QuietHours, count: int) -> QuietHours:
    """``quiet`` begun so much earlier that none of ``count`` e-mails planned before it goes within it, if all is well:
    a slot's minute is rounded up, and Scheduler fires some time within the window after it.

    Raises:
        PlanRefused: that leaves no time of the day.
    """
    margin = timedelta(seconds=60 + 60 + 60 * window(count))
    ends, begins = (datetime.combine(date(2000, 1, 1), wall, UTC) for wall in (quiet.end, quiet.start))
    awake = (begins - ends) % timedelta(days=1)
    if awake <= margin:
        raise PlanRefused(
            f"quiet_hours leave {awake.total_seconds() / 60:.0f} minutes of a day, and on the direct route Scheduler "
            f"takes up to {margin.total_seconds() / 60:.0f} minutes to begin an e-mail: shorten them, or take the "
            "guarded route"
        )
    return QuietHours(start=(ends + awake - margin).time(), end=quiet.end)


def objections(spec: CampaignSpec, pace: Pace) -> list[str]:
    """Why minutes, which are all that Scheduler knows, cannot keep the identity's pace; with the fix."""
    if spec.route != "direct" or pace.rate_per_second >= SLOWEST:
        return []
    reason = (
        f"the identity may send {pace.rate_per_second:g} e-mails a second, and on the direct route Scheduler may begin "
        "a minute's e-mails in one second: take the guarded route, or raise the rate to 1 a second"
    )
    return [reason]


def schedule_overhead(campaign: Campaign) -> int:
    """Bytes that a task takes in EnrolBatch's result at most, its address and its data left out."""
    largest = campaign.model_copy(update={"generation": 99_999, "enrolled": 10**9})
    return schedule_size(schedule_for(largest, LARGEST_LINE, "x" * LONGEST_LINK, "x" * 64, "x" * 253))


def enrol_batch(
    request: EnrolBatch,
    campaign: Campaign,
    lines: Sequence[BatchLine],
    links: Links,
    configuration_set: str,
    sending_domain: str,
    now: int,
) -> EnrolBatchResult:
    """A schedule for each of ``lines``; nothing is written. ``now`` is in epoch seconds.

    Who could only be written to after ``not_after``, because the fan-out took so long, counts as settled.

    Raises:
        CampaignStateConflict: the campaign is not enqueued at this generation (any more).
    """
    campaigns.expect(campaign, {CampaignState.ENQUEUED}, request.generation)
    not_after = campaign.spec.not_after
    deadline = not_after.timestamp() - latest(campaign.enrolled) if not_after else math.inf
    schedules = [
        schedule_for(
            campaign,
            line,
            links.unsubscribe(
                campaign.campaign_id, line.task, campaign.spec.topic, keys.address_hash(canonical(line.address))
            ),
            configuration_set,
            sending_domain,
            not_before=now + CREATION_LEAD,
        )
        for line in lines
        if max(line.slot, now + CREATION_LEAD) <= deadline
    ]
    return EnrolBatchResult(schedules=schedules, enrolled=len(lines), settled=len(lines) - len(schedules))


def schedule_for(
    campaign: Campaign, line: BatchLine, link: str, configuration_set: str, sending_domain: str, *, not_before: int = 0
) -> Schedule:
    """The one schedule of a task: SES's SendEmail, at the slot's minute or the one after it, never before the slot.

    ``link`` is the recipient's own; ``sending_domain`` names the list to mailbox providers (RFC 2919).
    """
    spec, campaign_id = campaign.spec, campaign.campaign_id
    tags = {"campaign": campaign_id, "task": line.task, "step": str(line.step)}
    headers = list_headers(spec.topic, sending_domain, link)
    call = {
        "FromEmailAddress": ascii_address(spec.from_),
        **({"ReplyToAddresses": [ascii_address(spec.reply_to)]} if spec.reply_to else {}),
        "Destination": {"ToAddresses": [line.address]},
        "Content": {
            "Template": {
                "TemplateName": template_name(campaign_id, line.step),
                "TemplateData": _json(ses_data(line.input | {"unsubscribe_url": link})),
                "Headers": [{"Name": name, "Value": value} for name, value in headers],
            }
        },
        "ConfigurationSetName": configuration_set,
        "EmailTags": [{"Name": name, "Value": value} for name, value in tags.items()],
    }
    minute = -(-max(line.slot, not_before) // 60) * 60
    return Schedule(
        name=line.task,
        group=keys.group(campaign_id, campaign.generation),
        at=datetime.fromtimestamp(minute, UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        client_token=keys.client_token(campaign_id, campaign.generation, line.task, line.revision),
        input=_json(call).replace("<", r"\u003c"),
        target="sesv2:sendEmail",
        window=window(campaign.enrolled),
        retries=RETRIES,
    )


def forget(campaign: Campaign, templates: Templates) -> None:
    """Delete the campaign's templates. What Scheduler still begins by then, SES refuses."""
    for name in template_names(campaign):
        templates.delete_template(name)


def is_over(campaign: Campaign, now: datetime) -> bool:
    """Whether the last e-mail of a launched campaign has gone, or never will."""
    last_slot = (campaign.summary or {}).get("last_slot")
    if last_slot is None:
        return True
    # A fan-out that takes long moves its schedules; how far, the campaign's last change bounds.
    last = max(datetime.fromisoformat(last_slot), datetime.fromisoformat(campaign.changed_at))
    return now.timestamp() > last.timestamp() + CREATION_LEAD + latest(campaign.enrolled)


def forget_broken(records: campaigns.Campaigns, templates: Templates, campaign_id: str, execution: str) -> None:
    """Delete the templates of a campaign that the launch ``execution`` (its ARN) has left failed or aborted.

    Also where its schedules could not be deleted: without a template SES refuses what they begin.
    """
    try:
        campaign = records.get(campaign_id)
    except CampaignNotFound:
        return
    if campaign.execution == execution and campaign.state in (CampaignState.FAILED, CampaignState.ABORTED):
        forget(campaign, templates)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
