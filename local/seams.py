"""Where our services take their place inside MiniStack.

MiniStack has no plug-in interface, so each seam is a private name of version 1.5.33 (pinned), and each
has a canary in ``tests/local/test_seams.py`` that says what changed when MiniStack does.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from local import identity
from local.clock import Clock
from local.contract import Answer, contract
from local.ministack import private
from local.ports import AwsError

log = logging.getLogger(__name__)

EXPECTED_VERSION = "1.5.33"


class Service(Protocol):
    """A service of ours. ``handle`` validates: it is called over HTTP and in process alike."""

    name: str
    """botocore's name, e.g. ``scheduler``."""

    def handle(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one operation (members as in botocore's model; datetimes aware, blobs bytes).

        Raises:
            AwsError: what AWS would answer.
        """
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


class Facade:
    """Stands where MiniStack's module stood: our service answers, the module keeps its other attributes.

    ``owned`` names the operations that are ours; None means all of them. Calls run on threads of this
    service, because a handler may call back into the event loop that serves HTTP.
    """

    def __init__(self, original: Any, service: Service, owned: frozenset[str] | None = None) -> None:
        self._original = original
        self._service = service
        self._owned = owned
        self._contract = contract(service.name)
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix=f"carillon-{service.name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    async def handle_request(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Answer:
        """MiniStack's handler signature."""
        try:
            operation, params = self._contract.parse(method, path, headers, body, query)
        except AwsError as refused:
            if self._owned is not None and refused.code == "UnknownOperationException":
                return await self._delegate(method, path, headers, body, query)
            return self._contract.refusal(refused)
        if self._owned is not None and operation not in self._owned:
            return await self._delegate(method, path, headers, body, query)
        context = contextvars.copy_context()
        context.run(identity.caller.set, identity.of_request(headers, query))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, self._serve, operation, params)

    def reset(self) -> None:
        """Reset our service and the module behind it."""
        self._service.reset()
        self._original.reset()

    def _serve(self, operation: str, params: Mapping[str, Any]) -> Answer:
        try:
            return self._contract.answer(operation, self._service.handle(operation, params))
        except AwsError as refused:
            return self._contract.refusal(refused)
        except Exception as fault:
            log.exception("%s %s broke", self._service.name, operation)
            reason = f"{type(fault).__name__} in the local cloud"
            return self._contract.refusal(self._contract.error("InternalServerException", reason))

    async def _delegate(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Answer:
        answer: Answer = await self._original.handle_request(method, path, headers, body, query)
        return answer


_originals: dict[tuple[str, str], Any] = {}


def replace(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of MiniStack's ``module.name``.

    Always made from MiniStack's own, however often a cloud is started in one process.

    Raises:
        RuntimeError: MiniStack has no such name any more.
    """
    owner = private(module)
    if (module, name) not in _originals:
        if not hasattr(owner, name):
            raise RuntimeError(f"MiniStack {EXPECTED_VERSION} had ministack.{module}.{name}; this one has not")
        _originals[module, name] = getattr(owner, name)
    setattr(owner, name, make(_originals[module, name]))


def put_in_front(module: str, service: Service, owned: frozenset[str] | None = None) -> None:
    """Let ``service`` answer what reaches MiniStack's ``services.{module}`` over HTTP."""
    private("app")._loaded_modules[module] = Facade(private(f"services.{module}"), service, owned)


def provision(resource_type: str, handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Let CloudFormation make ``resource_type`` by our ``create``, ``update`` and ``delete``."""
    private("services.cloudformation.provisioners")._RESOURCE_HANDLERS[resource_type] = dict(handlers)


class _MovableTime:
    """Python's ``time`` with the local cloud's clock; intervals and sleeps stay the machine's."""

    def __init__(self, clock: Clock) -> None:
        self.time = clock.time

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def follow_clock(clock: Clock) -> None:
    """Let queues (delay, visibility, retention), item expiry and rules' rates follow ``clock``."""
    for module in ("services.sqs", "services.dynamodb", "services.eventbridge"):
        replace(module, "time", lambda _: _MovableTime(clock))


def refuse_root_keys() -> None:
    """MiniStack lets ``test``, account numbers and its own environment's key do everything, unsigned."""
    for module in ("core.iam_evaluator", "services.sts"):
        replace(module, "is_root_access_key", lambda _: lambda access_key_id: False)


def name_schedules_in_full() -> None:
    """IAM sees a schedule's ARN with its group; MiniStack always says ``default``."""

    def make(original: Callable[..., str]) -> Callable[..., str]:
        def extract_resource_arn(
            service: str,
            method: str,
            path: str,
            headers: dict[str, str],
            body: bytes,
            query_params: dict[str, Any],
            region: str,
            account_id: str,
        ) -> str:
            if service == "scheduler":
                try:
                    operation, params = contract("scheduler").parse(method, path, headers, body, query_params)
                except AwsError:
                    return "*"
                return scheduler_resource(region, account_id, operation, params)
            return original(service, method, path, headers, body, query_params, region, account_id)

        return extract_resource_arn

    replace("core.iam_actions", "extract_resource_arn", make)


def scheduler_resource(region: str, account_id: str, operation: str, params: Mapping[str, Any]) -> str:
    """The ARN that IAM is asked about for a Scheduler operation: the service's authorization reference
    names a schedule by group and name, lists are on ``*``."""
    prefix = f"arn:aws:scheduler:{region}:{account_id}"
    if operation.endswith("ScheduleGroup"):
        return f"{prefix}:schedule-group/{params.get('Name')}"
    if operation.endswith("Schedule"):
        return f"{prefix}:schedule/{params.get('GroupName') or 'default'}/{params.get('Name')}"
    return str(params.get("ResourceArn") or "*")


def trust_loopback() -> None:
    """Requests come over loopback without TLS; to policies that demand TLS they are as good as with it."""

    def make(original: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
        return lambda source_ip, secure_transport: original(source_ip, True)

    replace("app", "pin_request_origin", make)
