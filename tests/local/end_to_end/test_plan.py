"""The plan: shown before anything is sent, the same as what then happens, and a launch can be bound to it."""

from __future__ import annotations

import time

import pytest

from local.deployment import Refused
from tests.local.end_to_end.stage import FOOT, csv, people


def planned(stage, campaign):
    """Ask for a plan, and wait until it is there."""
    stage.api.call("POST", f"/campaigns/{campaign}/plan")
    deadline = time.monotonic() + 90
    while (view := stage.api.call("GET", f"/campaigns/{campaign}/plan"))["state"] == "planning":
        assert time.monotonic() < deadline, "no plan within 90 s"
        time.sleep(0.2)
    return view


def test_a_plan_shows_what_a_launch_then_does(stage):
    """Nobody is enrolled by it; the launch that is bound to its hash enrols exactly those that it counted."""
    readers = people(5, "planned")
    content = csv(readers) + b"nobody,X\n" + readers[0].encode() + b",Again\n"
    campaign = stage.create(content)
    view = planned(stage, campaign)
    plan = view["plan"]
    assert view["state"] == "planned"
    assert (plan["rows"], plan["valid"], plan["planned"]) == (7, 5, 5)
    assert plan["refusals"] == []
    assert sum(sum(day) for day in plan["histogram"]["utc"].values()) == 5
    assert stage.api.get(campaign)["state"] == "created"
    assert not list(stage.stack.rows(campaign))
    stage.api.call("POST", f"/campaigns/{campaign}/launch", {"plan": plan["hash"]})
    launched = stage.api.wait(campaign, "dispatching", "failed", "aborted")
    assert (launched["state"], launched["enrolled"]) == ("dispatching", 5)


@pytest.mark.parametrize("changed", ["list", "template"])
def test_a_launch_bound_to_a_plan_is_refused_when_something_has_changed(stage, changed):
    """It says what has changed, and the campaign stays as it was: it can be planned again."""
    campaign = stage.create(csv(people(2, f"changed-{changed}")))
    plan = planned(stage, campaign)["plan"]
    if changed == "list":
        stage.api.upload(campaign, csv(people(3, "changed-later")))
    else:
        stage.api.upload(campaign, b"<p>Something else</p>" + FOOT, template="letter.html")
    with pytest.raises(Refused) as refused:
        stage.api.call("POST", f"/campaigns/{campaign}/launch", {"plan": plan["hash"]})
    assert refused.value.problem["code"] == "PlanOutdated"
    assert changed in refused.value.problem["detail"]
    assert stage.api.get(campaign)["state"] == "created"
    stage.api.call("POST", f"/campaigns/{campaign}/launch", {"plan": planned(stage, campaign)["plan"]["hash"]})
    assert stage.api.wait(campaign, "dispatching", "failed", "aborted")["state"] == "dispatching"
