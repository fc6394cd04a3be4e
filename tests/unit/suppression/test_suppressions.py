"""The suppression list through the API: hashes go in, no address comes out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign_api import app
from carillon import keys
from carillon.adapters import clock
from carillon.adapters.suppressed import SuppressionLookup
from carillon.adapters.suppressions import SuppressionTable
from carillon.consent.suppressions import Suppression, SuppressionList, hash_of
from carillon.errors import CampaignNotFound

from .conftest import ANA, CONTEXT, NOW, TASK

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@dataclass
class Api:
    """Calls the campaign API with a valid token."""

    table: SuppressionTable

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": "",
            "headers": {"content-type": "application/json", "authorization": "Bearer right"},
            "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
            "body": json.dumps(body),
            "isBase64Encoded": False,
        }
        answer = app.handler(event, CONTEXT)
        return answer["statusCode"], json.loads(answer["body"])

    def rows(self) -> set[tuple[str, str, str]]:
        return {(row.address_hash, row.topic, row.reason) for page in self.table.every() for row in page}


@pytest.fixture
def api(table: SuppressionTable, monkeypatch: pytest.MonkeyPatch) -> Api:
    def get(campaign_id: str) -> None:
        if campaign_id != "advent":
            raise CampaignNotFound(f"there is no campaign {campaign_id}")

    monkeypatch.setattr(app, "_suppressions", lambda: SuppressionList(table))
    monkeypatch.setattr(app, "_api", lambda: SimpleNamespace(get=get))
    monkeypatch.setattr(app, "_tokens", lambda: SimpleNamespace(valid=lambda: ("right",)))
    monkeypatch.setattr(clock, "epoch", NOW.timestamp)
    return Api(table)


def test_addresses_are_suppressed_once_and_the_first_reason_stays(api: Api) -> None:
    """However they are written; twice in a call, or in two calls."""
    written = ["Ana@Example.COM", " <ana@example.com> ", "ben@example.com"]
    assert api("POST", "/suppressions", {"addresses": written, "topic": "news", "reason": "asked"}) == (
        200,
        {"changed": 2, "unchanged": 1, "invalid": []},
    )
    again = api("POST", "/suppressions", {"addresses": ["ana@example.com"], "topic": "news", "reason": "other"})
    assert again == (200, {"changed": 0, "unchanged": 1, "invalid": []})
    assert api.rows() == {
        (ANA, "news", "asked"),
        (keys.address_hash("ben@example.com"), "news", "asked"),
    }


def test_what_is_no_address_is_named_by_its_place_alone(api: Api) -> None:
    """All others are suppressed; nothing that was sent comes back."""
    written = ["ana@example.com", "nobody", "", "ünï@example.com", "ben@example.com"]
    status, answer = api("POST", "/suppressions", {"addresses": written, "reason": "asked"})
    assert (status, answer) == (200, {"changed": 2, "unchanged": 0, "invalid": [1, 2, 3]})
    assert {topic for _, topic, _ in api.rows()} == {"*"}


@pytest.mark.parametrize(
    "body",
    [
        {"addresses": [], "reason": "asked"},
        {"addresses": ["ana@example.com"] * 1001, "reason": "asked"},
        {"addresses": ["ana@example.com"], "reason": "ana@example.com"},
        {"addresses": ["ana@example.com"], "reason": ""},
        {"addresses": ["ana@example.com"]},
        {"addresses": ["ana@example.com"], "topic": "campaign.advent", "reason": "asked"},
        {"addresses": ["ana@example.com"], "topic": "", "reason": "asked"},
        {"addresses": ["a" * 401 + "@example.com"], "reason": "asked"},
        {"addresses": "ana@example.com", "reason": "asked"},
    ],
)
def test_a_call_that_cannot_be_meant_is_refused_without_an_address(api: Api, body: dict[str, Any]) -> None:
    """422, the field and what is wrong with it. A reason is kept for ever, so it cannot be an address."""
    status, problem = api("POST", "/suppressions", body)
    assert status == 422
    assert "example.com" not in json.dumps(problem)
    assert api.rows() == set()


def test_a_thousand_at_once(api: Api) -> None:
    """Forty batches, none forgotten."""
    written = [f"person.{n}@example.com" for n in range(1000)]
    assert api("POST", "/suppressions", {"addresses": written, "reason": "import"})[1]["changed"] == 1000
    assert {address_hash for address_hash, _, _ in api.rows()} == {keys.address_hash(each) for each in written}
    lifted = api("DELETE", "/suppressions", {"addresses": [*written[:999], "person.0@example.com"]})[1]
    assert lifted == {"changed": 999, "unchanged": 1, "invalid": []}
    assert api.rows() == {(keys.address_hash(written[999]), "*", "import")}


def test_lifting_takes_back_exactly_that_topic(api: Api) -> None:
    """Another topic's row and that of all topics stay; what is not there is no error."""
    for topic in ("news", "offers", "*"):
        api("POST", "/suppressions", {"addresses": ["ana@example.com"], "topic": topic, "reason": "asked"})
    lift = {"addresses": ["ANA@example.com", "x", "ben@example.com"], "topic": "news"}
    assert api("DELETE", "/suppressions", lift) == (200, {"changed": 1, "unchanged": 1, "invalid": [1]})
    assert {topic for _, topic, _ in api.rows()} == {"offers", "*"}


