"""The seams by which our Step Functions takes the place of MiniStack 1.5.33's.

Machines stay where MiniStack's CloudFormation and CreateStateMachine put them; what cannot run here fails the
deployment. ``tests/local/stepfunctions/test_seams.py`` is the canary of these private names.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from local.contract import Answer, contract
from local.ministack import private
from local.ports import AwsError
from local.seams import Facade, replace
from local.stepfunctions.definition import compile_definition
from local.stepfunctions.service import StepFunctions

log = logging.getLogger(__name__)

# Storing and tagging machines stays MiniStack's; ours refuses a bad definition first.
_STORING = frozenset({"CreateStateMachine", "UpdateStateMachine", "DeleteStateMachine"})
_DELEGATED = _STORING | {"TagResource", "UntagResource", "ListTagsForResource"}


def install(service: StepFunctions) -> None:
    """Put ``service`` in MiniStack's place: for the API, as EventBridge's target, at deployment."""
    app, original = private("app"), private("services.stepfunctions")
    app._loaded_modules["stepfunctions"] = _Facade(original, service)
    replace("services.stepfunctions", "_start_execution", lambda _: _starter(service))
    replace("services.cloudformation.provisioners", "_sfn_definition", _checked)


def stored_machines(account_id: str, region: str) -> dict[str, Mapping[str, Any]]:
    """The machines that MiniStack stores for this account and Region, by ARN."""
    with private("core.responses").request_scope(account_id, region):
        return dict(private("services.stepfunctions")._state_machines.items())


class _Facade(Facade):
    """The generic facade, which hands the storing of machines to MiniStack's module."""

    async def handle_request(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Answer:
        """MiniStack's handler signature."""
        operation = headers.get("x-amz-target", "").rsplit(".", 1)[-1]
        if operation not in _DELEGATED:
            return await super().handle_request(method, path, headers, body, query)
        if operation in _STORING:
            try:
                _, params = self._contract.parse(method, path, headers, body, query)
                self._contract.operation(operation).validate(params)
                if "definition" in params:
                    compile_definition(params["definition"], params.get("type", "STANDARD"))
            except AwsError as refused:
                return self._contract.refusal(refused)
        return await self._delegate(method, path, headers, body, query)


def _starter(service: StepFunctions) -> Callable[[Mapping[str, Any]], Answer]:
    """EventBridge starts executions through this function of the module."""

    def start_execution(data: Mapping[str, Any]) -> Answer:
        try:
            answer = service.handle("StartExecution", data)
        except AwsError as refused:
            log.warning("EventBridge could not start %s: %s", data.get("stateMachineArn"), refused)
            return contract(service.name).refusal(refused)
        body = {"executionArn": answer["executionArn"], "startDate": answer["startDate"].timestamp()}
        return 200, {"Content-Type": "application/x-amz-json-1.0"}, json.dumps(body).encode()

    return start_execution


def _checked(resolve: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """CloudFormation's definition, refused (and so the deployment rolled back) if it cannot run here."""

    def definition(props: Mapping[str, Any]) -> str:
        text = resolve(props)
        try:
            compile_definition(text, props.get("StateMachineType", "STANDARD"))
        except AwsError as refused:
            raise ValueError(f"{refused.code}: {refused.message}") from refused
        return text

    return definition
