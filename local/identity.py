"""Who calls, and what IAM lets them do: MiniStack's evaluator, asked from inside this process.

There is no root key in here. People and tools are the operator, an IAM user with an administrator's
policy; functions, machines and schedules are their roles, assumed under the role's own trust policy.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.ministack import private
from local.ports import AwsError

OPERATOR = "carillon-operator"
# How long an evaluation of IAM may lag behind a change of policy; AWS's own takes seconds.
_LAG_SECONDS = 1.0


@dataclass(frozen=True)
class Identity:
    """The credentials that a request is made with."""

    access_key_id: str
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)


caller: contextvars.ContextVar[Identity | None] = contextvars.ContextVar("caller", default=None)
"""Whose request is being answered; None when the local cloud's own machinery asks (CloudFormation)."""


def of_request(headers: Mapping[str, str], query: Mapping[str, Any]) -> Identity:
    """The identity that signed an HTTP request; MiniStack has checked the signature by then."""
    return Identity(private("core.router").extract_access_key_id(headers, query) or "")


class Iam:
    """The account's users, roles and permissions. Thread-safe; answers may be ``_LAG_SECONDS`` old."""

    def __init__(self, account_id: str, region: str) -> None:
        self.account_id = account_id
        self.region = region
        self._lock = threading.Lock()
        self._principals: dict[str, tuple[float, Any]] = {}
        self._sessions: dict[tuple[str, str], Identity] = {}
        self._trusted: dict[tuple[str, str, str], float] = {}

    def reset(self) -> None:
        """Forget every cached evaluation and session."""
        with self._lock:
            self._principals.clear()
            self._sessions.clear()
            self._trusted.clear()

    def create_operator(self, keys: Identity) -> None:
        """Make the IAM user of whoever operates the local cloud: everything is allowed by policy,
        nothing by being root."""
        iam = private("services.iam")
        iam._create_user({"UserName": [OPERATOR]})
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
        iam._put_user_policy({"UserName": [OPERATOR], "PolicyName": ["administrator"], "PolicyDocument": [policy]})
        iam._access_keys[keys.access_key_id] = {
            "UserName": OPERATOR,
            "AccessKeyId": keys.access_key_id,
            "SecretAccessKey": keys.secret_access_key,
            "Status": "Active",
            "CreateDate": iam._now(),
        }

    def assume(self, role_arn: str, service_principal: str, source_arn: str = "") -> Identity:
        """Credentials of ``role_arn`` for an AWS service, if the role's trust policy names that service.

        Raises:
            AwsError: ``AccessDeniedException`` when the role does not exist or does not trust the service.
        """
        key = (role_arn, service_principal, source_arn)
        now = time.monotonic()
        if self._trusted.get(key, 0.0) < now:
            if not self._trusts(role_arn, service_principal, source_arn):
                raise AwsError(
                    "AccessDeniedException",
                    f"{service_principal} is not authorized to perform: sts:AssumeRole on resource: {role_arn}",
                    403,
                )
            self._trusted[key] = now + _LAG_SECONDS
        with self._lock:
            session = self._sessions.get((role_arn, service_principal))
            if session is None:
                session = self._sessions[role_arn, service_principal] = self._open(role_arn, service_principal)
        return session

    def allow(self, identity: Identity, action: str, resource: str, context: Mapping[str, Any] | None = None) -> None:
        """Let ``identity`` do ``action`` (``scheduler:CreateSchedule``) on ``resource``.

        Raises:
            AwsError: ``AccessDeniedException`` in AWS's words.
        """
        evaluator = private("core.iam_evaluator")
        principal = self._principal(identity.access_key_id)
        if principal.policies is None:
            raise AwsError("AccessDeniedException", "the root key is not used in the local cloud", 403)
        request = evaluator.EvalContext(
            principal_arn=principal.arn,
            principal_type=principal.type,
            principal_account=principal.account,
            action=action,
            resource_arn=resource,
            region=self.region,
            service_context={
                "aws:tagkeys": None,
                **{key.lower(): value for key, value in (context or {}).items()},
            },
            principal_keys=principal.keys,
        )
        verdict = evaluator.evaluate(request, principal.policies, *principal.limits)
        if verdict.decision != "Allow":
            because = (
                "with an explicit deny in an identity-based policy"
                if verdict.decision == "Deny"
                else f"because no identity-based policy allows the {action} action"
            )
            raise AwsError(
                "AccessDeniedException",
                f"User: {principal.arn} is not authorized to perform: {action} on resource: {resource} {because}",
                403,
            )

    def _principal(self, access_key_id: str) -> Any:
        now = time.monotonic()
        fresh_until, principal = self._principals.get(access_key_id, (0.0, None))
        if fresh_until < now:
            principal = private("core.iam_evaluator").resolve_principal(access_key_id, self.account_id)
            if not hasattr(principal, "policies"):
                raise AwsError("UnrecognizedClientException", principal.message, 403)
            self._principals[access_key_id] = (now + _LAG_SECONDS, principal)
        return principal

    def _trusts(self, role_arn: str, service_principal: str, source_arn: str) -> bool:
        evaluator = private("core.iam_evaluator")
        role = private("services.iam")._roles.get_scoped(role_arn.split(":")[4], None, role_arn.rsplit("/", 1)[-1])
        if role is None or role.get("Arn") != role_arn:
            return False
        document = role.get("AssumeRolePolicyDocument") or {}
        statements = (json.loads(document) if isinstance(document, str) else document).get("Statement", [])
        request = evaluator.EvalContext(
            principal_arn=service_principal,
            principal_type="Service",
            principal_account=self.account_id,
            action="sts:AssumeRole",
            resource_arn=role_arn,
            region=self.region,
            service_context={
                "aws:sourceaccount": self.account_id,
                "aws:sourcearn": source_arn or None,
                # CloudWatch Logs' guide, "Create a Firehose delivery stream".
                "sts:externalid": self.account_id if service_principal == "firehose.amazonaws.com" else None,
            },
        )
        allowed = False
        for statement in [statements] if isinstance(statements, dict) else statements:
            actions, excluded = listed(statement.get("Action")), listed(statement.get("NotAction"))
            if (
                evaluator._action_matches("sts:AssumeRole", actions, excluded)
                and evaluator._service_principal_matches(statement.get("Principal"), service_principal)
                and evaluator._conditions_met(statement.get("Condition", {}), request)
            ):
                if statement.get("Effect") == "Deny":
                    return False
                allowed = True
        return allowed

    def _open(self, role_arn: str, service_principal: str) -> Identity:
        name = service_principal.partition(".")[0]
        digest = hashlib.sha256(f"{role_arn} {service_principal}".encode()).hexdigest()
        session = Identity(f"ASIA{digest[:16].upper()}", secrets.token_hex(20), secrets.token_hex(32))
        role_name = role_arn.rsplit("/", 1)[-1]
        private("services.sts").register_session(
            session.access_key_id,
            {
                "Arn": f"arn:aws:sts::{self.account_id}:assumed-role/{role_name}/{name}",
                "UserId": f"AROA{digest[16:32].upper()}:{name}",
                "SecretAccessKey": session.secret_access_key,
                "SessionToken": session.session_token,
                "AccountId": self.account_id,
                "PrincipalType": "AssumedRole",
            },
        )
        return session


def operator_keys() -> Identity:
    """Fresh keys in the form of an IAM user's."""
    return Identity(f"AKIA{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30))


def listed(value: Any) -> list[Any]:
    """A policy element that may be one value or several, as a list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
