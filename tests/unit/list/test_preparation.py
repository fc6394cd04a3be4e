"""A preparation writes all of it or nothing that counts; a resume plans again what is left."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import pytest

from carillon import keys
from carillon.content.typesetting import FOOTING
from carillon.delivery import sequences
from carillon.errors import (
    CampaignStateConflict,
    IdentityNotVerified,
    ListRejected,
    PlanRefused,
    TemplateRejected,
)
from carillon.launch.enrolment import CREATION_LEAD
from carillon.launch.forecast import Quotas
from carillon.shapes import Plan, Prepare
from carillon.timing.ledger import others
from carillon.timing.pace import Pace, WarmUp
from carillon.transitions import CampaignState, TaskStatus

from .conftest import NOW, World, client

LIST = "email,name,zone,time\n" + "".join(f"p{n}@example.com,P{n},Europe/Berlin,09:30\n" for n in range(6))
TEMPLATE = f"<p>Dear {{{{ name }}}}</p>{FOOTING}"


def ready(world: World, **spec: Any) -> World:
    """A campaign with a list and a template, its pace out of the way."""
    world.campaign(**spec)
    world.upload(LIST)
    world.upload(TEMPLATE, "templates/news.html")
    world.set_pace(Pace(rate_per_second=100, daily_cap=100_000))
    return world


def step(kind: str = "asap", **rule: Any) -> dict[str, Any]:
    return {"template": "news.html", "subject": "Hi {{ name }}", "rule": {"kind": kind, **rule}}


def details(world: World) -> list[str]:
    """What the reject file says beside each reason."""
    return [row["detail"] for row in csv.DictReader(io.StringIO(world.read("rejects.csv")))]


def untouched(world: World) -> bool:
    """Nothing that a later state would trust: no summary, nobody enrolled, no manifest."""
    campaign = world.campaigns.get(world.campaign_id)
    return campaign.summary is None and campaign.enrolled == 0 and campaign.prepared is None


# What is written


def test_everybody_who_is_not_written_to_is_named_with_the_reason(world: World) -> None:
    """The reject file has line, reason and row; the summary counts the same."""
    ready(world)
    world.upload(
        "email,name\na@example.com,A\nA@Example.com,A\nnope,N\n,N\nb@example.com,\nc@example.com,C\nd@example.com,D\n"
        'x,"=1+1"\n'
    )
    world.suppressions.add(keys.address_hash("c@example.com"), "offers", "unsubscribed", NOW)
    world.suppressions.add(keys.address_hash("d@example.com"), "*", "bounced", NOW)
    world.suppressions.add(keys.address_hash("a@example.com"), "another-topic", "unsubscribed", NOW)

    result = world.prepare()

    assert (result.rows, result.valid, result.count) == (8, 1, 1)
    assert result.rejected == {
        "duplicate": 1, "invalid_address": 2, "missing_address": 1, "missing_value": 1, "suppressed": 2,
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(world.read("rejects.csv"))))
    assert [(row["line"], row["reason"]) for row in rows] == [
        ("3", "duplicate"), ("4", "invalid_address"), ("5", "missing_address"), ("6", "missing_value"),
        ("7", "suppressed"), ("8", "suppressed"), ("9", "invalid_address"),
    ]  # fmt: skip
    assert rows[-1]["name"] == "'=1+1"
    assert world.read("summary.json").startswith("{")


def test_the_recipients_are_a_table_that_athena_can_read(world: World, tmp_path: Any) -> None:
    """Every column of the header under a safe name, and the hash that reports join on; Parquet and nothing else."""
    ready(world)
    world.upload("E-Mail;Größe (cm);name\na@example.com;171;A\nb@example.com;;B\n")
    result = world.prepare()
    keys_there = [
        o["Key"]
        for o in world.objects._client.list_objects_v2(
            Bucket=result.bucket, Prefix="campaigns/advent/prepared/g1-a1/recipients/"
        )["Contents"]
    ]
    assert keys_there == ["campaigns/advent/prepared/g1-a1/recipients/recipients.parquet"]
    assert result.recipients_location == f"s3://{result.bucket}/campaigns/advent/prepared/g1-a1/recipients/"
    (tmp_path / "r.parquet").write_bytes(world.objects.read(keys_there[0]) or b"")
    table = duckdb.connect().sql(f"SELECT * FROM '{tmp_path / 'r.parquet'}'")
    assert table.columns == [c["Name"] for c in result.columns]
    assert table.columns[:3] == ["e_mail", "grosse_cm", "name"]
    assert [row[:5] for row in table.fetchall()] == [
        ("a@example.com", "171", "A", 2, "a@example.com"),
        ("b@example.com", None, "B", 3, "b@example.com"),
    ]


def test_the_list_is_kept_as_it_was_launched(world: World) -> None:
    """The version is pinned and copied: an upload while the launch runs changes nothing."""
    ready(world)
    result = world.prepare()
    world.upload("email,name\nother@example.com,O\n")
    assert world.read("source/list.csv") == LIST
    assert result.list_version != world.objects.version(keys.upload("advent", "list.csv"))


def test_the_first_slot_is_after_the_fan_out_can_have_finished(world: World) -> None:
    """No schedule is asked for too late for its minute."""
    ready(world)
    result = world.prepare()
    assert result.first_slot is not None
    assert datetime.fromisoformat(result.first_slot) >= NOW + timedelta(seconds=CREATION_LEAD + 30)


def test_local_time_is_each_recipients_own(world: World) -> None:
    """Nine in Berlin, New York and, for whoever has no zone, in the fallback; the time may come from a column."""
    rule = step("local_time", date="2026-12-01", time_column="time")
    ready(world, steps=[rule], list={"fallback_timezone": "Asia/Tokyo"})
    world.upload(
        "email,name,zone,time\na@example.com,A,Europe/Berlin,09:00\nb@example.com,B,America/New_York,9:30\n"
        "c@example.com,C,Nowhere,09:00\nd@example.com,D,Europe/Berlin,soon\ne@example.com,E,Europe/Berlin,\n"
    )
    result = world.prepare()
    slots = {line.address[0]: datetime.fromtimestamp(line.slot, UTC) for line in world.lines(world.first())}
    assert slots == {
        "a": datetime(2026, 12, 1, 8, 0, tzinfo=UTC),
        "b": datetime(2026, 12, 1, 14, 30, tzinfo=UTC),
        "c": datetime(2026, 12, 1, 0, 0, tzinfo=UTC),
    }
    assert result.rejected == {"invalid_time": 1, "missing_value": 1}
    assert details(world) == ["no time of day: time", "empty: time"]
    assert result.warnings == {"timezone_fallback": 1}


def test_targets_that_are_past_are_counted_and_go_the_next_day(world: World) -> None:
    """The plan says how many."""
    ready(world, steps=[step("at", at="2026-11-30T09:00:00Z")])
    result = world.prepare()
    assert result.past == 6
    assert result.first_slot == "2026-12-01T09:00:00Z"


def test_steps_share_one_capacity(world: World) -> None:
    """Two steps of six at four a day take three days, and every task is there once."""
    ready(
        world,
        steps=[step(), step()],
        pace={"per_day": 4, "weekdays": [1, 2, 3, 4, 5, 6, 7], "windows": [{"start": "12:00", "end": "16:00"}],
              "timezone": "UTC"},
    )  # fmt: skip
    result = world.prepare()
    lines = world.lines(world.first())
    assert result.count == len({line.task for line in lines}) == 12
    assert result.valid == 6
    assert [line.step for line in lines] == [1] * 6 + [2] * 6
    days = [datetime.fromtimestamp(line.slot, UTC).date() for line in lines]
    assert [days.count(date(2026, 11, 30) + timedelta(days=n)) for n in range(3)] == [4, 4, 4]


def test_cap_warm_up_and_what_has_gone_today_bound_each_day(world: World) -> None:
    """The settings' ramp day by day, and SES's own quota where that is less."""
    noon = {
        "per_day": 50,
        "weekdays": [*range(1, 8)],
        "windows": [{"start": "12:00", "end": "13:00"}],
        "timezone": "UTC",
    }
    ready(world, pace=noon)
    world.set_pace(Pace(rate_per_second=100, daily_cap=50, warm_up=(WarmUp(day=date(2026, 11, 30), cap=1),)))
    world.identities.of = replace(world.identities.of, max_24_hour_send=3)
    world.prepare()
    days = [datetime.fromtimestamp(line.slot, UTC).date() for line in world.lines(world.first())]
    assert [days.count(date(2026, 11, 30) + timedelta(days=n)) for n in range(3)] == [1, 3, 2]
    assert world.pace.read().max_24_hour_send == 3


def test_whoever_cannot_go_before_the_deadline_is_counted_and_not_enrolled(world: World) -> None:
    """Planned nowhere, and said so."""
    ready(world, not_after="2026-11-30T23:59:00Z")
    world.set_pace(Pace(rate_per_second=100, daily_cap=4))
    result = world.prepare()
    assert (result.count, result.unplanned) == (4, {"not_after": 2})
    assert world.campaigns.get("advent").enrolled == 4


# What is refused


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (None, "no_list: no list has been uploaded"),
        ("", "empty_file: "),
        ("email,name\n", "no_records: "),
        ("name,city\nAnn,Bonn\n", "no_address_column: "),
        ("email,name\nnobody,N\n,M\n",
         "no_valid_recipients: none of 2 rows can be written to (invalid_address: 1, missing_address: 1)."),
        (b"email,name\na@example.com,\x81\x8d\x8f\x90\n", "unknown_encoding: "),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_used_is_refused_and_nothing_is_left(
    world: World, content: str | bytes | None, cause: str
) -> None:
    """Cause and fix in the message; the campaign's record is as it was."""
    world.campaign()
    world.upload(TEMPLATE, "templates/news.html")
    if content is not None:
        world.upload(content)
    with pytest.raises(ListRejected) as refusal:
        world.prepare()
    assert str(refusal.value).startswith(cause)
    assert "@example.com" not in str(refusal.value)
    assert untouched(world)


