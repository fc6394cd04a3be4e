"""Where our services take their place inside MiniStack.

MiniStack has no plug-in interface, so each seam is a private name of version 1.5.33 (pinned), and each
has a canary in ``tests/local/test_seams.py`` that says what changed when MiniStack does.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from local import identity
from local.contract import Answer, contract
from local.ports import AwsError

log = logging.getLogger(__name__)


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
