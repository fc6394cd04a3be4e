"""Run the demo: ``python -m local.demo [--keep]``. The exit status says whether the last line is true."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from carillon.transitions import TaskStatus
from local.demo.recipients import FALLBACK_ZONE, DemoList, both
from local.deployment import ROOT, Deployment, DeploymentFailed, Outcome, Refused
from local.remote import Remote
from local.ses.mailbox import accepted

DIRECTORY = ROOT / ".local" / "demo"
SENDER = "The Ringer <ringer@news.example.com>"
STALLED_SECONDS = 60
"""No task has changed for so long: something is broken, and the demo says so instead of waiting for ever."""

console = Console(highlight=False, soft_wrap=True, emoji=False)


class Stalled(Exception):
    """Tasks that are due are not being settled."""


class Demo:
    """One run of the demo on a fresh local cloud."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.stack = Deployment(remote.environment, ROOT / ".local" / "sam")

    def deploy(self) -> None:
        """Put the real template on the local cloud."""
        with stage("sam build", "the real template, functions and machines"):
            self.stack.build()
        with stage("sam deploy", "to the cloud on 127.0.0.1"):
            self.stack.deploy()
        self.api = self.stack.api

    def set_pace(self, rate_per_second: int) -> None:
        """How fast the sending domain may send: a row of the settings table, obeyed by the next batch."""
        self.api.call("PUT", "/settings/pace", {"rate_per_second": rate_per_second, "daily_cap": 20_000})

    def sign(self, postal_address: str) -> None:
        """Who the sender is, as the law wants it at the foot of every e-mail."""
        self.api.call("PUT", "/settings/sender", {"postal_address": postal_address})

    def suppress(self, addresses: frozenset[str]) -> None:
        """These people have unsubscribed from everything."""
        self.api.call("POST", "/suppressions", {"addresses": sorted(addresses), "topic": "*", "reason": "unsubscribed"})

    def launch(self, name: str, recipients: DemoList, rule: dict[str, Any]) -> str:
        """Create, upload and launch through the API; the campaign's id, once it is dispatching."""
        campaign = self.api.create(
            {
                "name": name,
                "from": SENDER,
                "topic": "bells",
                "list": {"fallback_timezone": FALLBACK_ZONE},
                "steps": [
                    {
                        "template": "newsletter.html",
                        "subject": '{{ first_name | default("Good morning") }}, the bells ring for {{ last_name }}',
                        "rule": rule,
                    }
                ],
            }
        )
        with stage(f"{name}: upload", f"{len(recipients.content):,} bytes of CSV by presigned link"):
            self.api.upload(campaign, recipients.content)
            self.api.upload(campaign, (ROOT / "local/demo/newsletter.html").read_bytes(), template="newsletter.html")
        with stage(f"{name}: launch", "prepare, register, one schedule for each recipient"):
            self.api.call("POST", f"/campaigns/{campaign}/launch")
            launched = self.api.wait(campaign, "dispatching", "failed", "aborted")
        if launched["state"] != "dispatching":
            raise Stalled(f"{name} is {launched['state']}: {launched['error']}")
        return campaign

    def ring(self, campaign: str, name: str) -> None:
        """Move the clock from slot to slot and watch the e-mails go."""
        slots = self.stack.slots(campaign)
        with progress() as bar:
            row = bar.add_task(name, total=len(slots), note="")
            for minute in sorted({slot - slot % 60 for slot in slots}):
                now = self._to(minute)
                bar.update(row, note=f"{now:%a %H:%M} UTC")
                due = [slot for slot in slots if slot < minute + 60]
                time.sleep(0.5)  # Scheduler fires at the minute; the second inside it is the queue's delay
                self._to(due[-1])
                self._until_settled(campaign, len(due), lambda done: bar.update(row, completed=done))

    def cancel_half_way(self, campaign: str, name: str) -> None:
        """Cancel a campaign when half of it has been sent, and prove that the rest is not."""
        slots = self.stack.slots(campaign)
        self._to(slots[0] - slots[0] % 60)
        time.sleep(0.5)
        self._to(slots[0])
        with progress() as bar:
            row = bar.add_task(f"half of the {name.lower()}", total=len(slots), note="")
            self._until_settled(campaign, len(slots) // 2, lambda done: bar.update(row, completed=done))
        with stage(f"{name}: cancel", "acknowledged once no sender can be at it any more"):
            self.api.call("POST", f"/campaigns/{campaign}/cancel")
            self.api.wait(campaign, "cancelled")
            acknowledged = len(self.accepted())
            self._until_settled(campaign, len(slots))
        # Whatever could still fire gets its time.
        self.remote.advance(timedelta(hours=1).total_seconds())
        time.sleep(3)
        if len(self.accepted()) != acknowledged:
            raise Stalled("an e-mail was accepted after the cancel was acknowledged")

    def close(self, campaign: str) -> str:
        """Let the reconciler look, which closes a campaign that is done; its state then."""
        self.stack.invoke("ReconcileTasksFunction", {"campaign_id": campaign})
        return str(self.api.get(campaign)["state"])

    def accepted(self) -> list[dict[str, Any]]:
        """Every e-mail that SES accepted, in order."""
        return list(accepted(self.remote.mailbox))

    def _to(self, epoch: float) -> datetime:
        return self.remote.advance(max(0.0, epoch - self.remote.now().timestamp()))

    def _until_settled(self, campaign: str, target: int, show: Callable[[int], None] = lambda done: None) -> None:
        settled, changed = -1, time.monotonic()
        while settled < target:
            before, settled = settled, self.stack.outcome(campaign).settled
            show(settled)
            if settled != before:
                changed = time.monotonic()
            elif time.monotonic() - changed > STALLED_SECONDS:
                raise Stalled(f"{settled} of {target} tasks settled, and nothing has changed for {STALLED_SECONDS} s")
            if settled < target:
                time.sleep(0.3)


@contextmanager
def stage(what: str, how: str) -> Iterator[None]:
    """Say what goes on, and how long it took."""
    started = time.monotonic()
    with console.status(f"{what} – {how}"):
        yield
    console.print(f"[green]✓[/] {what} [dim]– {how} ({time.monotonic() - started:.1f} s)[/]")


def progress() -> Progress:
    """A bar of tasks settled, with what the cloud's clock shows."""
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def show_plan(name: str, campaign: dict[str, Any]) -> None:
    """What preparation found in the list."""
    summary = campaign["summary"]
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary["rejected"].items()))
    console.print(f"  {name}: {summary['rows']} records, [bold]{summary['valid']} valid[/]")
    console.print(textwrap.fill(f"not mailed: {reasons}", 78, initial_indent="  ", subsequent_indent="    "))
    console.print(f"  first e-mail {summary['first_slot']}, last {summary['last_slot']}")


