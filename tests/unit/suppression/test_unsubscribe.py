"""The public pages: GET looks, POST acts, and nobody learns anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from carillon.consent import pages
from carillon.consent.suppressions import Suppression
from carillon.consent.unsubscribing import sign
from unsubscribe import app

from .conftest import ANA, SECOND, TASK, Ring, Site

TOKEN = sign(Ring().ring(), "advent", TASK, "news", ANA)
ONE_CLICK = "List-Unsubscribe=One-Click"
FORM = {"content-type": "application/x-www-form-urlencoded"}
BOUNDARY = "----gmail7f3a"
MULTIPART = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--{BOUNDARY}--\r\n'
)
WORDS = st.text(st.characters(codec="latin-1"), max_size=40)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    method=st.sampled_from(["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"]),
    headers=st.dictionaries(st.sampled_from(["accept-language", "purpose", "x-http-method-override", "cookie"]), WORDS),
    query=st.dictionaries(st.sampled_from(["List-Unsubscribe", "everything", "method", "_method"]), WORDS),
    body=st.one_of(st.none(), st.just(ONE_CLICK), st.just("everything=1"), WORDS),
    token=st.one_of(st.just(TOKEN), WORDS),
)
@example(
    method="GET",
    headers={"x-http-method-override": "POST"},
    query={"List-Unsubscribe": "One-Click"},
    body=ONE_CLICK,
    token=TOKEN,
)
def test_nothing_but_a_post_changes_anything(
    site: Site, method: str, headers: dict[str, str], query: dict[str, str], body: str | None, token: str
) -> None:
    """Scanners and previews open links in every way there is; no row, no event comes of it."""
    answer = site(method, token, body, headers=headers, query=query)
    assert answer["statusCode"] in (200, 404, 405)
    assert site.rows() == []
    assert site.archive.events == []


@pytest.mark.parametrize(
    ("body", "content_type", "encoded"),
    [
        (ONE_CLICK, "application/x-www-form-urlencoded", False),
        (base64.b64encode(ONE_CLICK.encode()).decode(), "application/x-www-form-urlencoded; charset=utf-8", True),
        (MULTIPART, f"multipart/form-data; boundary={BOUNDARY}", False),
        (base64.b64encode(MULTIPART.encode()).decode(), f'Multipart/Form-Data; boundary="{BOUNDARY}"', True),
    ],
)
def test_one_click_acts_in_every_form_of_rfc_8058(site: Site, body: str, content_type: str, encoded: bool) -> None:
    """Without a cookie, without a redirect, with 200."""
    answer = site("POST", TOKEN, body, headers={"content-type": content_type}, encoded=encoded)
    assert answer["statusCode"] == 200
    assert not {"set-cookie", "location"} & {name.lower() for name in answer["headers"]}
    (row,) = site.table.of(ANA)
    assert row == Suppression(ANA, "news", "one_click", "2026-11-29T08:00:00Z", "advent", TASK, archived=True)


@pytest.mark.parametrize("body", [None, "", "\x00%%%", "[]", "List-Unsubscribe=", "a" * 4000])
def test_a_post_without_a_form_unsubscribes_too(site: Site, body: str | None) -> None:
    """Whoever posts to the link wants out, however their program spells it."""
    assert site("POST", TOKEN, body)["statusCode"] == 200
    assert site.rows() == [(ANA, "news")]


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=x"]
)
def test_a_broken_multipart_unsubscribes_too(site: Site, content_type: str) -> None:
    """It is a POST to the link all the same."""
    assert site("POST", TOKEN, MULTIPART, headers={"content-type": content_type})["statusCode"] == 200
    assert site.rows() == [(ANA, "news")]


def test_the_pages_second_button_unsubscribes_from_everything(site: Site) -> None:
    """A row of every topic, beside those of single ones."""
    answer = site("POST", TOKEN, "everything=1", headers=FORM)
    assert "no more e-mails from us" in answer["body"]
    assert site.rows() == [(ANA, "*")]
    assert site.archive.events[0]["unsubscribe"]["topic"] == "*"
    assert site.table.of(ANA)[0].reason == "unsubscribed"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(st.lists(st.sampled_from([ONE_CLICK, "", None]), min_size=1, max_size=6))
def test_posting_often_is_posting_once(site: Site, bodies: list[str | None]) -> None:
    """One row, the first; one event; 200 each time."""
    for address_hash, topic in site.rows():
        site.table.delete_all([(address_hash, topic)])
    site.archive.events.clear()
    answers = [site("POST", TOKEN, body, headers=FORM) for body in bodies]
    assert {answer["statusCode"] for answer in answers} == {200}
    (row,) = site.table.of(ANA)
    assert row.reason == ("one_click" if bodies[0] else "unsubscribed")
    assert len(site.archive.events) == 1


def test_the_unsubscription_is_an_event_as_ses_writes_them(site: Site) -> None:
    """Event type, mail with tags, time in milliseconds; nothing in it says who."""
    site("POST", TOKEN, ONE_CLICK, headers=FORM)
    (event,) = site.archive.events
    assert event["eventType"] == "Unsubscribe"
    assert event["mail"]["tags"] == {"campaign": ["advent"], "task": [TASK], "step": ["1"]}
    assert event["unsubscribe"] == {"timestamp": "2026-11-29T08:00:00.000Z", "topic": "news", "source": "one_click"}
    assert event["mail"]["messageId"].startswith("unsubscribe-")
    assert "@" not in json.dumps(event)


def test_an_archive_that_fails_delays_nobody_and_is_made_up_for(site: Site, log: StringIO) -> None:
    """Sending stops all the same; the same link again writes the same event, with the first one's time and id."""
    site.archive.refusals = 1
    assert site("POST", TOKEN, ONE_CLICK, headers=FORM)["statusCode"] == 200
    assert site.rows() == [(ANA, "news")]
    assert site.archive.events == []
    assert "not archived" in log.getvalue()
    for _ in range(3):
        site("POST", TOKEN, ONE_CLICK, headers=FORM)
    (event,) = site.archive.events
    assert event["unsubscribe"]["timestamp"] == "2026-11-29T08:00:00.000Z"


