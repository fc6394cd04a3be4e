"""Proving a fan-out from what ResultWriter wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon.adapters.campaigns import CampaignStore
from carillon.errors import CampaignStateConflict, FanOutBroken
from carillon.launch.fan_out import ROUNDS, child, confirm_fan_out, unproven
from carillon.shapes import ConfirmFanOut, ConfirmFanOutResult, ManifestLine
from carillon.transitions import CampaignState

from .conftest import campaign


def succeeded(batch: str, scheduled: int = 100, settled: int = 0, refused: int = 0, **changes: int) -> dict[str, Any]:
    """A record of SUCCEEDED_n.json as documented: Input and Output are JSON as text."""
    output = {
        "batch": batch,
        "enrolled": scheduled + settled + refused,
        "scheduled": scheduled,
        "settled": settled,
        "refused": refused,
    }
    return {
        "ExecutionArn": f"arn:aws:states:eu-central-1:123456789012:express:launch/FanOut:{batch}",
        "Input": json.dumps({"campaign_id": "advent", "generation": 1, "batch": batch, "count": 100}),
        "InputDetails": {"Included": True},
        "Output": json.dumps(output | changes),
        "OutputDetails": {"Included": True},
        "Status": "SUCCEEDED",
    }


def failed(batch: str, error: str = "EnrolmentFailed", cause: str = "…") -> dict[str, Any]:
    record = succeeded(batch) | {"Status": "FAILED", "Error": error, "Cause": cause}
    del record["Output"]
    return record


def pending(batch: str) -> dict[str, Any]:
    return {"Input": json.dumps({"batch": batch}), "InputDetails": {"Included": True}, "Status": "PENDING"}


@dataclass
class FakeFiles:
    """A manifest of batches of 100, the records so far, and the manifests written."""

    batches: int
    records: list[Mapping[str, Any]] = field(default_factory=list)
    written: dict[str, Sequence[ManifestLine]] = field(default_factory=dict)

    def manifest(self, key: str) -> list[ManifestLine]:
        assert key == "first.jsonl"
        return [ManifestLine(batch=f"b{n}", count=100, first_slot=0) for n in range(self.batches)]

    def write_manifest(self, key: str, lines: Sequence[ManifestLine]) -> str | None:
        self.written[key] = lines
        return "v1"

    def results(self, prefix: str) -> Iterable[Mapping[str, Any]]:
        return self.records


class FakeMapRuns:
    """Counts as DescribeMapRun gives them."""

    def map_run_counts(self, map_run: str) -> Mapping[str, int]:
        return {"succeeded": 2, "failed": 1, "pending": 0}


def confirm(
    campaigns: CampaignStore, files: FakeFiles, number: int = 1, map_run: str | None = "arn:map"
) -> ConfirmFanOutResult:
    request = ConfirmFanOut(
        campaign_id="advent",
        generation=1,
        map_run=map_run,
        manifest_key="first.jsonl",
        results_prefix="p",
        round=number,
    )
    return confirm_fan_out(request, campaigns, files, FakeMapRuns())


@pytest.fixture
def enqueued(campaigns: CampaignStore) -> CampaignStore:
    campaigns.create(campaign(state=CampaignState.ENQUEUED, generation=1))
    return campaigns


def test_a_manifest_all_proven_leaves_nothing(enqueued: CampaignStore) -> None:
    """Scheduled, settled and refused together are what was enrolled, and that is what was planned."""
    files = FakeFiles(3, [succeeded("b0"), succeeded("b1", 60, 40), succeeded("b2", 99, 0, 1)])
    assert confirm(enqueued, files) == ConfirmFanOutResult(remaining=0, refused=1)
    assert not files.written


@pytest.mark.parametrize(
    "record",
    [
        None,
        failed("b1"),
        pending("b1"),
        succeeded("b1", 99),
        succeeded("b1", 99, enrolled=100),
        succeeded("b1", 100, enrolled=101),
        succeeded("b1") | {"Output": json.dumps("no object")},
        {k: v for k, v in succeeded("b1").items() if k != "Output"},
    ],
    ids=["nothing", "failed", "pending", "fewer", "unscheduled", "more", "other-output", "no-output"],
)
def test_what_is_not_proven_runs_again(enqueued: CampaignStore, record: dict[str, Any] | None) -> None:
    """Whatever there is instead of a proof, that batch alone is in the next manifest."""
    files = FakeFiles(2, [succeeded("b0"), *([record] if record else [])])
    result = confirm(enqueued, files)
    key = "first-retry-2.jsonl"
    assert result == ConfirmFanOutResult(remaining=1, manifest_key=key, manifest_version="v1", refused=0)
    assert [line.batch for line in files.written[key]] == ["b1"]
    files.records.append(succeeded("b1"))
    assert confirm(enqueued, files, 2).remaining == 0


def test_what_is_still_missing_after_the_last_round_breaks_the_launch(enqueued: CampaignStore) -> None:
    """And says how many, why and what to do."""
    files = FakeFiles(2, [succeeded("b0"), failed("b1"), failed("b1"), failed("b1")])
    for number in range(1, ROUNDS):
        assert confirm(enqueued, files, number).remaining == 1
    with pytest.raises(FanOutBroken, match=r"1 of 2 batches .* 3 × EnrolmentFailed.*2 succeeded, 1 failed.*resume"):
        confirm(enqueued, files, ROUNDS)


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([failed(f"b{n}", "ScheduleQuotaExceeded", "no more") for n in range(20)], "ScheduleQuotaExceeded: no more"),
        ([failed(f"b{n}") for n in range(20)], r"40 of 40 .* 20 × EnrolmentFailed.*resume"),
        ([], "40 of 40 .* not scheduled"),
    ],
    ids=["quota", "anything", "nothing-written"],
)
def test_a_map_run_that_broke_is_explained_and_not_repeated(
    enqueued: CampaignStore, records: list[dict[str, Any]], told: str
) -> None:
    """More failures than it tolerates: the quota is named where that was it, and there is no other round."""
    files = FakeFiles(40, records)
    with pytest.raises(FanOutBroken, match=told):
        confirm(enqueued, files, map_run=None)
    assert not files.written


@pytest.mark.parametrize("error", ["ScheduleQuotaExceeded", "SchedulerAccessDenied"])
def test_quota_or_access_break_the_launch_at_once(enqueued: CampaignStore, error: str) -> None:
    """With the reason, and without an address that a cause may quote."""
    files = FakeFiles(2, [succeeded("b0"), failed("b1", error, "no more for ana@example.com")])
    with pytest.raises(FanOutBroken, match=f"{error}: no more for …") as broken:
        confirm(enqueued, files)
    assert "@" not in str(broken.value)
    assert not files.written


def test_the_errors_that_are_hopeless_are_those_of_the_machine() -> None:
    """The names are states of launch_campaign's children."""
    from pathlib import Path

    import yaml

    from carillon.launch.fan_out import HOPELESS

    machine = yaml.safe_load((Path(__file__).parents[3] / "statemachines" / "launch_campaign.asl.yaml").read_text())
    children = machine["States"]["FanOut"]["ItemProcessor"]["States"]
    states = children["CreateSchedules"]["ItemProcessor"]["States"].values()
    assert {state["Error"] for state in states if state["Type"] == "Fail"} >= HOPELESS
    assert set(children["CreateSchedules"]["Output"]) == {"batch", "enrolled", "scheduled", "settled", "refused"}


