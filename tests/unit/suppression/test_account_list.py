"""SES's own suppression list, as a preparation reads it: over HTTP-shaped calls of the local SES, which refuses what
SES refuses, and over botocore's stub where the local one cannot be made to answer so."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import Stubber

from carillon import keys
from carillon.adapters import suppressed
from carillon.adapters.suppressed import AccountSuppressions, SuppressionLookup
from local.clock import Clock
from local.ses.service import SimpleEmail
from local.ses.settings import SesSettings

from .conftest import ANA, NOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

    from carillon.adapters.suppressions import SuppressionTable

CALLS = "ListSuppressedDestinations"


class LocalSes:
    """The one call that is needed of a boto3 client, on the local SES; its clock goes by what was slept."""

    def __init__(self, ses: SimpleEmail, clock: Clock) -> None:
        self.ses = ses
        self.clock = clock
        self.calls = 0

    def list_suppressed_destinations(self, **members: Any) -> Any:
        self.calls += 1
        return self.ses.handle(CALLS, members)

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def ses(tmp_path: Path) -> Iterator[LocalSes]:
    clock = Clock()
    made = SimpleEmail(clock, None, tmp_path, "111122223333", "eu-central-1", SesSettings())  # type: ignore[arg-type]
    yield LocalSes(made, clock)
    made.stop()


def listed(ses: LocalSes, *addresses: str, reason: str = "BOUNCE") -> None:
    for address in addresses:
        ses.sleep(1.1)
        ses.ses.handle("PutSuppressedDestination", {"EmailAddress": address, "Reason": reason})


def test_who_is_on_the_accounts_list_is_suppressed_for_every_topic(
    ses: LocalSes, dynamodb: DynamoDBClient, table: SuppressionTable
) -> None:
    """Bounced or complained, whatever the case and the form of the domain; beside our own list."""
    listed(ses, "Ana@Example.COM")
    listed(ses, "ben@xn--bcher-kva.example", reason="COMPLAINT")
    cem, dan = keys.address_hash("cem@example.com"), keys.address_hash("dan@example.com")
    table.add(cem, "news", "asked", NOW)
    account = AccountSuppressions(ses, ses.sleep)  # type: ignore[arg-type]
    lookup = SuppressionLookup("Suppressions", dynamodb, account=account)
    ben = keys.address_hash("ben@xn--bcher-kva.example")
    assert lookup.suppressed([[ANA, ben, cem, dan]], 4, "news") == {ANA, ben, cem}
    assert lookup.suppressed([[ANA, ben, cem, dan]], 4, "offers") == {ANA, ben}
    assert ses.calls == 1


def test_every_page_is_read_at_the_rate_that_ses_takes(ses: LocalSes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a second (AWS_CONTRACTS 3): faster is TooManyRequestsException, here as there."""
    monkeypatch.setattr(suppressed, "_PAGE", 3)
    addresses = [f"p{n}@example.com" for n in range(8)]
    listed(ses, *addresses)
    found = AccountSuppressions(ses, ses.sleep).listed()  # type: ignore[arg-type]
    assert found == {keys.address_hash(each) for each in addresses}
    assert ses.calls == 3


def test_a_list_that_is_too_long_is_read_in_part_and_said_so(
    ses: LocalSes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left is SES's own to hold back; the log has the number and no address."""
    monkeypatch.setattr(suppressed, "_PAGE", 2)
    monkeypatch.setattr(suppressed, "MOST_PAGES", 2)
    listed(ses, *(f"p{n}@example.com" for n in range(5)))
    with caplog.at_level(logging.WARNING):
        assert len(AccountSuppressions(ses, ses.sleep).listed()) == 4  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.__dict__["read"] == 4
    assert "example" not in caplog.text


def test_an_empty_page_with_a_token_is_not_the_end() -> None:
    """Only a missing NextToken is (botocore's model of the output)."""
    client = boto3.client("sesv2", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y")
    entry = {"EmailAddress": "ana@example.com", "Reason": "BOUNCE", "LastUpdateTime": datetime(2026, 1, 1, tzinfo=UTC)}
    odd = entry | {"EmailAddress": "no address"}
    with Stubber(client) as stub:
        stub.add_response("list_suppressed_destinations", {"NextToken": "t"}, {"PageSize": 1000})
        page = {"SuppressedDestinationSummaries": [odd, entry]}
        stub.add_response("list_suppressed_destinations", page, {"PageSize": 1000, "NextToken": "t"})
        assert AccountSuppressions(client, lambda seconds: None).listed() == {ANA}
        stub.assert_no_pending_responses()
