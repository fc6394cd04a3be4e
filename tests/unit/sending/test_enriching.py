"""Enrichment: asked once a batch before anything is claimed, and believed as little as a list."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from carillon.adapters.enrichment import BRIEF, LARGEST_ANSWER, LambdaEnrichers
from carillon.delivery import enriching
from carillon.delivery.enriching import EnrichmentFailed, EnrichmentUnreachable
from carillon.shapes import Enrichment
from carillon.transitions import TaskStatus
from tests.unit.sending.examples import NOW, campaign, message, record, task
from tests.unit.sending.fakes import World, taken_now

ASKED = {"function": "carillon-enrichment-points", "provides": ["points", "tier"]}
ENRICHMENT = Enrichment.model_validate(ASKED)


def world(count: int = 3, if_failing: str = "fail", **changes) -> World:
    spec = {"enrichment": ASKED | {"if_failing": if_failing}}
    w = World([campaign(spec, **changes)], [task(n) for n in range(count)])
    html = '<p>{{ first_name }} has {{ points | default("some") }} points</p>'
    w.prepared = w.prepared.model_copy(update={"html": html, "given": ("points",)})
    w.enricher = lambda question: {r["task"]: {"points": 7} for r in question["recipients"]}
    return w


def messages(count: int = 3, **changes):
    return [record(message(n), f"m{n}", **changes) for n in range(count)]


def statuses(w: World) -> list[str]:
    return [str(w.row(n).status) for n in range(len(w.rows))]


def test_a_batch_is_asked_about_once_by_id_and_columns():
    """No address is in the question, and the answer is in the e-mails."""
    w = world()
    assert w.send(*messages()) == []
    assert w.questions == [
        {
            "campaign_id": "advent",
            "step": 0,
            "recipients": [{"task": task(n).task, "columns": {"first_name": f"Name {n}"}} for n in range(3)],
        }
    ]
    assert {"has 7 points" in email.html for _, email in w.accepted} == {True}


def test_each_campaign_and_step_is_a_question_of_its_own_and_nobody_else_is_asked_about():
    """Two campaigns in one batch, one without enrichment; a suppressed task is not asked about either."""
    plain = campaign(campaign_id="winter")
    w = world(2)
    w.campaigns["winter"] = plain
    w.rows["winter", task(0).task] = task(0, campaign_id="winter")
    w.rows["advent", task(1).task] = task(1, status=TaskStatus.CANCELLED)
    w.send(*messages(2), record(message(0, campaign="winter")))
    assert [[r["task"] for r in q["recipients"]] for q in w.questions] == [[task(0).task]]
    assert len(w.accepted) == 2


def test_a_campaign_without_enrichment_asks_nobody():
    """And makes no call."""
    w = World([campaign()], [task(0)])
    w.send(*messages(1))
    assert w.calls["enrich"] == 0


WRONG = {
    "nothing": None,
    "a list": [],
    "another task's": {"0-ffff": {"points": 1}},
    "no object": {task(0).task: "seven"},
    "null": {task(0).task: None},
    "a list as a value": {task(0).task: {"points": [1]}},
    "an object as a value": {task(0).task: {"points": {"n": 1}}},
    "what was not announced": {task(0).task: {"points": 1, "unsubscribe_url": "https://evil"}},
    "no number": {task(0).task: {"points": float("nan")}},
    "too long": {task(0).task: {"points": "x" * 50_001}},
    "half a character": {task(0).task: {"points": "\ud800"}},
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
def test_an_answer_that_is_no_good_fails_its_task_or_is_done_without(answer):
    """As the campaign says; a value never reaches the reason."""
    for if_failing, status in (("fail", "Failed"), ("send_without", "Finished")):
        w = world(1, if_failing)
        w.enricher = lambda question: answer
        assert w.send(*messages(1)) == []
        assert statuses(w) == [status]
    assert "has some points" in w.accepted[0][1].html
    failed = world(1)
    failed.enricher = lambda question: answer
    failed.send(*messages(1))
    assert failed.row(0).error.code == "EnrichmentFailed"
    assert "carillon-enrichment-points" in failed.row(0).error.message
    assert taken_now(failed) == 0


def test_one_bad_answer_never_touches_the_other_nine():
    """Nine tasks are answered, one is not."""
    w = world(10)
    w.enricher = lambda question: {r["task"]: {"points": 7} for r in question["recipients"][1:]}
    w.send(*messages(10))
    assert statuses(w) == ["Failed"] + ["Finished"] * 9


@pytest.mark.parametrize(
    "error", [EnrichmentUnreachable("throttled"), ConnectionError("what nobody foresaw")], ids=repr
)
def test_a_function_that_cannot_be_reached_is_asked_again_for_three_hours(error):
    """The messages stay, nothing is claimed and no pace is taken; then it has failed, as the campaign says."""
    w = world(2)

    def unreachable(question):
        raise error

    w.enricher = unreachable
    assert w.send(*messages(2)) == ["m0", "m1"]
    assert statuses(w) == ["Pending"] * 2
    assert (w.calls["Pending to Running"], taken_now(w)) == (0, 0)
    w.send(*messages(2, first_received=NOW - enriching.PATIENCE - timedelta(seconds=1)))
    assert [w.row(n).error.code for n in range(2)] == ["EnrichmentFailed"] * 2


def test_a_function_that_failed_is_not_asked_again():
    """Its own error would come again."""
    w = world(2)

    def failing(question):
        raise EnrichmentFailed("carillon-enrichment-points ended with an error")

    w.enricher = failing
    assert w.send(*messages(2)) == []
    assert statuses(w) == ["Failed"] * 2


def test_slow_functions_do_not_cost_the_batch_its_time():
    """Five campaigns whose functions take 6 s each: those for which no time is left come again, unasked."""
    w = world(1)
    for n in range(4):
        w.campaigns[f"c-{n}"] = w.campaigns["advent"].model_copy(update={"campaign_id": f"c-{n}"})
        w.rows[f"c-{n}", task(0).task] = task(0, campaign_id=f"c-{n}")
    effect = w.call

    def slow(name, run):
        if name == "enrich":
            w.pass_time(enriching.SECONDS)
        return effect(name, run)

    w.call = slow
    kept = w.send(*messages(1), *[record(message(0, campaign=f"c-{n}"), f"c-{n}") for n in range(4)])
    assert w.calls["enrich"] == 3
    assert set(kept) >= {"c-2", "c-3"}
    assert w.now() <= NOW + timedelta(seconds=30)
    assert len(w.accepted) + len(kept) == 5


def test_a_built_in_is_never_the_functions():
    """Announced or not, the way out is Carillon's."""
    w = world(1)
    spec = {"enrichment": ASKED | {"provides": ["unsubscribe_url"]}}
    w.campaigns["advent"] = campaign(spec)
    w.prepared = w.prepared.model_copy(update={"html": "<p>{{ first_name }} {{ unsubscribe_url }}</p>"})
    w.enricher = lambda question: {r["task"]: {"unsubscribe_url": "https://evil"} for r in question["recipients"]}
    w.send(*messages(1))
    assert "evil" not in w.accepted[0][1].html


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["0-a", "points", "x"]), inner),
        max_leaves=8,
    )
)
def test_whatever_is_answered_is_values_or_a_failure(answer):
    """Law: nothing that no template can show comes through."""
    try:
        found = enriching.values(ENRICHMENT, answer, "0-a")
    except EnrichmentFailed:
        return
    assert found.keys() <= {"points", "tier"}
    assert all(isinstance(value, str | int | float) for value in found.values())