@pytest.mark.parametrize(
    ("batches", "refused", "broken"), [(1, 10, False), (1, 11, True), (20, 20, False), (20, 21, True)]
)
def test_more_than_one_percent_and_more_than_ten_refusals_break_the_launch(
    enqueued: CampaignStore, batches: int, refused: int, broken: bool
) -> None:
    """Both bounds must be passed (DESIGN section 7); either way the refused are counted as failed."""
    records = [succeeded(f"b{n}") for n in range(1, batches)] + [succeeded("b0", 100 - refused, 0, refused)]
    files = FakeFiles(batches, records)
    if broken:
        with pytest.raises(FanOutBroken, match=f"{refused} of {batches * 100}"):
            confirm(enqueued, files)
    else:
        assert confirm(enqueued, files).refused == refused
    assert enqueued.get("advent").failed == refused


def test_refusals_are_counted_once(enqueued: CampaignStore) -> None:
    """Lambda may run ConfirmFanOut again; and rounds before the last count nothing."""
    files = FakeFiles(2, [succeeded("b0", 95, 0, 5)])
    confirm(enqueued, files, 1)
    assert enqueued.get("advent").failed == 0
    files.records.append(succeeded("b1", 99, 0, 1))
    assert confirm(enqueued, files, 2) == confirm(enqueued, files, 2) == ConfirmFanOutResult(remaining=0, refused=6)
    assert enqueued.get("advent").failed == 6


@pytest.mark.parametrize(("state", "generation"), [("cancelling", 1), ("aborted", 1), ("enqueued", 2)])
def test_someone_elses_decision_ends_it(campaigns: CampaignStore, state: str, generation: int) -> None:
    """No manifest for a campaign that is not this launch's any more."""
    campaigns.create(campaign(state=state, generation=generation))
    files = FakeFiles(1)
    with pytest.raises(CampaignStateConflict):
        confirm(campaigns, files)
    assert not files.written


BATCHES = ("b0", "b1", "b2", "b3", "b4")


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(BATCHES), st.sampled_from(["ok", "short", "failed", "pending"])),
        max_size=20,
    )
)
def test_a_batch_is_proven_by_one_whole_success_and_by_nothing_else(history: list[tuple[str, str]]) -> None:
    """Law: over any history of rounds, missing = those that no round has finished; more records never un-prove."""
    make = {"ok": succeeded, "short": lambda n: succeeded(n, 1), "failed": failed, "pending": pending}
    manifest = FakeFiles(5).manifest("first.jsonl")
    children = [child(make[what](batch)) for batch, what in history]
    proven = {batch for batch, what in history if what == "ok"}
    assert {line.batch for line in unproven(manifest, children)} == set(BATCHES) - proven