def test_a_placeholder_that_no_column_fills_is_refused(world: World) -> None:
    """It names template, placeholder and columns, whichever step it is in."""
    ready(world, steps=[step(), {"template": "two.html", "subject": "x", "rule": {"kind": "asap"}}])
    world.upload("<p>{{ first_nmae }}</p>", "templates/two.html")
    with pytest.raises(TemplateRejected, match=r"'two.html'.* uses \{\{ first_nmae \}\}.*email, name, zone, time"):
        world.prepare()
    assert untouched(world)


def test_a_template_that_was_not_uploaded_or_is_no_text_is_refused(world: World) -> None:
    """The message names it."""
    world.campaign()
    world.upload(LIST)
    with pytest.raises(TemplateRejected, match=r"'news\.html' has not been uploaded"):
        world.prepare()
    world.upload(b"\xff\xfe<p>", "templates/news.html")
    with pytest.raises(TemplateRejected, match=r"'news\.html' is not UTF-8"):
        world.prepare()
    assert untouched(world)


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        ({}, "mail.shop.example is not registered"),
        ({"shop.example": False}, "the verification of shop.example is not complete"),
    ],
)
def test_an_identity_that_ses_does_not_know_is_refused(world: World, known: dict[str, bool], cause: str) -> None:
    """SES would refuse every single e-mail: it is said before anything is planned, with what to do."""
    ready(world, **{"from": "Shop <news@mail.shop.example>"})
    world.identities.known, world.sending_domain = known, "shop.example"
    with pytest.raises(IdentityNotVerified) as refusal:
        world.prepare()
    assert cause in str(refusal.value)
    assert "publish its DKIM records" in str(refusal.value)
    assert untouched(world)


