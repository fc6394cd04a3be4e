"""What a Task's Resource calls: AWS's parameters in, AWS's result or error name out.

Three kinds are built: ``lambda:invoke``, ``dynamodb:{get,put,update,delete}Item`` and ``aws-sdk:<service>:<action>``
for every service botocore knows. Their error prefixes follow the Java SDK that Step Functions uses: version 2
(``DynamoDb.``, ``Sfn.``, ``SesV2.``) for aws-sdk, version 1 (``DynamoDB.``) for the optimised ones.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import botocore.session
from botocore.exceptions import UnknownServiceError
from botocore.model import OperationModel, ServiceModel
from botocore.utils import parse_timestamp

from local.ports import AwsError, Caller
from local.stepfunctions.errors import RUNTIME, StateError

# botocore's stubs know only the base class of its shapes.
type Shape = Any
type Convert = Callable[[Any, str], Any]

_PREFIX = "arn:aws:states:::"
_LAMBDA_FIELDS = frozenset(
    {"FunctionName", "Payload", "InvocationType", "Qualifier", "ClientContext", "LogType", "TenantId"}
)
_DYNAMODB_ACTIONS = frozenset({"getItem", "putItem", "updateItem", "deleteItem"})
# Of the optimised integrations: error prefix, the SDK's base class, the service as causes name it.
_OPTIMISED = {
    "lambda": ("Lambda", "AWSLambdaException", "AWSLambda"),
    "dynamodb": ("DynamoDB", "AmazonDynamoDBException", "AmazonDynamoDBv2"),
}
# Step Functions names services as the Java SDK's packages; botocore's name differs for these.
_BOTOCORE_NAMES = {
    "sfn": "stepfunctions",
    "eventbridge": "events",
    "cloudwatchlogs": "logs",
    "cognitoidentityprovider": "cognito-idp",
}


class UnsupportedResource(ValueError):
    """A Resource that AWS or this local cloud does not have; the message names it."""


class _WrongParameter(Exception):
    """An argument that the operation has no place for."""


class Integration:
    """One Resource, parsed.

    ``in_process`` says that the call is answered by the local cloud's own memory, in well under a millisecond.
    """

    def __init__(self, resource: str, service: str, action: str, optimised: bool) -> None:
        self.resource = resource
        self.service = service
        self.in_process = service == "scheduler"
        self._model = _service_model(service)
        operation = action[0].upper() + action[1:]
        if operation not in self._model.operation_names:
            raise UnsupportedResource(f"the service integration '{resource}' names no action of {service}")
        self._operation: OperationModel = self._model.operation_model(operation)
        self.action = action
        self.resource_type = service if optimised else f"aws-sdk:{resource.split(':')[-2]}"
        self._optimised = optimised
        self._is_lambda = optimised and service == "lambda"
        modelled: list[Shape] = list(self._model.error_shapes)
        self._errors = frozenset(shape.error_code for shape in modelled)
        self._parameters = _parameters(self._operation.input_shape)
        self._result = _result(self._operation.output_shape)

    def unknown_fields(self, arguments: Any) -> Iterator[str]:
        """The fields (``Target/Foo``) of a definition's Arguments that the operation does not have."""
        if isinstance(arguments, dict):
            if self._is_lambda:
                yield from (key for key in arguments if key not in _LAMBDA_FIELDS)
            else:
                yield from _unknown_fields(self._operation.input_shape, arguments, "")

    def call(self, caller: Caller, arguments: Any, role_arn: str, machine_arn: str) -> Any:
        """Call the operation with rendered ``arguments`` (JSON) as the machine's role; the task's result (JSON).

        Raises:
            StateError: under the name that AWS gives the failure.
        """
        params = self._request(arguments)
        try:
            answer = caller.call(self.service, self._operation.name, params, role_arn, machine_arn)
        except AwsError as refused:
            raise StateError(self.error_name(refused.code), self._cause(refused)) from refused
        return _lambda_result(answer) if self._is_lambda else self._result(answer, "")

    def error_name(self, code: str) -> str:
        """``Scheduler.ConflictException``: the exception class of the Java SDK; the SDK's base class for a code
        that the service model does not list (access denied, validation of DynamoDB …)."""
        if self._optimised:
            prefix, base, _ = _OPTIMISED[self.service]
        else:
            prefix = java_class_prefix(self._model.service_id)
            base = f"{prefix}Exception"
        if code not in self._errors:
            return f"{prefix}.{base}"
        return f"{prefix}.{code}" if code.endswith("Exception") else f"{prefix}.{code}Exception"

    def _request(self, arguments: Any) -> dict[str, Any]:
        try:
            if not isinstance(arguments, dict):
                raise _WrongParameter("The Arguments must be an object")
            if self._is_lambda:
                return _lambda_parameters(arguments)
            params: dict[str, Any] = self._parameters(arguments, "")
            return params
        except _WrongParameter as wrong:
            # Values stay out of the cause: they may be addresses, and causes are logged.
            raise StateError(RUNTIME, f"The Arguments could not be used to start the Task: [{wrong}]") from wrong

    def _cause(self, refused: AwsError) -> str:
        told = f"Status Code: {refused.status}"
        if self._optimised:
            told = f"Service: {_OPTIMISED[self.service][2]}; {told}; Error Code: {refused.code}; Request ID: "
            return f"{refused.message} ({told}{uuid.uuid4()}; Proxy: null)"
        service = java_class_prefix(self._model.service_id)
        return f"{refused.message} (Service: {service}, {told}, Request ID: {uuid.uuid4()})"


