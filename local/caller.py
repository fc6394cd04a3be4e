"""Calls any AWS operation as a role: our own services in process, MiniStack's through boto3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from botocore.response import StreamingBody

from local.contract import contract
from local.identity import Iam, Identity, caller
from local.ports import AwsError
from local.seams import Service

# The resource of one call, for IAM: (params) -> ARN.
type ResourceOf = Callable[[str, Mapping[str, Any]], str]

# Services whose IAM prefix differs from botocore's name.
_PREFIXES = {"sesv2": "ses", "stepfunctions": "states"}


class RoleCaller:
    """The ``Caller`` port for one AWS service principal (``scheduler.amazonaws.com``)."""

    def __init__(self, principal: str, iam: Iam, endpoint: str) -> None:
        self._principal = principal
        self._iam = iam
        self._endpoint = endpoint
        self._ours: dict[str, tuple[Service, ResourceOf]] = {}
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def own(self, service: Service, resource_of: ResourceOf) -> None:
        """Answer ``service``'s calls in process; ``resource_of`` names what IAM is asked about."""
        self._ours[service.name] = (service, resource_of)

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
        return self._call_ministack(service, operation, params, identity)

    def _call_ours(self, name: str, operation: str, params: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
        service, resource_of = self._ours[name]
        action = f"{_PREFIXES.get(name, name)}:{operation}"
        self._iam.allow(identity, action, resource_of(operation, params))
        token = caller.set(identity)
        try:
            return service.handle(operation, params)
        finally:
            caller.reset(token)

    def _call_ministack(
        self, service: str, operation: str, params: Mapping[str, Any], identity: Identity
    ) -> dict[str, Any]:
        client = self._client(service, identity)
        # botocore's own public path by operation name; the snake-case methods only wrap it.
        try:
            answer: dict[str, Any] = client._make_api_call(operation, dict(params))
        except ClientError as refused:
            error = refused.response.get("Error", {})
            metadata = refused.response.get("ResponseMetadata", {})
            members = {
                name: value
                for name, value in refused.response.items()
                if name not in ("Error", "ResponseMetadata", "message", "Message")
            }
            status = metadata.get("HTTPStatusCode", 400)
            raise AwsError(error.get("Code", "Unknown"), error.get("Message", ""), status, **members) from refused
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
    session: Any = boto3.session.Session(
        aws_access_key_id=identity.access_key_id,
        aws_secret_access_key=identity.secret_access_key,
        aws_session_token=identity.session_token or None,
        region_name=region,
    )
    config = Config(
        retries={"total_max_attempts": 1},
        max_pool_connections=64,
        read_timeout=900,
        s3={"addressing_style": "path"},
        inject_host_prefix=False,
    )
    return session.client(service, endpoint_url=endpoint, config=config)
