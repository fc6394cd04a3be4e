"""Templates: stored ones, inline ones, and what happens when the data do not fill them."""

from __future__ import annotations

import email as mime
import json
from collections.abc import Callable
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from local.clock import Clock
from local.ports import AwsError
from local.ses import rendering
from local.ses.mailbox import accepted
from local.ses.service import SimpleEmail

from .conftest import ListeningFirehose, email
from .test_events import assert_documented, documented

WELCOME = {
    "Subject": "Hello {{first_name}}",
    "Html": "<p>Dear {{first_name}}</p>{{#each items}}<li>{{this.name}}</li>{{/each}}",
    "Text": "Dear {{first_name}}",
}


def create(ses: SimpleEmail, name: str = "welcome", **content: str) -> None:
    ses.handle("CreateEmailTemplate", {"TemplateName": name, "TemplateContent": WELCOME | content})


def templated(data: Any, **template: Any) -> dict[str, Any]:
    """SendEmail with a template; ``data`` becomes its TemplateData."""
    chosen = template or {"TemplateName": "welcome"}
    return email(Content={"Template": {"TemplateData": json.dumps(data), **chosen}})


def refusal(call: Callable[..., Any], *args: Any) -> AwsError:
    with pytest.raises(AwsError) as refused:
        call(*args)
    return refused.value


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{user.name}} of {{user.[home town]}}", "Ana of Köln"),
        ("{{#if user.vip}}gold{{else}}plain{{/if}}", "plain"),
        ("{{#if nothing}}a{{else if user.name}}b{{else}}c{{/if}}", "b"),
        ("{{#unless user.vip}}join{{/unless}}", "join"),
        ("{{#each items}}{{@index}}{{this.n}}{{#if @last}}.{{else}},{{/if}}{{/each}}", "0a,1b."),
        ("{{#each user}}{{@key}}={{this}};{{/each}}", "name=Ana;home town=Köln;vip=false;"),
        ("{{#each items}}{{n}}-{{../user.name}} {{/each}}", "a-Ana b-Ana "),
        ("{{#each none}}x{{else}}empty{{/each}}", "empty"),
        ("{{html}} {{{html}}}", "<b>&</b> <b>&</b>"),
        ("a{{! note }}b{{!-- {{x}} --}}c{{ses:openTracker}}", "abc"),
        ("{{price}} {{ok}} {{null}}|", "9.5 true |"),
    ],
)
def test_the_documented_part_of_handlebars_renders(source: str, text: str) -> None:
    """Contract sheet, section 3: nested paths, each, if/else; no HTML escaping."""
    data = {
        "user": {"name": "Ana", "home town": "Köln", "vip": False},
        "items": [{"n": "a"}, {"n": "b"}],
        "none": [],
        "html": "<b>&</b>",
        "price": 9.5,
        "ok": True,
        "null": None,
    }
    assert rendering.render(source, data) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{#if x}}",
        "{{/if}}",
        "{{#if x}}{{/each}}",
        "{{#each}}x{{/each}}",
        "{{x",
        "{{> partial}}",
        "{{#with x}}{{/with}}",
        "{{upper name}}",
        "{{#if x}}a{{else}}b{{else}}c{{/if}}",
    ],
)
def test_a_template_that_cannot_be_understood_is_refused_at_creation(ses: SimpleEmail, source: str) -> None:
    """What SES refuses (unbalanced blocks, helpers of one's own) and what this cloud does not do (partials)."""
    refused = refusal(
        ses.handle,
        "CreateEmailTemplate",
        {"TemplateName": "bad", "TemplateContent": WELCOME | {"Html": source}},
    )
    assert refused.code == "BadRequestException"
    assert ses.handle("ListEmailTemplates", {})["TemplatesMetadata"] == []


def test_a_stored_template_becomes_the_message(ses: SimpleEmail, tmp_path: Path) -> None:
    """Botocore sesv2 SendEmail: the tags are replaced with the values that TemplateData gives."""
    create(ses)
    data = {"first_name": "Äna", "items": [{"name": "Tee"}, {"name": "Käse"}]}
    ses.handle("SendEmail", templated(data))
    (line,) = accepted(tmp_path / "mailbox")
    message: Any = mime.message_from_bytes((tmp_path / "mailbox" / line["eml"]).read_bytes(), policy=default)
    assert message["Subject"] == "Hello Äna"
    assert "<p>Dear Äna</p><li>Tee</li><li>Käse</li>" in message.get_body(("html",)).get_content()
    assert message.get_body(("plain",)).get_content().strip() == "Dear Äna"


