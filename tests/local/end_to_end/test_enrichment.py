"""Enrichment: a function of the account is asked for values before rendering, as the sender's role may ask it."""

from __future__ import annotations

import email
import io
import json
import zipfile
from email import policy

import pytest

from local.ses.mailbox import accepted
from tests.local.end_to_end.stage import FOOT, csv, people

FUNCTION = "carillon-enrichment-points"
CODE = """
def handler(event, context):
    asked = event["recipients"]
    return {each["task"]: {"points": each["columns"]["first_name"] + "-7"} for each in asked}
"""
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


@pytest.fixture(scope="module")
def function(stage):
    """A function that knows everybody's points."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", CODE)
    iam = stage.stack.client("iam")
    role = iam.create_role(RoleName="points", AssumeRolePolicyDocument=json.dumps(TRUST))["Role"]["Arn"]
    stage.stack.client("lambda").create_function(
        FunctionName=FUNCTION,
        Runtime="python3.13",
        Role=role,
        Handler="app.handler",
        Code={"ZipFile": packed.getvalue()},
        Timeout=5,
    )
    return FUNCTION


def send(stage, readers, **enrichment):
    """A campaign whose e-mail shows points, sent; its id."""
    html = b"<p>Dear {{ first_name }}, you have {{ points | default('no') }} points</p>" + FOOT
    campaign = stage.create(csv(readers), html=html, enrichment={"provides": ["points"], **enrichment})
    stage.launch(campaign, "dispatching")
    stage.ring(campaign)
    return campaign


def texts(stage, campaign):
    """The text part of each e-mail of a campaign."""
    folder = stage.cloud.directory / "mailbox"
    for mail in accepted(folder):
        if mail["tags"]["campaign"] == campaign:
            message = email.message_from_bytes((folder / mail["eml"]).read_bytes(), policy=policy.default)
            yield message.get_body(("plain",)).get_content()


def test_each_email_shows_what_the_function_answered(stage, function):
    """Asked with the columns that the template uses; each gets the answer that is its own."""
    readers = people(12, "points")
    campaign = send(stage, readers, function=function)
    assert stage.mails(campaign) == dict.fromkeys(readers, 1)
    found = list(texts(stage, campaign))
    assert len(found) == 12
    assert all("Dear Reader, you have Reader-7 points" in text for text in found)


@pytest.mark.parametrize(("if_failing", "mailed"), [("fail", 0), ("send_without", 3)])
def test_a_function_that_is_not_there_does_what_the_campaign_says(stage, if_failing, mailed):
    """Failed with the reason, or sent without; nobody is left over."""
    readers = people(3, f"none-{mailed}")
    campaign = send(stage, readers, function="carillon-enrichment-nobody", if_failing=if_failing)
    assert len(stage.mails(campaign)) == mailed
    if mailed:
        assert all("you have no points" in text for text in texts(stage, campaign))
    else:
        assert {row["error"]["code"] for row in stage.stack.rows(campaign)} == {"EnrichmentFailed"}
