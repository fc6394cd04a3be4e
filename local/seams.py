"""Where our services take their place inside MiniStack.

MiniStack has no plug-in interface, so each seam is a private name of version 1.5.33 (pinned), and each
has a canary in ``tests/local/test_seams.py`` that says what changed when MiniStack does.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parseaddr
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from botocore.awsrequest import HeadersDict

from local import identity
from local.clock import Clock
from local.contract import Answer, contract
from local.ministack import private
from local.ports import AwsError

log = logging.getLogger(__name__)

EXPECTED_VERSION = "1.5.33"


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

    def close(self) -> Any:
        """End the threads; the module that takes its place again."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        return self._original

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


_originals: dict[tuple[str, str], Any] = {}


def check_version() -> None:
    """Every seam is of one version of MiniStack, imported with the local cloud's settings.

    Raises:
        RuntimeError: another one is installed, or it has been imported by someone else.
    """
    if (installed := importlib.metadata.version("ministack")) != EXPECTED_VERSION:
        raise RuntimeError(f"the local cloud needs ministack {EXPECTED_VERSION}, this is {installed}")
    if not private("app").AUTH:
        raise RuntimeError("MiniStack was imported without local.ministack: it would let everyone do everything")


def replace(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of MiniStack's ``module.name``.

    Always made from MiniStack's own, however often a cloud is started in one process.

    Raises:
        RuntimeError: MiniStack has no such name any more.
    """
    owner = private(module)
    *path, attribute = name.split(".")
    for step in path:
        owner = getattr(owner, step, None)
    if (module, name) not in _originals:
        if not hasattr(owner, attribute):
            raise RuntimeError(f"MiniStack {EXPECTED_VERSION} had ministack.{module}.{name}; this one has not")
        _originals[module, name] = getattr(owner, attribute)
    setattr(owner, attribute, make(_originals[module, name]))


def take_away_facades() -> None:
    """Put MiniStack's modules back in their places."""
    modules = private("app")._loaded_modules
    for name, module in list(modules.items()):
        if isinstance(module, Facade):
            modules[name] = module.close()


def put_in_front(module: str, service: Service, owned: frozenset[str] | None = None) -> None:
    """Let ``service`` answer what reaches MiniStack's ``services.{module}`` over HTTP."""
    private("app")._loaded_modules[module] = Facade(private(f"services.{module}"), service, owned)


_provisioners: dict[str, dict[str, Any]] = {}


def restore_provisioners() -> None:
    """Begin with CloudFormation's own handlers, though another cloud of this process has changed them."""
    handlers = private("services.cloudformation.provisioners")._RESOURCE_HANDLERS
    if not _provisioners:
        _provisioners.update({resource_type: dict(own) for resource_type, own in handlers.items()})
    handlers.clear()
    handlers.update({resource_type: dict(own) for resource_type, own in _provisioners.items()})


def provision(resource_type: str, handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Let CloudFormation make ``resource_type`` by our ``create``, ``update`` and ``delete``."""
    private("services.cloudformation.provisioners")._RESOURCE_HANDLERS[resource_type] = dict(handlers)


def around_provisioner(resource_type: str, verb: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(handler)`` in the place of CloudFormation's handler of ``verb`` (``create``, ``update``,
    ``delete``) for ``resource_type``."""
    handlers = private("services.cloudformation.provisioners")._RESOURCE_HANDLERS[resource_type]
    handlers[verb] = make(handlers[verb])


def refer_to_secrets_by_arn() -> None:
    """``Ref`` of a secret is its ARN, and so is its physical id; MiniStack's is the name."""

    def name(physical_id: str) -> str:
        return physical_id.rpartition(":")[2].rpartition("-")[0]

    def create(original: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            _, attributes = original(*arguments)
            return attributes["Arn"], attributes

        return made

    def update(original: Callable[..., Any]) -> Callable[..., Any]:
        def updated(physical_id: str, *arguments: Any) -> Any:
            _, attributes = original(name(physical_id), *arguments)
            return attributes["Arn"], attributes

        return updated

    def delete(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda physical_id, props: original(name(physical_id), props)

    for verb, make in (("create", create), ("update", update), ("delete", delete)):
        around_provisioner("AWS::SecretsManager::Secret", verb, make)


def spell_out_environments() -> None:
    """CloudFormation makes text of a function's variables; MiniStack keeps numbers, which no process takes."""

    def spelt(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    def with_text(argument: Any) -> Any:
        if not isinstance(argument, dict) or "Environment" not in argument:
            return argument
        variables = argument["Environment"].get("Variables", {})
        spelt_out = {key: spelt(value) for key, value in variables.items()}
        return {**argument, "Environment": {**argument["Environment"], "Variables": spelt_out}}

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: original(*map(with_text, arguments))

    for verb in ("create", "update"):
        around_provisioner("AWS::Lambda::Function", verb, make)


class _MovableTime:
    """Python's ``time`` with the local cloud's clock; intervals and sleeps stay the machine's."""

    def __init__(self, clock: Clock) -> None:
        self.time = clock.time

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def follow_clock(clock: Clock) -> None:
    """Let queues (delay, visibility, retention), item expiry and rules' rates follow ``clock``."""
    for module in ("services.sqs", "services.dynamodb", "services.eventbridge"):
        replace(module, "time", lambda _: _MovableTime(clock))
    # Rules are looked at every 10 s of the machine's time: too long for whoever has moved the clock.
    replace("services.eventbridge", "_SCHEDULER_TICK_INTERVAL", lambda _: 1)


def refuse_root_keys() -> None:
    """MiniStack lets ``test``, account numbers and its own environment's key do everything, unsigned."""
    for module in ("core.iam_evaluator", "services.sts"):
        replace(module, "is_root_access_key", lambda _: lambda access_key_id: False)


def name_resources_in_full() -> None:
    """IAM sees a schedule's ARN with its group, where MiniStack always says ``default``, the key that a presigned
    POST writes, and the identity that an e-mail is sent from."""

    def make(original: Callable[..., str]) -> Callable[..., str]:
        def extract_resource_arn(
            service: str,
            method: str,
            path: str,
            headers: dict[str, str],
            body: bytes,
            query_params: dict[str, Any],
            region: str,
            account_id: str,
        ) -> str:
            if service == "scheduler":
                try:
                    operation, params = contract("scheduler").parse(method, path, headers, body, query_params)
                except AwsError:
                    return "*"
                return scheduler_resource(region, account_id, operation, params)
            _form_key.set("")
            _from_address.set("")
            if service == "s3" and headers.get("content-type", "").startswith("multipart/form-data"):
                _form_key.set(_form_field(b"x-amz-credential", body).partition("/")[0])
                return f"arn:aws:s3:::{path.strip('/')}/{_form_field(b'key', body)}"
            if service == "ses" and path.rstrip("/") == "/v2/email/outbound-emails":
                try:
                    sender = contract("sesv2").parse(method, path, headers, body, query_params)[1]["FromEmailAddress"]
                except (AwsError, KeyError):
                    return "*"
                address = parseaddr(sender)[1]
                _from_address.set(address)
                return f"arn:aws:ses:{region}:{account_id}:identity/{address.rpartition('@')[2].lower()}"
            return original(service, method, path, headers, body, query_params, region, account_id)

        return extract_resource_arn

    replace("core.iam_actions", "extract_resource_arn", make)
    authorise_partiql()
    authorise_sqs_batches()


def scheduler_resource(region: str, account_id: str, operation: str, params: Mapping[str, Any]) -> str:
    """The ARN that IAM is asked about for a Scheduler operation: the service's authorization reference
    names a schedule by group and name, lists are on ``*``."""
    prefix = f"arn:aws:scheduler:{region}:{account_id}"
    if operation.endswith("ScheduleGroup"):
        return f"{prefix}:schedule-group/{params.get('Name')}"
    if operation.endswith("Schedule"):
        return f"{prefix}:schedule/{params.get('GroupName') or 'default'}/{params.get('Name')}"
    return str(params.get("ResourceArn") or "*")


_PARTIQL = re.compile(r'\s*(SELECT|INSERT|UPDATE|DELETE)\b(?:.*?\b(?:FROM|INTO)\b)?\s*"?([\w.-]+)"?', re.I | re.S)


def authorise_partiql() -> None:
    """A PartiQL statement is allowed by ``dynamodb:PartiQLInsert`` (``Select``, ``Update``, ``Delete``) on its
    table (DynamoDB's guide, "IAM security policies with PartiQL"); MiniStack asks for ``BatchExecuteStatement``
    on ``*``, an action that IAM does not have."""

    def make(original: Callable[..., list[tuple[str, str]]]) -> Callable[..., list[tuple[str, str]]]:
        def checks(iam_action: str, body: bytes, region: str, account_id: str) -> list[tuple[str, str]]:
            members = {
                "dynamodb:BatchExecuteStatement": "Statements",
                "dynamodb:ExecuteTransaction": "TransactStatements",
            }
            if iam_action not in {*members, "dynamodb:ExecuteStatement"}:
                return original(iam_action, body, region, account_id)
            given = json.loads(body or b"{}")
            statements = given.get(members[iam_action], []) if iam_action in members else [given]
            found = (_PARTIQL.match(statement.get("Statement", "")) for statement in statements)
            table = f"arn:aws:dynamodb:{region}:{account_id}:table/"
            return sorted({(f"dynamodb:PartiQL{m[1].capitalize()}", table + m[2]) for m in found if m})

        return checks

    replace("core.iam_actions", "dynamodb_transaction_checks", make)


def authorise_sqs_batches() -> None:
    """SendMessage, DeleteMessage and ChangeMessageVisibility allow their batches too (SQS's API reference,
    AddPermission); MiniStack asks for actions such as ``sqs:ChangeMessageVisibilityBatch``, which IAM does not have."""

    def make(original: Callable[..., str | None]) -> Callable[..., str | None]:
        def extract_iam_action(service: str, *request: Any) -> str | None:
            action = original(service, *request)
            return action.removesuffix("Batch") if action and service == "sqs" else action

        return extract_iam_action

    replace("core.iam_actions", "extract_iam_action", make)


def trust_loopback() -> None:
    """Requests come over loopback without TLS; to policies that demand TLS they are as good as with it."""

    def make(original: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
        return lambda source_ip, secure_transport: original(source_ip, True)

    replace("app", "pin_request_origin", make)


# The signing key named in the form of a presigned POST, for the request under way.
_form_key: contextvars.ContextVar[str] = contextvars.ContextVar("form_key", default="")
# The bare From address of an e-mail, for the request under way.
_from_address: contextvars.ContextVar[str] = contextvars.ContextVar("from_address", default="")
_FORM_FIELD = rb'name="%s"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n'


def _form_field(name: bytes, body: bytes) -> str:
    """A field of an upload form; S3 wants them before the file, within 20 KB."""
    match = re.search(_FORM_FIELD % name, body[:20_480], re.IGNORECASE)
    return match.group(1).decode(errors="replace") if match else ""


def let_forms_upload() -> None:
    """A presigned POST is authorized as the key that signed its policy, and S3 refuses who is nobody;
    MiniStack lets both pass as root. The signature and the policy's conditions are MiniStack's to check.

    And an e-mail's From address is ``ses:FromAddress`` to the conditions of a role (Service Authorization Reference,
    SES v2), which MiniStack leaves out.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def enforce(
            access_key_id: str,
            iam_action: str,
            service: str,
            region: str,
            resource_arn: str = "*",
            service_context: dict[str, Any] | None = None,
        ) -> Any:
            if service == "s3" and not access_key_id:
                if not (key := _form_key.get()):
                    return private("core.iam_evaluator").EvalResult("ImplicitDeny", principal_arn="anonymous")
                access_key_id, iam_action = key, "s3:PutObject"
            if iam_action == "ses:SendEmail" and (address := _from_address.get()):
                service_context = {**(service_context or {}), "ses:fromaddress": address}
            return original(access_key_id, iam_action, service, region, resource_arn, service_context)

        return enforce

    replace("core.iam_evaluator", "enforce", make)


def name_what_functions_raise() -> None:
    """A function's error carries its exception's class as ``errorType``, which machines catch by;
    MiniStack says ``Runtime.HandlerError`` for all."""
    reported = '{"status": "error", "error": str(e), "trace": traceback.format_exc()}'
    with_class = reported[:-1] + ', "type": type(e).__name__, "stack": traceback.format_tb(e.__traceback__)}'
    _edit_worker(reported, with_class)
    raised = threading.local()

    def make_invoke(original: Callable[..., Any]) -> Callable[..., Any]:
        def invoke(self: Any, *arguments: Any, **named: Any) -> Any:
            raised.last = result = original(self, *arguments, **named)
            return result

        return invoke

    def make_execute(original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(func: dict[str, Any], event: Any, request_id: str) -> Any:
            raised.last = {}
            result = original(func, event, request_id)
            if result.get("error"):
                body = result["body"]
                if "type" in raised.last:
                    stack = raised.last.get("stack", [])
                    body |= {"errorType": raised.last["type"], "requestId": request_id, "stackTrace": stack}
                elif body["errorMessage"].startswith("Worker init failed: No module named"):
                    body["errorType"] = "Runtime.ImportModuleError"
                elif body["errorMessage"] == "Worker process died":
                    body["errorType"] = "Runtime.ExitError"
            return result

        return execute

    replace("core.lambda_runtime", "Worker.invoke", make_invoke)
    replace("services.lambda_svc", "_execute_function_warm", make_execute)


def unpack_once(directory: Path) -> None:
    """Workers of the same code share one unpacked copy under ``directory``, and so its compiled modules;
    MiniStack unpacks code and layers again for each worker. On AWS both are read-only too."""
    lock = threading.Lock()

    class SharedArchive(zipfile.ZipFile):
        def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
            listing = repr([(item.filename, item.CRC, item.file_size) for item in self.infolist()])
            shared = directory / hashlib.sha256(listing.encode()).hexdigest()
            with lock:
                if not shared.exists():
                    fresh = shared.with_suffix(".new")
                    super().extractall(fresh, members, pwd)
                    fresh.rename(shared)
            os.rmdir(path)
            os.symlink(shared, path)

    class Archives:
        ZipFile = SharedArchive

        def __getattr__(self, name: str) -> Any:
            return getattr(zipfile, name)

    directory.mkdir(parents=True, exist_ok=True)
    replace("core.lambda_runtime", "zipfile", lambda _: Archives())


_RUNTIME_ONLY = '''
import importlib.machinery, site, sys
_host = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
sys.path[:] = [path for path in sys.path if path not in _host]
class _Runtime:
    """AWS's runtime brings the SDK and what it needs; everything else is the function's or a layer's."""
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name in {names}:
            return importlib.machinery.PathFinder.find_spec(name, _host)
sys.meta_path.append(_Runtime)
'''
_RUNTIME_PACKAGES = {"boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six", "urllib3"}


def hide_host_packages() -> None:
    """Functions see the SDK and their own code and layers, not what this machine has installed."""
    first = "import sys, json, importlib, traceback, os, time\n"
    _edit_worker(first, _RUNTIME_ONLY.replace("{names}", repr(_RUNTIME_PACKAGES)) + first)


def _edit_worker(old: str, new: str) -> None:
    runtime = private("core.lambda_runtime")
    script: str = runtime._PYTHON_WORKER_SCRIPT
    if new in script:
        return
    if old not in script:
        raise RuntimeError(f"MiniStack {EXPECTED_VERSION}'s worker script had {old!r}; this one has not")
    runtime._PYTHON_WORKER_SCRIPT = script.replace(old, new)


def dispatch(request: Mapping[str, Any], who: identity.Identity, scope: str, region: str) -> dict[str, Any]:
    """Let MiniStack answer a request that botocore has serialised, evaluated as ``who`` but not signed.

    Call it from any thread but the event loop's. Returns what botocore's parsers read.
    """
    app = private("app")
    body = request["body"]
    query = {name: [str(value)] for name, value in dict(request["query_string"]).items()}
    headers = {
        **{name.lower(): value for name, value in request["headers"].items()},
        "host": "127.0.0.1",
        "authorization": f"AWS4-HMAC-SHA256 Credential={who.access_key_id}/20260101/{region}/{scope}/aws4_request,"
        " SignedHeaders=host, Signature=0",
    }
    if isinstance(body, dict):
        body = urlencode(body).encode()
        headers["content-type"] = "application/x-www-form-urlencoded"

    async def answer() -> Any:
        responses = private("core.responses")
        responses.set_request_account_id("")
        responses.set_request_region(region)
        private("core.iam_evaluator").pin_request_origin("127.0.0.1", True)
        return await app._dispatch_service_request(
            request["method"],
            request["url_path"],
            headers,
            body.encode() if isinstance(body, str) else body,
            query,
            str(uuid.uuid4()),
        )

    status, answered, content = asyncio.run_coroutine_threadsafe(answer(), app._MAIN_LOOP).result()
    return {"status_code": status, "headers": HeadersDict(answered), "body": content}
