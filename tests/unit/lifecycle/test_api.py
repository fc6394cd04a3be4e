"""The HTTP API as its callers see it: events in, answers out, over the real tables and a fake of everything else."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign_api import app
from carillon import keys
from carillon.adapters import clock
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrolment import CampaignRows
from carillon.adapters.items import to_item
from carillon.adapters.settings import SettingsTable
from carillon.errors import CampaignStateConflict
from carillon.lifecycle import api
from carillon.shapes import AfterPrevious, CampaignId, Task
from carillon.transitions import CANCELLABLE, LAUNCHABLE, PAUSABLE, RESUMABLE, CampaignState

from .conftest import CONTEXT, NOW, SPEC, campaign, task

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

BODY = SPEC.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass
class FakeUploads:
    """Links that go nowhere, and the keys that are there, each of which may have been uploaded again."""

    there: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)

    def link(self, key: str, content_type: str, most_bytes: int, seconds: int) -> tuple[str, dict[str, str]]:
        return "https://bucket.example/", {"key": key, "Content-Type": content_type}

    def version(self, key: str) -> str | None:
        if key not in self.there:
            return None
        return "v2" if key in self.again else "v1"

    def download(self, key: str, name: str, seconds: int) -> str:
        return f"https://bucket.example/{key}?as={name}&for={seconds}"


@dataclass
class FakeExecutions:
    """Step Functions' rule for names (AWS_CONTRACTS 2): running is the same execution, ended is used up."""

    started: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    def start(self, machine: str, name: str, given: Mapping[str, Any]) -> str | None:
        if name in self.ended:
            return None
        if (machine, name, given) not in self.started:
            self.started.append((machine, name, given))
        return f"arn:{name}"