def test_a_template_can_be_named_by_its_arn(ses: SimpleEmail) -> None:
    """Botocore sesv2 Template: by name, by ARN, or inline, and only one of them."""
    create(ses)
    arn = "arn:aws:ses:us-east-1:111122223333:template/welcome"
    data = {"first_name": "Ana", "items": []}
    assert ses.handle("SendEmail", templated(data, TemplateArn=arn))["MessageId"]
    both = templated(data, TemplateArn=arn, TemplateName="welcome")
    assert refusal(ses.handle, "SendEmail", both).code == "BadRequestException"


def test_a_missing_value_is_accepted_and_fails_later(
    ses: SimpleEmail, clock: Clock, firehose: ListeningFirehose, tmp_path: Path
) -> None:
    """Contract sheet, section 3: the call succeeds, then a Rendering Failure event instead of a delivery."""
    create(ses)
    answer = ses.handle("SendEmail", templated({"items": []}))
    (line,) = accepted(tmp_path / "mailbox")
    assert (line["message_id"], line["eml"]) == (answer["MessageId"], None)
    clock.advance(60)
    ses.publish_due()
    (event,) = firehose.events
    assert_documented(event, documented("Rendering Failure"))
    assert event["failure"] == {
        "templateName": "welcome",
        "errorMessage": "Attribute 'first_name' is not present in the rendering data.",
    }


def test_inline_content_has_simple_substitutions_only(ses: SimpleEmail) -> None:
    """Botocore sesv2 Template: TemplateContent supports only simple substitutions."""
    inline = {"Subject": "Hi {{n}}", "Text": "Hello {{n}}"}
    assert ses.handle("SendEmail", templated({"n": "Ana"}, TemplateContent=inline))["MessageId"]
    inline["Text"] = "{{#if n}}x{{/if}}"
    refused = refusal(ses.handle, "SendEmail", templated({"n": "Ana"}, TemplateContent=inline))
    assert "simple substitutions" in refused.message


@pytest.mark.parametrize("data", ["{", "[1]", '"x"'])
def test_data_that_are_no_json_object_are_refused(ses: SimpleEmail, data: str) -> None:
    """Botocore sesv2 Template: TemplateData is an object of key-value pairs."""
    create(ses)
    params = email(Content={"Template": {"TemplateName": "welcome", "TemplateData": data}})
    assert refusal(ses.handle, "SendEmail", params).code == "BadRequestException"


def test_template_data_have_a_limit(ses: SimpleEmail) -> None:
    """Botocore sesv2 EmailTemplateData: at most 262,144 characters."""
    create(ses)
    assert refusal(ses.handle, "SendEmail", templated({"first_name": "x" * 262_144})).code == "BadRequestException"


def test_a_template_that_does_not_exist_is_not_found(ses: SimpleEmail) -> None:
    """Botocore sesv2: NotFoundException (404) wherever a template is named."""
    for operation, params in (
        ("SendEmail", templated({}, TemplateName="none")),
        ("GetEmailTemplate", {"TemplateName": "none"}),
        ("UpdateEmailTemplate", {"TemplateName": "none", "TemplateContent": WELCOME}),
        ("DeleteEmailTemplate", {"TemplateName": "none"}),
        ("TestRenderEmailTemplate", {"TemplateName": "none", "TemplateData": "{}"}),
    ):
        refused = refusal(ses.handle, operation, params)
        assert (refused.code, refused.status) == ("NotFoundException", 404)


def test_templates_are_kept_changed_listed_and_deleted(ses: SimpleEmail) -> None:
    """Botocore sesv2: ten a page unless PageSize says otherwise, and a token for the rest."""
    for number in range(12):
        create(ses, f"t{number}")
    assert refusal(create, ses, "t0").code == "AlreadyExistsException"
    first = ses.handle("ListEmailTemplates", {})
    rest = ses.handle("ListEmailTemplates", {"NextToken": first["NextToken"]})
    names = [each["TemplateName"] for each in first["TemplatesMetadata"] + rest["TemplatesMetadata"]]
    assert names == [f"t{number}" for number in range(12)]
    assert "NextToken" not in rest
    changed = {"Subject": "New", "Text": "New"}
    ses.handle("UpdateEmailTemplate", {"TemplateName": "t1", "TemplateContent": changed})
    assert ses.handle("GetEmailTemplate", {"TemplateName": "t1"})["TemplateContent"] == changed
    ses.handle("DeleteEmailTemplate", {"TemplateName": "t1"})
    assert refusal(ses.handle, "GetEmailTemplate", {"TemplateName": "t1"}).status == 404
    assert refusal(ses.handle, "ListEmailTemplates", {"PageSize": 101}).code == "BadRequestException"
    assert refusal(ses.handle, "ListEmailTemplates", {"NextToken": "?"}).code == "BadRequestException"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.b", WELCOME),
        ("x" * 65, WELCOME),
        ("ok", {"Text": "x"}),
        ("ok", {"Subject": "x"}),
        ("ok", {"Subject": "x", "Html": "x" * 512_001}),
    ],
)
def test_templates_have_limits(ses: SimpleEmail, name: str, content: dict[str, str]) -> None:
    """Contract sheet, section 3: at most 500 KB; SES's API reference: names of letters, digits, _ and -."""
    params = {"TemplateName": name, "TemplateContent": content}
    assert refusal(ses.handle, "CreateEmailTemplate", params).code == "BadRequestException"