@pytest.mark.parametrize("identity", ["news@mail.shop.example", "mail.shop.example", "shop.example"])
def test_an_address_its_domain_or_a_parent_of_it_may_be_what_is_verified(world: World, identity: str) -> None:
    """As SES has it: a verified domain covers its subdomains and their addresses."""
    ready(world, **{"from": "Shop <news@mail.shop.example>"})
    world.identities.known, world.sending_domain = {identity: True}, "shop.example"
    assert world.prepare().count == 6


def test_an_address_of_another_domain_than_the_stack_s_is_refused(world: World) -> None:
    """One stack sends for one domain: its role may send for no other, even if SES knows it."""
    ready(world, **{"from": "Shop <news@shop.example>"})
    world.identities.known, world.sending_domain = {"shop.example": True}, "example.com"
    with pytest.raises(IdentityNotVerified, match=r"for example\.com alone"):
        world.prepare()
    assert untouched(world)


def test_the_identity_is_asked_for_with_one_call_where_the_domain_is_verified(world: World) -> None:
    """SES answers one such question a second, so the likeliest comes first."""
    ready(world)
    world.prepare()
    assert world.identities.asked == ["example.com"]


def test_a_sender_without_an_address_is_refused(world: World) -> None:
    """The form of an address is not enough."""
    ready(world, **{"from": "Shop <a..b@shop.example>"})
    with pytest.raises(IdentityNotVerified, match="no address that mail can come from"):
        world.prepare()


def test_an_unknown_zone_rejects_the_row_that_has_it(world: World) -> None:
    """Without a fallback nobody can say when it is nine o'clock there; the others are planned."""
    ready(world, steps=[step("local_time", date="2026-12-01", time="09:00")])
    world.upload("email,name,zone\na@example.com,A,Europe/Berln\nb@example.com,B,PST\nc@example.com,C,Europe/Rome\n")
    result = world.prepare()
    assert result.rejected == {"invalid_timezone": 2}
    assert [line.timezone for line in world.lines(world.first())] == ["Europe/Rome"]


def test_a_plan_that_nobody_fits_into_is_refused(world: World) -> None:
    """Everybody after the deadline, or a pace of nothing: no launch without a single e-mail."""
    ready(world, not_after="2026-11-30T10:00:01Z")
    with pytest.raises(PlanRefused, match="not one of 6 e-mails can go before not_after"):
        world.prepare()
    assert untouched(world)


def test_a_pace_of_nothing_is_refused(world: World) -> None:
    """A daily cap of 0 is a setting to change, not a campaign that never ends."""
    ready(world)
    world.set_pace(Pace(rate_per_second=1, daily_cap=0))
    with pytest.raises(PlanRefused, match="daily cap"):
        world.prepare()
    assert untouched(world)


# Whose campaign it is


def test_a_campaign_that_is_not_this_launchs_is_left_alone(world: World) -> None:
    """Another generation, or another state: someone else decided."""
    ready(world)
    with pytest.raises(CampaignStateConflict):
        world.prepare(generation=2)
    assert untouched(world)


def test_a_cancel_while_the_list_is_read_leaves_nothing_behind(world: World) -> None:
    """The campaign is looked at again before anything is written that a fan-out reads."""
    ready(world)

    class Cancelling:
        def suppressed(self, pages: Any, count: int, topic: str) -> set[str]:
            world.campaigns.transition("advent", CampaignState.ENQUEUED, 1, CampaignState.CANCELLING, now=NOW)
            return set()

    preparation = world.preparation()
    object.__setattr__(preparation, "suppressions", Cancelling())
    with pytest.raises(CampaignStateConflict):
        preparation.prepare(Prepare(campaign_id="advent", generation=1))
    assert untouched(world)


def cancel_with_the_manifest(world: World) -> None:
    """Somebody cancels just as the manifest is written."""
    put = world.objects.put

    def put_and_cancel(key: str, content: bytes, content_type: str) -> str:
        if key.endswith("/manifest.jsonl"):
            world.campaigns.transition("advent", CampaignState.ENQUEUED, 1, CampaignState.CANCELLING, now=NOW)
        return put(key, content, content_type)

    world.objects.put = put_and_cancel  # type: ignore[method-assign]


