"""What cannot be sent is refused with cause and fix, the campaign says so, and nothing is left half done."""

from __future__ import annotations

import pytest
from requests import HTTPError

from local.deployment import Refused
from tests.local.end_to_end.stage import csv, people


@pytest.mark.parametrize(
    ("content", "spec", "code", "says"),
    [
        (b"\n", {}, "ListRejected", "empty"),
        (b"email,first_name\n", {}, "ListRejected", "no_records"),
        (b"name,city\nAda,London\n", {}, "ListRejected", "address"),
        (b"email,first_name\nnobody,A\nnowhere,B\n", {}, "ListRejected", "invalid_address"),
        (csv(people(2, "ph")), {"html": b"<p>Hi {{ nickname }}</p>"}, "TemplateRejected", "nickname"),
        (csv(people(2, "tp")), {"html": b"<p>Hi {{ first_name </p>"}, "TemplateRejected", "letter.html"),
        (csv(people(2, "fo")), {"html": b"<p>Hi, all of you</p>"}, "TemplateRejected", "unsubscribe_url"),
    ],
    ids=["empty", "header-only", "no-address-column", "nobody-valid", "placeholder", "template", "footing"],
)
def test_a_broken_preparation_fails_the_campaign_with_its_reason(stage, content, spec, code, says):
    """`failed`, with a name to act on and the cause in words; no row, no schedule, no e-mail."""
    campaign = stage.create(content, **spec)
    failed = stage.launch(campaign)
    assert failed["state"] == "failed"
    assert failed["error"]["code"] == code
    assert says in failed["error"]["message"].lower() or says in failed["error"]["message"]
    assert not list(stage.stack.rows(campaign))
    scheduler = stage.stack.client("scheduler")
    groups = scheduler.list_schedule_groups(NamePrefix=f"campaign-{campaign}")["ScheduleGroups"]
    assert not groups
    assert not stage.mails(campaign)


def test_an_empty_upload_is_refused_by_its_link(stage):
    """S3 itself refuses a file of no bytes, so that nothing can be launched with it."""
    with pytest.raises(HTTPError, match="400"):
        stage.create(b"")


def test_a_launch_without_a_list_is_refused_at_once(stage):
    """The API says what is missing; the campaign stays as it was and can still be launched."""
    campaign = stage.create(None)
    with pytest.raises(Refused) as refused:
        stage.api.call("POST", f"/campaigns/{campaign}/launch")
    assert refused.value.status in (400, 409)
    assert "list" in refused.value.problem["detail"]
    assert stage.api.get(campaign)["state"] == "created"


def test_an_unknown_zone_is_refused_at_creation(stage):
    """A zone that is no IANA name is refused with its field, before anything exists."""
    with pytest.raises(Refused) as refused:
        stage.create(None, list={"fallback_timezone": "CEST"})
    assert refused.value.status == 422
    assert "fallback_timezone" in str(refused.value.problem)


def test_a_sender_of_another_domain_is_refused_at_creation(stage):
    """This stack may send for one domain, and says so before anything is uploaded."""
    with pytest.raises(Refused) as refused:
        stage.create(None, **{"from": "x@unverified.invalid"})
    assert refused.value.status == 422
    assert "unverified.invalid" in refused.value.problem["detail"]


def test_a_wrong_token_sees_nothing(stage):
    """No token, a wrong token: 401, and no hint of what exists."""
    from local.deployment import Api

    with pytest.raises(Refused) as refused:
        Api(stage.api.base, "wrong").call("GET", "/campaigns")
    assert refused.value.status == 401
