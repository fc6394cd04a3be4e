"""The direct route, end to end: Scheduler calls SES by itself, and SES keeps the templates while the campaign lasts."""

from __future__ import annotations

import time
from email import message_from_bytes

import pytest

from carillon.launch import direct
from local.deployment import Refused
from local.ses.mailbox import accepted
from tests.local.end_to_end.stage import FOOT, csv, people

TEMPLATE = b"<html><body><h1>Hello {{ first_name }}</h1>" + FOOT + b"</body></html>"


def templates(stage, campaign):
    """The names of the campaign's templates that SES keeps."""
    found = stage.stack.client("sesv2").list_email_templates(PageSize=100)["TemplatesMetadata"]
    return [kept["TemplateName"] for kept in found if kept["TemplateName"].startswith(f"carillon-{campaign}-")]


def schedules(stage, campaign):
    """The schedules that are left."""
    client = stage.stack.client("scheduler")
    pages = client.get_paginator("list_schedules").paginate(GroupName=f"campaign-{campaign}-g1")
    return [schedule["Name"] for page in pages for schedule in page["Schedules"]]


def test_a_direct_campaign_mails_everybody_once_and_ends(stage):
    """Thirty people: each gets one, with tags, headers and a link of their own; then group and templates are gone."""
    addresses = people(30, "direct")
    campaign = stage.create(csv(addresses), route="direct", html=TEMPLATE, subject="Hi {{ first_name }}")
    launched = stage.launch(campaign, "dispatching")
    assert launched["enrolled"] == 30
    assert list(stage.stack.rows(campaign)) == []
    assert templates(stage, campaign) == [f"carillon-{campaign}-1"]
    (name, *others) = schedules(stage, campaign)
    assert len(others) == 29
    made = stage.stack.client("scheduler").get_schedule(Name=name, GroupName=f"campaign-{campaign}-g1")
    assert made["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:sesv2:sendEmail"
    assert made["FlexibleTimeWindow"] == {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 1}
    for refused in ("pause", "resume"):
        with pytest.raises(Refused, match="direct route"):
            stage.api.call("POST", f"/campaigns/{campaign}/{refused}")

    stage.to(stage.stack.slots(campaign)[-1])
    for _ in range(4):
        stage.cloud.advance(60)
        time.sleep(0.5)
    stage.until(lambda: sum(stage.mails(campaign).values()), 30)
    assert stage.mails(campaign) == dict.fromkeys(addresses, 1)
    mails = [mail for mail in accepted(stage.cloud.directory / "mailbox") if mail["tags"]["campaign"] == campaign]
    assert len({mail["tags"]["task"] for mail in mails}) == 30
    assert {mail["tags"]["step"] for mail in mails} == {"1"}
    assert {mail["configuration_set"] for mail in mails} == {stage.stack.outputs["ConfigurationSet"]}
    slots = {line["task"]: line["slot"] for line in stage.stack.batch_lines(campaign)}
    links = set()
    for mail in mails:
        raw = message_from_bytes((stage.cloud.directory / "mailbox" / mail["eml"]).read_bytes())
        assert raw["Subject"] == "Hi Reader"
        assert raw["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        links.add(raw["List-Unsubscribe"])
        html = raw.get_payload()[-1].get_payload(decode=True).decode()
        assert "<h1" in html
        assert "Hello Reader" in html
        assert raw["List-Unsubscribe"].strip("<>") in html
        assert "{{" not in html
        assert mail["accepted_at"] >= slots[mail["tags"]["task"]]
    assert len(links) == 30

    stage.cloud.advance(direct.CREATION_LEAD + direct.latest(30))
    stage.stack.invoke("ReconcileTasksFunction", {"campaign_id": campaign})
    assert stage.api.get(campaign)["state"] == "completed"
    assert templates(stage, campaign) == []


def test_a_cancel_stops_what_scheduler_still_holds(stage):
    """Half of it an hour later: once it says cancelled nothing more is accepted, and SES keeps no template."""
    addresses = people(30, "direct-cancel")
    stage.pace(rate_per_second=1)
    campaign = stage.create(csv(addresses), route="direct", html=TEMPLATE)
    stage.launch(campaign, "dispatching")
    stage.pace()
    first = stage.stack.slots(campaign)[0]
    stage.to(first - first % 60 + 60)
    time.sleep(1)
    stage.api.call("POST", f"/campaigns/{campaign}/cancel")
    stage.api.wait(campaign, "cancelled")
    acknowledged = stage.mails(campaign)
    for _ in range(4):
        stage.cloud.advance(900)
        time.sleep(0.5)
    assert stage.mails(campaign) == acknowledged
    assert len(acknowledged) < len(addresses)
    assert templates(stage, campaign) == []
