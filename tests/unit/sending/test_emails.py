"""What is in a header comes from a campaign or a list: ASCII, on one line."""

from __future__ import annotations

import pytest

from carillon.emails import ascii_address, compose
from carillon.shapes import CampaignSpec
from carillon.templates import Rendered
from tests.unit.sending.examples import SPEC, message


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


def test_the_recipient_is_the_address_as_written():
    """Only the key is lower-cased."""
    email = compose(CampaignSpec.model_validate(SPEC), message(1), Rendered("s", "h", "t"), "example.com")
    assert email.to == "Person.1@example.com"


def test_headers_and_tags_are_what_ses_allows():
    """Header values printable ASCII; tags of letters, digits, `_` and `-` (AWS_CONTRACTS 3)."""
    email = compose(CampaignSpec.model_validate(SPEC), message(1), Rendered("s", "h", "t"), "example.com")
    assert email.headers == (("List-Id", "<offers.example.com>"),)
    assert all(value.replace("-", "").replace("_", "").isalnum() for _, value in email.tags)
