"""Least privilege, both ways: what the code calls is allowed by its role, and a role allows nothing else.

The machines' calls are checked against their roles whenever a test plays them (tests/stack/account.py); here it is
the functions' adapters, read as syntax.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tools import definitions
from tools.definitions import ROOT, resolved
from tools.permissions import allows, granted, roles, statements

FUNCTIONS = definitions.resources("AWS::Serverless::Function")
CARILLON = ROOT / "functions" / "carillon"

EVERYWHERE = {
    "xray:PutTraceSegments": "X-Ray's writes name no resource",
    "xray:PutTelemetryRecords": "X-Ray's writes name no resource",
    "xray:GetSamplingRules": "X-Ray's sampling rules are the account's",
    "xray:GetSamplingTargets": "X-Ray's sampling rules are the account's",
    "logs:CreateLogDelivery": "log deliveries have no ARN",
    "logs:GetLogDelivery": "log deliveries have no ARN",
    "logs:UpdateLogDelivery": "log deliveries have no ARN",
    "logs:DeleteLogDelivery": "log deliveries have no ARN",
    "logs:ListLogDeliveries": "log deliveries have no ARN",
    "logs:PutResourcePolicy": "resource policies of logs are the account's",
    "logs:DescribeResourcePolicies": "resource policies of logs are the account's",
    "logs:DescribeLogGroups": "listing is the account's",
    "ses:GetAccount": "the account itself is no resource",
    "scheduler:ListSchedules": "listing is the account's",
    "ses:ListSuppressedDestinations": "the account's suppression list has no ARN",
}
"""Actions that know no resource (Service Authorization Reference), and so are allowed on ``*``."""

PREFIXES = {"stepfunctions": "states", "ses": "ses"}
ACTIONS = {
    "dynamodb.batch_execute_statement": (),  # by its statements' verbs: see PARTIQL
    "dynamodb.transact_write_items": ("dynamodb:UpdateItem",),  # a transaction asks for what is in it
    "lambda.invoke": ("lambda:InvokeFunction",),
    "s3.head_object": ("s3:GetObject",),
    "s3.download_file": ("s3:GetObject",),
    "s3.list_objects_v2": ("s3:ListBucket",),
    "s3.generate_presigned_post": ("s3:PutObject",),
    "s3.generate_presigned_url": ("s3:GetObject",),
    "s3.upload_file": ("s3:PutObject", "s3:AbortMultipartUpload"),
    "s3.copy": ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"),
    "sqs.change_message_visibility_batch": ("sqs:ChangeMessageVisibility",),
    "scheduler.create_schedule": ("scheduler:CreateSchedule", "iam:PassRole"),
    # Service Authorization Reference, EventBridge Scheduler: the operation asks for both.
    "scheduler.delete_schedule_group": ("scheduler:DeleteScheduleGroup", "scheduler:DeleteSchedule"),
}
"""Where the action is not called like the operation."""

PARTIQL = {verb.upper(): f"dynamodb:PartiQL{verb}" for verb in ("Insert", "Update", "Delete")}
AMBIGUOUS = {"get", "count", "create", "page", "read", "start", "send", "copy", "record", "put"}
"""Method names of adapters that ordinary objects and other adapters have too: a call of one proves nothing."""

OF_THE_STACK = {
    "SendBatchFunction": {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"},
    "RecordLaunchEndFunction": {"sqs:SendMessage"},
    "ReconcileTasksFunction": {"sqs:SendMessage"},
}
"""What Lambda does in a function's name: polling its queue, putting aside what it could not handle."""

BESIDE = {"s3:GetObjectVersion": "s3:GetObject", "s3:ListBucket": "s3:GetObject"}
"""Given with another action: a version of what may be read, and 404 instead of 403 for what is not there."""


@cache
def syntax(path: str) -> ast.Module:
    """A module of functions/, parsed."""
    return ast.parse((ROOT / "functions" / path).read_text())


