"""One machine as an AWS account: MiniStack in this process, with our own services in front."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from local import grants, seams
from local.caller import RoleCaller, client_of
from local.clock import ENVIRONMENT_VARIABLE, Clock
from local.firehose import Firehose
from local.identity import Iam, operator_keys
from local.ministack import ACCOUNT_ID, HOST, REGION, private
from local.scheduler import Scheduler
from local.scheduler.faults import Fault
from local.scheduler.stack import schedule_groups, schedules
from local.ses.service import SimpleEmail
from local.ses.settings import SesSettings
from local.stepfunctions import seams as states_seams
from local.stepfunctions.service import StepFunctions

CONTROL_PATH = "/_carillon/"

_started = threading.Lock()


class Cloud:
    """The local cloud, listening on 127.0.0.1 from construction until ``stop``.

    MiniStack keeps its state in modules, so a process has one cloud at a time.

    Args:
        directory: where the clock, the mailbox and functions' code have their files.
        port: 0 takes a free one.
        ses: the account's access, quotas and mailboxes.
    """

    def __init__(self, directory: Path, port: int = 0, ses: SesSettings | None = None) -> None:
        seams.check_version()
        if not _started.acquire(blocking=False):
            raise RuntimeError("this process already has a local cloud; stop it first")
        self.directory = directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = port or _free_port()
        self.endpoint = f"http://{HOST}:{self.port}"
        self.token = secrets.token_urlsafe(24)
        self.clock = Clock(self.directory / "clock")
        self.mailbox = self.directory / "mailbox"
        self._ses_settings = ses or SesSettings()
        self._operator = operator_keys()
        self._clients: dict[str, Any] = {}
        self._making_clients = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._finished: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._serve, name="carillon-cloud", daemon=True)
        self._environment = _Environment(
            {
                "GATEWAY_PORT": str(self.port),
                ENVIRONMENT_VARIABLE: str(self.directory / "clock"),
            }
        )
        try:
            self._assemble()
            self._thread.start()
            _wait_for_port(self.port)
        except BaseException:
            self._environment.restore()
            _started.release()
            raise

    def _assemble(self) -> None:
        seams.restore_provisioners()
        seams.refer_to_secrets_by_arn()
        seams.spell_out_environments()
        seams.refuse_root_keys()
        seams.trust_loopback()
        seams.name_resources_in_full()
        seams.let_forms_upload()
        seams.name_what_functions_raise()
        seams.hide_host_packages()
        seams.unpack_once(self.directory / "code")
        seams.follow_clock(self.clock)
        self.iam = Iam(ACCOUNT_ID, REGION)
        self.iam.create_operator(self._operator)
        grants.require_invoke_permission(ACCOUNT_ID, REGION)
        grants.require_roles(self.iam)
        self._callers = {
            name: RoleCaller(f"{name}.amazonaws.com", self.iam, self.endpoint)
            for name in ("scheduler", "states", "ses", "firehose")
        }
        self.states_caller = self._callers["states"]
        self.scheduler = Scheduler(self.clock, self._callers["scheduler"], self.iam, ACCOUNT_ID, REGION)
        seams.put_in_front("scheduler", self.scheduler)
        seams.provision("AWS::Scheduler::Schedule", schedules(self.scheduler))
        seams.provision("AWS::Scheduler::ScheduleGroup", schedule_groups(self.scheduler))
        self.ses = SimpleEmail(self.clock, self._callers["ses"], self.mailbox, ACCOUNT_ID, REGION, self._ses_settings)
        private("app")._loaded_modules["ses_v2"] = self.ses.facade(private("services.ses_v2"))
        self.firehose = Firehose(self.clock, self._callers["firehose"], ACCOUNT_ID, REGION)
        private("app")._loaded_modules["firehose"] = self.firehose.facade(private("services.firehose"))
        self.states = StepFunctions(
            self.clock,
            self.states_caller,
            lambda: states_seams.stored_machines(ACCOUNT_ID, REGION),
            self.emit,
            ACCOUNT_ID,
            REGION,
        )
        states_seams.install(self.states)
        for each in self._callers.values():
            each.own(self.scheduler, lambda *call: seams.scheduler_resource(REGION, ACCOUNT_ID, *call))
            each.own(self.ses, self.ses.resource_of, self.ses.also_asked)
            each.own(self.states, _states_resource)
            each.own(self.firehose, self.firehose.resource_of)
        self.ses.start()
        self.firehose.start()

    def client(self, service: str) -> Any:
        """A boto3 client of the operator, made once per service."""
        with self._making_clients:
            if service not in self._clients:
                self._clients[service] = client_of(service, self._operator, self.endpoint, REGION)
            return self._clients[service]

    def operator_environment(self) -> dict[str, str]:
        """What ``sam``, the AWS CLI and boto3 need in their environment to work here."""
        return {
            "AWS_ACCESS_KEY_ID": self._operator.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self._operator.secret_access_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            ENVIRONMENT_VARIABLE: str(self.directory / "clock"),
        }

    def advance(self, seconds: float) -> None:
        """Move the clock of everything here forward, and let whoever polls look at once."""
        self.clock.advance(seconds)
        private("core.concurrency").esm_wake.set()

    def emit(self, event: dict[str, Any]) -> None:
        """Put an event of an AWS service (source, detail-type, detail, time, resources) on the default bus;
        rules deliver it to their targets."""
        entry = {
            "Source": event["source"],
            "DetailType": event["detail-type"],
            "Detail": json.dumps(event["detail"]),
            "Resources": event["resources"],
            "Time": event["time"],
        }
        with private("core.responses").request_scope(ACCOUNT_ID, REGION):
            private("services.eventbridge")._put_events({"Entries": [entry]}, allow_aws_source=True)

    def reset(self) -> None:
        """An empty account again, with the same operator."""
        private("app")._reset_all_state()
        self.iam.reset()
        for each in self._callers.values():
            each.reset()
        self.iam.create_operator(self._operator)

    def stop(self) -> None:
        """Stop serving and end the workers of functions."""
        self.scheduler.close()
        self.states.close()
        self.ses.stop()
        self.firehose.stop()
        finished = self._finished
        if finished is not None:
            self._loop.call_soon_threadsafe(finished.set)
            self._thread.join(timeout=20)
        private("app")._reset_all_state()
        seams.take_away_facades()
        self._environment.restore()
        _started.release()

    def _serve(self) -> None:
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        private("core.hypercorn_compat").install()
        config = Config()
        config.bind = [f"{HOST}:{self.port}"]
        config.keep_alive_timeout = 75
        config.loglevel = "WARNING"
        config.graceful_timeout = 1
        app: Any = _Gateway(private("app").app, self)

        async def run() -> None:
            self._finished = asyncio.Event()
            await serve(app, config, shutdown_trigger=self._finished.wait)

        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(run())
        self._loop.close()


class _Gateway:
    """MiniStack's application with our control path before it and its unguarded administration shut."""

    def __init__(self, app: Callable[..., Any], cloud: Cloud) -> None:
        self._app = app
        self._cloud = cloud

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] == "http" and scope["path"].startswith(CONTROL_PATH):
            status, answer = await self._control(scope, receive)
            await _answer(send, status, answer)
        elif scope["type"] == "http" and scope["path"] in ("/_ministack/reset", "/_ministack/config"):
            await _answer(send, 404, {"message": "use python -m local"})
        else:
            await self._app(scope, receive, send)

    async def _control(self, scope: dict[str, Any], receive: Callable[..., Any]) -> tuple[int, dict[str, Any]]:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if not secrets.compare_digest(headers.get(b"x-carillon-token", b""), self._cloud.token.encode()):
            return 403, {"message": "the token of the state file is missing"}
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        command = CONTROLS.get(scope["path"].removeprefix(CONTROL_PATH))
        if command is None or scope["method"] != "POST":
            return 404, {"message": f"known: POST {', '.join(sorted(CONTROLS))}"}
        try:
            return 200, await asyncio.to_thread(command, self._cloud, json.loads(body or b"{}"))
        except (KeyError, TypeError, ValueError) as wrong:
            return 400, {"message": f"{type(wrong).__name__}: {wrong}"}


