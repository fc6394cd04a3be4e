"""Preparing a campaign of the direct route: what SES is given, and what it could not do, known before the launch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.content.templates import ses_data
from carillon.errors import CampaignStateConflict, PlanRefused, TemplateRejected
from carillon.launch import direct
from carillon.shapes import Campaign
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState
from local.ses import rendering

from .conftest import NOW, World

FOOTING = '<p>{{ postal_address }} <a href="{{ unsubscribe_url }}">Unsubscribe</a></p>'
LIST = "email,name\nana@example.com,Ana\nbo@example.com,<Bo>\n"


@pytest.fixture
def direct_world(world: World) -> World:
    """A campaign of the direct route with two people."""
    world.campaign(route="direct")
    world.upload(LIST)
    world.upload(f"<p>Hi {{{{ name }}}}!</p>{FOOTING}", "templates/news.html")
    return world


def test_ses_keeps_a_template_that_the_batches_data_fill(direct_world: World) -> None:
    """Subject, HTML and text come out as they should, the sender's postal address with them."""
    lines = direct_world.lines(direct_world.prepare())
    template = direct_world.ses_templates.kept["carillon-advent-1"]
    assert set(direct_world.ses_templates.kept) == {"carillon-advent-1"}
    data = ses_data(
        next(line for line in lines if line.address.startswith("bo")).input | {"unsubscribe_url": "https://u"}
    )
    assert rendering.render(template.subject, data) == "Hi <Bo>"
    html, text = rendering.render(template.html, data), rendering.render(template.text, data)
    assert "<p>Hi &lt;Bo&gt;!</p>" in html
    assert "Bell &amp; Sons, 1 Tower Street, Bruges" in html
    assert 'href="https://u"' in html
    assert "Hi <Bo>!" in text
    assert "Bell & Sons" in text
    assert "{{" not in html + text


def test_preparing_again_gives_ses_what_the_preparation_that_counts_has_written(direct_world: World) -> None:
    """Also when the template that was uploaded has changed since: a launch is bound to what it began with."""
    direct_world.prepare()
    first = dict(direct_world.ses_templates.kept)
    direct_world.ses_templates.kept.clear()
    direct_world.upload(f"<p>Other</p>{FOOTING}", "templates/news.html")
    direct_world.prepare()
    assert direct_world.ses_templates.kept == first


def test_a_cancel_while_templates_are_made_leaves_none_behind(
    direct_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cancelled has deleted the templates already: those that come later go again."""
    record = CampaignStore.record_preparation

    def cancelled_meanwhile(self: CampaignStore, campaign_id: str, generation: int, **rest: Any) -> Campaign:
        counted = record(self, campaign_id, generation, **rest)
        self.transition(campaign_id, CampaignState.ENQUEUED, generation, CampaignState.CANCELLING, now=NOW)
        return counted

    monkeypatch.setattr(CampaignStore, "record_preparation", cancelled_meanwhile)
    with pytest.raises(CampaignStateConflict):
        direct_world.prepare()
    assert direct_world.ses_templates.kept == {}


def test_a_template_of_more_than_placeholders_is_refused(direct_world: World) -> None:
    """With what it is and the way out; nothing is written for it."""
    direct_world.upload(f"<p>{{{{ name | title }}}}</p>{FOOTING}", "templates/news.html")
    with pytest.raises(TemplateRejected, match="guarded route"):
        direct_world.prepare()
    assert direct_world.ses_templates.kept == {}
    assert direct_world.campaigns.get("advent").prepared is None


def test_a_sender_without_an_address_is_refused(direct_world: World) -> None:
    """Before anything is written."""
    direct_world.postal_address = None
    with pytest.raises((PlanRefused, TemplateRejected), match=r"postal.address"):
        direct_world.prepare()
    assert direct_world.campaigns.get("advent").prepared is None


def test_a_pace_of_less_than_one_a_second_is_refused(direct_world: World) -> None:
    """Scheduler knows minutes."""
    direct_world.set_pace(Pace(rate_per_second=0.2, daily_cap=1000))
    with pytest.raises(PlanRefused, match=r"0\.2 e-mails a second"):
        direct_world.prepare()


def test_nobody_is_planned_so_late_that_a_retry_would_miss_the_deadline(world: World) -> None:
    """not_after holds for the last retry of an e-mail, for nobody looks at it any more when it goes."""
    world.campaign(route="direct", not_after=(NOW + timedelta(seconds=direct.latest(2) + 300)).isoformat())
    world.upload(LIST)
    world.upload(f"<p>Hi {{{{ name }}}}!</p>{FOOTING}", "templates/news.html")
    with pytest.raises(PlanRefused, match="not_after"):
        world.prepare()


def test_the_first_slot_leaves_a_child_of_the_fan_out_its_five_minutes(direct_world: World) -> None:
    """A schedule that is made too late would never fire, and on this route nobody would plan it again."""
    lines = direct_world.lines(direct_world.prepare())
    assert min(line.slot for line in lines) >= NOW.timestamp() + direct.CREATION_LEAD
    assert {line.task for line in lines} == {keys.task_id(1, f"{name}@example.com") for name in ("ana", "bo")}


def test_what_the_guarded_route_sends_ses_keeps_no_template_of(world: World) -> None:
    """They are rendered by the sender."""
    world.campaign()
    world.upload(LIST)
    world.upload(f"<p>Hi {{{{ name }}}}!</p>{FOOTING}", "templates/news.html")
    world.prepare()
    assert world.ses_templates.kept == {}