def test_who_was_unsubscribed_by_another_e_mail_is_counted_there_alone(site: Site) -> None:
    """One unsubscription is one event, of the campaign that caused it."""
    site("POST", TOKEN, ONE_CLICK, headers=FORM)
    site("POST", sign(Ring().ring(), "easter", TASK, "news", ANA), ONE_CLICK, headers=FORM)
    assert [event["mail"]["tags"]["campaign"] for event in site.archive.events] == [["advent"]]
    assert site.table.of(ANA)[0].campaign == "advent"


def test_an_old_link_works_after_a_rotation(site: Site) -> None:
    """The key of two years ago is in the ring still."""
    site.ring.secret = json.dumps(json.loads(site.ring.secret) | {"2": SECOND})
    assert site("POST", TOKEN, ONE_CLICK, headers=FORM)["statusCode"] == 200
    assert site.rows() == [(ANA, "news")]


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize(
    "token",
    ["", "x", TOKEN[:-1], TOKEN + "A", sign(Ring(json.dumps({"1": SECOND})).ring(), "advent", TASK, "news", ANA)],
)
def test_a_link_that_is_not_ours_says_what_to_do_and_nothing_else(site: Site, method: str, token: str) -> None:
    """404, the same page for all of them."""
    answer = site(method, token, ONE_CLICK, headers=FORM)
    assert answer["statusCode"] == 404
    assert "Open the e-mail again" in answer["body"]
    assert answer["body"] == site(method, "other", ONE_CLICK, headers=FORM)["body"]
    assert site.rows() == []


def test_a_body_that_is_too_large_is_not_read(site: Site) -> None:
    """413: one click has 26 bytes."""
    for body, encoded in (
        ("a" * 5000, False),
        ("a" * 1_000_000, False),
        (base64.b64encode(b"a" * 5000).decode(), True),
    ):
        assert site("POST", TOKEN, body, headers=FORM, encoded=encoded)["statusCode"] == 413
    assert site.rows() == []


def test_an_unknown_method_is_told_which_there_are(site: Site) -> None:
    """405 with Allow (RFC 9110, 15.5.6)."""
    assert site("PUT", TOKEN)["headers"]["Allow"] == "GET, HEAD, POST"


