"""A step that comes after the one before: three days later on each one's own clock, and only to who is still there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.local.end_to_end.stage import people

FIRST = {"template": "letter.html", "subject": "Welcome", "rule": {"kind": "asap"}}
SECOND = {"template": "letter.html", "subject": "Still here", "rule": {"kind": "after_previous", "offset": "P3D"}}


def test_the_next_step_goes_three_days_after_the_one_before_and_to_nobody_who_has_left(stage):
    """Nobody gets the second before the first, nor twice; who unsubscribed in between has one e-mail and a reason."""
    readers = people(6, "drip")
    zones = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"] * 2
    rows = "".join(f"{reader},Reader,{zone}\n" for reader, zone in zip(readers, zones, strict=True))
    content = f"email,first_name,zone\n{rows}".encode()
    campaign = stage.create(content, steps=[FIRST, SECOND], list={"timezone_column": "zone"})
    assert stage.launch(campaign, "dispatching")["enrolled"] == 12
    waiting = [row for row in stage.stack.rows(campaign) if row.get("waits")]
    assert {row["task"].partition("-")[0] for row in waiting} == {"2"}
    first = stage.stack.slots(campaign)[:6]
    stage.to(first[0] - first[0] % 60)
    stage.to(first[-1])
    stage.until(lambda: stage.stack.outcome(campaign).settled, 6)
    assert stage.mails(campaign) == dict.fromkeys(readers, 1)

    stage.suppress(readers[0])
    rows = {row["task"]: row for row in stage.stack.rows(campaign)}
    released = [row for row in rows.values() if row["status"] == "Pending"]
    assert len(released) == 6
    assert not any(row.get("waits") for row in released)
    for row in released:
        before = datetime.fromisoformat(rows["1" + row["task"][1:]]["sent_at"])
        assert int(row["slot"]) == int((before + timedelta(days=3)).timestamp())
    for slot in sorted(int(row["slot"]) for row in released):
        stage.to(slot)
    stage.until(lambda: stage.stack.outcome(campaign).settled, 12)
    assert stage.mails(campaign) == {readers[0]: 1} | dict.fromkeys(readers[1:], 2)
    [left] = [row for row in stage.stack.rows(campaign) if row["status"] == "Failed"]
    assert (left["address"], left["error"]["code"]) == (readers[0], "Suppressed")
    stage.stack.invoke("ReconcileTasksFunction", {"campaign_id": campaign})
    assert stage.api.get(campaign)["state"] == "completed"
    assert datetime.now(UTC) < stage.cloud.clock.now()


def test_a_cancel_ends_the_steps_that_still_wait(stage):
    """Everybody has a row for every step, and after the cancel each of them says Cancelled."""
    campaign = stage.create(
        ("email,first_name\n" + "".join(f"{reader},R\n" for reader in people(4, "dripped"))).encode(),
        {"kind": "at", "at": (stage.cloud.clock.now() + timedelta(days=2)).strftime("%Y-%m-%dT%H:00:00Z")},
        steps=[{**FIRST, "rule": {"kind": "asap"}}, SECOND],
        not_after=(stage.cloud.clock.now() + timedelta(days=30)).strftime("%Y-%m-%dT%H:00:00Z"),
    )
    stage.launch(campaign, "dispatching")
    stage.api.call("POST", f"/campaigns/{campaign}/cancel")
    stage.api.wait(campaign, "cancelled")
    stage.until(lambda: stage.stack.outcome(campaign).settled, 8)
    counts = stage.api.call("GET", f"/campaigns/{campaign}/counts")
    assert (counts["enrolled"], counts["cancelled"], counts["balance"]) == (8, 8, True)
    assert not stage.mails(campaign)
