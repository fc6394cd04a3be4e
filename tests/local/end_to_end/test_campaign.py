"""A whole campaign on the real template, machines and functions; e-mails are counted where SES accepted them."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta

import pytest
import requests

from carillon.launch import enrolment
from carillon.shapes import BatchLine
from local.demo.recipients import FALLBACK_ZONE, make
from local.deployment import Refused
from tests.local.end_to_end.stage import csv, people


@pytest.fixture(scope="module")
def rung(stage):
    """A campaign over twelve zones, nine o'clock for each, run to its end."""
    recipients = make(120, seed=1)
    for address in recipients.suppressed:
        stage.suppress(address)
    day = (stage.cloud.clock.now() + timedelta(days=2)).date()
    campaign = stage.create(
        recipients.content,
        {"kind": "local_time", "date": day.isoformat(), "time": "09:00"},
        list={"fallback_timezone": FALLBACK_ZONE},
        subject="{{ first_name | default('Good morning') }} to {{ last_name }}",
    )
    launched = stage.launch(campaign)
    assert launched["state"] == "dispatching", launched["error"]
    stage.ring(campaign)
    return campaign, recipients


def test_each_valid_recipient_gets_exactly_one_and_nobody_else_any(stage, rung):
    """Exactly one e-mail for every valid address of a faulty list, and none for any other."""
    campaign, recipients = rung
    assert stage.mails(campaign) == dict.fromkeys(recipients.valid, 1)


def test_balance_is_counted_against_the_manifest(stage, rung):
    """Every enrolled task is in exactly one status, and all of them are Finished."""
    campaign, recipients = rung
    outcome = stage.stack.outcome(campaign)
    assert outcome.enrolled == len(recipients.valid)
    assert outcome.balance
    assert outcome.settled == outcome.enrolled


def test_nobody_is_mailed_before_nine_in_their_own_zone(stage, rung):
    """Each e-mail was accepted at or after its recipient's slot, and within the same few minutes."""
    campaign, _ = rung
    slots = {row["task"]: int(row["slot"]) for row in stage.stack.rows(campaign)}
    for mail in _journal(stage, campaign):
        assert mail["accepted_at"] >= slots[mail["tags"]["task"]]
        assert mail["accepted_at"] < slots[mail["tags"]["task"]] + 300


def test_a_message_delivered_again_sends_nothing(stage, rung):
    """Every message of the campaign comes a second and a third time: not one e-mail more."""
    campaign, _ = rung
    before = stage.mails(campaign)
    for line in _lines(stage, campaign)[:30]:
        schedule = enrolment.schedule_for(campaign, 1, BatchLine.model_validate(line), "queue")
        body = json.loads(schedule.input)["MessageBody"]
        stage.send(body)
        stage.send(body)
    stage.quiet()
    assert stage.mails(campaign) == before


def test_rejected_records_are_in_the_reject_file_with_a_reason(stage, rung):
    """Whoever is not mailed can be found, with the line and why."""
    campaign, recipients = rung
    summary = stage.api.get(campaign)["summary"]
    rejected = dict(summary["rejected"])
    assert rejected.pop("suppressed") == len(recipients.suppressed)
    assert sum(rejected.values()) == recipients.rejects
    answer = requests.get(stage.api.call("GET", f"/campaigns/{campaign}/rejects")["url"], timeout=30)
    answer.raise_for_status()
    text = answer.content.decode("utf-8-sig")
    assert all(reason in text for reason in rejected)


def test_the_list_is_registered_with_its_own_columns(stage, rung):
    """Athena can ask the recipients by the columns of the list's header."""
    campaign, _ = rung
    table = stage.stack.client("glue").get_table(
        DatabaseName=stage.stack.outputs["GlueDatabase"], Name="recipients_" + campaign.replace("-", "_")
    )["Table"]
    names = [column["Name"] for column in table["StorageDescriptor"]["Columns"]]
    assert {"email", "first_name", "time_zone", "score"} <= set(names)


def test_events_reach_the_archive_gzipped_by_day(stage, rung):
    """A Send event for each e-mail lies under events/day=…, as JSON lines that gzip opens."""
    campaign, recipients = rung
    stage.cloud.advance(900)
    s3, bucket = stage.stack.client("s3"), stage.stack.outputs["BucketName"]

    def sends() -> int:
        found = set()
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="events/day="):
            for item in page.get("Contents", []):
                body = gzip.decompress(s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read())
                for event in map(json.loads, body.splitlines()):
                    if event["eventType"] == "Send" and event["mail"]["tags"]["campaign"] == [campaign]:
                        found.add(event["mail"]["messageId"])
        return len(found)

    stage.until(sends, len(recipients.valid))
    assert sends() == len(recipients.valid)


def test_a_finished_campaign_is_closed_and_cannot_be_launched_or_cancelled(stage, rung):
    """The reconciler closes it and deletes its group; a launch and a cancel are refused with what is the case."""
    campaign, _ = rung
    stage.stack.invoke("ReconcileTasksFunction", {"campaign_id": campaign})
    assert stage.api.get(campaign)["state"] == "completed"
    for verb in ("launch", "resume", "cancel"):
        with pytest.raises(Refused) as refused:
            stage.api.call("POST", f"/campaigns/{campaign}/{verb}")
        assert refused.value.status == 409
        assert "completed" in refused.value.problem["detail"]
    assert stage.api.get(campaign)["state"] == "completed"


def test_a_second_launch_leaves_the_running_campaign_as_it_is(stage):
    """Launched twice, by the API and by the console: one generation, one e-mail each."""
    addresses = people(20, "twice")
    campaign = stage.create(csv(addresses))
    stage.launch(campaign, "dispatching")
    with pytest.raises(Refused) as refused:
        stage.api.call("POST", f"/campaigns/{campaign}/launch")
    assert refused.value.status == 409
    states = stage.stack.client("stepfunctions")
    second = states.start_execution(
        stateMachineArn=stage.stack.outputs["LaunchCampaignArn"], input=json.dumps({"campaign_id": campaign})
    )["executionArn"]
    stage.until(lambda: states.describe_execution(executionArn=second)["status"] == "FAILED", True)
    assert stage.api.get(campaign)["generation"] == 1
    assert stage.api.get(campaign)["state"] == "dispatching"
    stage.ring(campaign)
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)


def _journal(stage, campaign):
    from local.ses.mailbox import accepted

    return [mail for mail in accepted(stage.cloud.directory / "mailbox") if mail["tags"]["campaign"] == campaign]


def _lines(stage, campaign):
    return stage.stack.batch_lines(campaign)