def test_a_fault_is_a_page_that_promises_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """500: who reads it knows that it is not done, and a provider may try again."""
    monkeypatch.setattr(site.table, "put_first", lambda row: {}[row.address_hash])
    answer = site("POST", TOKEN, ONE_CLICK, headers=FORM)
    assert answer["statusCode"] == 500
    assert "not unsubscribed yet" in answer["body"]


def test_neither_token_nor_hash_reaches_the_log(site: Site, monkeypatch: pytest.MonkeyPatch, log: StringIO) -> None:
    """Whatever happens: a page, an unsubscription, an archive that fails, a fault of ours."""
    site("GET", TOKEN)
    site.archive.refusals = 1
    site("POST", TOKEN, ONE_CLICK, headers=FORM | {"cookie": "ana@example.com"})
    site("POST", TOKEN[:-2] + "zz", ONE_CLICK, headers=FORM)
    monkeypatch.setattr(site.table, "put_first", lambda row: {}[row.address_hash])
    site("POST", TOKEN, "ana@example.com")
    written = log.getvalue()
    assert "unexpected error" in written
    for secret in (TOKEN, TOKEN[10:60], ANA, ANA[:32], "example.com"):
        assert secret not in written


class Elements(HTMLParser):
    """Start tags with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("lang", pages.TEXTS)
def test_a_page_is_whole_in_itself_and_accessible(site: Site, lang: str) -> None:
    """Language, title, one heading, real buttons in a form that posts back; nothing loaded, no script, no index."""
    answer = site("GET", TOKEN, headers={"Accept-Language": lang})
    tags = Elements(answer["body"]).tags
    names = [name for name, _ in tags]
    assert ("html", {"lang": lang}) in tags
    assert names.count("h1") == names.count("main") == names.count("title") == 1
    assert [attributes for name, attributes in tags if name == "form"] == [{"method": "post"}]
    assert names.count("button") == 2
    assert not {"script", "img", "link", "iframe"} & set(names)
    assert not re.search(r"https?:|//", answer["body"])
    assert TOKEN not in answer["body"]
    assert ("meta", {"name": "robots", "content": "noindex, nofollow"}) in tags


def test_the_policy_lets_the_browser_load_nothing_but_the_pages_own_style(site: Site) -> None:
    """The style's hash is the one that stands in the page."""
    answer = site("GET", TOKEN)
    style = re.search(r"<style>(.*)</style>", answer["body"], re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = answer["headers"]["Content-Security-Policy"].split("; ")
    assert set(policy) == {
        "default-src 'none'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        f"style-src 'sha256-{digest}'",
    }
    assert answer["headers"]["Cache-Control"] == "no-store"
    assert answer["headers"]["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("accepted", "lang"),
    [
        ("", "en"),
        ("de", "de"),
        ("de-AT,de;q=0.9,en;q=0.8", "de"),
        ("en-GB, de;q=0.9", "en"),
        ("fr, de;q=0.5, en;q=0.4", "de"),
        ("fr", "en"),
        ("de;q=0", "en"),
        ("de;q=nonsense,en", "en"),
        ("de;q=nan", "en"),
        ("DE", "de"),
        (",;=;q", "en"),
    ],
)
def test_the_page_speaks_the_readers_language(site: Site, accepted: str, lang: str) -> None:
    """By the weights that the browser gives; English where we have none of its languages."""
    assert f'<html lang="{lang}">' in site("GET", TOKEN, headers={"accept-language": accepted})["body"]


def test_every_language_has_every_text() -> None:
    """A page with a hole would be a page that fails."""
    assert len({frozenset(texts) for texts in pages.TEXTS.values()}) == 1


def test_the_function_is_wired_as_the_template_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table, keys and stream from its environment."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    app._unsubscribing.cache_clear()
    app.load.cache_clear()
    for name in app.Settings.model_fields:
        monkeypatch.setenv(name.upper(), f"the-{name}")
    made: Any = app._unsubscribing()
    assert made.suppressions._table == "the-suppressions_table"
    assert made.keys._secret == "the-unsubscribe_keys_secret"
    assert made.archive._stream == "the-event_stream"
    app._unsubscribing.cache_clear()
    app.load.cache_clear()
