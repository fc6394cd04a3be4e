"""PrepareList through its handler: a list goes in, and what the fan-out needs comes out."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from carillon import environment, keys
from carillon.adapters import aws as clients
from carillon.shapes import PrepareListResult
from carillon.templates import Prepared, Renderer
from prepare_list import app

from .conftest import BUCKET, QUEUE, World

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
    for client in (clients.s3, clients.dynamodb):
        client.cache_clear()
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
    stack.campaign()
    stack.upload(TEN)
    stack.upload("<p>Dear {{ name }}</p>", "templates/news.html")

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
    assert Renderer(prepared).render(lines[3].input).subject == "Hi Person 3"
    assert stack.pace.read().max_24_hour_send == 50_000
