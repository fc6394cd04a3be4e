"""A campaign of 1,000 recipients on the local cloud, whose senders are killed (SIGKILL) at random, then reconciled.

    python bench/bench_kills.py [recipients] [seed]

The law at full size: nobody has two e-mails, counted where SES accepted them; every row is in balance at every look;
whoever has none is in doubt (Running), and nobody is left Pending. Takes minutes, hence no test: `test_laws.py` of
tests/local/end_to_end plays the same with 60.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from carillon.launch.enrolment import CREATION_LEAD
from carillon.transitions import TaskStatus
from local.cloud import Cloud
from local.deployment import ROOT, Deployment
from tests.local.end_to_end.stage import Stage, csv
from tests.local.end_to_end.test_laws import OVERDUE, count, kill_senders, reconcile, rest

RATE = 25
KILLING = 60
"""Seconds for which senders are killed."""


def main(recipients: int, seed: int) -> int:
    """Run it and print what became of everybody; 0 if the laws held."""
    with tempfile.TemporaryDirectory() as directory:
        cloud = Cloud(Path(directory))
        try:
            stack = Deployment(cloud.operator_environment(), ROOT / ".local" / "sam")
            stack.build()
            stack.deploy()
            stack.api.call("PUT", "/settings/sender", {"postal_address": "Ringers' Lane 1, 10115 Berlin"})
            return attack(Stage(cloud, stack), recipients, random.Random(seed))  # noqa: S311  (fate, not a secret)
        finally:
            cloud.stop()


def attack(stage: Stage, recipients: int, fate: random.Random) -> int:
    """Launch, kill, reconcile, count."""
    stage.pace(rate_per_second=RATE)
    addresses = [f"reader{n:04d}@kills.example" for n in range(recipients)]
    campaign = stage.create(csv(addresses))
    stage.launch(campaign, "dispatching")
    done, looks, unbalanced = threading.Event(), [0], [0]

    def watch() -> None:
        while not done.wait(0.5):
            looks[0] += 1
            unbalanced[0] += not stage.stack.outcome(campaign).balance

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, killed = time.monotonic(), 0
    try:
        stage.to(stage.stack.slots(campaign)[-1])
        stage.until(lambda: stage.stack.outcome(campaign).settled, 1)
        while time.monotonic() - began < KILLING and count(stage, campaign, "Pending"):
            time.sleep(fate.uniform(0.05, 0.8))
            killed += kill_senders()
        killing = stage.stack.outcome(campaign)
        print(f"senders killed     {killed} in {time.monotonic() - began:.0f} s; then {dict(killing.statuses)}")
        passes = 0
        while count(stage, campaign, "Pending") and passes < 10:
            passes += 1
            stage.cloud.advance(OVERDUE)
            reconcile(stage, campaign)
            stage.cloud.advance(CREATION_LEAD + 120)
            rest(stage, campaign)
    finally:
        done.set()
        watcher.join()
    stage.quiet()
    outcome, mails = stage.stack.outcome(campaign), stage.mails(campaign)
    rows = list(stage.stack.rows(campaign))
    running = {row["address"] for row in rows if row["status"] == TaskStatus.RUNNING}
    unmailed = set(addresses) - set(mails)
    laws = {
        "nobody has two e-mails": max(mails.values()) == 1,
        "in balance at every look": not unbalanced[0] and outcome.balance,
        "whoever is Finished has one": {r["address"] for r in rows if r["status"] == TaskStatus.FINISHED} <= set(mails),
        "whoever has none is in doubt": unmailed <= running,
        "nobody is left Pending": not outcome.statuses[TaskStatus.PENDING],
    }
    print(f"reconciled         {passes} times, {time.monotonic() - began:.0f} s in all; {dict(outcome.statuses)}")
    print(
        f"e-mails            {mails.total()} to {len(mails)} people; in doubt {len(running)}, of whom {len(unmailed)}"
    )
    print(f"                   have none; balance looked at {looks[0]} times")
    for law, held in laws.items():
        print(f"{'ok    ' if held else 'BROKEN'}             {law}")
    return 0 if all(laws.values()) else 1


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    raise SystemExit(main(*(arguments + [1000, 7][len(arguments) :])))
