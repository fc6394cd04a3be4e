"""Every file of events/ is an input that its function or machine takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from carillon import keys
from carillon.adapters.messages import records
from carillon.consent.transfers import Transfer
from carillon.consent.unsubscribing import PATH, KeyRing, read
from carillon.lifecycle.reconciling import Reconcile
from carillon.shapes import CampaignSpec, CancelTasks, ConfirmFanOut, EnrolBatch, Message, Prepare
from carillon.transitions import CampaignState
from tests.stack.account import CAMPAIGN, Account
from tests.stack.handlers import handler_module
from tools.definitions import ROOT, resources, state_machines

EVENTS = sorted((ROOT / "events").glob("*/*.json"))


def test_every_function_and_machine_has_an_input() -> None:
    """And no folder is left of one that went."""
    functions = {f["Properties"]["Handler"].split(".")[0] for f in resources("AWS::Serverless::Function").values()}
    assert {path.parent.name for path in EVENTS} == functions | {machine.name for machine in state_machines()}


def test_the_readme_of_the_inputs_names_each() -> None:
    """events/README.md says what each shows."""
    told = (ROOT / "events" / "README.md").read_text()
    for path in EVENTS:
        assert path.name in told or f"{path.parent.name}/*.json" in told, path


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_input_is_taken(path: Path) -> None:
    """By the shape that the handler parses, or by the machine itself."""
    TAKES[path.parent.name](json.loads(path.read_text()))


def _prepare(event: dict[str, Any]) -> None:
    assert Prepare.model_validate(event).campaign_id == CAMPAIGN


def _enrol(event: dict[str, Any]) -> None:
    batch = EnrolBatch.model_validate(event)
    assert batch.batch.startswith(f"g{batch.generation}-")


def _confirm(event: dict[str, Any]) -> None:
    asked = ConfirmFanOut.model_validate(event)
    assert asked.manifest_key == keys.manifest(asked.campaign_id, f"g{asked.generation}-3fa9c2d1")
    assert asked.results_prefix == keys.fan_out_results(asked.campaign_id, asked.generation)


def _send(event: dict[str, Any]) -> None:
    for record in records(event):
        message = Message.model_validate_json(record.body)
        assert message.task == keys.task_id(message.step, message.to)


def _cancel_tasks(event: dict[str, Any]) -> None:
    assert CancelTasks.model_validate(event).shard in range(keys.SHARDS)


def _record(event: dict[str, Any]) -> None:
    rule = resources("AWS::Serverless::Function")["RecordLaunchEndFunction"]["Properties"]["Events"]["LaunchEnded"]
    pattern = rule["Properties"]["Pattern"]
    assert [event["source"]] == pattern["source"]
    assert [event["detail-type"]] == pattern["detail-type"]
    assert event["detail"]["status"] in pattern["detail"]["status"]
    assert handler_module("record_launch_end").Detail.model_validate(event["detail"]).input


def _reconcile(event: dict[str, Any]) -> None:
    assert Reconcile.model_validate(event).campaign_id in (None, CAMPAIGN)


def _api(event: dict[str, Any]) -> None:
    app = handler_module("campaign_api").app
    http = event["requestContext"]["http"]
    assert http["path"] == event["rawPath"]
    routes = [*app._static_routes, *app._dynamic_routes]
    assert any(route.method == http["method"] and re.match(route.rule, http["path"]) for route in routes)
    if (http["method"], http["path"]) == ("POST", "/campaigns"):
        CampaignSpec.model_validate_json(event["body"])


def _unsubscribe(event: dict[str, Any]) -> None:
    class Example:
        def ring(self) -> KeyRing:
            return KeyRing.parse(json.dumps({"1": "put-the-secret-here-" * 4}))

        reread = ring

    http = event["requestContext"]["http"]
    assert http["path"] == event["rawPath"] == PATH + event["pathParameters"]["token"]
    assert event["routeKey"] == resources("AWS::ApiGatewayV2::Route")["UnsubscribeRoute"]["Properties"]["RouteKey"]
    assert read(event["pathParameters"]["token"], Example()).campaign_id == CAMPAIGN


def _launch(event: dict[str, Any]) -> None:
    account = Account()
    try:
        state = CampaignState.ABORTED if event.get("resume") else CampaignState.CREATED
        account.create(state, generation=1 if event.get("resume") else 0)
        assert account.run("launch_campaign", event)["status"] == "SUCCEEDED"
    finally:
        account.close()


def _cancel(event: dict[str, Any]) -> None:
    account = Account()
    try:
        account.create(CampaignState.DISPATCHING, generation=1)
        assert account.run("cancel_campaign", event)["status"] == "SUCCEEDED"
    finally:
        account.close()


TAKES: dict[str, Callable[[dict[str, Any]], None]] = {
    "prepare_list": _prepare,
    "enrol_batch": _enrol,
    "confirm_fan_out": _confirm,
    "send_batch": _send,
    "cancel_tasks": _cancel_tasks,
    "record_launch_end": _record,
    "reconcile_tasks": _reconcile,
    "campaign_api": _api,
    "unsubscribe": _unsubscribe,
    "transfer_suppressions": lambda event: Transfer.model_validate(event),
    "launch_campaign": _launch,
    "cancel_campaign": _cancel,
}