@cache
def integration(resource: str) -> Integration:
    """Parse a Task's Resource.

    Raises:
        UnsupportedResource: AWS has no such integration, or the local cloud has not built it.
    """
    if not resource.startswith(_PREFIX):
        raise UnsupportedResource(
            f"Resource '{resource}' is not built into the local cloud: use {_PREFIX}lambda:invoke, "
            f"{_PREFIX}dynamodb:… or {_PREFIX}aws-sdk:…"
        )
    match resource.removeprefix(_PREFIX).split(":"):
        case ["lambda", "invoke"]:
            return Integration(resource, "lambda", "invoke", optimised=True)
        case ["dynamodb", action] if action in _DYNAMODB_ACTIONS:
            return Integration(resource, "dynamodb", action, optimised=True)
        case ["aws-sdk", service, action] if "." not in action and action[:1].islower():
            return Integration(resource, _botocore_name(service, resource), action, optimised=False)
    raise UnsupportedResource(f"Resource '{resource}' is not built into the local cloud")


def java_class_prefix(service_id: str) -> str:
    """``DynamoDB`` → ``DynamoDb``, ``SESv2`` → ``SesV2``, ``CloudWatch Logs`` → ``CloudWatchLogs``."""
    words = re.findall(r"[A-Z]+(?=v\d)|v\d+|[A-Z]+(?![a-z])\d*|[A-Z][a-z0-9]*|[a-z0-9]+", service_id)
    return "".join(word[0].upper() + word[1:].lower() for word in words)


@cache
def _service_model(service: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service)


def _botocore_name(service: str, resource: str) -> str:
    name = _BOTOCORE_NAMES.get(service, service)
    try:
        model = _service_model(name)
    except UnknownServiceError as error:
        raise UnsupportedResource(f"the service integration '{resource}' names no service") from error
    if re.sub(r"[ -]", "", model.service_id).lower() != service:
        raise UnsupportedResource(f"the service integration '{resource}' names no service")
    return name


# Lambda, the optimised integration


def _lambda_parameters(arguments: Mapping[str, Any]) -> dict[str, Any]:
    for key in arguments:
        if key not in _LAMBDA_FIELDS:
            raise _WrongParameter(f'The field "{key}" is not supported by Step Functions')
    if "FunctionName" not in arguments:
        raise _WrongParameter('The field "FunctionName" is required but was missing')
    params = dict(arguments)
    params["Payload"] = json.dumps(arguments.get("Payload", {}), ensure_ascii=False).encode()
    return params


def _lambda_result(answer: Mapping[str, Any]) -> dict[str, Any]:
    body = _text(answer.get("Payload", b""))
    try:
        payload = json.loads(body) if body else None
    except ValueError:
        payload = body
    if answer.get("FunctionError"):
        error = payload.get("errorType") if isinstance(payload, dict) else None
        raise StateError(error or "Lambda.Unknown", body)
    return {
        "ExecutedVersion": answer.get("ExecutedVersion", "$LATEST"),
        "Payload": payload,
        "StatusCode": answer.get("StatusCode", 200),
    }


def _text(blob: Any) -> str:
    raw = blob.read() if hasattr(blob, "read") else blob
    return raw if isinstance(raw, str) else bytes(raw).decode("utf-8", errors="replace")


# JSON to the service model's members, and back


def _pascal(name: str) -> str:
    return name[0].upper() + name[1:]


def _unknown_fields(shape: Shape, value: Any, path: str) -> Iterator[str]:
    if shape is None or shape.type_name == "structure":
        members = {} if shape is None else {_pascal(name): member for name, member in shape.members.items()}
        for key, child in value.items() if isinstance(value, dict) else ():
            if key not in members:
                yield path + key
            else:
                yield from _unknown_fields(members[key], child, f"{path}{key}/")
    elif shape.type_name == "list":
        for item in value if isinstance(value, list) else ():
            yield from _unknown_fields(shape.member, item, path)
    elif shape.type_name == "map":
        for key, child in value.items() if isinstance(value, dict) else ():
            yield from _unknown_fields(shape.value, child, f"{path}{key}/")


