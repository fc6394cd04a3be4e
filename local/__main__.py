"""``python -m local up | down | reset | clock advance SECONDS``: the local cloud as a process."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local.remote import Remote

_START_SECONDS = 60
_STOP_SECONDS = 30


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What is on the command line (or ``given``); ``--directory`` may stand before the command or behind it."""
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--directory", type=Path, default=argparse.SUPPRESS, help="state and files (.local)")
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__, parents=[where])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("up", "start it in the background and print its endpoint"),
        ("serve", "start it in the foreground"),
    ):
        start = commands.add_parser(name, help=help_text, parents=[where])
        start.add_argument("--port", type=int, default=0, help="0 takes a free one")
    commands.add_parser("down", help="stop it", parents=[where])
    commands.add_parser("reset", help="empty it", parents=[where])
    commands.add_parser("environment", help="print export lines with the operator's keys", parents=[where])
    clock = commands.add_parser("clock", help="move its clock").add_subparsers(dest="move", required=True)
    clock.add_parser("advance", parents=[where]).add_argument("seconds", type=float)
    # A default of the parser's own would become that of each command, which would then win over what stands before it.
    return parser.parse_args(given, argparse.Namespace(directory=Path(".local")))


def main() -> int:
    """Run one command; see ``--help``."""
    options = arguments()
    directory: Path = options.directory
    match options.command:
        case "up":
            return _up(directory, options.port)
        case "serve":
            return _serve(directory, options.port)
        case "down":
            return _down(directory)
        case "reset":
            _remote(directory).control("reset", {})
        case "environment":
            for name, value in _remote(directory).environment.items():
                print(f"export {name}={value}")
        case "clock":
            print(_remote(directory).advance(options.seconds).isoformat())
    return 0


def _up(directory: Path, port: int) -> int:
    state_file = directory / "cloud.json"
    if state_file.exists():
        if _alive(_state(directory)["pid"]):
            print(f"already up at {_state(directory)['endpoint']}", file=sys.stderr)
            return 1
        state_file.unlink()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "cloud.log").open("ab") as log:
        command = [sys.executable, "-m", "local", "serve", "--directory", str(directory), "--port", str(port)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + _START_SECONDS
    while not state_file.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            print(f"it did not start: see {directory / 'cloud.log'}", file=sys.stderr)
            return 1
        time.sleep(0.05)
    print(_state(directory)["endpoint"])
    return 0


def _serve(directory: Path, port: int) -> int:
    from local.cloud import Cloud  # a second of imports that no other command needs

    finished: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: finished.append(received))
    cloud = Cloud(directory, port)
    state = {
        "pid": os.getpid(),
        "endpoint": cloud.endpoint,
        "token": cloud.token,
        "environment": cloud.operator_environment(),
    }
    state_file = directory / "cloud.json"
    fresh = state_file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(state, file)
    fresh.rename(state_file)
    try:
        while not finished:
            signal.pause()
    finally:
        state_file.unlink(missing_ok=True)
        cloud.stop()
    return 0


def _down(directory: Path) -> int:
    if not (directory / "cloud.json").exists():
        print(f"nothing is up in {directory}", file=sys.stderr)
        return 1
    pid = _state(directory)["pid"]
    if _alive(pid):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while _alive(pid):
            if time.monotonic() > deadline:
                print(f"process {pid} does not stop", file=sys.stderr)
                return 1
            time.sleep(0.05)
    (directory / "cloud.json").unlink(missing_ok=True)
    return 0


def _remote(directory: Path) -> Remote:
    try:
        return Remote(directory)
    except FileNotFoundError:
        raise SystemExit(f"nothing is up in {directory}") from None


def _state(directory: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((directory / "cloud.json").read_text())
    return state


def _alive(pid: int) -> bool:
    """Whether ``pid`` is a process that serves a local cloud (numbers are used again)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        if Path("/proc").is_dir():
            return False
        listed = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        command = listed.stdout.split()
    return b"local" in command and b"serve" in command


if __name__ == "__main__":
    sys.exit(main())