def imports(path: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each ``from carillon… import name``."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("carillon"):
            for name in node.names:
                yield str(node.module), name.name


def source(module: str) -> str:
    """Path of a module below functions/."""
    return module.replace(".", "/") + ".py"


def adapters(app: str) -> Iterator[ast.ClassDef]:
    """The adapter classes that a handler puts together."""
    for module, name in imports(app):
        if module.startswith("carillon.adapters."):
            for node in syntax(source(module)).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    yield node


def modules(app: str) -> set[str]:
    """The handler and the domain modules behind it."""
    seen, left = set(), [app]
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen.add(path)
        for module, name in imports(path):
            for candidate in (source(module), source(f"{module}.{name}")):
                if "adapters" not in candidate and (ROOT / "functions" / candidate).exists():
                    left.append(candidate)
    return seen


def called_names(app: str) -> set[str]:
    """Names of methods that the handler calls, itself or through the domain, and that are not the domain's own."""
    bodies: dict[str, list[ast.FunctionDef]] = {}
    for path in modules(app):
        top = syntax(path)
        for scope in (top, *(node for node in top.body if isinstance(node, ast.ClassDef))):
            bases = scope.bases if isinstance(scope, ast.ClassDef) else []
            if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases):
                for node in scope.body:
                    if isinstance(node, ast.FunctionDef):
                        bodies.setdefault(node.name, []).append(node)
    names: set[str] = set()
    left = {node.name for node in ast.walk(syntax(app)) if isinstance(node, ast.FunctionDef)}
    while left:
        name = left.pop()
        names.add(name)
        for body in bodies.get(name, ()):
            for node in ast.walk(body):
                called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
                if called and called not in names:
                    left.add(called)
    return names - set(bodies)


def client_of(adapter: ast.ClassDef) -> str:
    """Which boto3 client an adapter's ``_client`` is, by the annotation of its ``client`` argument."""
    for node in ast.walk(adapter):
        if isinstance(node, ast.arg) and node.arg == "client" and node.annotation is not None:
            names = [n.id for n in ast.walk(node.annotation) if isinstance(n, ast.Name) and n.id.endswith("Client")]
            return {
                "DynamoDBClient": "dynamodb",
                "S3Client": "s3",
                "SQSClient": "sqs",
                "EventBridgeSchedulerClient": "scheduler",
                "SecretsManagerClient": "secretsmanager",
                "SESV2Client": "ses",
                "SFNClient": "stepfunctions",
                "FirehoseClient": "firehose",
                "LambdaClient": "lambda",
            }[names[0]]
    raise AssertionError(f"{adapter.name} has no client")