@dataclass
class Caller:
    """Calls the function with an event of the HTTP API's payload 2.0."""

    uploads: FakeUploads
    executions: FakeExecutions
    token: str | None = "right"

    def __call__(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **query: str
    ) -> tuple[int, Any]:
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        answer = app.handler(self.event(method, path, text, headers or {}, query), CONTEXT)
        parsed = json.loads(answer["body"])
        if answer["statusCode"] >= 400:
            assert answer["headers"]["Content-Type"] == "application/problem+json"
            assert parsed["status"] == answer["statusCode"]
            assert parsed["detail"]
        return answer["statusCode"], parsed

    def event(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> dict[str, Any]:
        token = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        return {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": "",
            "headers": {"content-type": "application/json", **token, **headers},
            "queryStringParameters": dict(query),
            "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
            "body": body,
            "isBase64Encoded": False,
        }


@pytest.fixture
def call(
    campaigns: CampaignStore, rows: CampaignRows, dynamodb: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> Caller:
    caller = Caller(FakeUploads(), FakeExecutions())
    service = api.CampaignApi(
        campaigns,
        rows,
        caller.uploads,
        caller.executions,
        SettingsTable("Settings", dynamodb),
        launch_machine="launch",
        cancel_machine="cancel",
        retention_days=30,
        sending_domain="Example.com",
    )
    monkeypatch.setattr(app, "_api", lambda: service)
    monkeypatch.setattr(app, "_tokens", lambda: SimpleNamespace(valid=lambda: ("right", "before")))
    monkeypatch.setattr(clock, "epoch", NOW.timestamp)
    return caller


def uploaded(call: Caller, campaign_id: str = "advent") -> None:
    call.uploads.there |= {keys.upload(campaign_id, "list.csv"), keys.upload(campaign_id, "templates/advent.html")}


@pytest.mark.parametrize("token", [None, "", "wrong", "right ", "righ", "rightright", "ünïcode"])
def test_without_a_valid_token_nothing_is_looked_at(call: Caller, campaigns: CampaignStore, token: str | None) -> None:
    """401 with a challenge, whether the route exists or not, and nothing changed."""
    call.token = token
    if token == "right ":
        assert call("GET", "/campaigns")[0] == 200
        return
    for method, path in (("POST", "/campaigns"), ("GET", "/nowhere"), ("GET", "/openapi.json")):
        answer = app.handler(call.event(method, path, json.dumps(BODY), {}, {}), CONTEXT)
        assert answer["statusCode"] == 401
        assert answer["headers"]["WWW-Authenticate"].startswith("Bearer")
        assert json.loads(answer["body"])["detail"]
    assert campaigns.by_state(CampaignState.CREATED) == ([], None)


def test_tokens_that_cannot_be_read_let_nobody_in(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem all the same: 500, and not a word of it in the answer."""
    monkeypatch.setattr(app, "_tokens", lambda: SimpleNamespace(valid=lambda: {}["secret/name"]))
    status, problem = call("GET", "/campaigns")
    assert (status, problem["code"]) == (500, "Unexpected")
    assert "secret/name" not in json.dumps(problem)


def test_two_tokens_are_valid_during_a_rotation(call: Caller) -> None:
    """Whoever has the previous token is let in still."""
    call.token = "before"
    assert call("GET", "/campaigns")[0] == 200


def test_a_created_campaign_is_shown_and_listed(call: Caller) -> None:
    """What was asked for comes back, with a state and a life of the stack's retention."""
    status, created = call("POST", "/campaigns", BODY)
    assert status == 201
    status, shown = call("GET", f"/campaigns/{created['campaign_id']}")
    assert status == 200
    assert shown["state"] == "created"
    assert shown["spec"]["from"] == BODY["from"]
    assert shown["expires_at"] == int((NOW + timedelta(days=30)).timestamp())
    for query in ({"state": "created"}, {"month": "2026-11"}, {}):
        assert [c["campaign_id"] for c in call("GET", "/campaigns", **query)[1]["campaigns"]] == [
            created["campaign_id"]
        ]
    assert call("GET", "/campaigns", state="completed")[1] == {"campaigns": [], "cursor": None}


def test_whoever_chooses_the_direct_route_is_told_what_it_gives_up(call: Caller) -> None:
    """In sentences, with the creation's answer; the guarded route has nothing to confess."""
    status, created = call("POST", "/campaigns", BODY | {"route": "direct"})
    assert status == 201
    assert any("at least once" in note for note in created["notes"])
    assert any("cannot be paused" in note for note in created["notes"])
    assert call("POST", "/campaigns", BODY)[1]["notes"] == []


def test_the_same_creation_with_a_key_is_the_same_campaign(call: Caller) -> None:
    """Repeated, it answers the same id; with another body the key is refused, and no campaign comes of it."""
    key = {"Idempotency-Key": "order-66"}
    first, again = (call("POST", "/campaigns", BODY, headers=key) for _ in range(2))
    assert first == again
    status, problem = call("POST", "/campaigns", BODY | {"name": "Other"}, headers=key)
    assert (status, problem["code"]) == (422, "IdempotencyKeyReused")
    call("POST", "/campaigns", BODY, headers={"Idempotency-Key": "another"})
    assert len(call("GET", "/campaigns")[1]["campaigns"]) == 2


def test_a_launch_needs_its_uploads_and_names_what_is_missing(call: Caller, campaigns: CampaignStore) -> None:
    """409 with the missing names, and no execution, until list and template are there; then 202."""
    campaigns.create(campaign())
    status, problem = call("POST", "/campaigns/advent/launch")
    assert (status, problem["code"]) == (409, "UploadMissing")
    assert "the list, template advent.html" in problem["detail"]
    uploaded(call)
    status, started = call("POST", "/campaigns/advent/launch")
    assert (status, started) == (202, {"campaign_id": "advent", "execution": "advent-g1-1"})
    assert call.executions.started == [("launch", "advent-g1-1", {"campaign_id": "advent", "resume": False})]


def test_a_resume_is_the_next_generation(call: Caller, campaigns: CampaignStore) -> None:
    """The name carries the generation that it will be, and an attempt that no other has."""
    campaigns.create(campaign(state="aborted", generation=3, attempts=7))
    assert call("POST", "/campaigns/advent/resume")[1]["execution"] == "advent-g4-8"
    assert call.executions.started[0][2] == {"campaign_id": "advent", "resume": True}


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        ("plan", LAUNCHABLE),
        ("launch", LAUNCHABLE),
        ("resume", RESUMABLE),
        ("pause", PAUSABLE),
        ("cancel", CANCELLABLE | {CampaignState.CANCELLING}),
        ("uploads", LAUNCHABLE),
    ],
)
def test_a_state_that_does_not_allow_it_is_a_conflict_that_says_what_to_do(
    call: Caller, campaigns: CampaignStore, action: str, allowed: frozenset[CampaignState]
) -> None:
    """Every action on a campaign in every state: as the table has it, and a refusal changes nothing."""
    for state in CampaignState:
        there = campaign(campaign_id=f"c-{state}", state=state)
        campaigns.create(there)
        uploaded(call, there.campaign_id)
        before = list(call.executions.started)
        status, answer = call(
            "POST", f"/campaigns/c-{state}/{action}", {"kind": "list"} if action == "uploads" else None
        )
        if state in allowed:
            assert status < 300, answer
        else:
            assert (status, answer["code"]) == (409, "ActionRefused")
            assert str(state) in answer["detail"]
            assert api.ADVICE[state] in answer["detail"]
            assert campaigns.get(there.campaign_id) == there
            assert call.executions.started == before


def test_a_campaign_past_its_retention_is_not_launched_again(call: Caller, campaigns: CampaignStore) -> None:
    """Its rows may be gone already: 409, and no execution."""
    campaigns.create(campaign(state="aborted", generation=1, expires_at=int(NOW.timestamp())))
    status, problem = call("POST", "/campaigns/advent/resume")
    assert status == 409
    assert "retention" in problem["detail"]
    assert not call.executions.started


def test_of_two_launches_at_once_one_is_refused(
    call: Caller, campaigns: CampaignStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read `created`; the one whose number comes second starts nothing."""
    campaigns.create(campaign())
    uploaded(call)
    seen = campaigns.get("advent")
    assert call("POST", "/campaigns/advent/launch")[0] == 202
    monkeypatch.setattr(campaigns, "get", lambda *_: seen)
    status, problem = call("POST", "/campaigns/advent/launch")
    assert (status, problem["code"]) == (409, CampaignStateConflict.__name__)
    assert len(call.executions.started) == 1


def test_a_second_cancel_is_the_same_execution_until_that_has_ended(call: Caller, campaigns: CampaignStore) -> None:
    """And a cancel that broke can be asked for again, under another name."""
    campaigns.create(campaign(state="dispatching", generation=1))
    first, second = (call("POST", "/campaigns/advent/cancel")[1]["execution"] for _ in range(2))
    assert first == second == "advent-cancel"
    assert len(call.executions.started) == 1
    call.executions.ended.add("advent-cancel")
    assert call("POST", "/campaigns/advent/cancel")[1]["execution"] == "advent-cancel-1"


def test_a_pause_is_the_flag_that_the_sender_reads(call: Caller, campaigns: CampaignStore) -> None:
    """The state stays."""
    campaigns.create(campaign(state="dispatching", generation=1))
    assert call("POST", "/campaigns/advent/pause")[1]["paused"] is True
    there = campaigns.get("advent")
    assert (there.paused, there.state) == (True, CampaignState.DISPATCHING)


def test_an_upload_link_is_for_one_file_of_one_type(call: Caller, campaigns: CampaignStore) -> None:
    """List and template go where preparation reads them."""
    campaigns.create(campaign())
    status, link = call("POST", "/campaigns/advent/uploads", {"kind": "list"})
    assert status == 201
    assert link["fields"] == {"key": "campaigns/advent/upload/list.csv", "Content-Type": "text/csv"}
    assert link["expires_at"] == "2026-11-29T09:00:00Z"
    _, link = call("POST", "/campaigns/advent/uploads", {"kind": "list", "format": "jsonl"})
    assert link["fields"] == {"key": "campaigns/advent/upload/list.jsonl", "Content-Type": "application/jsonl"}
    _, link = call("POST", "/campaigns/advent/uploads", {"kind": "template", "name": "advent.html"})
    assert link["fields"]["key"] == "campaigns/advent/upload/templates/advent.html"


def test_tasks_are_listed_once_each_over_all_pages(call: Caller, campaigns: CampaignStore, rows: CampaignRows) -> None:
    """Small pages over 32 shards: every task once, filtered or not, and the last page has no cursor."""
    campaigns.create(campaign(state="dispatching", generation=1, enrolled=90))
    enrolled = rows.enrol([task(f"r{n}@example.com") for n in range(90)])
    rows.cancel(enrolled[:30])

    def walk(**query: str) -> list[str]:
        found: list[str] = []
        cursor: dict[str, str] = {}
        for _ in range(200):
            status, page = call("GET", "/campaigns/advent/tasks", limit="7", **query, **cursor)
            assert status == 200
            assert len(page["tasks"]) <= 7
            found += [shown["task"] for shown in page["tasks"]]
            if page["cursor"] is None:
                return found
            cursor = {"cursor": page["cursor"]}
        raise AssertionError("the listing has no end")

    assert sorted(walk()) == sorted(row.task for row in enrolled)
    assert sorted(walk(status="Cancelled")) == sorted(row.task for row in enrolled[:30])
    assert walk(status="Finished") == []
    shown = call("GET", "/campaigns/advent/tasks", limit="1")[1]["tasks"][0]
    assert shown["slot"] == "2026-11-29T09:00:00Z"
    assert "client_token" not in shown


def test_counts_are_those_of_the_rows(call: Caller, campaigns: CampaignStore, rows: CampaignRows) -> None:
    """Whatever the advisory counters say; and the balance says whether all that were enrolled are there."""
    campaigns.create(campaign(state="dispatching", generation=1, enrolled=3, finished=99))
    enrolled = rows.enrol([task(f"r{n}@example.com") for n in range(3)])
    rows.cancel(enrolled[:1])
    assert call("GET", "/campaigns/advent/counts")[1] == {
        "enrolled": 3,
        "unenrolled": 0,
        "pending": 2,
        "running": 0,
        "finished": 0,
        "failed": 0,
        "cancelled": 1,
        "balance": True,
    }
    rows.enrol([task("stranger@example.com")])
    assert call("GET", "/campaigns/advent/counts")[1]["balance"] is False


@pytest.mark.parametrize("state", CampaignState)
def test_a_task_may_have_no_row_only_while_a_launch_is_on_its_way_or_broken(
    call: Caller, campaigns: CampaignStore, rows: CampaignRows, state: CampaignState
) -> None:
    """Two of five without a row: in balance in four states, and an alarm in all others."""
    campaigns.create(campaign(state=state, generation=1, enrolled=5))
    rows.enrol([task(f"r{n}@example.com") for n in range(3)])
    counts = call("GET", "/campaigns/advent/counts")[1]
    assert (counts["enrolled"], counts["unenrolled"], counts["pending"]) == (5, 2, 3)
    assert counts["balance"] is (state in {"enqueued", "aborted", "cancelling", "failed"})


def test_a_preparation_that_ends_while_rows_are_counted_is_no_alarm(
    call: Caller, campaigns: CampaignStore, rows: CampaignRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that the record did not know of when it was read are compared with the record as it is then."""
    campaigns.create(campaign(state="enqueued", generation=1))
    count = rows.counts

    def enrolled_meanwhile(campaign_id: str) -> Any:
        campaigns.record_preparation("advent", 1, now=NOW, summary={}, enrolled=4)
        rows.enrol([task("ana@example.com")])
        return count(campaign_id)

    monkeypatch.setattr(rows, "counts", enrolled_meanwhile)
    counts = call("GET", "/campaigns/advent/counts")[1]
    assert (counts["enrolled"], counts["unenrolled"], counts["pending"], counts["balance"]) == (4, 3, 1, True)


def task_of_step(step: int, address: str) -> Task:
    """As a launch enrols it: steps count from 1."""
    return task(address, task=keys.task_id(step, address), step=step)


def test_did_this_customer_get_it_is_a_look_up(
    call: Caller, campaigns: CampaignStore, rows: CampaignRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person's tasks by address, however it is written, with no row of anybody else read."""
    campaigns.create(campaign(state="dispatching", generation=1, enrolled=90))
    rows.enrol([task_of_step(1, f"r{n}@example.com") for n in range(9)])
    monkeypatch.setattr(rows, "page", lambda *_, **__: pytest.fail("the rows were walked"))
    for written in ("r7@example.com", " R7@EXAMPLE.COM ", "Rita <r7@example.com>"):
        status, page = call("GET", "/campaigns/advent/tasks", address=written)
        assert (status, [t["address"] for t in page["tasks"]], page["cursor"]) == (200, ["r7@example.com"], None)
    assert call("GET", "/campaigns/advent/tasks", address="nobody@example.com")[1] == {"tasks": [], "cursor": None}
    for query in ({"address": "nobody"}, {"address": "r7@example.com", "status": "Pending"}):
        status, problem = call("GET", "/campaigns/advent/tasks", **query)
        assert (status, problem["code"]) == (422, "InvalidRequest")
        assert "@" not in json.dumps(problem)


def test_a_person_s_tasks_are_those_of_every_step(call: Caller, campaigns: CampaignStore, rows: CampaignRows) -> None:
    """A sequence has a row for each step, from the first to the last."""
    rule = {"kind": "after_previous", "offset": "P3D"}
    steps = (*SPEC.steps, SPEC.steps[0].model_copy(update={"rule": AfterPrevious.model_validate(rule)}))
    spec = SPEC.model_copy(update={"steps": steps})
    campaigns.create(campaign(state="dispatching", generation=1, enrolled=2, spec=spec))
    rows.enrol([task_of_step(1, "ana@example.com"), task_of_step(2, "ana@example.com")])
    page = call("GET", "/campaigns/advent/tasks", address="ana@example.com")[1]
    assert [found["step"] for found in page["tasks"]] == [1, 2]


DIRECT = SPEC.model_copy(update={"route": "direct"})


@pytest.mark.parametrize(
    ("method", "path", "state"),
    [
        ("GET", "counts", "dispatching"),
        ("GET", "tasks", "dispatching"),
        ("POST", "pause", "dispatching"),
        ("POST", "resume", "aborted"),
    ],
)
def test_what_needs_tasks_is_refused_on_the_direct_route(
    call: Caller, campaigns: CampaignStore, method: str, path: str, state: str
) -> None:
    """There are none, and the refusal says so."""
    campaigns.create(campaign(state=state, generation=1, spec=DIRECT))
    status, problem = call(method, f"/campaigns/advent/{path}")
    assert (status, problem["code"]) == (409, "ActionRefused")
    assert "direct route" in problem["detail"]
    assert not call.executions.started


def test_a_plan_is_asked_for_and_then_looked_at(call: Caller, campaigns: CampaignStore) -> None:
    """404 before anybody asked; planning while it runs; then the plan with a link to whom it leaves out."""
    campaigns.create(campaign())
    status, problem = call("GET", "/campaigns/advent/plan")
    assert (status, problem["code"]) == (404, "PlanMissing")
    assert "POST /campaigns/advent/plan" in problem["detail"]
    assert call("POST", "/campaigns/advent/plan")[1]["code"] == "UploadMissing"
    uploaded(call)
    status, started = call("POST", "/campaigns/advent/plan")
    assert (status, started) == (202, {"campaign_id": "advent", "execution": "advent-plan-1"})
    assert call.executions.started == [("launch", "advent-plan-1", {"campaign_id": "advent", "plan": True})]
    nothing = {"plan": None, "error": None, "rejects_url": None}
    assert call("GET", "/campaigns/advent/plan")[1] == {"state": "planning", "execution": "advent-plan-1", **nothing}
    plan = {"hash": "ab" * 32, "valid": 6, "rejects_key": "campaigns/advent/plans/n/rejects.csv"}
    campaigns.record_plan("advent", plan, now=NOW)
    assert call("GET", "/campaigns/advent/plan")[1] == {
        "state": "planned",
        "execution": None,
        "plan": plan,
        "error": None,
        "rejects_url": "https://bucket.example/campaigns/advent/plans/n/rejects.csv?as=rejects.csv&for=3600",
    }
    assert "plan" not in call("GET", "/campaigns/advent")[1]
    assert call("POST", "/campaigns/advent/plan")[1]["execution"] == "advent-plan-2"


def test_whom_a_launch_leaves_out_is_linked(call: Caller, campaigns: CampaignStore) -> None:
    """Once a preparation counts; before that the answer says what to do."""
    campaigns.create(campaign())
    status, problem = call("GET", "/campaigns/advent/rejects")
    assert (status, problem["code"]) == (404, "RejectsMissing")
    campaigns.create(campaign(campaign_id="spring", prepared="g1-aaaa"))
    assert call("GET", "/campaigns/spring/rejects") == (
        200,
        {"url": "https://bucket.example/campaigns/spring/prepared/g1-aaaa/rejects.csv?as=rejects.csv&for=3600"},
    )


def test_a_plan_that_failed_says_why(call: Caller, campaigns: CampaignStore) -> None:
    """As the machine has written it."""
    error = {"code": "ListRejected", "message": "no column holds addresses"}
    campaigns.create(campaign(plan={"error": error}))
    shown = call("GET", "/campaigns/advent/plan")[1]
    assert (shown["state"], shown["error"], shown["plan"]) == ("failed", error, None)


def test_a_launch_may_be_bound_to_a_plan(call: Caller, campaigns: CampaignStore) -> None:
    """The hash travels to the machine; what is no hash, or not the newest plan's, is refused and nothing is started."""
    uploads = {"list.csv": "v1", "templates/advent.html": "v1"}
    campaigns.create(campaign(plan={"hash": "ab" * 32, "uploads": uploads}))
    uploaded(call)
    for wrong in ({"plan": "the last one"}, {"plan": ""}, {"plans": "ab" * 32}, {"plan": ["ab" * 32]}):
        assert call("POST", "/campaigns/advent/launch", wrong)[0] == 422
    assert call("POST", "/campaigns/advent/launch", {"plan": "cd" * 32})[1]["code"] == "PlanOutdated"
    call.uploads.again = {keys.upload("advent", "templates/advent.html")}
    status, problem = call("POST", "/campaigns/advent/launch", {"plan": "ab" * 32})
    assert (status, problem["code"]) == (409, "PlanOutdated")
    assert "templates/advent.html" in problem["detail"]
    assert not call.executions.started
    call.uploads.again.clear()
    assert call("POST", "/campaigns/advent/launch", {"plan": "ab" * 32})[0] == 202
    assert call.executions.started[0][2] == {"campaign_id": "advent", "resume": False, "expected": "ab" * 32}


def test_the_identitys_pace_is_set_and_nothing_beside_it(call: Caller, dynamodb: DynamoDBClient) -> None:
    """What senders have reserved and counted stays; what is left out of the body is its default."""
    status, shown = call("GET", "/settings/pace")
    assert (status, shown["daily_cap"], shown["max_24_hour_send"]) == (200, 200, None)
    taken = {"next_free": 1_795_939_200_000, "hours": {"2026112907": 41}, "max_24_hour_send": 50_000, "paused": True}
    dynamodb.put_item(TableName="Settings", Item=to_item({"name": "pace", "rate_per_second": 3, **taken}))
    ramp = [{"day": "2026-11-30", "cap": 500}, {"day": "2026-12-01", "cap": 1000}]
    status, shown = call("PUT", "/settings/pace", {"rate_per_second": 14.5, "daily_cap": 40_000, "warm_up": ramp})
    assert (status, shown) == (
        200,
        {"rate_per_second": 14.5, "daily_cap": 40_000, "warm_up": ramp, "paused": False, "max_24_hour_send": 50_000},
    )
    assert call("GET", "/settings/pace")[1] == shown
    pace = SettingsTable("Settings", dynamodb).pace()
    assert (pace.next_free, pace.hours, pace.max_24_hour_send) == (1_795_939_200_000, {"2026112907": 41}, 50_000)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rate_per_second": 0}, "rate_per_second"),
        ({"rate_per_second": -1}, "rate_per_second"),
        ({"rate_per_second": 1e300}, "rate_per_second"),
        ({"rate_per_second": "fast"}, "rate_per_second"),
        ({"daily_cap": -1}, "daily_cap"),
        ({"daily_cap": 1.5}, "daily_cap"),
        ({"warm_up": [{"day": "2026-11-30", "cap": 1}, {"day": "2026-11-30", "cap": 2}]}, "warm_up"),
        ({"warm_up": [{"day": "30.11.2026", "cap": 1}]}, "day"),
        ({"paused": "perhaps"}, "paused"),
        ({"next_free": 0}, "next_free"),
        ({"hours": {}}, "hours"),
    ],
)
def test_a_pace_that_cannot_be_meant_is_refused(
    call: Caller, dynamodb: DynamoDBClient, change: dict[str, Any], field: str
) -> None:
    """422 with the field's name, and nothing is set; what senders write is not an operator's."""
    status, problem = call("PUT", "/settings/pace", {"rate_per_second": 14, "daily_cap": 40_000, **change})
    assert (status, problem["code"]) == (422, "InvalidRequest")
    assert any(field in error["field"].split(".") for error in problem["errors"])
    assert dynamodb.scan(TableName="Settings")["Items"] == []


def test_who_sends_is_set(call: Caller) -> None:
    """A postal address, on as many lines as it takes; null before."""
    assert call("GET", "/settings/sender") == (200, {"postal_address": None})
    address = "Ringer GmbH\nGlockengasse 4711\n50667 Köln"
    for _ in range(2):
        assert call("PUT", "/settings/sender", {"postal_address": f" {address}\n"}) == (
            200,
            {"postal_address": address},
        )
    assert call("GET", "/settings/sender") == (200, {"postal_address": address})
    for wrong in ("", " \n", "x" * 501, "a\x00b", 5, None):
        assert call("PUT", "/settings/sender", {"postal_address": wrong})[0] == 422


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda b: b | {"steps": [b["steps"][0] | {"subject": "Hello {{ first_name"}]}, "TemplateRejected"),
        (lambda b: b | {"steps": [b["steps"][0] | {"preheader": "{% include 'x' %}"}]}, "TemplateRejected"),
        (lambda b: b | {"from": "Shop <shop@elsewhere.example>"}, "IdentityNotVerified"),
        (lambda b: b | {"from": "Shop <shop@notexample.com>"}, "IdentityNotVerified"),
    ],
)
def test_what_could_never_be_sent_is_refused_when_it_is_created(
    call: Caller, campaigns: CampaignStore, change: Callable[[dict[str, Any]], Any], code: str
) -> None:
    """A subject that cannot be parsed, a sender of another domain: 422 at once, and no campaign."""
    status, problem = call("POST", "/campaigns", change(dict(BODY)), headers={"Idempotency-Key": "k"})
    assert (status, problem["code"]) == (422, code)
    assert campaigns.by_created("2026-11") == ([], None)
    assert call("POST", "/campaigns", BODY, headers={"Idempotency-Key": "k"})[0] == 201


