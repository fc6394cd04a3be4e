"""Calls any AWS operation as a role, without leaving this process where that can be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore import parsers, serialize
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.response import StreamingBody

from local import seams
from local.contract import contract
from local.identity import Iam, Identity, caller
from local.ports import AwsError

# What IAM is asked about for one call: (operation, params) -> ARN.
type ResourceOf = Callable[[str, Mapping[str, Any]], str]
# What it is asked beyond the operation on its resource: (operation, params) -> (action, ARN)s and the conditions' keys.
type AlsoAsked = Callable[[str, Mapping[str, Any]], tuple[list[tuple[str, str]], dict[str, Any]]]

# Services whose IAM prefix differs from botocore's name.
_PREFIXES = {"sesv2": "ses", "stepfunctions": "states"}
# Streams bodies and bends its paths in botocore's handlers: it is called over HTTP.
_OVER_HTTP = frozenset({"s3"})
# One session for all: it holds the service models; making clients from it is not thread-safe, using them is.
_session: Any = boto3.session.Session()
_making_clients = threading.Lock()


class RoleCaller:
    """The ``Caller`` port for one AWS service principal (``scheduler.amazonaws.com``)."""

    def __init__(self, principal: str, iam: Iam, endpoint: str) -> None:
        self._principal = principal
        self._iam = iam
        self._endpoint = endpoint
        self._ours: dict[str, tuple[seams.Service, ResourceOf, AlsoAsked]] = {}
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def own(
        self, service: seams.Service, resource_of: ResourceOf, also: AlsoAsked = lambda operation, params: ([], {})
    ) -> None:
        """Answer ``service``'s calls by our own; ``resource_of`` names what IAM is asked about, ``also`` what else."""
        self._ours[service.name] = (service, resource_of, also)

    def reset(self) -> None:
        """Forget the clients of roles that are gone."""
        with self._lock:
            self._clients.clear()

    def call(
        self,
        service: str,
        operation: str,
        params: Mapping[str, Any],
        role_arn: str,
        source_arn: str = "",
    ) -> dict[str, Any]:
        """See ``Caller.call``."""
        identity = self._iam.assume(role_arn, self._principal, source_arn)
        if service in self._ours:
            return self._call_ours(service, operation, params, identity)
        if service in _OVER_HTTP:
            return self._call_http(service, operation, params, identity)
        return self._call_ministack(service, operation, params, identity)

    def _call_ours(self, name: str, operation: str, params: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
        service, resource_of, also = self._ours[name]
        further, context = also(operation, params)
        for action, arn in ((f"{_PREFIXES.get(name, name)}:{operation}", resource_of(operation, params)), *further):
            self._iam.allow(identity, action, arn, context)
        token = caller.set(identity)
        try:
            return service.handle(operation, params)
        finally:
            caller.reset(token)

    def _call_ministack(
        self, service: str, operation: str, params: Mapping[str, Any], identity: Identity
    ) -> dict[str, Any]:
        rules = contract(service)
        model = rules.operation(operation).model
        rules.operation(operation).validate(params)
        protocol = rules.model.resolved_protocol
        request = serialize.create_serializer(protocol, include_validation=False).serialize_to_request(
            dict(params), model
        )
        answer = seams.dispatch(request, identity, rules.model.signing_name, self._iam.region)
        parser: Any = parsers.create_parser(protocol)
        output: dict[str, Any] = parser.parse(answer, model.output_shape)
        output.pop("ResponseMetadata", None)
        if answer["status_code"] < 300:
            shape = model.output_shape
            payload = None if shape is None else shape.serialization.get("payload")
            if shape is not None and payload and shape.members[payload].type_name == "blob":
                output[payload] = answer["body"]  # the parser has made text of it
            return output
        error = output.pop("Error", {})
        code = error.get("Code", "Unknown")
        error_shape = rules.model.shape_for_error_code(code)
        members = parser.parse(answer, error_shape) if error_shape is not None else {}
        known = ("Error", "ResponseMetadata", "message", "Message")
        members = {name: value for name, value in members.items() if name not in known}
        raise AwsError(code, error.get("Message", ""), answer["status_code"], **members)

    def _call_http(self, service: str, operation: str, params: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
        client = self._client(service, identity)
        try:
            # The client's one way in by operation name; its snake-case methods only wrap it.
            answer: dict[str, Any] = client._make_api_call(operation, dict(params))
        except ClientError as refused:
            error = refused.response.get("Error", {})
            status = refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            raise AwsError(error.get("Code", "Unknown"), error.get("Message", ""), status) from refused
        except ParamValidationError as refused:
            raise contract(service).error("ValidationException", str(refused)) from refused
        except BotoCoreError as fault:
            raise AwsError("ServiceUnavailable", str(fault), 503) from fault
        answer.pop("ResponseMetadata", None)
        for member, value in answer.items():
            if isinstance(value, StreamingBody):
                answer[member] = value.read()
        return answer

    def _client(self, service: str, identity: Identity) -> Any:
        key = (service, identity.access_key_id)
        with self._lock:
            if (client := self._clients.get(key)) is None:
                client = self._clients[key] = client_of(service, identity, self._endpoint, self._iam.region)
        return client


def client_of(service: str, identity: Identity, endpoint: str, region: str) -> Any:
    """A boto3 client that signs as ``identity`` and tries once: who retries is the caller's to say."""
    config = Config(
        retries={"total_max_attempts": 1},
        max_pool_connections=64,
        read_timeout=900,
        s3={"addressing_style": "path"},
        inject_host_prefix=False,
    )
    with _making_clients:
        return _session.client(
            service,
            region_name=region,
            endpoint_url=endpoint,
            aws_access_key_id=identity.access_key_id,
            aws_secret_access_key=identity.secret_access_key,
            aws_session_token=identity.session_token or None,
            config=config,
        )