def test_a_test_rendering_shows_the_message_or_what_is_missing(ses: SimpleEmail) -> None:
    """Botocore sesv2 TestRenderEmailTemplate: the complete MIME message."""
    create(ses)
    data = json.dumps({"first_name": "Ana", "items": []})
    rendered = ses.handle("TestRenderEmailTemplate", {"TemplateName": "welcome", "TemplateData": data})
    message = mime.message_from_string(rendered["RenderedTemplate"], policy=default)
    assert message["Subject"] == "Hello Ana"
    assert message.get_content_type() == "multipart/alternative"
    missing = {"TemplateName": "welcome", "TemplateData": "{}"}
    refused = refusal(ses.handle, "TestRenderEmailTemplate", missing)
    assert refused.message == "Attribute 'first_name' is not present in the rendering data."


def bulk(*entries: dict[str, Any], **members: Any) -> dict[str, Any]:
    """SendBulkEmail with the stored template."""
    return {
        "FromEmailAddress": "news@mail.example.com",
        "ConfigurationSetName": "events",
        "DefaultContent": {
            "Template": {
                "TemplateName": "welcome",
                "TemplateData": json.dumps({"first_name": "friend", "items": []}),
                "Headers": [{"Name": "X-One", "Value": "default"}, {"Name": "X-Two", "Value": "default"}],
            }
        },
        "DefaultEmailTags": [{"Name": "campaign", "Value": "c-1"}],
        "BulkEmailEntries": list(entries),
    } | members


def test_a_bulk_call_answers_for_each_entry(ses: SimpleEmail, tmp_path: Path) -> None:
    """Botocore sesv2 BulkEmailEntry: its data, tags and headers replace the defaults by name; each entry has
    a status of its own."""
    create(ses)
    answer = ses.handle(
        "SendBulkEmail",
        bulk(
            {"Destination": {"ToAddresses": ["a@example.org"]}},
            {"Destination": {"ToAddresses": ["not an address"]}},
            {
                "Destination": {"ToAddresses": ["b@example.org"]},
                "ReplacementTags": [{"Name": "task", "Value": "t-1"}],
                "ReplacementHeaders": [{"Name": "x-two", "Value": "own"}],
                "ReplacementEmailContent": {
                    "ReplacementTemplate": {"ReplacementTemplateData": json.dumps({"first_name": "Bo", "items": []})}
                },
            },
        ),
    )
    statuses = [result["Status"] for result in answer["BulkEmailEntryResults"]]
    assert statuses == ["SUCCESS", "INVALID_PARAMETER", "SUCCESS"]
    first, second = accepted(tmp_path / "mailbox")
    assert first["tags"] == {"campaign": "c-1"}
    assert second["tags"] == {"campaign": "c-1", "task": "t-1"}
    message = mime.message_from_bytes((tmp_path / "mailbox" / second["eml"]).read_bytes(), policy=default)
    assert (message["Subject"], message["X-One"], message["X-Two"]) == ("Hello Bo", "default", "own")


def test_a_bulk_entry_beyond_the_rate_is_throttled_alone(make_ses: Callable[..., SimpleEmail]) -> None:
    """Botocore sesv2 BulkEmailStatus: ACCOUNT_THROTTLED and ACCOUNT_DAILY_QUOTA_EXCEEDED."""
    entries = [{"Destination": {"ToAddresses": [f"u{number}@example.org"]}} for number in range(3)]
    for settings, status in (
        ({"max_send_rate": 2.0, "burst_seconds": 1.0}, "ACCOUNT_THROTTLED"),
        ({"max_24_hour_send": 2}, "ACCOUNT_DAILY_QUOTA_EXCEEDED"),
    ):
        ses = make_ses(**settings)
        create(ses)
        answer = ses.handle("SendBulkEmail", bulk(*entries))
        assert [each["Status"] for each in answer["BulkEmailEntryResults"]] == ["SUCCESS", "SUCCESS", status]


def test_a_bulk_call_has_at_most_fifty_destinations(ses: SimpleEmail) -> None:
    """Contract sheet, section 3: 50 destinations per call; nothing of a larger one is sent."""
    create(ses)
    entries = [{"Destination": {"ToAddresses": [f"u{number}@example.org"]}} for number in range(51)]
    assert refusal(ses.handle, "SendBulkEmail", bulk(*entries)).code == "BadRequestException"
    assert ses.handle("GetAccount", {})["SendQuota"]["SentLast24Hours"] == 0.0