def test_campaigns_are_listed_by_state_or_by_month(call: Caller) -> None:
    """Not by both, which no index knows."""
    status, problem = call("GET", "/campaigns", state="created", month="2026-11")
    assert (status, problem["code"]) == (422, "InvalidRequest")
    assert "not for both" in problem["detail"]


def test_a_template_that_no_step_names_is_not_uploaded(call: Caller, campaigns: CampaignStore) -> None:
    """A typo is found here, and not when the launch misses the right one."""
    campaigns.create(campaign())
    status, problem = call("POST", "/campaigns/advent/uploads", {"kind": "template", "name": "avdent.html"})
    assert (status, problem["code"]) == (422, "InvalidRequest")
    assert "the steps name advent.html" in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/campaigns/nobody"),
        ("GET", "/campaigns/nobody/counts"),
        ("GET", "/campaigns/nobody/tasks"),
        ("GET", "/campaigns/nobody/plan"),
        ("POST", "/campaigns/nobody/plan"),
        ("POST", "/campaigns/nobody/launch"),
        ("POST", "/campaigns/nobody/resume"),
        ("POST", "/campaigns/nobody/pause"),
        ("POST", "/campaigns/nobody/cancel"),
        ("POST", "/campaigns/nobody/uploads"),
    ],
)
def test_an_unknown_campaign_is_404_everywhere(call: Caller, method: str, path: str) -> None:
    """The problem names the id."""
    status, problem = call(method, path, {"kind": "list"} if path.endswith("uploads") else None)
    assert (status, problem["code"]) == (404, "CampaignNotFound")
    assert "nobody" in problem["detail"]