def show_outcomes(outcomes: dict[str, tuple[str, Outcome]]) -> None:
    """What became of every task."""
    table = Table("campaign", "state", "enrolled", *TaskStatus, padding=(0, 0))
    for name, (state, outcome) in outcomes.items():
        counts = (str(outcome.statuses[status]) for status in TaskStatus)
        table.add_row(name, state, str(outcome.enrolled), *counts)
    console.print(table)


def run(demo: Demo) -> bool:
    """The whole demo; whether every promise was kept."""
    demo.deploy()
    demo.sign("The Ringers' Guild, Bell Lane 1, 10115 Berlin")
    first, second = both()
    demo.suppress(first.suppressed | second.suppressed)

    demo.set_pace(rate_per_second=40)
    day = (demo.remote.now() + timedelta(days=2)).date().isoformat()
    spring = demo.launch("Spring", first, {"kind": "local_time", "date": day, "time": "09:00"})
    show_plan("Spring", demo.api.get(spring))
    demo.ring(spring, "nine o'clock around the world")
    state = demo.close(spring)

    demo.set_pace(rate_per_second=8)
    flash = demo.launch("Flash sale", second, {"kind": "asap"})
    show_plan("Flash sale", demo.api.get(flash))
    demo.cancel_half_way(flash, "Flash sale")

    outcomes = {
        "Spring": (state, demo.stack.outcome(spring)),
        "Flash sale": (demo.api.get(flash)["state"], demo.stack.outcome(flash)),
    }
    show_outcomes(outcomes)
    return verdict(demo, {spring: first, flash: second}, [outcome for _, outcome in outcomes.values()])


