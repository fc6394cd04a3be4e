"""SES's place inside MiniStack 1.5.33: the ``ses_v2`` module and the stores that CloudFormation writes into.

Seams (private names, each with a canary in ``tests/local/ses/test_facade.py``): ``_config_sets`` and
``_identities`` are the stores; ``_create_config_set`` and ``_event_destination`` are what CloudFormation's
provisioners call; a dropped connection is Hypercorn's to close.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from hypercorn.protocol.events import StreamClosed

from local import seams
from local.contract import Answer, contract
from local.ports import AwsError
from local.scoped import ScopedStore
from local.ses.configuration import ConfigurationSets
from local.ses.faults import ConnectionDropped
from local.ses.service import SimpleEmail

# MiniStack keeps the tags of SES's resources, whoever made them; they decide nothing about a message.
_DELEGATED = frozenset({"TagResource", "UntagResource", "ListTagsForResource"})


class SimpleEmailFacade(seams.Facade):
    """Answers over HTTP, adopts what CloudFormation stored, and has it refused what SES refuses."""

    def __init__(self, original: Any, ses: SimpleEmail, account_id: str, region: str) -> None:
        owned = frozenset(contract("sesv2").model.operation_names) - _DELEGATED
        super().__init__(original, ses, owned)
        ses.configuration_sets.store = ScopedStore(original._config_sets, account_id, region)
        ses.identities.store = ScopedStore(original._identities, account_id, region)
        ses.identities.reset()
        sets = ses.configuration_sets
        seams.replace("services.ses_v2", "_create_config_set", lambda made: _check_set(made, sets))
        seams.replace("services.ses_v2", "_event_destination", lambda made: _check_destination(made, sets))

    async def handle_request(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Answer:
        """MiniStack's handler signature."""
        try:
            return await super().handle_request(method, path, headers, body, query)
        except ConnectionDropped:
            await _close_connection()
            # Ends this request's task without an answer, as when a client has gone away.
            raise asyncio.CancelledError from None

    def reset(self) -> None:
        """The module first: its stores are ours, and an account has identities from the start."""
        self._original.reset()
        self._service.reset()


def _check_set(made: Callable[..., Any], sets: ConfigurationSets) -> Callable[..., Any]:
    def create_config_set(name: str, members: Mapping[str, Any]) -> Any:
        try:
            sets.check_new(name, members)
        except AwsError as refused:
            # CloudFormation rolls back on whatever is raised, and shows its text.
            raise ValueError(refused.message) from refused
        return made(name, members)

    return create_config_set


def _check_destination(made: Callable[..., Any], sets: ConfigurationSets) -> Callable[..., Any]:
    def event_destination(definition: Mapping[str, Any]) -> Any:
        try:
            sets.check_definition(definition)
        except AwsError as refused:
            return None, (refused.status, {}, json.dumps({"message": refused.message}).encode())
        return made(definition)

    return event_destination


async def _close_connection() -> None:
    """Close the connection of the request that this task serves, with nothing sent on it."""
    task: Any = asyncio.current_task()
    # The task runs Hypercorn's _handle(app, config, scope, receive, send, …), whose send is the stream's.
    stream = task.get_coro().cr_frame.f_locals["send"].__self__
    stream.closed = True
    await stream.send(StreamClosed(stream_id=stream.stream_id))
