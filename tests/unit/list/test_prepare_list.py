"""PrepareList through its handler: a list goes in, and what the fan-out needs comes out."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from carillon import environment, keys
from carillon.adapters import aws as clients
from carillon.adapters.settings import SettingsTable
from carillon.content.templates import Prepared, Renderer
from carillon.content.typesetting import FOOTING
from carillon.shapes import Plan, PrepareListResult
from prepare_list import app

from .conftest import BUCKET, QUEUE, World, client

TEN = "email,name\n" + "".join(f"p{n}@example.com,Person {n}\n" for n in range(10))


@pytest.fixture
def stack(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The environment of the function; SES answers as botocore's model says."""
    for name, value in {
        "CAMPAIGNS_TABLE": "campaigns",
        "TASKS_TABLE": "tasks",
        "SETTINGS_TABLE": "settings",
        "SUPPRESSIONS_TABLE": "suppressions",
        "BUCKET": BUCKET,
        "SEND_QUEUE_URL": QUEUE,
        "SENDING_DOMAIN": "example.com",
    }.items():
        monkeypatch.setenv(name, value)
    environment.load.cache_clear()
    for cached in (clients.s3, clients.dynamodb):
        cached.cache_clear()
    ses = boto3.client("sesv2")
    stub = Stubber(ses)
    stub.add_response(
        "get_email_identity", {"VerifiedForSendingStatus": True}, expected_params={"EmailIdentity": "example.com"}
    )
    stub.add_response(
        "get_account",
        {
            "ProductionAccessEnabled": True,
            "SendingEnabled": True,
            "SendQuota": {"Max24HourSend": 50_000.0, "MaxSendRate": 14.0, "SentLast24Hours": 0.0},
            "PricingAttributes": {"CurrentPlan": "ESSENTIALS"},
        },
    )
    stub.add_response("list_suppressed_destinations", {"SuppressedDestinationSummaries": []})
    stub.activate()
    monkeypatch.setattr(clients, "ses", lambda: ses)
    return world


def handled(event: dict[str, Any]) -> PrepareListResult:
    return PrepareListResult.model_validate(app.handler(event, None))


def test_ten_people_become_ten_tasks_in_batches(stack: World) -> None:
    """Everybody on the list gets one task with its data, a slot, and a place in the manifest."""
    SettingsTable("settings").set_postal_address("Bell & Sons, 1 Tower Street, Bruges")
    stack.campaign()
    stack.upload(TEN)
    stack.upload(f"<p>Dear {{{{ name }}}}</p>{FOOTING}", "templates/news.html")

    result = handled({"campaign_id": "advent", "generation": 1})

    assert (result.rows, result.valid, result.count, result.rejected) == (10, 10, 10, {})
    lines = stack.lines(stack.first())
    assert [line.address for line in lines] == [f"p{n}@example.com" for n in range(10)]
    assert lines[3].task == keys.task_id(1, "p3@example.com")
    assert lines[3].input == {"name": "Person 3"}
    assert [line.slot for line in lines] == sorted(line.slot for line in lines)
    campaign = stack.campaigns.get("advent")
    assert campaign.enrolled == 10
    assert campaign.summary == result.model_dump()
    attempt = stack.campaigns.get("advent").prepared or ""
    prepared = Prepared.model_validate_json(stack.objects.read(keys.template("advent", attempt, 1)) or b"")
    assert Renderer(prepared).render(lines[3].input, dict.fromkeys(prepared.given, "x")).subject == "Hi Person 3"
    assert stack.pace.read().max_24_hour_send == 50_000


def test_a_dry_run_answers_with_the_plan(stack: World) -> None:
    """The same input with plan: nobody is enrolled, and the record has what was found."""
    SettingsTable("settings").set_postal_address("Bell & Sons, 1 Tower Street, Bruges")
    stack.campaign()
    client("dynamodb").update_item(
        TableName="campaigns",
        Key={"campaign_id": {"S": "advent"}},
        UpdateExpression="SET #state = :created, generation = :none",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={":created": {"S": "created"}, ":none": {"N": "0"}},
    )
    stack.upload(TEN)
    stack.upload(f"<p>Dear {{{{ name }}}}</p>{FOOTING}", "templates/news.html")

    plan = Plan.model_validate(app.handler({"campaign_id": "advent", "generation": 0, "plan": True}, None))

    assert (plan.planned, plan.refusals, plan.price_plan) == (10, [], "ESSENTIALS")
    campaign = stack.campaigns.get("advent")
    assert (campaign.plan, campaign.enrolled) == (plan.model_dump(), 0)