def _parameters(shape: Shape, known: dict[str, Convert] | None = None) -> Convert:
    """Compile the conversion of Arguments to the operation's members."""
    known = {} if known is None else known
    if shape is None:
        return _no_parameters
    if (found := known.get(shape.name)) is not None:
        return found
    known[shape.name] = lambda value, path: converted[0](value, path)  # shapes may contain themselves
    converted = [_parameter_of(shape, known)]
    known[shape.name] = converted[0]
    return converted[0]


def _no_parameters(value: Any, path: str) -> Any:
    for key in value:
        raise _WrongParameter(f'The field "{key}" is not supported by Step Functions')
    return {}


def _parameter_of(shape: Shape, known: dict[str, Convert]) -> Convert:
    match shape.type_name:
        case "structure":
            return _structure_parameter(shape, known)
        case "list":
            item = _parameters(shape.member, known)

            def convert_list(value: Any, path: str) -> Any:
                if not isinstance(value, list):
                    raise _WrongParameter(f'The field "{path}" must be an array')
                return [item(member, path) for member in value]

            return convert_list
        case "map":
            member = _parameters(shape.value, known)

            def convert_map(value: Any, path: str) -> Any:
                if not isinstance(value, dict):
                    raise _WrongParameter(f'The field "{path}" must be an object')
                return {key: member(child, f"{path}/{key}") for key, child in value.items()}

            return convert_map
        case "blob":
            return _blob_parameter
        case "timestamp":
            return _timestamp_parameter
    return _scalar_parameter(_SCALARS[shape.type_name], shape.type_name)


_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "character": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
}


def _scalar_parameter(kinds: tuple[type, ...], type_name: str) -> Convert:
    def convert(value: Any, path: str) -> Any:
        if type(value) not in kinds:
            raise _WrongParameter(f'The value for the field "{path}" must be a {type_name}')
        return value

    return convert


def _structure_parameter(shape: Shape, known: dict[str, Convert]) -> Convert:
    members = {_pascal(name): (name, _parameters(member, known)) for name, member in shape.members.items()}
    tokens = [name for name, member in shape.members.items() if member.metadata.get("idempotencyToken")]

    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _WrongParameter(f'The field "{path}" must be an object')
        converted = {}
        for key, child in value.items():
            where = f"{path}/{key}" if path else key
            if (member := members.get(key)) is None:
                raise _WrongParameter(f'The field "{where}" is not supported by Step Functions')
            if child is not None:
                converted[member[0]] = member[1](child, where)
        for token in tokens:
            if token not in converted:  # the SDK fills it
                converted[token] = str(uuid.uuid4())
        return converted

    return convert


def _blob_parameter(value: Any, path: str) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode()


def _timestamp_parameter(value: Any, path: str) -> datetime:
    try:
        moment: datetime = parse_timestamp(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _WrongParameter(f'The value for the field "{path}" must be a timestamp') from error
    return moment


def _result(shape: Shape, known: dict[str, Convert] | None = None) -> Convert:
    """Compile the conversion of an answer to the task's result: PascalCase keys, ISO 8601 times, blobs as text."""
    known = {} if known is None else known
    if shape is None:
        return lambda answer, path: {}
    if (found := known.get(shape.name)) is not None:
        return found
    known[shape.name] = lambda value, path: converted[0](value, path)
    converted = [_result_of(shape, known)]
    known[shape.name] = converted[0]
    return converted[0]


def _result_of(shape: Shape, known: dict[str, Convert]) -> Convert:
    match shape.type_name:
        case "structure":
            members = {name: (_pascal(name), _result(member, known)) for name, member in shape.members.items()}
            return lambda answer, path: {
                members[name][0]: members[name][1](value, path)
                for name, value in answer.items()
                if name in members and value is not None
            }
        case "list":
            item = _result(shape.member, known)
            return lambda answer, path: [item(value, path) for value in answer]
        case "map":
            member = _result(shape.value, known)
            return lambda answer, path: {key: member(value, path) for key, value in answer.items()}
        case "blob":
            return lambda answer, path: _text(answer)
        case "timestamp":
            return lambda answer, path: iso(answer) if isinstance(answer, datetime) else answer
    return lambda answer, path: answer


def iso(moment: datetime) -> str:
    """``2026-03-14T09:26:53.589Z``, as Step Functions writes times."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
