"""What is in a header comes from a campaign or a list: ASCII, on one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from carillon.content.emails import Email, ascii_address, compose
from carillon.content.templates import Rendered, TemplateError
from carillon.shapes import CampaignSpec
from tests.unit.sending.examples import SPEC, message

LINK = "https://api.example.com/u/token"


@pytest.mark.parametrize(
    ("written", "for_ses"),
    [
        ("Shop <shop@example.com>", "Shop <shop@example.com>"),
        ("shop@example.com", "shop@example.com"),
        ("Shop <Shop@News.Example.COM>", "Shop <Shop@news.example.com>"),
        ("Glöckner <shop@example.com>", "=?utf-8?b?R2zDtmNrbmVy?= <shop@example.com>"),
        ("Glöckner <shop@münchen.example>", "=?utf-8?b?R2zDtmNrbmVy?= <shop@xn--mnchen-3ya.example>"),
        ("shop@münchen.example", "shop@xn--mnchen-3ya.example"),
    ],
)
def test_a_sender_is_written_as_ses_takes_it(written, for_ses):
    """Names as encoded words (RFC 2047), domains as A-labels: SES takes nothing else. And domains in lower case, for
    the sender's role compares them with the stack's case by case."""
    assert ascii_address(written) == for_ses


def composed(spec: dict[str, Any] | None = None, url: str = LINK, subject: str = "s", **changes: Any) -> Email:
    given = CampaignSpec.model_validate(SPEC | (spec or {}))
    return compose(given, message(1).model_copy(update=changes), Rendered(subject, "h", "t"), "example.com", url)


def test_the_recipient_is_the_address_as_written():
    """Only the key is lower-cased."""
    assert composed().to == "Person.1@example.com"


def test_headers_and_tags_are_what_ses_allows():
    """Header values printable ASCII; tags of letters, digits, `_` and `-` (AWS_CONTRACTS 3)."""
    email = composed()
    assert dict(email.headers)["List-Id"] == "<offers.example.com>"
    assert all(value.isascii() and value.isprintable() and len(value) <= 995 for _, value in email.headers)
    assert all(value.replace("-", "").replace("_", "").isalnum() for _, value in email.tags)


def test_a_mailbox_provider_can_unsubscribe_with_one_click():
    """RFC 8058: one https URI, and the other header letter by letter."""
    headers = dict(composed().headers)
    assert headers["List-Unsubscribe"] == f"<{LINK}>"
    assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"


BREAKOUTS = ["\r\nBcc: all@example.com", "\n", "\x00", "\x0b", "\x1b[0m", "\x85", "\u2028"]


@pytest.mark.parametrize("breakout", BREAKOUTS, ids=repr)
@pytest.mark.parametrize(
    "made_with",
    [
        lambda text: composed(subject=f"Hi{text}"),
        lambda text: composed(url=f"{LINK}{text}"),
        lambda text: composed(to=f"ana@example.com{text}"),
        lambda text: composed(task=f"0-{text}"),
        lambda text: composed(campaign=f"advent{text}"),
    ],
    ids=["subject", "unsubscribe url", "recipient", "task tag", "campaign tag"],
)
def test_nothing_breaks_out_of_its_header(made_with, breakout):
    """The last line of defence, whatever the checks before have let through."""
    with pytest.raises(TemplateError) as caught:
        made_with(breakout)
    assert "example.com" not in str(caught.value)


@pytest.mark.parametrize("field", ["from", "reply_to"])
@pytest.mark.parametrize("breakout", BREAKOUTS, ids=repr)
def test_a_name_that_breaks_out_is_refused_with_the_campaign_or_made_harmless(field, breakout):
    """A mailbox has a name that people choose: a line break never passes as one."""
    try:
        email = composed({field: f"Shop{breakout} <shop@example.com>"})
    except (ValidationError, TemplateError):
        return
    for written in (email.sender, email.reply_to):
        assert written is None or (written.isascii() and written.isprintable())


@pytest.mark.parametrize("topic", ["a b", "a\r\nb", "a.b", "a>b", "ä"])
def test_a_topic_that_could_not_stand_in_a_header_is_no_topic(topic):
    """It is part of List-Id."""
    with pytest.raises(ValidationError):
        composed({"topic": topic})


def test_a_subject_may_hold_any_letter():
    """SES encodes it; only what is no text is kept out."""
    assert composed(subject="Grüße, 你好 🎄\tzum Fest").subject == "Grüße, 你好 🎄\tzum Fest"