def without(*path: str) -> Callable[[dict[str, Any]], Any]:
    def change(body: dict[str, Any]) -> dict[str, Any]:
        return {name: v for name, v in body.items() if name not in path}

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (without("topic"), "topic"),
        (lambda b: b | {"tpoic": "offers"}, "tpoic"),
        (lambda b: b | {"steps": []}, "steps"),
        (lambda b: b | {"from": "a@example.com\r\nBcc: b@example.com"}, "from"),
        (lambda b: b | {"list": {"fallback_timezone": "Mars/Olympus"}}, "fallback_timezone"),
        (lambda b: b | {"list": {"fallback_timezone": "CEST"}}, "fallback_timezone"),
        (lambda b: b | {"pace": {"per_day": 0}}, "per_day"),
        (lambda b: b | {"steps": [b["steps"][0] | {"template": "../../secret"}]}, "template"),
        (lambda b: b | {"steps": [b["steps"][0] | {"rule": {"kind": "at", "at": "2026-12-01T08:00:00"}}]}, "at"),
        (lambda b: b | {"not_after": "soon"}, "not_after"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    call: Caller, campaigns: CampaignStore, change: Callable[[dict[str, Any]], Any], field: str
) -> None:
    """422 with the field, never with what was in it, and no campaign."""
    status, problem = call("POST", "/campaigns", change(dict(BODY)))
    assert (status, problem["code"]) == (422, "InvalidRequest")
    assert any(field in error["field"].split(".") for error in problem["errors"])
    assert "@" not in json.dumps(problem)
    assert campaigns.by_created("2026-11") == ([], None)