# Lambda


class Lambda:
    """A client that answers one Invoke."""

    def __init__(self, body: bytes = b"{}", error: Exception | None = None, **answer) -> None:
        self.asked: list[dict] = []
        self._answer = {"StatusCode": 200, "Payload": io.BytesIO(body), **answer}
        self._error = error

    def invoke(self, **arguments):
        self.asked.append(arguments)
        if self._error:
            raise self._error
        return self._answer


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "person@example.com"}}, "Invoke")


def test_a_function_is_invoked_by_name_and_alias():
    """Synchronously, with JSON in and JSON out."""
    client = Lambda('{"0-a": {"points": 1, "tier": "größte"}}'.encode())
    question = enriching.question("advent", 0, {"0-a": {"city": "Köln"}})
    assert LambdaEnrichers(client).ask("carillon-enrichment-points:live", question) == {
        "0-a": {"points": 1, "tier": "größte"}
    }
    (asked,) = client.asked
    assert (asked["FunctionName"], asked["Qualifier"]) == ("carillon-enrichment-points", "live")
    assert json.loads(asked["Payload"]) == question
    assert "InvocationType" not in asked
    LambdaEnrichers(client := Lambda()).ask("carillon-enrichment-points", question)
    assert "Qualifier" not in client.asked[0]


@pytest.mark.parametrize(
    ("client", "kind"),
    [
        (Lambda(b'{"errorMessage": "person@example.com"}', FunctionError="Unhandled"), EnrichmentFailed),
        (Lambda(b"not JSON"), EnrichmentFailed),
        (Lambda(b"[" * 200_000), EnrichmentFailed),
        (Lambda(b" " * (LARGEST_ANSWER + 1)), EnrichmentFailed),
        (Lambda(error=refusal("ResourceNotFoundException")), EnrichmentFailed),
        (Lambda(error=refusal("RequestTooLargeException")), EnrichmentFailed),
        (Lambda(error=refusal("TooManyRequestsException")), EnrichmentUnreachable),
        (Lambda(error=refusal("ServiceException")), EnrichmentUnreachable),
        (Lambda(error=refusal("AccessDeniedException")), EnrichmentUnreachable),
        (Lambda(error=ReadTimeoutError(endpoint_url="https://lambda")), EnrichmentUnreachable),
    ],
    ids=[
        "its own error",
        "no JSON",
        "too deep",
        "too large",
        "gone",
        "asked too much",
        "throttled",
        "5xx",
        "forbidden",
        "slow",
    ],
)
def test_what_lambda_says_is_for_good_or_for_now(client, kind):
    """Nothing of a text that may hold an address is passed on."""
    with pytest.raises((EnrichmentFailed, EnrichmentUnreachable)) as caught:
        LambdaEnrichers(client).ask("carillon-enrichment-points", {})
    assert type(caught.value) is kind
    assert "example.com" not in str(caught.value)


def test_lambda_is_asked_once_and_within_the_time_reckoned_with():
    """The message comes again by itself."""
    assert BRIEF.connect_timeout + BRIEF.read_timeout <= enriching.SECONDS
    assert BRIEF.retries["total_max_attempts"] == 1