def actions_of(adapter: ast.ClassDef, method: str) -> set[str]:
    """The IAM actions of what a method of an adapter calls, through its own helpers too."""
    bodies = {node.name: node for node in adapter.body if isinstance(node, ast.FunctionDef)}
    service, found, left, seen = client_of(adapter), set(), [method], set()
    while left:
        name = left.pop()
        if name in seen or name not in bodies:
            continue
        seen.add(name)
        for node in ast.walk(bodies[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                left.append(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                verb = node.value.split(" ")[0]
                found |= {PARTIQL[verb]} if verb in PARTIQL else set()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                if isinstance(owner, ast.Attribute) and owner.attr == "_client":
                    operation = node.func.attr
                    if operation == "get_paginator":
                        assert isinstance(node.args[0], ast.Constant)
                        operation = str(node.args[0].value)
                    if operation not in ("close",):
                        found |= set(iam_actions(service, operation))
    return found


def iam_actions(service: str, operation: str) -> tuple[str, ...]:
    """What IAM is asked for a boto3 call."""
    camel = "".join(part.capitalize() for part in operation.split("_"))
    return ACTIONS.get(f"{service}.{operation}", (f"{PREFIXES.get(service, service)}:{camel}",))


def needs(app: str) -> set[str]:
    """Actions that a function surely uses."""
    classes, names = list(adapters(app)), called_names(app) - AMBIGUOUS
    methods = Counter(node.name for c in classes for node in c.body if isinstance(node, ast.FunctionDef))
    return {
        action
        for c in classes
        for node in c.body
        if isinstance(node, ast.FunctionDef) and node.name in names and methods[node.name] == 1
        for action in actions_of(c, node.name)
    }


def may_use(app: str) -> set[str]:
    """Actions that any method of its adapters uses."""
    return {
        action
        for c in adapters(app)
        for node in c.body
        if isinstance(node, ast.FunctionDef)
        for action in actions_of(c, node.name)
    }


def app_of(function: str) -> str:
    """Path of a function's handler module, below functions/."""
    return str(FUNCTIONS[function]["Properties"]["Handler"]).split(".")[0] + "/app.py"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_allows_what_its_functions_adapters_call(function: str) -> None:
    """A call that the role does not allow is found here, and not at the first customer's."""
    assert needs(app_of(function)) - set(granted(f"{function}Role")) == set()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_allows_nothing_that_no_adapter_calls(function: str) -> None:
    """What is not called is not allowed, but for what Lambda, logs and traces do in the function's name."""
    used = may_use(app_of(function)) | OF_THE_STACK.get(function, set())
    used |= {"logs:CreateLogStream", "logs:PutLogEvents", "xray:PutTraceSegments", "xray:PutTelemetryRecords"}
    used |= {action for action, beside in BESIDE.items() if beside in used}
    assert set(granted(f"{function}Role")) - used == set()


def test_the_reading_of_adapters_finds_something() -> None:
    """The two tests before would pass on anything if it found nothing."""
    assert {"dynamodb:PartiQLInsert", "dynamodb:PartiQLUpdate"} <= needs("enrol_batch/app.py")
    assert {"scheduler:DeleteScheduleGroup", "sqs:GetQueueAttributes"} <= needs("reconcile_tasks/app.py")
    assert "ses:SendEmail" in may_use("send_batch/app.py")
    assert len(may_use("prepare_list/app.py")) > 5


@pytest.mark.parametrize("role", roles())
def test_only_actions_without_resources_are_allowed_everywhere(role: str) -> None:
    """``*`` as a resource stands only beside actions that know none, and no action has a wildcard."""
    for statement in statements(role):
        assert [action for action in statement.actions if "*" in action] == []
        if "*" in statement.resources:
            assert set(statement.actions) - set(EVERYWHERE) == set(), statement.sid
        else:
            assert set(statement.actions) & set(EVERYWHERE) == set(), statement.sid


@pytest.mark.parametrize("role", roles())
def test_every_role_is_assumed_by_one_service(role: str) -> None:
    """And by no account; services that act for others only for this account.

    Firehose is documented to say it as an external id (CloudWatch Logs' guide, "Create a Firehose delivery stream").
    """
    (trust,) = roles()[role]["AssumeRolePolicyDocument"]["Statement"]
    assert set(trust["Principal"]) == {"Service"}
    service = trust["Principal"]["Service"]
    key = "sts:ExternalId" if service == "firehose.amazonaws.com" else "aws:SourceAccount"
    if service != "lambda.amazonaws.com":
        assert trust["Condition"]["StringEquals"][key] == definitions.ACCOUNT_ID


def test_no_two_functions_share_a_role() -> None:
    """Each has one of its own."""
    used = [str(function["Properties"]["Role"]) for function in FUNCTIONS.values()]
    assert len(set(used)) == len(used) == 10


@pytest.mark.parametrize(
    ("sender", "allowed"),
    [
        ("news@news.example.com", True),
        ("ada@sub.news.example.com", True),
        ("news@example.com", False),
        ("news@fakenews.example.com", False),
        ("news@news.example.com.example.net", False),
    ],
)
def test_the_sender_is_held_to_the_stacks_domain_by_the_from_address(sender: str, allowed: bool) -> None:
    """As PrepareList is (`Preparation`): the domain and what is below it, whichever identity SES looks at.

    SES asks for the identity that is verified (an address, a domain, a parent domain), in the sandbox for the
    recipient's too (aws/aws-sdk-js#3641), and for the configuration set; ``ses:FromAddress`` is the bare address, the
    name being ``ses:FromDisplayName`` (SES's guide, "Sending policy examples").
    """
    policies = roles()["SendBatchFunctionRole"]["Policies"]
    grants = [s for p in policies for s in p["PolicyDocument"]["Statement"] if "ses:SendEmail" in s["Action"]]
    here = f"arn:aws:ses:{definitions.REGION}:{definitions.ACCOUNT_ID}"
    assert {s["Resource"] for s in grants} == {f"{here}:identity/*", f"{here}:configuration-set/carillon-demo"}
    (identities,) = [s for s in grants if s["Resource"].endswith("identity/*")]
    assert set(identities["Condition"]) == {"StringLike"}
    patterns = identities["Condition"]["StringLike"]["ses:FromAddress"]
    assert any(fnmatch.fnmatchcase(sender, pattern) for pattern in patterns) == allowed


def test_scheduler_may_only_send_to_two_queues_and_as_the_sender_does() -> None:
    """Its role is for schedules of campaigns: it puts messages there, and e-mails into SES by our own templates."""
    queues, identities, used = roles()["SchedulerRole"]["Policies"][0]["PolicyDocument"]["Statement"]
    assert queues["Action"] == "sqs:SendMessage"
    assert set(queues["Resource"]) == {
        definitions.arn("SendQueue"),
        definitions.arn("ScheduleDeadLetterQueue"),
    }
    here = f"arn:aws:ses:{definitions.REGION}:{definitions.ACCOUNT_ID}"
    assert identities["Action"] == used["Action"] == ["ses:SendEmail", "ses:SendTemplatedEmail"]
    assert identities["Resource"] == f"{here}:identity/*"
    senders = roles()["SendBatchFunctionRole"]["Policies"][0]["PolicyDocument"]["Statement"]
    assert identities["Condition"] in [statement.get("Condition") for statement in senders]
    assert used["Resource"] == [f"{here}:template/carillon-*", f"{here}:configuration-set/carillon-demo"]
    (trust,) = roles()["SchedulerRole"]["AssumeRolePolicyDocument"]["Statement"]
    assert re.fullmatch(
        rf"arn:aws:scheduler:{definitions.REGION}:{definitions.ACCOUNT_ID}:schedule-group/campaign-\*",
        trust["Condition"]["ArnLike"]["aws:SourceArn"],
    )


def test_only_who_makes_schedules_passes_schedulers_role() -> None:
    """And to Scheduler alone."""
    passing = {role for role in roles() if allows(role, "iam:PassRole", definitions.arn("SchedulerRole"))}
    assert passing == {"LaunchCampaignRole", "ReconcileTasksFunctionRole", "SendBatchFunctionRole"}
    for role in passing:
        (condition,) = [
            s["Condition"]
            for policy in roles()[role]["Policies"]
            for s in policy["PolicyDocument"]["Statement"]
            if s["Action"] == "iam:PassRole"
        ]
        assert condition == {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}}


@pytest.mark.parametrize("resource", ["BucketPolicy", "QueuePolicy", "EventDeadLetterQueuePolicy"])
def test_nothing_is_reached_without_tls(resource: str) -> None:
    """Every policy of a bucket or queue denies what comes in the clear."""
    policy: Any = resolved(definitions.template()["Resources"][resource]["Properties"]["PolicyDocument"])
    assert any(
        s["Effect"] == "Deny" and s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}} and s["Principal"] == "*"
        for s in policy["Statement"]
    )


@pytest.mark.parametrize("resource", definitions.resources("AWS::SQS::QueuePolicy"))
def test_a_queues_policy_names_no_other_queue(resource: str) -> None:
    """SQS: "Each policy must cover only a single queue" (developer guide, "Special information for SQS policies")."""
    properties: Any = resolved(definitions.template()["Resources"][resource]["Properties"])
    named = {s["Resource"] for s in properties["PolicyDocument"]["Statement"]}
    if len(properties["Queues"]) > 1:
        assert named == {"*"}
    else:
        (url,) = properties["Queues"]
        assert named == {definitions.arn(url.rpartition("/")[2])}
