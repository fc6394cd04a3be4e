"""SES on its own: a clock that tests move, and a Firehose that only listens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from local.clock import Clock
from local.ports import AwsError
from local.ses.service import SimpleEmail
from local.ses.settings import Behaviour, SesSettings

ACCOUNT, REGION = "111122223333", "us-east-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/ses-to-firehose"
STREAM = f"arn:aws:firehose:{REGION}:{ACCOUNT}:deliverystream/events"
ALL_TYPES = [
    "SEND",
    "REJECT",
    "BOUNCE",
    "COMPLAINT",
    "DELIVERY",
    "OPEN",
    "CLICK",
    "RENDERING_FAILURE",
    "DELIVERY_DELAY",
]
# Mailboxes that take everything and do nothing, so that a test sees only what it asks for.
QUIET = Behaviour()


class ListeningFirehose:
    """Takes PutRecordBatch as a role; can be told to refuse."""

    def __init__(self) -> None:
        self.calls: list[tuple[Mapping[str, Any], str]] = []
        self.sources: set[str] = set()
        self.refusals: list[AwsError] = []
        self.fail_records = 0

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        assert (service, operation) == ("firehose", "PutRecordBatch")
        if self.refusals:
            raise self.refusals.pop(0)
        responses: list[dict[str, str]] = []
        taken = []
        for record in params["Records"]:
            if self.fail_records:
                self.fail_records -= 1
                responses.append({"ErrorCode": "ServiceUnavailableException", "ErrorMessage": "Slow down."})
            else:
                responses.append({"RecordId": "r"})
                taken.append(record)
        self.sources.add(source_arn)
        self.calls.append(({**params, "Records": taken}, role_arn))
        return {"FailedPutCount": 0, "RequestResponses": responses}

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(record["Data"]) for params, _ in self.calls for record in params["Records"]]

    def types(self) -> list[str]:
        return [event["eventType"] for event in self.events]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def firehose() -> ListeningFirehose:
    return ListeningFirehose()


@pytest.fixture
def make_ses(clock: Clock, firehose: ListeningFirehose, tmp_path: Path) -> Iterator[Callable[..., SimpleEmail]]:
    """Makes an account with a verified domain, and a configuration set ``events`` that publishes everything."""
    made: list[SimpleEmail] = []

    def make(emit: Callable[[dict[str, Any]], None] | None = None, **settings: Any) -> SimpleEmail:
        defaults: dict[str, Any] = {
            "identities": ("mail.example.com",),
            "behaviour": QUIET,
            "behaviour_by_domain": {},
            "calls_per_second": 1_000_000,
        }
        ses = SimpleEmail(
            clock, firehose, tmp_path / "mailbox", ACCOUNT, REGION, SesSettings(**(defaults | settings)), emit
        )
        made.append(ses)
        ses.handle("CreateConfigurationSet", {"ConfigurationSetName": "events"})
        ses.handle(
            "CreateConfigurationSetEventDestination",
            {
                "ConfigurationSetName": "events",
                "EventDestinationName": "archive",
                "EventDestination": {
                    "Enabled": True,
                    "MatchingEventTypes": ALL_TYPES,
                    "KinesisFirehoseDestination": {"IamRoleArn": ROLE, "DeliveryStreamArn": STREAM},
                },
            },
        )
        return ses

    yield make
    for ses in made:
        ses.stop()


@pytest.fixture
def ses(make_ses: Callable[..., SimpleEmail]) -> SimpleEmail:
    return make_ses()


def email(to: str | list[str] = "ana@example.org", **members: Any) -> dict[str, Any]:
    """SendEmail's members for a small message; ``members`` replace or add some, None takes one away."""
    whole = {
        "FromEmailAddress": "Example Shop <news@mail.example.com>",
        "Destination": {"ToAddresses": [to] if isinstance(to, str) else to},
        "ConfigurationSetName": "events",
        "Content": {
            "Simple": {
                "Subject": {"Data": "Spring catalogue is here"},
                "Body": {
                    "Text": {"Data": "Hello"},
                    "Html": {"Data": '<p>Hello, <a href="https://shop.example.com/spring">look</a></p>'},
                },
            }
        },
    } | members
    return {name: value for name, value in whole.items() if value is not None}


def simple(**parts: Any) -> dict[str, Any]:
    """SendEmail's ``Content`` with ``parts`` of the Simple message replaced or added."""
    content: dict[str, Any] = email()["Content"]["Simple"]
    return {"Simple": content | parts}
