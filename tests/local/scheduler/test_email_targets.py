"""Schedules that call SES by themselves, as the direct route makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local.ses.mailbox import accepted
from local.ses.service import SimpleEmail
from local.ses.settings import SesSettings

from .conftest import ACCOUNT, REGION, ROLE, Bench

SEND = "arn:aws:scheduler:::aws-sdk:sesv2:sendEmail"
WINDOW = {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 2}


def call(**template: Any) -> dict[str, Any]:
    """SendEmail by a template, in the API's own names (user guide, managing-targets-universal)."""
    chosen = {"TemplateName": "carillon-a-1", "TemplateData": '{"html_name":"Ana"}', **template}
    return {
        "FromEmailAddress": "Ringer <ringer@example.com>",
        "Destination": {"ToAddresses": ["ana@example.org"]},
        "Content": {"Template": chosen},
    }


def target(asked: dict[str, Any]) -> dict[str, Any]:
    """A universal target for it."""
    return {"Arn": SEND, "RoleArn": ROLE, "Input": json.dumps(asked)}


class Ses:
    """SES as the Scheduler's caller."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.folder = folder
        settings = SesSettings(identities=("example.com",))
        self.service = SimpleEmail(bench.clock, bench.caller, folder, ACCOUNT, REGION, settings)
        self.service.identities.reset()
        content = {"Subject": "Hi", "Html": "<p>{{html_name}}</p>"}
        self.service.handle("CreateEmailTemplate", {"TemplateName": "carillon-a-1", "TemplateContent": content})
        bench.caller.call = self.call  # type: ignore[method-assign]
        self.letters: list[dict[str, Any]] = []

    def call(self, service: str, operation: str, params: Any, role_arn: str, source_arn: str = "") -> dict[str, Any]:
        if service == "sqs":
            self.letters.append(dict(params))
            return {}
        return self.service.handle(operation, params)

    def lines(self) -> list[dict[str, Any]]:
        return list(accepted(self.folder))


@pytest.fixture
def ses(bench: Bench, tmp_path: Path) -> Ses:
    return Ses(bench, tmp_path / "mailbox")


def test_a_schedule_sends_by_a_template_within_its_window(bench: Bench, ses: Ses) -> None:
    """At its instant or up to two minutes later (botocore: MaximumWindowInMinutes), and once."""
    bench.create("a", FlexibleTimeWindow=WINDOW, ActionAfterCompletion="DELETE", target=target(call()))
    bench.clock.advance(99)
    assert ses.lines() == []
    bench.clock.advance(121)
    bench.eventually(lambda: len(ses.lines()) == 1)
    (line,) = ses.lines()
    assert "<p>Ana</p>" in (ses.folder / line["eml"]).read_text()
    bench.eventually(lambda: bench.names() == [])


@pytest.mark.parametrize(
    "wrong",
    [{"Colour": "red"}, {"TemplateData": {"html_name": "Ana"}}, {"Headers": [{"Name": "X:Y", "Value": "z"}]}],
    ids=["unknown field", "data that are no string", "header that is none"],
)
def test_what_ses_has_no_place_for_is_refused_when_the_schedule_is_made(bench: Bench, wrong: dict[str, Any]) -> None:
    """By SES's model (botocore sesv2): ValidationException, as Scheduler answers it."""
    refused = bench.refused("CreateSchedule", **bench.schedule("a", target=target(call(**wrong))))
    assert (refused.code, refused.status) == ("ValidationException", 400)
    assert "Invalid RequestJson" in refused.message


def test_without_its_template_nothing_is_sent(bench: Bench, ses: Ses) -> None:
    """SES's NotFoundException (botocore sesv2, 404) is not tried again: a dead letter says what became of it."""
    letters = {"DeadLetterConfig": {"Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"}}
    bench.create("a", target={**target(call()), **letters})
    bench.clock.advance(1)
    ses.service.handle("DeleteEmailTemplate", {"TemplateName": "carillon-a-1"})
    bench.clock.advance(160)
    bench.eventually(lambda: len(ses.letters) == 1)
    assert ses.letters[0]["MessageAttributes"]["ERROR_CODE"]["StringValue"] == "NotFoundException"
    assert ses.lines() == []


def test_data_that_do_not_fill_the_template_are_accepted_and_fail_later(bench: Bench, ses: Ses) -> None:
    """SES takes the call and then publishes a Rendering Failure instead of delivering (AWS_CONTRACTS 3)."""
    bench.create("a", target=target(call(TemplateData="{}")))
    bench.clock.advance(160)
    bench.eventually(lambda: len(ses.lines()) == 1)
    assert ses.lines()[0]["eml"] is None


def test_iam_is_asked_for_the_template_and_told_the_from_address(ses: Ses) -> None:
    """The resources of SendEmail and SendTemplatedEmail, and ses:FromAddress (Service Authorization Reference, SES)."""
    asked = call() | {"ConfigurationSetName": "carillon-demo"}
    further, context = ses.service.also_asked("SendEmail", asked)
    prefix = f"arn:aws:ses:{REGION}:{ACCOUNT}"
    assert further == [
        ("ses:SendEmail", f"{prefix}:configuration-set/carillon-demo"),
        ("ses:SendTemplatedEmail", f"{prefix}:identity/example.com"),
        ("ses:SendTemplatedEmail", f"{prefix}:template/carillon-a-1"),
    ]
    assert context == {"ses:FromAddress": "ringer@example.com"}
    assert ses.service.also_asked("GetAccount", {}) == ([], {})
