"""What AWS asks before one service may use another, and MiniStack does not.

A template that forgets a permission, a trust or a timeout fails here as it would on AWS, not on the day it
is deployed there.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from local.identity import Iam, listed
from local.ministack import private
from local.ports import AwsError
from local.seams import around_provisioner, replace

log = logging.getLogger(__name__)

_rule: contextvars.ContextVar[str] = contextvars.ContextVar("rule", default="")
# What Lambda's poller needs of a queue (Lambda's guide, "Execution role permissions" for SQS).
_POLLING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")


def require_invoke_permission(account_id: str, region: str) -> None:
    """Rules and HTTP APIs invoke a function only if its policy lets them."""

    def make_invoke_target(original: Callable[..., Any]) -> Callable[..., Any]:
        def invoke_target(target: Any, event: Any, rule: Mapping[str, Any], *rest: Any, **named: Any) -> Any:
            token = _rule.set(str(rule.get("Arn", "")))
            try:
                return original(target, event, rule, *rest, **named)
            finally:
                _rule.reset(token)

        return invoke_target

    def make_dispatch(original: Callable[..., Any]) -> Callable[..., Any]:
        def dispatch(arn: str, payload: str) -> Any:
            if _may_invoke(arn, "events.amazonaws.com", _rule.get(), account_id):
                return original(arn, payload)
            log.warning("%s may not invoke %s: no permission in the function's policy", _rule.get(), arn)
            return None

        return dispatch

    def make_proxy(original: Callable[..., Any]) -> Callable[..., Any]:
        async def proxy(
            integration: Mapping[str, Any],
            api_id: str,
            stage: str,
            path: str,
            method: str,
            headers: Any,
            body: Any,
            query_params: Any,
            route_key: str = "$default",
            *rest: Any,
            **named: Any,
        ) -> Any:
            function = private("services.apigateway")._extract_lambda_ref_from_integration_uri(
                integration.get("integrationUri", "")
            )
            verb, _, route = route_key.partition(" ")
            called = f"{'*' if verb in ('ANY', '$default') else verb}/{route.lstrip('/')}"
            source = f"arn:aws:execute-api:{region}:{account_id}:{api_id}/{stage}/{called}"
            if not _may_invoke(function, "apigateway.amazonaws.com", source, account_id):
                log.warning("%s may not invoke %s: no permission in the function's policy", source, function)
                message = json.dumps({"message": "Internal Server Error"}).encode()
                return 500, {"Content-Type": "application/json"}, message
            return await original(
                integration, api_id, stage, path, method, headers, body, query_params, route_key, *rest, **named
            )

        return proxy

    replace("services.eventbridge", "_invoke_target", make_invoke_target)
    replace("services.eventbridge", "_dispatch_to_lambda", make_dispatch)
    replace("services.apigateway", "_invoke_lambda_proxy", make_proxy)


def require_roles(iam: Iam) -> None:
    """A function's role must trust Lambda; a queue's mapping needs the role's permission to poll, and a
    visibility timeout no shorter than the function's."""

    def trusting(make: Callable[..., Any]) -> Callable[..., Any]:
        def create(logical_id: str, props: Mapping[str, Any], stack_name: str) -> Any:
            try:
                iam.assume(props["Role"], "lambda.amazonaws.com")
            except AwsError as refused:
                raise ValueError("The role defined for the function cannot be assumed by Lambda.") from refused
            return make(logical_id, props, stack_name)

        return create

    def polling(make: Callable[..., Any]) -> Callable[..., Any]:
        def create(logical_id: str, props: Mapping[str, Any], stack_name: str) -> Any:
            queue = props.get("EventSourceArn", "")
            if ":sqs:" in queue:
                _check_polling(iam, props["FunctionName"], queue)
            if concurrency := (props.get("ScalingConfig") or {}).get("MaximumConcurrency"):
                # A parameter's value is text; CloudFormation makes of it what the resource's schema says.
                props = {**props, "ScalingConfig": {"MaximumConcurrency": int(concurrency)}}
            return make(logical_id, props, stack_name)

        return create

    around_provisioner("AWS::Lambda::Function", "create", trusting)
    around_provisioner("AWS::Lambda::EventSourceMapping", "create", polling)


def _check_polling(iam: Iam, function: str, queue_arn: str) -> None:
    record, config, _ = private("services.lambda_svc")._get_func_record_for_ref(function)
    if not record or not config:
        raise ValueError(f"Function not found: {function}")
    poller = iam.assume(config["Role"], "lambda.amazonaws.com")
    for action in _POLLING:
        try:
            iam.allow(poller, action, queue_arn)
        except AwsError as refused:
            verb = action.partition(":")[2]
            raise ValueError(
                f"The provided execution role does not have permissions to call {verb} on SQS"
            ) from refused
    name = queue_arn.rpartition(":")[2]
    queue = next(
        (q for q in private("services.sqs")._queues.values() if q["attributes"].get("QueueArn") == queue_arn),
        None,
    )
    if queue is None:
        raise ValueError(f"Queue {name} does not exist")
    visibility = int(queue["attributes"].get("VisibilityTimeout", 30))
    if visibility < int(config["Timeout"]):
        raise ValueError(
            f"Queue visibility timeout: {visibility} seconds is less than Function timeout: {config['Timeout']} seconds"
        )


def _may_invoke(function: str, principal: str, source_arn: str, account_id: str) -> bool:
    evaluator = private("core.iam_evaluator")
    record, config, _ = private("services.lambda_svc")._get_func_record_for_ref(function)
    if not record or not config:
        return False
    request = evaluator.EvalContext(
        principal_arn=principal,
        principal_type="Service",
        principal_account=account_id,
        action="lambda:InvokeFunction",
        resource_arn=config["FunctionArn"],
        region="",
        service_context={"aws:sourcearn": source_arn, "aws:sourceaccount": account_id},
    )
    decision = "Implicit"
    for statement in listed((record.get("policy") or {}).get("Statement")):
        if (
            evaluator._service_principal_matches(statement.get("Principal"), principal)
            and evaluator._action_matches(request.action, listed(statement.get("Action")), [])
            and evaluator._conditions_met(statement.get("Condition", {}), request)
        ):
            if statement.get("Effect") == "Deny":
                return False
            decision = "Allow"
    return decision == "Allow"