def verdict(demo: Demo, lists: dict[str, DemoList], outcomes: list[Outcome]) -> bool:
    """Count from the mailbox and the rows, print the last line, and say whether it is as promised."""
    mails = Counter(
        (mail["tags"]["campaign"], mail["tags"]["step"], address)
        for mail in demo.accepted()
        for address in mail["destination"]
    )
    duplicates = sum(count - 1 for count in mails.values())
    statuses: Counter[TaskStatus] = sum((outcome.statuses for outcome in outcomes), Counter())
    enrolled = sum(outcome.enrolled for outcome in outcomes)
    balance = all(outcome.balance for outcome in outcomes)
    spring, flash = lists
    strangers = [key for key in mails if key[2] not in lists[key[0]].valid]
    missed = lists[spring].valid - {address for campaign, _, address in mails if campaign == spring}
    expected = {campaign: len(recipients.valid) for campaign, recipients in lists.items()}
    rows, wanted = [outcome.enrolled for outcome in outcomes], [expected[spring], expected[flash]]
    kept = (
        not strangers
        and not missed
        and not duplicates
        and balance
        and rows == wanted
        and len(mails) == statuses[TaskStatus.FINISHED]
        and not statuses[TaskStatus.PENDING]
        and not statuses[TaskStatus.RUNNING]
        and statuses[TaskStatus.CANCELLED] > 0
    )
    if strangers or missed:
        console.print(f"[red]mailed though not valid: {len(strangers)}; valid but not mailed: {len(missed)}[/]")
    if rows != wanted:
        console.print(f"[red]enrolled: {rows}, though valid are {wanted}[/]")
    console.print(f"{sum(mails.values())} e-mails lie in {demo.remote.mailbox.relative_to(ROOT)}")
    console.print(
        f"carillon demo: enrolled={enrolled} "
        + " ".join(
            f"{status.lower()}={statuses[status]}"
            for status in (TaskStatus.FINISHED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.PENDING)
        )
        + f" running={statuses[TaskStatus.RUNNING]} duplicates={duplicates} balance={'ok' if balance else 'BROKEN'}"
    )
    return kept


def main() -> int:
    """0 when every promise was kept; 1 when one was not; 2 when something broke on the way."""
    parser = argparse.ArgumentParser(prog="python -m local.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cloud running")
    keep = parser.parse_args().keep
    with stage("local cloud", "MiniStack with our own Step Functions, Scheduler and SES"):
        remote = Remote.start(DIRECTORY)
    demo = Demo(remote)
    try:
        kept = run(demo)
    except (Stalled, DeploymentFailed, Refused, TimeoutError) as broken:
        console.print(f"[red]the demo broke:[/] {broken}")
        console.print(f"the cloud's log: {DIRECTORY.relative_to(ROOT) / 'cloud.log'}")
        return 2
    finally:
        if keep:
            show_endpoints(demo)
        else:
            remote.stop()
    return 0 if kept else 1


def show_endpoints(demo: Demo) -> None:
    """Where a kept cloud can be reached, and how it is ended. The token itself is not printed."""
    directory = DIRECTORY.relative_to(ROOT)
    console.print(f"endpoint   {demo.remote.endpoint}")
    if demo.stack.outputs:
        secret = demo.stack.outputs["ApiTokenSecret"].rpartition(":")[2].rpartition("-")[0]
        console.print(f"API        '{demo.stack.api.base}'")  # quoted, for its stage is called $default
        console.print(f"token      in Secrets Manager: {secret}")
    console.print(f"keys       eval $(.venv/bin/python -m local environment --directory {directory})")
    console.print(f"end it     .venv/bin/python -m local down --directory {directory}")


if __name__ == "__main__":
    sys.exit(main())