def test_a_cancel_while_batches_are_written_is_not_overruled(world: World) -> None:
    """What was written stays unread: the record says cancelling, and nobody is enrolled."""
    ready(world)
    cancel_with_the_manifest(world)
    with pytest.raises(CampaignStateConflict):
        world.prepare()
    campaign = world.campaigns.get("advent")
    assert (campaign.state, campaign.summary, campaign.enrolled) == (CampaignState.CANCELLING, None, 0)


def test_preparing_again_answers_the_same_and_changes_nothing(world: World) -> None:
    """A lost reply makes the machine ask twice."""
    ready(world)
    first = world.prepare()
    world.now += timedelta(minutes=5)
    assert world.prepare() == first
    assert world.objects.version(first.manifest_key) == first.manifest_version


def test_of_two_preparations_of_one_generation_the_first_counts(world: World) -> None:
    """A lost reply and its retry at once: neither writes where the other does, and both answer the same."""
    ready(world)
    slower = world.preparation()
    put_all, others = slower.objects.put_all, []

    def overtaken(*given: Any) -> None:
        if not others:
            others.append(None)
            others.append(world.prepare())
        put_all(*given)

    world.objects.put_all = overtaken  # type: ignore[method-assign]
    assert slower.prepare(Prepare(campaign_id="advent", generation=1)) == others[1]
    campaign = world.campaigns.get("advent")
    assert campaign.prepared == "g1-a2"
    assert len(world.lines(others[1])) == campaign.enrolled == 6


