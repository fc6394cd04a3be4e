"""The real stack on the local cloud: ``sam build`` and ``sam deploy``, as one would do it on AWS."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import requests
from botocore.exceptions import ClientError

from carillon import keys
from carillon.transitions import TERMINAL, TaskStatus

ROOT = Path(__file__).resolve().parents[1]
STACK = "carillon-demo"
SETTLED = frozenset({"dispatching", "completed", "cancelled", "aborted", "failed"})
"""States in which no machine is at work on a campaign."""


@dataclass(frozen=True)
class Outcome:
    """What became of a campaign, counted over its rows."""

    enrolled: int
    statuses: Counter[TaskStatus]

    @property
    def settled(self) -> int:
        """Tasks that are terminal."""
        return sum(self.statuses[status] for status in TERMINAL)

    @property
    def balance(self) -> bool:
        """Whether every enrolled task is in exactly one status."""
        return sum(self.statuses.values()) == self.enrolled


class DeploymentFailed(Exception):
    """``sam`` ended with an error; the message is what it printed."""


class Deployment:
    """A deployed stack and its operator's ways in.

    ``environment`` holds the operator's keys and ``AWS_ENDPOINT_URL`` (`local.cloud.Cloud.operator_environment`);
    builds are kept in ``directory``.
    """

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        self._environment = dict(environment)
        self._directory = directory
        self.outputs: dict[str, str] = {}
        self._manifests: dict[tuple[str, int], list[dict[str, Any]]] = {}
        """What was read: a manifest never changes."""
        self.endpoint = environment["AWS_ENDPOINT_URL"]
        self._session = boto3.session.Session(
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            region_name=environment["AWS_DEFAULT_REGION"],
        )

    def build(self) -> None:
        """``sam build``, unless what was built last is what would be built now.

        In a folder of its own, for SAM keeps dependencies below the working directory and clears away what it does
        not know; and never while another process deploys from there.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        stamp = self._directory / "built"
        with self._lock(fcntl.LOCK_EX):
            sources = _fingerprint()
            if stamp.exists() and stamp.read_text() == sources:
                return
            stamp.unlink(missing_ok=True)
            self._sam("build", "--template-file", str(ROOT / "template.yaml"))
            stamp.write_text(sources)

    def deploy(self) -> None:
        """``sam deploy`` what was built."""
        built = self._directory / ".aws-sam" / "build" / "template.yaml"
        try:
            with self._lock(fcntl.LOCK_SH):
                self._sam("deploy", "--template-file", str(built))
        except DeploymentFailed as failed:
            raise DeploymentFailed(f"{failed}\n{self._refused_resources()}") from None
        stack = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        self.outputs = {o["OutputKey"]: o["OutputValue"] for o in stack["Outputs"]}

    def client(self, service: str) -> Any:
        """A boto3 client with the operator's keys."""
        return self._session.client(service, endpoint_url=self.endpoint)  # type: ignore[call-overload]  # the name is a variable

    @property
    def api(self) -> Api:
        """The HTTP API, with the token that the stack made for itself."""
        secret = self.client("secretsmanager").get_secret_value(SecretId=self.outputs["ApiTokenSecret"])
        host = urlsplit(self.outputs["ApiUrl"]).hostname or ""
        base = f"{self.endpoint}/_aws/execute-api/{host.split('.')[0]}/$default"
        return Api(base, secret["SecretString"])

    def rows(self, campaign_id: str) -> Iterator[dict[str, Any]]:
        """Every task row of a campaign, read from the table itself."""
        tables: Any = self._session.resource("dynamodb", endpoint_url=self.endpoint)
        table = tables.Table(self.outputs["TasksTable"])
        start: dict[str, Any] = {}
        while True:
            page = table.scan(ConsistentRead=True, **start)
            yield from (row for row in page["Items"] if row["pk"].split("#")[0] == campaign_id)
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def lines(self, key: str) -> list[dict[str, Any]]:
        """An object of JSON lines from the stack's bucket."""
        found = self.client("s3").get_object(Bucket=self.outputs["BucketName"], Key=key)
        return [json.loads(line) for line in found["Body"].read().splitlines()]

    def slots(self, campaign_id: str, generation: int = 1) -> list[int]:
        """The planned instants of a generation (epoch seconds), in order."""
        return sorted(line["slot"] for line in self.batch_lines(campaign_id, generation))

    def manifest(self, campaign_id: str, generation: int = 1) -> list[dict[str, Any]]:
        """The manifest of the first generation, or of the newest."""
        there = self._manifests.get((campaign_id, generation))
        if there is None:
            campaign = self.api.get(campaign_id)
            key = keys.manifest(campaign_id, campaign["prepared"])
            if generation != 1:
                assert campaign["prepared_generation"] == generation, "only the first and the newest can be asked for"
                key = campaign["summary"]["manifest_key"]
            there = self._manifests[campaign_id, generation] = self.lines(key)
        return there

    def batch_lines(self, campaign_id: str, generation: int = 1) -> list[dict[str, Any]]:
        """Every line of every batch of a generation."""
        batches = [line["batch"] for line in self.manifest(campaign_id, generation)]
        return [line for name in batches for line in self.lines(keys.batch(campaign_id, name))]

    def outcome(self, campaign_id: str) -> Outcome:
        """Count the rows of a campaign; what was enrolled comes from the first manifest, not from the rows."""
        return Outcome(
            enrolled=sum(line["count"] for line in self.manifest(campaign_id)),
            statuses=Counter(TaskStatus(row["status"]) for row in self.rows(campaign_id)),
        )

    def invoke(self, function_output: str, event: Mapping[str, Any]) -> Any:
        """Invoke a function by the name of the output that holds its name."""
        answer = self.client("lambda").invoke(
            FunctionName=self.outputs[function_output], Payload=json.dumps(event).encode()
        )
        result = json.loads(answer["Payload"].read() or b"null")
        if "FunctionError" in answer:
            raise RuntimeError(f"{function_output}: {result}")
        return result

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, kind)
            yield

    def _sam(self, verb: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            **self._environment,
            "SAM_CLI_TELEMETRY": "0",
            # `sam build` looks for python3.13 and pip on PATH.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["sam", verb, "--config-file", str(ROOT / "samconfig.toml"), "--config-env", "local", *arguments],
            cwd=self._directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if "Uploading to" not in line]
            raise DeploymentFailed(f"sam {verb} ended with {done.returncode}:\n" + "\n".join(said[-20:]))

    def _refused_resources(self) -> str:
        try:
            events = self.client("cloudformation").describe_stack_events(StackName=STACK)["StackEvents"]
        except ClientError as absent:
            return str(absent)
        return "\n".join(
            f"{event['LogicalResourceId']}: {event.get('ResourceStatusReason')}"
            for event in events
            if event["ResourceStatus"].endswith("_FAILED")
        )