@pytest.mark.parametrize("body", ["{nope", '{"name": "x"', "[" * 100_000, "\x00", "NaN1"])
def test_a_body_that_is_no_json_is_400(call: Caller, body: str) -> None:
    """And says so, even nested past reason, and where no body is needed."""
    assert call("POST", "/campaigns", body)[0] == 400
    assert call("POST", "/campaigns/advent/launch", body)[0] == 400


@pytest.mark.parametrize("body", ["[]", "[{}]", "3", '"text"', "null", json.dumps([BODY]), json.dumps([BODY, BODY])])
def test_a_body_that_is_no_object_is_422(call: Caller, campaigns: CampaignStore, body: str) -> None:
    """A list of specs is not quietly its first."""
    assert call("POST", "/campaigns", body)[0] == 422
    assert campaigns.by_created("2026-11") == ([], None)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"]
)
def test_a_body_of_another_type_is_415(call: Caller, content_type: str) -> None:
    """The header decides, also of what would be JSON: `curl -d` alone says that it sends a form."""
    status, problem = call("POST", "/campaigns", BODY, headers={"content-type": content_type})
    assert (status, problem["code"]) == (415, "NotJson")
    assert "@" not in json.dumps(problem)


def test_a_post_without_a_body_may_say_that_it_is_a_form(call: Caller, campaigns: CampaignStore) -> None:
    """`curl -d ''` does, and there is nothing to misread."""
    campaigns.create(campaign())
    assert call("POST", "/campaigns/advent/launch", headers={"content-type": "application/x-www-form-urlencoded"})[
        0
    ] in (202, 409)


