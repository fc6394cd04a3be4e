"""The links' tokens: who has signed what, for ever."""

from __future__ import annotations

import json
import re
from timeit import timeit
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.consent.unsubscribing import InvalidToken, KeyRing, KeysUnusable, Links, Unsubscription, read, sign

from .conftest import ANA, FIRST, SECOND, TASK, Ring

CAMPAIGNS = st.from_regex(r"[a-z0-9][a-z0-9-]{2,39}", fullmatch=True)
TOPICS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
ADDRESSES = st.from_regex(r"[a-z]{1,20}@example\.com", fullmatch=True)
STEPS = st.integers(1, 20)
TOKEN = sign(Ring().ring(), "advent", TASK, "news", ANA)


@settings(deadline=None)
@given(CAMPAIGNS, STEPS, ADDRESSES, TOPICS)
def test_a_token_says_what_was_signed(campaign: str, step: int, address: str, topic: str) -> None:
    """Campaign, e-mail, topic and address hash come back as they went in."""
    task, hashed = keys.task_id(step, address), keys.address_hash(address)
    said = read(sign(Ring().ring(), campaign, task, topic, hashed), Ring())
    assert said == Unsubscription(campaign_id=campaign, task=task, topic=topic, address_hash=hashed)
    assert said.step == step


def test_the_longest_link_fits_a_header() -> None:
    """SES takes 995 printable ASCII characters for a header's value (AWS_CONTRACTS 3), RFC 5322 998 a line."""
    task, hashed = keys.task_id(20, "a@example.com"), keys.address_hash("a@example.com")
    api = "https://abcdefghij.execute-api.ap-southeast-1.amazonaws.com"
    link = Links(api, Ring()).unsubscribe("c" * 40, task, "t" * 64, hashed)
    assert re.fullmatch(re.escape(api) + r"/u/[A-Za-z0-9_-]+", link)
    assert len(f"<{link}>") < 300


def test_a_link_holds_no_address() -> None:
    """Not even in parts: only its hash."""
    assert "ana" not in TOKEN
    assert "example" not in TOKEN


def test_a_link_costs_microseconds() -> None:
    """Every e-mail carries one, and the sender's whole budget is half a millisecond."""
    ring = Ring().ring()
    assert min(timeit(lambda: sign(ring, "advent", TASK, "news", ANA), number=200) for _ in range(5)) / 200 < 100e-6


@settings(deadline=None)
@given(st.integers(0, len(TOKEN) - 1), st.characters(max_codepoint=0x17F))
def test_tampering_with_any_character_is_refused(position: int, character: str) -> None:
    """Also with the last one, some of whose bits decode to nothing."""
    tampered = TOKEN[:position] + character + TOKEN[position + 1 :]
    if tampered != TOKEN:
        with pytest.raises(InvalidToken):
            read(tampered, Ring())


@settings(deadline=None)
@given(st.one_of(st.text(max_size=400), st.text("ABCabc019_-", max_size=400), st.binary().map(lambda b: b.hex())))
def test_nonsense_is_refused(token: str) -> None:
    """Whatever stands behind /u/, and never an error of another kind."""
    with pytest.raises(InvalidToken):
        read(token, Ring())


@settings(deadline=None)
@given(st.data())
def test_a_token_is_cut_or_lengthened_in_vain(data: Any) -> None:
    """A link that lost its end unsubscribes nobody."""
    cut = data.draw(st.integers(0, len(TOKEN) - 1))
    more = data.draw(st.text("Aa0_-=", min_size=1, max_size=8))
    for token in (TOKEN[:cut], TOKEN + more):
        with pytest.raises(InvalidToken):
            read(token, Ring())


@settings(deadline=None)
@given(CAMPAIGNS, TOPICS, ADDRESSES)
def test_no_token_acts_for_another_campaign_topic_or_person(campaign: str, topic: str, address: str) -> None:
    """The parts are signed together: where they are put together anew, or shifted, the signature does not fit."""
    other = sign(Ring().ring(), campaign, keys.task_id(2, address), topic, keys.address_hash(address))
    for cut in range(4, len(TOKEN), 4):
        spliced = other[:cut] + TOKEN[cut:]
        if spliced not in (TOKEN, other):
            with pytest.raises(InvalidToken):
                read(spliced, Ring())


def test_a_token_of_another_stack_is_refused() -> None:
    """Same key number, another key."""
    with pytest.raises(InvalidToken):
        read(TOKEN, Ring(json.dumps({"1": SECOND})))


@pytest.mark.parametrize("rotations", [1, 5, 300])
def test_an_old_token_works_after_rotations(rotations: int) -> None:
    """Whoever opens a two-year-old e-mail can still unsubscribe; new links carry the newest key."""
    ring = {"1": FIRST} | {str(n): str(n) * 40 for n in range(2, 2 + rotations)}
    rotated = Ring(json.dumps(ring))
    assert read(TOKEN, rotated).campaign_id == "advent"
    new = sign(rotated.ring(), "advent", TASK, "news", ANA)
    assert new != TOKEN
    assert read(new, rotated) == read(TOKEN, rotated)
    with pytest.raises(InvalidToken):
        read(new, Ring())


def test_a_key_that_was_taken_out_takes_its_links_with_it() -> None:
    """What to do when a key has leaked."""
    with pytest.raises(InvalidToken):
        read(TOKEN, Ring(json.dumps({"2": SECOND})))


def test_a_task_of_somebody_else_is_not_signed() -> None:
    """A mistake in the sender would otherwise unsubscribe a stranger."""
    with pytest.raises(ValueError, match="another address"):
        sign(Ring().ring(), "advent", keys.task_id(1, "ben@example.com"), "news", ANA)


@pytest.mark.parametrize(
    "secret",
    ["", "plain", "[]", "{}", "null", f'"{FIRST}"', '{"1": "short"}', '{"1": null}', f'{{"1": "{FIRST}", "2": ""}}']
    + [f'{{"{number}": "{FIRST}"}}' for number in ("a", "0", "-1", "65536")],
)
def test_a_secret_that_holds_no_ring_is_said_so(secret: str) -> None:
    """With the form that it should have, and without what is in it."""
    with pytest.raises(KeysUnusable) as raised:
        KeyRing.parse(secret)
    assert FIRST not in str(raised.value)
    assert "short" not in str(raised.value)


def test_the_ring_is_read_once_in_five_minutes_and_again_for_an_unknown_key() -> None:
    """A sender asks Secrets Manager twelve times an hour; a new key's first link works within seconds."""
    client = boto3.client(
        "secretsmanager", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    time = [0.0]
    known = UnsubscribeKeys("arn:secret", client, now=lambda: time[0])
    new = sign(KeyRing({2: SECOND.encode()}), "advent", TASK, "news", ANA)
    with Stubber(client) as stub:
        stub.add_response("get_secret_value", {"SecretString": json.dumps({"1": FIRST})}, {"SecretId": "arn:secret"})
        for time[0] in (0, 5, 299):
            assert set(known.ring().keys) == {1}
        stub.assert_no_pending_responses()
        both = {"SecretString": json.dumps({"1": FIRST, "2": SECOND})}
        stub.add_response("get_secret_value", both, {"SecretId": "arn:secret"})
        assert read(new, known).campaign_id == "advent"
        time[0] += 9
        with pytest.raises(InvalidToken):  # a third key: not asked for again so soon
            read(sign(KeyRing({3: SECOND.encode()}), "advent", TASK, "news", ANA), known)
        stub.assert_no_pending_responses()
