"""What sending one e-mail costs our own code: CPU with AWS stubbed, the calls it makes, and beside it what boto3 costs.

The sender, its adapters and the templates are the real ones; the boto3 clients answer at once from memory, and the
time spent in them is not counted. Time is virtual, so that waiting for a slot costs nothing.

    python bench/bench_send.py [e-mails]     (default 5000; the goal is at most 0.5 ms of own CPU, 3 writes, 1 SES call)
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "functions"))

import boto3
from botocore.awsrequest import AWSResponse

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.enrichment import LambdaEnrichers
from carillon.adapters.imprint import SenderImprint
from carillon.adapters.items import to_item
from carillon.adapters.mail import ONCE, SesMail
from carillon.adapters.messages import Messages, records
from carillon.adapters.prepared import PreparedTemplates
from carillon.adapters.schedules import Schedules
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.adapters.settings import PaceTable
from carillon.adapters.tasks import TaskRows
from carillon.consent.unsubscribing import Links
from carillon.content.emails import Email, compose
from carillon.content.templates import Prepared, Renderer
from carillon.delivery import claims
from carillon.delivery.sending import Sender
from carillon.delivery.slots import Cadence
from carillon.shapes import Campaign, CampaignSpec, Message, Task
from carillon.transitions import CampaignState, TaskStatus

BATCH = 10
RATE = 1000
GOAL_MS = 0.5
WRITES = frozenset({"update_item"})
EXPIRES = 1_900_000_000

SPEC = CampaignSpec.model_validate(
    {
        "name": "Advent",
        "from": "Shop <shop@example.com>",
        "reply_to": "reply@example.com",
        "topic": "offers",
        "steps": [{"template": "advent.html", "subject": "x", "rule": {"kind": "asap"}}],
        "pace": {"windows": [{"start": "09:00", "end": "17:00"}]},
    }
)
PARAGRAPH = (
    '<p style="margin:0 0 16px;font:16px/24px Arial,sans-serif;color:#333">Dear {{ first_name }}, {{ text }}</p>\n'
)
FOOTER = '<p><a href="{{ unsubscribe_url }}">unsubscribe</a> {{ postal_address }}</p>'
GIVEN = {"unsubscribe_url": "https://api.example.com/u/" + "t" * 150, "postal_address": "Main Street 1, Springfield"}
PREPARED = Prepared(
    subject="{{ first_name }}, your order {{ order }}",
    html=f"<html><body>{PARAGRAPH * 40}{FOOTER}</body></html>",
    text="Dear {{ first_name }}, {{ text }}\n" * 40 + "{{ unsubscribe_url }}\n{{ postal_address }}",
    placeholders=("first_name", "order", "text"),
    required=("first_name", "order", "text"),
    given=("unsubscribe_url", "postal_address"),
)


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self._now = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)

    def now(self) -> datetime:
        """Virtual now."""
        return self._now

    def epoch(self) -> float:
        """Virtual now, in seconds since the epoch."""
        return self._now.timestamp()

    def sleep(self, seconds: float) -> None:
        """Costs nothing."""
        self._now += timedelta(seconds=seconds)


class Aws:
    """Every client in one: answers from memory, counts calls, and adds up the CPU that is its own."""

    def __init__(self, rows: dict[str, dict[str, Any]], campaign: dict[str, Any]) -> None:
        self.calls: Counter[str] = Counter()
        self.cpu = 0.0
        self._rows = rows
        self._campaign = campaign
        self._pace = to_item(
            {"name": "pace", "rate_per_second": RATE, "daily_cap": 10_000_000, "next_free": 0, "hours": {}}
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = getattr(type(self), f"_{name}")

        def call(**arguments: Any) -> Any:
            began = time.process_time()
            self.calls[name] += 1
            result = answer(self, arguments)
            self.cpu += time.process_time() - began
            return result

        return call

    def close(self) -> None:
        """As boto3's clients have it."""

    def _get_item(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["TableName"] == "Campaigns":
            return {"Item": self._campaign}
        if arguments["Key"]["name"]["S"] == "sender":
            return {"Item": {"postal_address": {"S": GIVEN["postal_address"]}}}
        return {"Item": self._pace}

    def _get_secret_value(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"SecretString": json.dumps({"1": "k" * 64})}

    def _batch_get_item(self, arguments: dict[str, Any]) -> dict[str, Any]:
        wanted = arguments["RequestItems"]["Tasks"]["Keys"]
        return {"Responses": {"Tasks": [self._rows[key["sk"]["S"]] for key in wanted]}}

    def _update_item(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["TableName"] != "Settings":
            return {}
        before = self._pace
        values = arguments["ExpressionAttributeValues"]
        free = values.get(":free") or {"N": str(float(before["next_free"]["N"]) + float(values[":advance"]["N"]))}
        self._pace = before | {"next_free": free}
        return {"Attributes": before}

    def _get_object(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"Body": BytesIO(PREPARED.model_dump_json().encode())}

    def _send_email(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"MessageId": "0102018f-0000"}


def work(count: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """``count`` messages in SQS events of ten, and their rows by sort key."""
    records, rows = [], {}
    for n in range(count):
        address = f"person.{n}@example.com"
        task = keys.task_id(0, address)
        common = {"generation": 1, "revision": 0, "task": task, "step": 0, "slot": 1796029200}
        data = {"first_name": f"Name {n}", "order": str(n), "text": "thank you for <coming> & more."}
        message = Message(campaign="advent", to=address, data=data, **common)
        row = Task(
            campaign_id="advent",
            address=address,
            status=TaskStatus.PENDING,
            batch="g1-aaaa/0",
            client_token="c" * 40,
            expires_at=EXPIRES,
            **common,
        )
        key = keys.task_key("advent", task)
        rows[key["sk"]] = to_item(key | row.model_dump(mode="json"))
        records.append(
            {
                "messageId": f"m{n}",
                "receiptHandle": "r",
                "body": message.model_dump_json(),
                "attributes": {
                    "ApproximateReceiveCount": "1",
                    "ApproximateFirstReceiveTimestamp": "1796029200000",
                },
            }
        )
    return [{"Records": records[n : n + BATCH]} for n in range(0, count, BATCH)], rows


def boto3_ms(repeat: int = 300) -> float:
    """CPU of boto3 for one e-mail's own calls, a claim, SendEmail and an outcome, the network taken out."""

    def answer(body: dict[str, Any]) -> Callable[..., AWSResponse]:
        class Raw(BytesIO):
            def stream(self, *_: Any, **__: Any) -> Any:
                yield self.read()

        def respond(request: Any, **_: Any) -> AWSResponse:
            return AWSResponse(request.url, 200, {}, Raw(json.dumps(body).encode()))

        return respond

    account = {"region_name": "eu-west-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    ses, dynamodb = boto3.client("sesv2", config=ONCE, **account), boto3.client("dynamodb", **account)
    ses.meta.events.register("before-send.sesv2", answer({"MessageId": "m"}))
    dynamodb.meta.events.register("before-send.dynamodb", answer({}))
    mail, rows = SesMail("carillon", ses), TaskRows("Tasks", "Suppressions", dynamodb)
    sender, _ = _sender(Aws({}, {}), mail=mail, rows=rows)
    email, message = _example()

    def one() -> None:
        claims.claim(sender.rows, message, "t", sender.clock.now())
        sender.mail.send(email)
        sender.rows.apply(claims.finish(message, "t", "s", "m", sender.clock.now()))

    one()
    began = time.process_time()
    for _ in range(repeat):
        one()
    return (time.process_time() - began) / repeat * 1000


def _example() -> tuple[Email, Message]:
    event, _ = work(1)
    message = Message.model_validate_json(event[0]["Records"][0]["body"])
    rendered = Renderer(PREPARED).render(message.data, GIVEN)
    return compose(SPEC, message, rendered, "example.com", GIVEN["unsubscribe_url"]), message


def _sender(aws: Any, **ports: Any) -> tuple[Sender, Clock]:
    clock = Clock()
    made: dict[str, Any] = {
        "campaigns": CampaignStore("Campaigns", aws),
        "rows": TaskRows("Tasks", "Suppressions", aws),
        "pace": PaceTable(aws, "Settings", ZoneInfo("UTC"), clock.now),
        "templates": PreparedTemplates("bucket", aws),
        "mail": SesMail("carillon", aws),
        "queue": Messages("queue", "dead", aws),
        "links": Links("https://api.example.com", UnsubscribeKeys("secret", aws, now=clock.epoch)),
        "imprint": SenderImprint("Settings", aws, clock.epoch),
        "enrichers": LambdaEnrichers(aws),
        "schedules": Schedules("role", "dead", aws),
        "clock": clock,
        "sending_domain": "example.com",
        "send_queue_url": "queue",
        "token": lambda: uuid4().hex,
        "cadence": Cadence(),
    }
    return Sender(**(made | ports)), clock


def main(count: int) -> None:
    """Print figures and ratios."""
    campaign = Campaign(
        campaign_id="advent",
        spec=SPEC,
        state=CampaignState.DISPATCHING,
        generation=1,
        prepared="g1-aaaa",
        created_at="2026-11-29T08:00:00Z",
        changed_at="2026-11-29T08:00:00Z",
        expires_at=EXPIRES,
    )
    item = to_item(campaign.model_dump(mode="json") | {"spec": SPEC.model_dump_json(by_alias=True)})
    events, rows = work(count)
    aws = Aws(rows, item)
    sender, clock = _sender(aws)
    sender.handle(records(events[0]), clock.now() + timedelta(seconds=30))
    aws.calls.clear()
    aws.cpu = 0.0
    began = time.process_time()
    for event in events:
        kept = sender.handle(records(event), clock.now() + timedelta(seconds=30))
        assert not kept
    own_ms = (time.process_time() - began - aws.cpu) / count * 1000
    assert aws.calls["send_email"] == count
    renderer = sender.templates.renderer("advent", "g1-aaaa", 0)
    _, message = _example()
    began = time.process_time()
    for _ in range(1000):
        renderer.render(message.data, GIVEN)
    render_ms = time.process_time() - began
    theirs = boto3_ms()
    writes = sum(n for name, n in aws.calls.items() if name in WRITES) / count
    print(f"e-mails                      {count}")
    print(f"own CPU per e-mail           {own_ms:.3f} ms   {own_ms / GOAL_MS:.2f} of the goal of {GOAL_MS} ms")
    print(
        f"  rendering                  {render_ms:.3f} ms   {render_ms / own_ms:.2f} of it ({len(PREPARED.html)} bytes)"
    )
    print(f"boto3's CPU beside it        {theirs:.3f} ms   {theirs / own_ms:.1f} times our own")
    print(f"DynamoDB writes per e-mail   {writes:.2f}")
    for name, n in sorted(aws.calls.items()):
        print(f"  {name:<26} {n / count:.2f} per e-mail")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
