"""The stage that campaigns are played on: a deployed stack, its clock, and counts of what SES accepted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from local.cloud import Cloud
from local.deployment import Deployment
from local.ses.mailbox import accepted

FOOT = b'<p>{{ postal_address }} <a href="{{ unsubscribe_url }}">Unsubscribe</a></p>'
TEMPLATE = b"<html><body><h1>Hello {{ first_name | default('you') }}</h1>" + FOOT + b"</body></html>"
PATIENCE = 90
"""Seconds without any change after which a test gives up; the machine is shared and slow at times."""


class Stage:
    """One deployed stack on a local cloud whose clock can be moved. Tests share it: each has its own campaigns."""

    def __init__(self, cloud: Cloud, stack: Deployment) -> None:
        self.cloud = cloud
        self.stack = stack
        self.api = stack.api

    def pace(self, rate_per_second: float = 40, daily_cap: int = 100_000) -> None:
        """Set how fast the identity may send."""
        self.api.call("PUT", "/settings/pace", {"rate_per_second": rate_per_second, "daily_cap": daily_cap})

    def suppress(self, address: str, topic: str = "*") -> None:
        """Somebody has unsubscribed."""
        self.api.call("POST", "/suppressions", {"addresses": [address], "topic": topic, "reason": "asked by letter"})

    def create(self, content: bytes | None, rule: dict[str, Any] | None = None, **spec: Any) -> str:
        """A campaign with its list and template uploaded; ``content`` None uploads no list."""
        subject = spec.pop("subject", "Hello")
        template = spec.pop("html", TEMPLATE)
        step = {"template": "letter.html", "subject": subject, "rule": rule or {"kind": "asap"}}
        campaign = self.api.create(
            {"name": "Test", "from": "Ringer <ringer@news.example.com>", "topic": "news", "steps": [step], **spec}
        )
        if content is not None:
            self.api.upload(campaign, content)
        self.api.upload(campaign, template, template="letter.html")
        return campaign

    def launch(self, campaign: str, *states: str) -> dict[str, Any]:
        """Launch and wait for one of ``states`` (default: until no machine is at work)."""
        self.api.call("POST", f"/campaigns/{campaign}/launch")
        return self.api.wait(campaign, *states)

    def resume(self, campaign: str) -> dict[str, Any]:
        """Resume and wait until the next generation is dispatching."""
        before = self.api.get(campaign)["generation"]
        self.api.call("POST", f"/campaigns/{campaign}/resume")
        self.until(lambda: self.api.get(campaign)["generation"], before + 1)
        return self.api.wait(campaign)

    def ring(self, campaign: str, generation: int = 1) -> None:
        """Move the clock over every slot of a generation, and wait until its tasks are settled."""
        slots = self.stack.slots(campaign, generation)
        before = self.stack.outcome(campaign).enrolled - len(slots)
        for minute in sorted({slot - slot % 60 for slot in slots}):
            due = [slot for slot in slots if slot < minute + 60]
            self.to(minute)
            time.sleep(0.5)  # Scheduler fires at the minute; the second inside it is the queue's delay
            self.to(due[-1])
            self.until(lambda: self.stack.outcome(campaign).settled, before + len(due))

    def to(self, epoch: float) -> None:
        """Move the clock to ``epoch``, unless it is past that."""
        self.cloud.advance(max(0.0, epoch - self.cloud.clock.time()))

    def until(self, count: Callable[[], int], target: int) -> None:
        """Wait until ``count`` reaches ``target``."""
        seen, changed = -1, time.monotonic()
        while seen < target:
            before, seen = seen, count()
            if seen != before:
                changed = time.monotonic()
            assert time.monotonic() - changed < PATIENCE, f"{seen} of {target}, and nothing has changed"
            time.sleep(0.1)

    def quiet(self) -> None:
        """Let everything that could still fire or be delivered do so: an hour passes, and the queue runs dry."""
        for _ in range(4):
            self.cloud.advance(900)
            time.sleep(1)
        self.quiet_queue()

    def quiet_queue(self) -> None:
        """Wait until no message waits or is being worked on; those with a delay may."""
        queue = self.stack.outputs["SendQueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

        def left() -> int:
            attributes = self.stack.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)
            return -sum(int(attributes["Attributes"][name]) for name in names)

        self.until(left, 0)

    def mails(self, campaign: str) -> Counter[str]:
        """How often each address has been mailed, counted where SES accepted."""
        return Counter(
            address
            for mail in accepted(self.cloud.directory / "mailbox")
            if mail["tags"]["campaign"] == campaign
            for address in mail["destination"]
        )

    def send(self, body: str) -> None:
        """Put a message on the send queue, as Scheduler does."""
        self.stack.client("sqs").send_message(QueueUrl=self.stack.outputs["SendQueueUrl"], MessageBody=body)


def people(count: int, domain: str) -> list[str]:
    """Addresses of a test's own."""
    return [f"reader{number:03d}@{domain}.example" for number in range(count)]


def csv(addresses: list[str]) -> bytes:
    """A plain list of them."""
    return ("email,first_name\n" + "".join(f"{address},Reader\n" for address in addresses)).encode()