def test_only_the_cause_is_named_and_not_in_python(call: Caller) -> None:
    """A list with a wrong item is not too short as well, and a list is not a tuple."""
    wrong = BODY | {"steps": [BODY["steps"][0] | {"rule": {"kind": "at", "at": "2026-12-01T08:00:00"}}]}
    errors = call("POST", "/campaigns", wrong)[1]["errors"]
    assert [error["field"] for error in errors] == ["body.steps.0.rule.at.at"]
    wrong = BODY | {"steps": "one", "list": 3, "colour": "red"}
    problems = {error["field"]: error["problem"] for error in call("POST", "/campaigns", wrong)[1]["errors"]}
    assert problems["body.steps"] == "must be a list"
    assert problems["body.list"] == "must be an object"
    assert problems["body.colour"] == "there is no such field"


@pytest.mark.parametrize(
    ("rule", "field", "word"),
    [
        ({"kind": "at", "at": "2026-12-10 09:00"}, "at.at", "offset from UTC"),
        ({"kind": "at", "at": "tomorrow"}, "at.at", "offset from UTC"),
        ({"kind": "local_time", "date": "10.12.2026", "time": "09:00"}, "local_time.date", "written 2027-03-20"),
        ({"kind": "local_time", "date": "2026-12-10", "time": "9"}, "local_time.time", "written 09:00"),
        ({"kind": "after_previus", "offset": "P3D"}, "", "kind is 'after_previus', and must be one of 'asap', "),
    ],
)
def test_a_rule_that_cannot_be_read_is_told_how_to_write_it(
    call: Caller, rule: dict[str, str], field: str, word: str
) -> None:
    """Who writes a spec knows JSON, and neither Python nor pydantic."""
    [error] = call("POST", "/campaigns", BODY | {"steps": [BODY["steps"][0] | {"rule": rule}]})[1]["errors"]
    assert error["field"] == f"body.steps.0.rule.{field}".rstrip(".")
    assert word in error["problem"]


