"""`python -m local` as a person uses it."""

import json
import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import boto3
import pytest

ROOT = Path(__file__).resolve().parents[2]


def local(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "local", *words, "--directory", str(directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_cloud_is_started_moved_emptied_and_stopped(tmp_path: Path) -> None:
    """Its keys are in a file for its owner alone, and work; nothing is left of it afterwards."""
    up = local(tmp_path, "up")
    assert up.returncode == 0, up.stderr
    try:
        state_file = tmp_path / "cloud.json"
        assert stat.S_IMODE(state_file.stat().st_mode) == 0o600
        state = json.loads(state_file.read_text())
        assert up.stdout.strip() == state["endpoint"]
        assert state["endpoint"].startswith("http://127.0.0.1:")
        environment = local(tmp_path, "environment").stdout
        assert f"export AWS_ENDPOINT_URL={state['endpoint']}\n" in environment
        scheduler = boto3.client(
            "scheduler",
            endpoint_url=state["endpoint"],
            region_name=state["environment"]["AWS_REGION"],
            aws_access_key_id=state["environment"]["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=state["environment"]["AWS_SECRET_ACCESS_KEY"],
        )
        scheduler.create_schedule_group(Name="g")
        assert local(tmp_path, "up").returncode == 1
        assert local(tmp_path, "clock", "advance", "3600").returncode == 0
        assert float((tmp_path / "clock").read_text()) == 3600
        assert local(tmp_path, "reset").returncode == 0
        assert [group["Name"] for group in scheduler.list_schedule_groups()["ScheduleGroups"]] == ["default"]
    finally:
        down = local(tmp_path, "down")
    assert down.returncode == 0
    assert not state_file.exists()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(state["endpoint"])


def test_what_is_not_up_cannot_be_moved_or_stopped(tmp_path: Path) -> None:
    """The command says so and fails."""
    for words in (("down",), ("reset",), ("clock", "advance", "1")):
        answer = local(tmp_path, *words)
        assert (answer.returncode, "nothing is up" in answer.stderr) == (1, True)


def test_down_ends_no_process_that_is_not_a_cloud(tmp_path: Path) -> None:
    """A number in a stale state file may be anyone's by now."""
    (tmp_path / "cloud.json").write_text(json.dumps({"pid": os.getpid(), "endpoint": "http://127.0.0.1:1"}))
    assert local(tmp_path, "down").returncode == 0
    assert not (tmp_path / "cloud.json").exists()
