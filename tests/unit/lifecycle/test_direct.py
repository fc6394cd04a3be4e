"""The direct route: what Scheduler and SES are asked for when nobody of ours stands between them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.content.typesetting import SesTemplate
from carillon.errors import CampaignStateConflict, PlanRefused, TemplateRejected
from carillon.launch import batches, direct, enrolment
from carillon.lifecycle.reconciling import Reconcile, Reconciled, Reconciler
from carillon.shapes import BatchLine, Campaign, EnrolBatch, EnrolBatchResult, QuietHours, instant
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState
from local.contract import contract
from local.ses import rendering

from .conftest import NOW, SPEC, campaign
from .fakes import FakeBatches, FakeIdentity, FakeQueue, FakeScheduler, FakeTemplates

NOW_SECONDS = int(NOW.timestamp())
TOMORROW = NOW_SECONDS + 86400
REQUEST = EnrolBatch(campaign_id="advent", generation=1, batch="g1-aaaa/4", count=1)


class Links:
    """Links that name what they are for."""

    def unsubscribe(self, campaign_id: str, task: str, topic: str, address_hash: str) -> str:
        assert address_hash.startswith(task.partition("-")[2])
        return f"https://api.example.com/u/{campaign_id}.{task}.{topic}"


def direct_campaign(**spec: Any) -> Campaign:
    """A campaign of ten people that is being launched."""
    changed = SPEC.model_dump(by_alias=True) | {"route": "direct"} | spec
    return campaign(state=CampaignState.ENQUEUED, generation=1, enrolled=10, spec=changed)


def line(address: str = "Ana@Example.com", **changes: Any) -> BatchLine:
    fields: dict[str, Any] = {
        "task": keys.task_id(1, address.lower()),
        "step": 1,
        "address": address,
        "timezone": None,
        "slot": TOMORROW,
        "revision": 0,
        "input": {"first_name": "Ana"},
    }
    return BatchLine.model_validate(fields | changes)


def enrol(*lines: BatchLine, of: Campaign | None = None, now: int = NOW_SECONDS) -> EnrolBatchResult:
    return direct.enrol_batch(REQUEST, of or direct_campaign(), lines, Links(), "carillon-shop", "example.com", now)


def call(result: EnrolBatchResult) -> dict[str, Any]:
    """What Scheduler will ask SES for the first of a batch."""
    asked: dict[str, Any] = json.loads(result.schedules[0].input)
    return asked


def test_scheduler_is_asked_to_call_sess_own_send_email() -> None:
    """A universal target's input has the API's own names, and all of them fit SES's model (botocore sesv2)."""
    result = enrol(line())
    (schedule,) = result.schedules
    assert (schedule.target, schedule.group, schedule.name) == (
        "sesv2:sendEmail",
        "campaign-advent-g1",
        keys.task_id(1, "ana@example.com"),
    )
    asked = call(result)
    contract("sesv2").operation("SendEmail").validate(asked)
    assert asked["FromEmailAddress"] == "Shop <shop@example.com>"
    assert asked["Destination"] == {"ToAddresses": ["Ana@Example.com"]}
    assert asked["ConfigurationSetName"] == "carillon-shop"
    assert {tag["Name"]: tag["Value"] for tag in asked["EmailTags"]} == {
        "campaign": "advent",
        "task": schedule.name,
        "step": "1",
    }
    assert "ReplyToAddresses" not in asked
    template = asked["Content"]["Template"]
    assert template["TemplateName"] == "carillon-advent-1"
    link = f"https://api.example.com/u/advent.{schedule.name}.offers"
    assert json.loads(template["TemplateData"]) == {
        "html_first_name": "Ana",
        "text_first_name": "Ana",
        "html_unsubscribe_url": link,
        "text_unsubscribe_url": link,
    }
    assert {header["Name"]: header["Value"] for header in template["Headers"]} == {
        "List-Id": "<offers.example.com>",
        "List-Unsubscribe": f"<{link}>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }


def test_replies_go_where_the_campaign_says() -> None:
    """With the domain as SES and IAM compare it."""
    asked = call(enrol(line(), of=direct_campaign(reply_to="Help <help@Example.com>")))
    assert asked["ReplyToAddresses"] == ["Help <help@example.com>"]


@pytest.mark.parametrize(
    ("second", "minute"), [(0, "2026-11-30T08:00:00"), (1, "2026-11-30T08:01:00"), (59, "2026-11-30T08:01:00")]
)
def test_a_slots_second_is_lost_and_nobody_is_early(second: int, minute: str) -> None:
    """Scheduler knows minutes, and there is no DelaySeconds here: a begun minute is rounded up."""
    assert enrol(line(slot=TOMORROW + second)).schedules[0].at == minute


def test_a_schedule_is_never_past_when_it_is_made() -> None:
    """However long the child of the fan-out takes (five minutes at most), its minute lies ahead."""
    (schedule,) = enrol(line(slot=NOW_SECONDS - 5)).schedules
    assert datetime.fromisoformat(schedule.at).replace(tzinfo=UTC).timestamp() >= NOW_SECONDS + 300 + 60


@pytest.mark.parametrize(
    ("people", "minutes"), [(1, 1), (60_000, 1), (60_001, 2), (1_000_000, 17), (100_000_000, 1440)]
)
def test_the_window_grows_with_the_campaign(people: int, minutes: int) -> None:
    """Total ÷ Scheduler's 1,000 invocations a second, in the 1 to 1,440 minutes that a window may have
    (AWS_CONTRACTS 1)."""
    assert direct.window(people) == minutes
    (schedule,) = enrol(line(), of=direct_campaign().model_copy(update={"enrolled": people})).schedules
    assert schedule.window == minutes


@pytest.mark.parametrize(
    ("start", "end", "people", "begins"),
    [("21:00", "08:00", 30, "20:57"), ("00:01", "08:00", 30, "23:58"), ("21:00", "08:00", 6_000_000, "19:18")],
)
def test_quiet_hours_begin_early_enough_for_what_is_still_on_its_way(
    start: str, end: str, people: int, begins: str
) -> None:
    """A minute for the rounding, one for Scheduler's own, and the window: nothing planned before goes off in them."""
    night = QuietHours.model_validate({"start": start, "end": end})
    assert direct.nights(night, people) == QuietHours.model_validate({"start": begins, "end": end})


def test_quiet_hours_that_leave_too_little_of_a_day_are_refused() -> None:
    """Instead of waking somebody up."""
    with pytest.raises(PlanRefused, match="leave 2 minutes of a day"):
        direct.nights(QuietHours.model_validate({"start": "08:02", "end": "08:00"}), 30)


def test_nothing_is_planned_so_late_that_a_retry_could_miss_the_deadline() -> None:
    """Who could only be written to after not_after gets no schedule, and the fan-out knows it."""
    deadline = datetime.fromtimestamp(TOMORROW + direct.latest(10), UTC)
    result = enrol(line(), line("bo@example.com", slot=TOMORROW + 1), of=direct_campaign(not_after=deadline))
    assert [schedule.name for schedule in result.schedules] == [keys.task_id(1, "ana@example.com")]
    assert (result.enrolled, result.settled) == (2, 1)


def test_a_child_that_outlives_its_launch_schedules_nobody() -> None:
    """Cancelled meanwhile: no schedule comes after the group that was deleted."""
    cancelling = direct_campaign().model_copy(update={"state": CampaignState.CANCELLING})
    with pytest.raises(CampaignStateConflict):
        enrol(line(), of=cancelling)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(name=TEXTS)
def test_every_value_arrives_as_it_is_in_the_list(name: str) -> None:
    """Through two layers of JSON, past Scheduler's own <aws.scheduler.…>, escaped in HTML, elsewhere on one line."""
    (schedule,) = enrol(line(input={"name": f"<aws.scheduler.execution-id>{name}"})).schedules
    assert "<" not in schedule.input
    data = json.loads(json.loads(schedule.input)["Content"]["Template"]["TemplateData"])
    assert data["html_name"].startswith("&lt;aws.scheduler.execution-id&gt;")
    assert "<" not in data["html_name"]
    assert len(data["text_name"].splitlines()) == 1
    if name.isprintable():
        assert data["text_name"] == f"<aws.scheduler.execution-id>{name}"


def test_a_template_name_is_one_that_ses_takes() -> None:
    """1 to 64 letters, digits, _ and - (SES API reference, CreateEmailTemplate), for the longest campaign id."""
    assert direct.template_name("a" * 40, 20) == f"carillon-{'a' * 40}-20"
    assert len(direct.template_name("a" * 40, 20)) <= 64
    assert direct.template_names(direct_campaign()) == ["carillon-advent-1"]
    assert direct.template_names(campaign()) == []


def test_the_postal_address_is_part_of_the_template() -> None:
    """It is everybody's: no schedule has to carry it, and HTML gets it escaped."""
    made = direct.addressed(
        SesTemplate("Hi", "<p>{{html_postal_address}}</p>", "{{text_postal_address}}"), "Bell & Sons, 1 Tower St"
    )
    assert rendering.render(made.html, {}) == "<p>Bell &amp; Sons, 1 Tower St</p>"
    assert rendering.render(made.text, {}) == "Bell & Sons, 1 Tower St"
    with pytest.raises(TemplateRejected):
        direct.addressed(SesTemplate("Hi", "", "{{text_postal_address}}"), "{{ somewhere }}")


def test_an_address_that_is_not_there_is_missed_where_a_template_shows_it() -> None:
    """And nowhere else."""
    plain = SesTemplate("Hi", "<p>{{html_name}}</p>", "{{text_name}}")
    assert direct.addressed(plain, None) == plain
    with pytest.raises(TemplateRejected, match="PUT /settings/sender"):
        direct.addressed(SesTemplate("Hi", "", "{{text_postal_address}}"), None)


def test_a_rate_below_one_a_second_is_refused() -> None:
    """Scheduler may begin a whole minute's e-mails in one second: whoever counts single seconds needs the sender."""
    slow = Pace(rate_per_second=0.5)
    assert direct.objections(direct_campaign().spec, Pace(rate_per_second=1.0)) == []
    assert direct.objections(SPEC, slow) == []
    (objection,) = direct.objections(direct_campaign().spec, slow)
    assert "guarded route" in objection


COSTLY = "<>\"\\&'\u2028\x7f\x01é中🙂 a\n"


@given(name=st.text(st.sampled_from(COSTLY), max_size=60))
@settings(deadline=None)
def test_a_schedule_is_never_larger_than_its_batch_was_cut_for(name: str) -> None:
    """What EnrolBatch's result takes is reckoned in SQL, before links and names are known."""
    of = direct_campaign()
    some = line(input={"name": f"n{name}", "other_name": name})
    (schedule,) = enrol(some, of=of).schedules
    size = (
        duckdb.connect()
        .execute(
            f"SELECT {batches.direct_size_sql('i', 'a')} FROM (SELECT ? AS i, ? AS a)",
            [json.dumps(some.input, ensure_ascii=False, separators=(",", ":")), some.address],
        )
        .fetchone()
    )
    assert size is not None
    assert enrolment.schedule_size(schedule) <= direct.schedule_overhead(of) + int(size[0])


# The end of a direct campaign

ENDS = NOW + timedelta(hours=3)
"""When the last slot of `dispatching` is."""


def dispatching(campaigns: CampaignStore, **changes: Any) -> Campaign:
    """A direct campaign of two steps under way."""
    spec = SPEC.model_copy(update={"route": "direct", "steps": SPEC.steps * 2})
    there = campaign(
        state=CampaignState.DISPATCHING,
        generation=1,
        enrolled=10,
        spec=spec,
        summary={"last_slot": instant(ENDS)},
        **changes,
    )
    campaigns.create(there)
    return there


def reconcile(
    campaigns: CampaignStore, rows: CampaignRows, scheduler: FakeScheduler, templates: FakeTemplates, now: datetime
) -> Reconciled:
    reconciler = Reconciler(
        campaigns, rows, FakeBatches(), scheduler, FakeQueue(), FakeIdentity(), "Europe/Berlin", templates
    )
    (done,) = reconciler.run(Reconcile(campaign_id="advent"), now)
    return done


def test_a_direct_campaign_ends_when_nothing_is_left_to_come(campaigns: CampaignStore, rows: CampaignRows) -> None:
    """After the last slot, its window and every retry, and when its schedules are gone: group and templates go too."""
    there = dispatching(campaigns)
    scheduler = FakeScheduler({"campaign-advent-g1": {"1-ana": enrol(line()).schedules[0]}})
    templates = FakeTemplates(dict.fromkeys(("carillon-advent-1", "carillon-advent-2", "carillon-other-1")))
    over = ENDS + timedelta(seconds=direct.CREATION_LEAD + direct.latest(10) + 1)
    assert not reconcile(campaigns, rows, scheduler, templates, over).completed
    scheduler.vanish()
    assert not reconcile(campaigns, rows, scheduler, templates, over - timedelta(seconds=2)).completed
    assert campaigns.get("advent") == there
    assert len(templates.kept) == 3
    assert reconcile(campaigns, rows, scheduler, templates, over).completed
    assert campaigns.get("advent").state is CampaignState.COMPLETED
    assert set(templates.kept) == {"carillon-other-1"}
    assert scheduler.groups == {}


def test_what_scheduler_refused_stays_counted(campaigns: CampaignStore, rows: CampaignRows) -> None:
    """ConfirmFanOut has counted it, and there is no row that says more."""
    dispatching(campaigns, failed=3)
    done = reconcile(campaigns, rows, FakeScheduler(), FakeTemplates(), ENDS + timedelta(days=1))
    assert (done.completed, done.failed) == (True, 3)
    assert campaigns.get("advent").failed == 3


@pytest.mark.parametrize(
    ("state", "execution", "left"),
    [("failed", "ours", 1), ("aborted", "ours", 1), ("aborted", "another", 3), ("dispatching", "ours", 3)],
)
def test_a_broken_launch_leaves_no_template(campaigns: CampaignStore, state: str, execution: str, left: int) -> None:
    """What its schedules might still begin SES then refuses; who was overtaken takes nothing away."""
    dispatching(campaigns, execution="ours")
    campaigns._client.update_item(
        TableName="Campaigns",
        Key={"campaign_id": {"S": "advent"}},
        UpdateExpression="SET #s = :s",
        ExpressionAttributeNames={"#s": "state"},
        ExpressionAttributeValues={":s": {"S": state}},
    )
    templates = FakeTemplates(dict.fromkeys(("carillon-advent-1", "carillon-advent-2", "carillon-other-1")))
    direct.forget_broken(campaigns, templates, "advent", execution)
    direct.forget_broken(campaigns, templates, "unknown", execution)
    assert len(templates.kept) == left
