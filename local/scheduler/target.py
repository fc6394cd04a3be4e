"""What a schedule calls: templated targets by their ARN, universal ones by ``aws-sdk:service:action``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import botocore.session

from local.contract import contract
from local.ports import AwsError

INPUT_LIMIT = 262_144
"""Bytes of ``Target.Input`` (Scheduler's quota page: 256 KB)."""

_UNIVERSAL = re.compile(r"arn:aws(?:-[a-z]+)?:scheduler:::aws-sdk:([a-z0-9]+):([a-z][A-Za-z0-9]*)")
_TEMPLATED = re.compile(r"arn:aws(?:-[a-z]+)?:([a-z0-9-]+):([a-z0-9-]+):(\d{12}):(.+)")
# Read-only actions, by the user guide's list (managing-targets-universal).
_READ_ONLY = (
    "get", "describe", "list", "poll", "receive", "search", "scan", "query", "select", "read", "lookup",
    "discover", "validate", "batchGet", "batchDescribe", "batchRead", "transactGet", "adminGet", "adminList",
    "testMigration", "retrieve", "testConnection", "translateDocument", "isAuthorized", "invokeModel",
)  # fmt: skip
# SDK identifiers (the service id in lower case) that are not botocore's name of the service.
_SDK_IDENTIFIERS = {
    "cloudwatch": "cloudwatch",
    "cloudwatchlogs": "logs",
    "eventbridge": "events",
    "sfn": "stepfunctions",
}
# The action that a templated target stands for; others exist on AWS and are refused here by name.
_TEMPLATES = {"sqs": "SendMessage", "lambda": "Invoke", "states": "StartExecution"}


@dataclass(frozen=True, slots=True)
class Action:
    """One call of an AWS operation, in botocore's names; ``template`` is the ARN of a templated target."""

    service: str
    operation: str
    template: str | None = None

    def params(self, input_text: str | None, event: Mapping[str, Any], message_group: str | None) -> dict[str, Any]:
        """The operation's members. ``input_text`` is the schedule's Input with its context filled in,
        ``event`` what AWS sends when there is none."""
        if self.template is None:
            members: dict[str, Any] = json.loads(input_text or "{}")
            return members
        text = input_text if input_text is not None else json.dumps(event)
        if self.service == "sqs":
            account, name = self.template.split(":")[4:6]
            queue = {"QueueUrl": f"https://sqs.amazonaws.com/{account}/{name}", "MessageBody": text}
            return queue | ({"MessageGroupId": message_group} if message_group else {})
        if self.service == "lambda":
            return {"FunctionName": self.template, "InvocationType": "Event", "Payload": text.encode()}
        return {"stateMachineArn": self.template, "input": text}


def action_of(target: Mapping[str, Any]) -> Action:
    """The call that ``target`` (of CreateSchedule, already checked against the model) makes.

    Raises:
        AwsError: ``ValidationException`` for what Scheduler refuses and what this one does not have.
    """
    action = _parse(target["Arn"])
    text = target.get("Input")
    if text is not None and len(text.encode()) > INPUT_LIMIT:
        raise _invalid(f"Target Input is larger than {INPUT_LIMIT} bytes.")
    if "SqsParameters" in target and action.service != "sqs":
        raise _invalid("SqsParameters are for targets in Amazon SQS.")
    if action.template is not None and action.service == "sqs":
        return action
    try:
        document = json.loads(text) if text is not None else {}
    except ValueError as reason:
        raise _invalid("Invalid RequestJson provided. Reason: Target Input is not JSON.") from reason
    if action.template is None:
        if not isinstance(document, dict):
            raise _invalid("Invalid RequestJson provided. Reason: Target Input is not a JSON object.")
        if "<aws.scheduler." not in (text or ""):
            try:
                contract(action.service).operation(action.operation).validate(document)
            except AwsError as refused:
                raise _invalid(f"Invalid RequestJson provided. Reason: {refused.message}") from refused
    return action


@lru_cache(maxsize=1024)
def _parse(arn: str) -> Action:
    if universal := _UNIVERSAL.fullmatch(arn):
        identifier, name = universal.groups()
        if name.startswith(_READ_ONLY):
            raise _invalid(f"{arn} is read-only and not supported as a target.")
        service = _SDK_IDENTIFIERS.get(identifier, identifier)
        operation = name[0].upper() + name[1:]
        if service not in botocore.session.get_session().get_available_services():
            raise _invalid(f"{arn} is not a valid universal target: unknown service {identifier}.")
        if operation not in contract(service).model.operation_names:
            raise _invalid(f"{arn} is not a valid universal target: {identifier} has no action {name}.")
        return Action(service, operation)
    if (templated := _TEMPLATED.fullmatch(arn)) is None:
        raise _invalid("Provided Arn is not in correct format.")
    service = templated.group(1)
    if service not in _TEMPLATES:
        raise _invalid(f"The local cloud's Scheduler has no templated target for {service}.")
    return Action("stepfunctions" if service == "states" else service, _TEMPLATES[service], arn)


def _invalid(message: str) -> AwsError:
    return contract("scheduler").error("ValidationException", message)