@pytest.mark.parametrize("path", ["..", "..%2f..", "ADVENT", "a" * 41, "advent#00", "ad vent", "-advent", "a"])
def test_an_id_that_cannot_be_one_reaches_no_table(call: Caller, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tricks in the path end at the pattern: 4xx, and the store is never asked."""
    monkeypatch.setattr(app, "_api", lambda: pytest.fail("the store was asked"))
    for suffix in ("", "/tasks", "/counts"):
        assert 400 <= call("GET", f"/campaigns/{path}{suffix}")[0] < 500
    assert 400 <= call("POST", f"/campaigns/{path}/launch")[0] < 500


@pytest.mark.parametrize("cursor", ["x", "99.", "-1.", "0.0-zz", "3.0-" + "0" * 32, "0.", "²."])
def test_a_forged_cursor_is_refused_or_harmless(call: Caller, campaigns: CampaignStore, cursor: str) -> None:
    """It can name a place in this campaign's shards and nothing else."""
    campaigns.create(campaign())
    status, answer = call("GET", "/campaigns/advent/tasks", cursor=cursor)
    assert (status, answer.get("code")) == ((200, None) if cursor == "0." else (400, "InvalidCursor"))
    assert call("GET", "/campaigns", cursor=cursor)[0] == 400


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "501"}, {"limit": "many"}, {"status": "pending"}])
def test_a_query_that_is_wrong_is_422(call: Caller, query: dict[str, str]) -> None:
    """Names the parameter."""
    status, problem = call("GET", "/campaigns/advent/tasks", **query)
    assert status == 422
    assert next(iter(query)) in problem["errors"][0]["field"]