def test_a_lookup_shows_every_suppression_of_an_address(api: Api) -> None:
    """By its place in the question, with topic, reason and time."""
    api("POST", "/suppressions", {"addresses": ["ana@example.com"], "topic": "news", "reason": "asked"})
    api("POST", "/campaigns/advent/exits", {"addresses": ["ana@example.com"]})
    status, found = api("POST", "/suppressions/lookup", {"addresses": ["ben@example.com", "?", "ana@EXAMPLE.com"]})
    at = "2026-11-29T08:00:00Z"
    assert status == 200
    assert found["invalid"] == [1]
    assert sorted(found["entries"], key=lambda entry: str(entry["topic"])) == [
        {"address": 2, "topic": "campaign.advent", "reason": "exit", "at": at},
        {"address": 2, "topic": "news", "reason": "asked", "at": at},
    ]


def test_who_leaves_a_campaign_is_on_its_exit_list_alone(api: Api, dynamodb: DynamoDBClient) -> None:
    """A row of the topic campaign.{id}; the campaign's own topic still reaches them elsewhere."""
    assert api("POST", "/campaigns/advent/exits", {"addresses": ["ana@example.com"]})[1]["changed"] == 1
    assert api.rows() == {(ANA, "campaign.advent", "exit")}
    lookup = SuppressionLookup("Suppressions", dynamodb)
    assert lookup.suppressed([[ANA]], 1, "news") == set()
    assert lookup.suppressed([[ANA]], 1, "campaign.advent") == {ANA}
    assert api("POST", "/campaigns/easter/exits", {"addresses": ["ana@example.com"]})[0] == 404


VARIANTS = st.sampled_from(
    ["jürgen@bücher.example", "ana@straße.example", "ana@xn--bcher-kva.example", "ana@example.com"]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(VARIANTS, st.sampled_from(["{}", " {}\u00a0", "<{}>", "Ana <{}>", "mailto:{}", "\u200b{}"]), st.data())
def test_one_person_is_one_hash_however_the_address_is_written(address: str, form: str, data: Any) -> None:
    """Case, an international domain or its A-label, blanks, names and invisible signs change nothing."""
    flips = data.draw(st.lists(st.booleans(), min_size=len(address), max_size=len(address)))
    cased = "".join(c.upper() if flip and c.isascii() else c for c, flip in zip(address, flips, strict=True))
    assert hash_of(form.format(cased)) == hash_of(address)


def test_an_international_domain_and_its_a_label_are_one() -> None:
    """As everywhere: `carillon.addresses.judge` and `canonical`."""
    assert hash_of("Ana@BÜCHER.example") == keys.address_hash("ana@xn--bcher-kva.example")


def test_a_row_that_is_there_stays_as_it_is(table: SuppressionTable) -> None:
    """Whoever comes second learns what is there."""
    first = Suppression(ANA, "news", "one_click", "2026-11-29T08:00:00Z", "advent", TASK)
    assert table.put_first(first) == first
    assert table.put_first(Suppression(ANA, "news", "asked", "2026-12-24T08:00:00Z")) == first
    assert table.put_all([Suppression(ANA, "news", "asked", "2026-12-24T08:00:00Z")]) == 0
    assert table.of(ANA) == [first]


def test_marking_a_row_that_was_lifted_does_not_bring_it_back(table: SuppressionTable) -> None:
    """Otherwise a person who has come back would be suppressed by a late write."""
    row = table.put_first(Suppression(ANA, "news", "one_click", "2026-11-29T08:00:00Z", "advent", TASK))
    table.delete_all([(ANA, "news")])
    table.mark_archived(row)
    assert table.of(ANA) == []


def test_statements_that_dynamodb_puts_off_are_run_again(dynamodb: DynamoDBClient) -> None:
    """A busy table answers single statements with an error (BatchStatementErrorCodeEnum); nobody is left out."""
    client = Busy(dynamodb, times=1)
    table = SuppressionTable("Suppressions", client, sleep=lambda seconds: None)
    rows = [Suppression(f"{n:064x}", "*", "import", "2026-11-29T08:00:00Z") for n in range(30)]
    assert table.put_all(rows) == 30
    assert sum(len(page) for page in table.every()) == 30
    with pytest.raises(TimeoutError):
        SuppressionTable("Suppressions", Busy(dynamodb, times=99), sleep=lambda seconds: None).put_all(rows[:1])


class Busy:
    """A DynamoDB that puts the first statement of a batch off, so many times for each batch size."""

    def __init__(self, client: DynamoDBClient, times: int) -> None:
        self._client = client
        self._times = times
        self._seen: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_execute_statement(self, Statements: list[Any]) -> Any:
        seen = self._seen.get(len(Statements), 0)
        self._seen[len(Statements)] = seen + 1
        if seen >= self._times:
            return self._client.batch_execute_statement(Statements=Statements)
        done = self._client.batch_execute_statement(Statements=Statements[1:])["Responses"] if Statements[1:] else []
        return {"Responses": [{"Error": {"Code": "ThrottlingError", "Message": "slow down"}}, *done]}


def test_no_address_reaches_the_log(api: Api, log: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when the table fails with one in its error."""
    api("POST", "/suppressions", {"addresses": ["ana@example.com"], "reason": "asked"})

    def fail(rows: Any) -> int:
        raise RuntimeError("ana@example.com cannot be written")

    monkeypatch.setattr(api.table, "put_all", fail)
    assert api("POST", "/suppressions", {"addresses": ["ana@example.com"], "reason": "asked"})[0] == 500
    assert "unexpected error" in log.getvalue()
    assert "ana" not in log.getvalue()
