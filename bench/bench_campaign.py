"""A campaign of 1,000 recipients, all due in one minute, on the local cloud.

    python bench/bench_campaign.py [recipients]

Prints how fast FanOut made schedules (rows and schedules; describeMapRun's start to stop) and how long after its first
slot the last e-mail was accepted. The issue's goal: at most 60 s on two cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from local.cloud import Cloud
from local.deployment import ROOT, Deployment
from local.ses.mailbox import accepted
from tests.local.end_to_end.stage import Stage, csv, people

RATE = 25
"""E-mails a second: 1,000 are due within 40 s, and a sender of the local cloud keeps up with it."""

PATIENCE = 300
"""Seconds from launch until what has been accepted by then is reported as it is."""


def main(recipients: int) -> None:
    """Run it and print its figures."""
    with tempfile.TemporaryDirectory() as directory:
        cloud = Cloud(Path(directory))
        try:
            stack = Deployment(cloud.operator_environment(), ROOT / ".local" / "sam")
            stack.build()
            stack.deploy()
            measure(Stage(cloud, stack), recipients)
        finally:
            cloud.stop()


def measure(stage: Stage, recipients: int) -> None:
    """One campaign from launch to the last e-mail."""
    stage.pace(rate_per_second=RATE)
    at = (stage.cloud.clock.now() + timedelta(minutes=30)).replace(second=0, microsecond=0)
    campaign = stage.create(csv(people(recipients, "bench")), {"kind": "at", "at": at.isoformat()})
    began = time.monotonic()
    launched = stage.launch(campaign)
    assert launched["state"] == "dispatching", launched["error"]
    print(f"launch of {recipients} recipients, claim to dispatching: {time.monotonic() - began:.1f} s")

    states = stage.stack.client("stepfunctions")
    runs = states.list_map_runs(executionArn=launched["execution"])["mapRuns"]
    run = states.describe_map_run(mapRunArn=runs[0]["mapRunArn"])
    seconds = (run["stopDate"] - run["startDate"]).total_seconds()
    print(f"FanOut, rows and schedules: {seconds:.1f} s, {recipients / seconds:.0f}/s")

    slots = stage.stack.slots(campaign)
    stage.to(slots[0])
    mails: list[float] = []
    while len(mails) < recipients and time.monotonic() - began < PATIENCE:
        time.sleep(1)  # from the mailbox: counting rows would keep the cloud busier than sending does
        journal = accepted(stage.cloud.directory / "mailbox")
        mails = [mail["accepted_at"] for mail in journal if mail["tags"]["campaign"] == campaign]
    print(f"slots spread over {slots[-1] - slots[0]} s; e-mails accepted: {len(mails)}")
    print(f"first slot to first e-mail: {min(mails) - slots[0]:.1f} s; to last e-mail: {max(mails) - slots[0]:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