def test_an_unknown_route_is_a_problem_too(call: Caller) -> None:
    """Of the path or of the method."""
    assert call("GET", "/nowhere")[1]["code"] == "NoSuchRoute"
    assert call("DELETE", "/campaigns/advent")[0] == 404


def test_our_own_fault_is_a_500_without_a_word_of_the_data(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has where and what kind; neither it nor the answer quotes an address."""

    def broken() -> None:
        raise KeyError("ana@example.com")

    monkeypatch.setattr(app, "_api", broken)
    log = io.StringIO()
    monkeypatch.setattr(app.logger.registered_handler, "stream", log)
    status, problem = call("GET", "/campaigns/advent")
    assert status == 500
    assert "KeyError" in log.getvalue()
    assert "ana@example.com" not in log.getvalue() + json.dumps(problem)


def test_the_api_describes_itself(call: Caller) -> None:
    """OpenAPI 3.1 with every route."""
    status, schema = call("GET", "/openapi.json")
    assert status == 200
    assert schema["openapi"].startswith("3.1")
    verbs = ("plan", "launch", "resume", "pause", "cancel", "tasks")
    assert {f"/campaigns/{{campaign_id}}/{verb}" for verb in verbs} <= set(schema["paths"])
    assert {"/settings/pace", "/settings/sender"} <= set(schema["paths"])


@given(st.lists(st.datetimes(datetime(2026, 1, 1), datetime(2059, 1, 1), timezones=st.just(UTC)), min_size=2))  # noqa: DTZ001
def test_ids_sort_by_creation(moments: list[datetime]) -> None:
    """Until 2059; inside two milliseconds chance decides."""
    first, last = min(moments), max(moments)
    if last - first >= timedelta(milliseconds=2):
        assert api.new_id(first) < api.new_id(last)


def test_an_id_is_a_campaign_id() -> None:
    """It fits the pattern that every name is made from."""
    from pydantic import TypeAdapter

    TypeAdapter(CampaignId).validate_python(api.new_id(NOW))


def test_every_state_has_its_advice() -> None:
    """A refusal always says what to do instead."""
    assert set(api.ADVICE) == set(CampaignState)