def _advance(cloud: Cloud, options: dict[str, Any]) -> dict[str, Any]:
    cloud.advance(float(options["seconds"]))
    return {"now": cloud.clock.now().isoformat()}


def _reset(cloud: Cloud, options: dict[str, Any]) -> dict[str, Any]:
    cloud.reset()
    return {}


def _scheduler_faults(cloud: Cloud, options: dict[str, Any]) -> dict[str, Any]:
    cloud.scheduler.faults.set(*(Fault(**fault) for fault in options["faults"]))
    return {}


def _ses(cloud: Cloud, options: dict[str, Any]) -> dict[str, Any]:
    return cloud.ses.control(options)


CONTROLS: dict[str, Callable[[Cloud, dict[str, Any]], dict[str, Any]]] = {
    "clock/advance": _advance,
    "reset": _reset,
    "ses": _ses,
    "scheduler/faults": _scheduler_faults,
}


async def _answer(send: Callable[..., Any], status: int, document: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(document).encode()})


def _states_resource(operation: str, params: Mapping[str, Any]) -> str:
    """The ARN that IAM is asked about for a Step Functions operation."""
    named = ("stateMachineArn", "executionArn", "mapRunArn", "resourceArn")
    return next((params[name] for name in named if name in params), "*")


class _Environment:
    """Functions inherit the environment of MiniStack's process."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)

    def restore(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError("MiniStack did not start within 30 s") from None
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