def test_the_ledger_holds_what_the_preparation_that_counts_has_planned(world: World) -> None:
    """Another one, seven minutes later, took its capacity in place of the first one's, and then did not count."""
    ready(world)
    record, raced = world.campaigns.record_preparation, []

    def record_while_another_prepares(*given: Any, **said: Any) -> Any:
        if not raced:
            raced.append(None)
            world.now += timedelta(minutes=7)
            world.campaigns.record_preparation = first_then_second(given, said)  # type: ignore[method-assign]
            world.prepare()
        return record(*given, **said)

    def first_then_second(given: Any, said: Any) -> Any:
        return lambda *later, **other: (record(*given, **said), record(*later, **other))[1]

    world.campaigns.record_preparation = record_while_another_prepares  # type: ignore[method-assign]
    result = world.prepare()
    (day,) = world.ledger.read([date(2026, 11, 30)])
    planned = [line.slot // 60 for line in world.lines(result)]
    assert others([day], "").minutes.tolist() == sorted(set(planned))


# A resume


def resumed(world: World, after: timedelta) -> World:
    """The campaign aborted and launched again as generation 2, ``after`` its preparation."""
    world.now += after
    world.campaigns.transition("advent", CampaignState.ENQUEUED, 1, CampaignState.ABORTED, now=world.now)
    client("dynamodb").update_item(  # as ClaimCampaign does
        TableName="campaigns",
        Key={"campaign_id": {"S": "advent"}},
        UpdateExpression="SET #state = :enqueued, generation = :two",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={":enqueued": {"S": "enqueued"}, ":two": {"N": "2"}},
    )
    return world


def test_a_resume_plans_what_is_neither_sent_nor_being_sent(world: World) -> None:
    """The first manifest minus rows that are terminal or Running, from now on; enrolled stays what it was."""
    ready(world)
    first = world.prepare()
    tasks = [line.task for line in world.lines(world.first())]
    world.rows.tasks = {
        tasks[0]: TaskStatus.FINISHED,
        tasks[1]: TaskStatus.RUNNING,
        tasks[2]: TaskStatus.FAILED,
        tasks[3]: TaskStatus.CANCELLED,
        tasks[4]: TaskStatus.PENDING,
    }
    resumed(world, timedelta(hours=3))
    world.upload("email,name\nsomebody.else@example.com,S\n")

    result = world.prepare(generation=2)

    assert [line.task for line in world.lines(result)] == tasks[4:]
    assert [line.input for line in world.lines(result)] == [{"name": "P4"}, {"name": "P5"}]
    assert min(line.slot for line in world.lines(result)) > world.now.timestamp()
    assert (result.count, result.valid) == (2, first.valid)
    campaign = world.campaigns.get("advent")
    assert campaign.enrolled == first.count
    assert campaign.summary is not None
    assert campaign.summary["manifest_key"] == result.manifest_key == keys.manifest("advent", "g2-a2")


def test_a_resume_keeps_each_recipients_own_time(world: World) -> None:
    """What is past by then takes the next day, at the wall time that the list gave."""
    ready(world, steps=[step("local_time", date="2026-12-01", time_column="time")])
    world.upload("email,name,zone,time\na@example.com,A,Europe/Berlin,09:00\nb@example.com,B,Asia/Tokyo,21:15\n")
    world.prepare()
    resumed(world, timedelta(days=1, hours=1))
    result = world.prepare(generation=2)
    slots = {line.address[0]: datetime.fromtimestamp(line.slot, UTC) for line in world.lines(result)}
    assert slots == {
        "a": datetime(2026, 12, 2, 8, 0, tzinfo=UTC),
        "b": datetime(2026, 12, 1, 12, 15, tzinfo=UTC),
    }
    assert result.past == 1


def test_a_resume_after_the_deadline_lets_the_sender_say_so(world: World) -> None:
    """Those tasks are enrolled and must end: they are due right after it, and fail with DeadlinePassed."""
    ready(world, not_after="2026-11-30T12:00:00Z")
    world.prepare()
    resumed(world, timedelta(hours=1, minutes=59))
    result = world.prepare(generation=2)
    due = int(datetime(2026, 11, 30, 12, 0, 1, tzinfo=UTC).timestamp())
    assert {line.slot for line in world.lines(result)} == {due}
    assert (result.count, result.unplanned) == (6, {"not_after": 6})


def test_a_resume_with_nobody_left_says_so(world: World) -> None:
    """An empty manifest: the machine asks whether anyone is left."""
    ready(world)
    world.prepare()
    world.rows.tasks = {line.task: TaskStatus.FINISHED for line in world.lines(world.first())}
    resumed(world, timedelta(hours=1))
    result = world.prepare(generation=2)
    assert (result.count, result.batches, result.first_slot) == (0, 0, None)


def test_a_launch_that_broke_before_anything_counted_is_prepared_from_the_list(world: World) -> None:
    """Nobody was enrolled, so the next generation reads the list as it is now, and that is what is enrolled."""
    ready(world)
    resumed(world, timedelta(hours=1))
    result = world.prepare(generation=2)
    assert result.count == 6
    assert world.campaigns.get("advent").enrolled == 6
    assert len(world.lines(result)) == 6


# Rules, segments and orders


def at(day: int, hour: int, minute: int = 0) -> int:
    """An instant of December 2026 (UTC) as epoch seconds."""
    return int(datetime(2026, 12, day, hour, minute, tzinfo=UTC).timestamp())


def test_a_date_column_says_when_and_what_cannot_be_read_is_rejected(world: World) -> None:
    """Three days before, at nine in each recipient's own zone; dates as people write them."""
    ready(world, steps=[step("column", column="renewal", offset="-P3D", time="09:00")])
    world.upload(
        "email,name,zone,renewal\na@example.com,A,Europe/Berlin,2026-12-24\nb@example.com,B,Asia/Tokyo,24.12.2026\n"
        "c@example.com,C,Europe/Berlin,12/24/2026\nd@example.com,D,Europe/Berlin,\n"
    )
    result = world.prepare()
    assert {line.address[0]: line.slot for line in world.lines(world.first())} == {"a": at(21, 8), "b": at(21, 0)}
    assert result.rejected == {"invalid_date": 1, "missing_value": 1}
    assert details(world) == ["no clear date: renewal", "empty: renewal"]


def test_a_date_without_a_time_of_day_needs_one_from_the_rule(world: World) -> None:
    """A date-time has its own."""
    ready(world, steps=[step("column", column="due")])
    world.upload("email,name,zone,due\na@example.com,A,UTC,2026-12-24 10:30\nb@example.com,B,UTC,2026-12-24\n")
    result = world.prepare()
    assert [line.slot for line in world.lines(world.first())] == [at(24, 10, 30)]
    assert result.rejected == {"invalid_time": 1}
    assert details(world) == ["no time of day: due"]


def test_who_is_outside_the_segment_is_counted_and_not_rejected(world: World) -> None:
    """And whoever's first row is outside is not a duplicate in the second."""
    ready(world, list={"segment": "country = 'DE' AND CAST(seen AS DATE) > current_date - 30"})
    world.upload(
        "email,name,country,seen\na@example.com,A,FR,2026-11-29\na@example.com,A,DE,2026-11-29\n"
        "b@example.com,B,DE,2026-01-01\nc@example.com,C,DE,2026-11-15\n"
    )
    result = world.prepare()
    assert (result.valid, result.outside_segment, result.rejected) == (2, 2, {})
    assert "outside_segment" not in world.read("rejects.csv")


def test_a_condition_that_reaches_outside_the_list_is_refused(world: World) -> None:
    """Before anything is written."""
    ready(world, list={"segment": "name IN (SELECT name FROM read_csv('/etc/passwd'))"})
    with pytest.raises(ListRejected, match="invalid_segment"):
        world.prepare()
    assert untouched(world)


def test_mailbox_providers_are_interleaved_and_an_order_column_goes_first(world: World) -> None:
    """By default no provider gets a burst; with an order the numbers decide, empty ones last, NaN too."""
    rows = [("a", "big.example", 3), ("b", "big.example", ""), ("c", "big.example", 20), ("d", "small.example", 1)]
    content = "email,name,score\n" + "".join(f"{name}@{domain},N,{score}\n" for name, domain, score in rows)
    ready(world)
    world.set_pace(Pace(rate_per_second=1, daily_cap=100))
    world.upload(content)
    world.prepare()
    assert [line.address[0] for line in world.lines(world.first())] == ["a", "b", "d", "c"]
    other = World(campaign_id="ordered")
    ready(other, order={"column": "score", "direction": "descending"})
    world.set_pace(Pace(rate_per_second=1, daily_cap=100))
    other.upload(content + "e@big.example,N,NaN\n")
    other.prepare()
    assert [line.address[0] for line in other.lines(other.first())] == ["c", "a", "d", "b", "e"]


def test_what_is_past_is_skipped_where_the_campaign_says_so(world: World) -> None:
    """Valid = planned + skipped, and nobody is enrolled whom nobody wants to write to any more."""
    ready(world, steps=[step("local_time", date="2026-11-30", time="12:00")], if_late="skip")
    world.upload("email,name,zone\na@example.com,A,Europe/Berlin\nb@example.com,B,Asia/Tokyo\n")
    result = world.prepare()
    assert (result.valid, result.count, result.past, result.unplanned) == (2, 1, 1, {"past": 1})
    assert world.campaigns.get("advent").enrolled == 1


def test_quiet_hours_hold_in_each_recipients_zone(world: World) -> None:
    """As soon as possible means the morning for whom it is night."""
    ready(world, quiet_hours={"start": "18:00", "end": "08:00"})
    world.upload("email,name,zone\na@example.com,A,Europe/Berlin\nb@example.com,B,Asia/Tokyo\n")
    world.prepare()
    slots = {line.address[0]: line.slot for line in world.lines(world.first())}
    assert slots["a"] < NOW.timestamp() + 600
    assert slots["b"] == int(datetime(2026, 11, 30, 23, 0, tzinfo=UTC).timestamp())


def test_templates_get_the_recipients_locale_and_zone(world: World) -> None:
    """The column's, or the fallback; a filter that writes for somebody finds them among the data."""
    ready(world, list={"locale_column": "lang", "fallback_locale": "fr"})
    world.upload(
        "email,name,lang,zone,due\na@example.com,A,de-AT,Europe/Vienna,2026-12-24\nb@example.com,B,,,2026-12-24\n"
    )
    world.upload(f"<p>{{{{ name }}}} {{{{ due | date }}}}</p>{FOOTING}", "templates/news.html")
    world.prepare()
    data = {line.address[0]: line.input for line in world.lines(world.first())}
    assert (data["a"]["recipient_locale"], data["a"]["recipient_timezone"]) == ("de_AT", "Europe/Vienna")
    assert (data["b"]["recipient_locale"], "recipient_timezone" in data["b"]) == ("fr", False)


def test_an_enrichment_s_names_count_as_known_and_carry_no_data(world: World) -> None:
    """The function gives them when the e-mail is sent."""
    ready(world, enrichment={"function": "carillon-enrichment-points", "provides": ["points"]})
    world.upload(f"<p>{{{{ name }}}} {{{{ points }}}}</p>{FOOTING}", "templates/news.html")
    world.prepare()
    assert [*world.lines(world.first())[0].input] == ["name"]


# Sequences


def sequence(world: World) -> World:
    """Three steps: the second two days after the first, the third on its own."""
    ready(
        world,
        steps=[
            step("at", at="2026-12-01T09:00:00Z"),
            {"template": "two.html", "subject": "x", "rule": {"kind": "after_previous", "offset": "P2D"}},
            {"template": "two.html", "subject": "x", "rule": {"kind": "at", "at": "2026-12-20T09:00:00Z"}},
        ],
    )
    world.upload("email,name,city,zone\na@example.com,A,Aachen,UTC\nb@example.com,B,Bonn,UTC\n")
    world.upload(f"<p>{{{{ city }}}}</p>{FOOTING}", "templates/two.html")
    return world


def test_a_step_that_follows_waits_with_a_forecast_and_the_one_before_has_its_data(world: World) -> None:
    """Whoever finishes step 1 has all that step 2 needs."""
    sequence(world)
    assert world.prepare().count == 6
    by_step: dict[int, list[Any]] = {1: [], 2: [], 3: []}
    for line in world.lines(world.first()):
        by_step[line.step].append(line)
    assert [(line.waits, line.slot) for line in by_step[2]] == [(True, at(3, 9)), (True, at(3, 9))]
    assert not any(line.waits for line in by_step[1] + by_step[3])
    released_by = {n: [*sequences.following(world.campaigns.get(world.campaign_id).spec, n)] for n in by_step}
    assert released_by == {1: [2], 2: [], 3: []}, "the sender numbers steps as the batches do"
    assert by_step[1][0].input == {"city": "Aachen", "name": "A"}
    assert by_step[2][0].input == by_step[3][0].input == {"city": "Aachen"}


def test_a_resume_keeps_who_waits_and_plans_who_was_released(world: World) -> None:
    """Released: not waiting any more, at the later of its slot and now; the other still waits for its step before."""
    sequence(world)
    world.prepare()
    first_a, first_b = (line.task for line in world.lines(world.first()) if line.step == 1)
    second_a, second_b = (f"2-{task.partition('-')[2]}" for task in (first_a, first_b))
    world.rows.tasks = {first_a: TaskStatus.FINISHED, second_a: TaskStatus.PENDING, second_b: TaskStatus.PENDING}
    world.rows.slots, world.rows.waiting = {second_a: at(3, 11)}, {second_b}
    resumed(world, timedelta(days=1, hours=1))
    result = world.prepare(generation=2)
    second = {line.task: (line.waits, line.slot) for line in world.lines(result) if line.step == 2}
    assert second[second_a] == (False, at(3, 11))
    # The first step to b goes a day late, at 09:00 of the 2nd.
    assert second[second_b] == (True, at(4, 9))
    assert first_a not in [line.task for line in world.lines(result)]


def test_whom_a_resume_would_skip_is_cancelled(world: World) -> None:
    """The campaign says that late is worthless: the row says so, and nobody is written to. Also whom the fan-out that
    broke had not reached: without a row for everybody the campaign would never be complete."""
    ready(world, steps=[step("at", at="2026-12-01T09:00:00Z")], if_late="skip")
    world.prepare()
    tasks = [line.task for line in world.lines(world.first())]
    world.rows.tasks = dict.fromkeys(tasks[:4], TaskStatus.PENDING) | {tasks[4]: TaskStatus.FINISHED}
    resumed(world, timedelta(days=2))
    assert world.prepare(generation=2).count == 0
    cancelled = dict.fromkeys(tasks, TaskStatus.CANCELLED)
    assert world.rows.tasks == cancelled | {tasks[4]: TaskStatus.FINISHED}


# What others have taken


def test_two_campaigns_never_take_the_same_capacity(world: World) -> None:
    """The second gets what the first has left of the day's cap, and a cancel would give back exactly its own."""
    ready(world)
    world.set_pace(Pace(rate_per_second=100, daily_cap=8))
    world.prepare()
    other = World(campaign_id="other")
    other.campaign()
    other.upload(LIST)
    other.upload(TEMPLATE, "templates/news.html")
    other.prepare()
    days = [datetime.fromtimestamp(line.slot, UTC).date() for line in other.lines(other.first())]
    assert [days.count(date(2026, 11, 30) + timedelta(days=n)) for n in range(2)] == [2, 4]
    (entry,) = world.ledger.read([date(2026, 11, 30)])
    assert sorted(entry.takers) == ["advent", "other"]


def test_a_preparation_that_does_not_count_gives_back_what_it_took(world: World) -> None:
    """A cancel came while batches were written: nobody else has to plan around it."""
    ready(world)
    cancel_with_the_manifest(world)
    with pytest.raises(CampaignStateConflict):
        world.prepare()
    assert not any(day.takers for day in world.ledger.read([date(2026, 11, 30)]))


def test_a_preparation_that_breaks_gives_back_what_it_took(world: World) -> None:
    """A failed campaign cannot be cancelled, so nobody else would."""
    ready(world)

    def broken(*given: Any) -> None:
        raise OSError("no space left on device")

    world.objects.put_all = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        world.prepare()
    assert not any(day.takers for day in world.ledger.read([date(2026, 11, 30)]))


# The account


@pytest.mark.parametrize(
    ("account", "cause"),
    [
        ({"production": False}, "request production access"),
        ({"enabled": False}, "SES has paused sending"),
        ({"max_send_rate": 14.0}, "rate_per_second to 14 or less, or request a Sending rate of 100"),
    ],
)
def test_an_account_that_cannot_send_this_is_refused_with_what_to_request(
    world: World, account: dict[str, Any], cause: str
) -> None:
    """Nothing is launched that SES would refuse, and nothing taken; a dry run shows the plan all the same."""
    ready(world)
    world.set_pace(Pace(rate_per_second=100, daily_cap=100_000))
    world.identities.of = replace(world.identities.of, **account)
    with pytest.raises(PlanRefused, match=cause):
        world.prepare()
    assert untouched(world)
    assert not any(day.takers for day in world.ledger.read([date(2026, 11, 30)]))


def test_a_plan_across_midnight_fits_the_quota_of_any_24_hours(world: World) -> None:
    """Of six the day's cap would let five go before midnight and one after: SES would turn that one away."""
    ready(world)
    world.set_pace(Pace(rate_per_second=100, daily_cap=100_000))
    world.identities.of = replace(world.identities.of, max_24_hour_send=5)
    world.now = datetime.fromisoformat("2026-11-30T23:59:50Z")
    world.prepare()
    slots = sorted(line.slot for line in world.lines(world.first()))
    assert 86_400 <= slots[5] - slots[0] < 86_400 + 120
    assert slots[4] - slots[0] < 60


def test_more_schedules_than_the_account_may_have_are_refused(world: World) -> None:
    """With the quota's name and the number to ask for."""
    ready(world)
    world.quotas = Quotas(schedules=5)
    with pytest.raises(PlanRefused, match=r"needs 6 and the quota is 5: request a quota increase .* to at least 6"):
        world.prepare()


def test_a_slot_beyond_the_stacks_retention_is_refused(world: World) -> None:
    """Rows are gone by then: DynamoDB deletes them some time after expires_at, and the sender would find none."""
    beyond = datetime.fromtimestamp(1_900_000_000, UTC) + timedelta(days=1)
    ready(world, steps=[step("at", at=beyond.isoformat())])
    with pytest.raises(PlanRefused, match=r"keeps the campaign until 2030-03-17T17:46:40Z: .* raise RetentionDays"):
        world.prepare()
    assert untouched(world)
    assert sum("RetentionDays" in refusal for refusal in dry(world).refusals) == 1


def test_a_sender_without_a_postal_address_is_refused(world: World) -> None:
    """It says where to set it."""
    ready(world)
    world.postal_address = None
    with pytest.raises(PlanRefused, match="PUT /settings/sender"):
        world.prepare()
    assert untouched(world)


def test_a_template_without_a_way_out_is_refused(world: World) -> None:
    """With what can be pasted."""
    ready(world)
    world.upload("<p>{{ name }}</p>", "templates/news.html")
    with pytest.raises(TemplateRejected, match="unsubscribe_url"):
        world.prepare()
    assert untouched(world)


def test_more_e_mails_than_one_preparation_does_are_refused_with_the_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its 15 minutes are over, and with the fix."""
    monkeypatch.setattr("carillon.launch.roster.MOST_TASKS", 10)
    ready(world, steps=[step(), step()])
    with pytest.raises(ListRejected, match=r"too_many_rows: 6 rows in 2 steps make 12 e-mails.*at most 5 rows"):
        world.prepare()


# A dry run


def dry(world: World, now: str = "2026-11-30T10:00:00Z") -> Plan:
    """A plan of a campaign that was created and not launched."""
    client("dynamodb").update_item(
        TableName="campaigns",
        Key={"campaign_id": {"S": "advent"}},
        UpdateExpression="SET #state = :created, generation = :none",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={":created": {"S": "created"}, ":none": {"N": "0"}},
    )
    return world.preparation().plan(Prepare(campaign_id="advent", generation=1, plan=True, now=now))


def launched(world: World, expected: str) -> Any:
    """The launch of that campaign, bound to a plan."""
    client("dynamodb").update_item(
        TableName="campaigns",
        Key={"campaign_id": {"S": "advent"}},
        UpdateExpression="SET #state = :enqueued, generation = :one",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={":enqueued": {"S": "enqueued"}, ":one": {"N": "1"}},
    )
    return world.preparation().prepare(Prepare(campaign_id="advent", generation=1, expected=expected))


def test_a_plan_is_what_the_launch_then_does(world: World) -> None:
    """The same counts and slots; until then nothing is taken, enrolled or prepared."""
    ready(world, steps=[step("local_time", date="2026-12-01", time_column="time")])
    plan = dry(world)
    campaign = world.campaigns.get("advent")
    assert (campaign.plan, campaign.prepared, campaign.summary) == (plan.model_dump(), None, None)
    assert not any(day.takers for day in world.ledger.read([date(2026, 12, 1)]))
    assert plan.refusals == []
    nine_thirty = [0] * 9 + [6] + [0] * 14
    assert plan.histogram.local == {"2026-12-01": nine_thirty}
    assert world.objects.read(plan.rejects_key) is not None
    stored = world.objects.read(plan.rejects_key.replace("rejects.csv", "plan.json")) or b""
    assert Plan.model_validate_json(stored) == plan
    result = launched(world, plan.hash)
    assert (result.count, result.first_slot, result.last_slot) == (plan.planned, plan.first_slot, plan.last_slot)


def test_a_launch_that_is_not_what_was_planned_is_refused_by_name(world: World) -> None:
    """The list and the template changed since; and a hash that nobody has seen is refused as well."""
    ready(world)
    plan = dry(world)
    world.upload(LIST + "late@example.com,L,UTC,09:00\n")
    world.upload(TEMPLATE + "<p>!</p>", "templates/news.html")
    with pytest.raises(PlanRefused, match=r"the list and template 'news\.html' changed"):
        launched(world, plan.hash)
    with pytest.raises(PlanRefused, match="not the campaign's newest"):
        launched(world, "0" * 64)
    assert untouched(world)


def test_a_launch_bound_to_a_plan_before_one_that_failed_is_refused_in_words(world: World) -> None:
    """The record says why the newest plan failed, and not what it was."""
    ready(world)
    plan = dry(world)
    failed = {"error": {"code": "ListRejected", "message": "no_list"}}
    world.campaigns.record_plan("advent", failed, now=NOW)
    world.upload(LIST + "late@example.com,L,UTC,09:00\n")
    with pytest.raises(PlanRefused, match="not the campaign's newest"):
        launched(world, plan.hash)


def test_a_plan_shows_what_a_launch_would_be_refused_for(world: World) -> None:
    """Sandbox, identity, quota and imprint, each with the fix, beside the plan."""
    ready(world)
    world.identities.of = replace(world.identities.of, production=False, max_send_rate=1.0)
    world.identities.known = {}
    world.postal_address = " "
    plan = dry(world)
    assert plan.planned == 6
    for fix in ("production access", "DKIM", "PUT /settings/sender", "Sending rate of 100"):
        assert sum(fix in refusal for refusal in plan.refusals) == 1


def test_a_campaign_that_was_launched_is_not_planned(world: World) -> None:
    """What it did is in its summary."""
    ready(world)
    with pytest.raises(CampaignStateConflict):
        world.preparation().plan(Prepare(campaign_id="advent", generation=1, plan=True))


def test_the_same_list_spec_and_now_give_the_same_bytes(world: World) -> None:
    """Every object but for the preparation's own name: a plan can be compared, and a retry changes nothing."""
    ready(world, steps=[step(), step("at", at="2026-12-01T09:00:00Z")])
    found = []
    put = world.objects.put
    for _ in range(2):
        written: dict[str, bytes] = {}

        def keep(key: str, content: bytes, kind: str, written: dict[str, bytes] = written) -> str:
            written[key] = content
            return put(key, content, kind)

        world.objects.put = keep  # type: ignore[method-assign]
        made = replace(world.preparation(), nonce=lambda: "same")
        made.prepare(Prepare(campaign_id="advent", generation=1, now="2026-11-30T10:00:00Z"))
        found.append({key: content for key, content in written.items() if not key.endswith("summary.json")})
        client("dynamodb").update_item(
            TableName="campaigns",
            Key={"campaign_id": {"S": "advent"}},
            UpdateExpression="REMOVE prepared, prepared_generation, summary",
        )
    assert found[0] == found[1]
    assert any("/batches/" in key for key in found[0])