def _fingerprint() -> str:
    """A digest of everything that ``sam build`` reads."""
    digest = hashlib.sha256(sys.version.encode())
    folders = ("functions", "layers", "statemachines")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    for path in sorted([*paths, ROOT / "template.yaml", ROOT / "samconfig.toml"]):
        if path.is_file():
            digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Refused(Exception):
    """The API answered with a problem (RFC 9457)."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem.get('title')}: {problem.get('detail')}")
        self.status = status
        self.problem = problem


class Api:
    """The campaign API as its users call it."""

    def __init__(self, base: str, token: str) -> None:
        self.base = base
        self._http = requests.Session()
        self._http.headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """One request; the parsed answer.

        Raises:
            Refused: any status of 400 and more.
        """
        answer = self._http.request(method, self.base + path, json=body, timeout=30, **options)
        parsed: dict[str, Any] = answer.json() if answer.content else {}
        if answer.status_code >= 400:
            raise Refused(answer.status_code, parsed)
        return parsed

    def create(self, spec: Mapping[str, Any]) -> str:
        """Create a campaign; its id."""
        return str(self.call("POST", "/campaigns", dict(spec))["campaign_id"])

    def upload(self, campaign_id: str, content: bytes, template: str | None = None) -> None:
        """Send the list (or a template) to S3 by a presigned link; nothing of it passes through the API."""
        what = {"kind": "list"} if template is None else {"kind": "template", "name": template}
        link = self.call("POST", f"/campaigns/{campaign_id}/uploads", what)
        answer = requests.post(link["url"], data=link["fields"], files={"file": content}, timeout=60)
        answer.raise_for_status()

    def get(self, campaign_id: str) -> dict[str, Any]:
        """The campaign as it stands."""
        return self.call("GET", f"/campaigns/{campaign_id}")

    def wait(self, campaign_id: str, *states: str, seconds: float = 120) -> dict[str, Any]:
        """Ask until the campaign is in one of ``states`` (default: any in which no machine is at work)."""
        deadline = time.monotonic() + seconds
        while True:
            campaign = self.get(campaign_id)
            if campaign["state"] in (states or SETTLED):
                return campaign
            if time.monotonic() > deadline:
                raise TimeoutError(f"{campaign_id} is {campaign['state']} after {seconds} s, not {states or SETTLED}")
            time.sleep(0.2)
