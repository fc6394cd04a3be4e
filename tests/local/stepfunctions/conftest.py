"""A Step Functions service over a fake Caller."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from local.clock import Clock
from local.ports import AwsError
from local.stepfunctions.service import StepFunctions

ACCOUNT, REGION = "000000000000", "eu-central-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/machine"


class FakeCaller:
    """Answers by what a test puts into ``answers[service, operation]``; S3 is a dictionary."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = {
            ("s3", "GetObject"): self._get_object,
            ("s3", "PutObject"): self._put_object,
        }
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, Mapping[str, Any]]] = []
        self.roles: set[tuple[str, str]] = set()

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        self.calls.append((service, operation, params))
        self.roles.add((role_arn, source_arn))
        return self.answers[service, operation](params)

    def function(self, answer: Callable[[Any], Any]) -> None:
        """Let every Lambda function answer ``answer(payload)``."""
        self.answers["lambda", "Invoke"] = lambda params: {
            "StatusCode": 200,
            "ExecutedVersion": "$LATEST",
            "Payload": json.dumps(answer(json.loads(params["Payload"]))).encode(),
        }

    def named(self, operation: str) -> list[Mapping[str, Any]]:
        """The parameters of every call of ``operation``."""
        return [params for _, called, params in self.calls if called == operation]

    def _get_object(self, params: Mapping[str, Any]) -> Any:
        if params["Key"] not in self.objects:
            raise AwsError("NoSuchKey", "The specified key does not exist.", 404)
        return {"Body": self.objects[params["Key"]]}

    def _put_object(self, params: Mapping[str, Any]) -> Any:
        self.objects[params["Key"]] = params["Body"]
        return {}


class World:
    """A service, its clock, its Caller, and short ways to run machines."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.caller = FakeCaller()
        self.events: list[dict[str, Any]] = []
        self.machines: dict[str, dict[str, Any]] = {}
        self.service = StepFunctions(
            self.clock, self.caller, lambda: self.machines, self.events.append, ACCOUNT, REGION
        )

    def api(self, operation: str, **params: Any) -> dict[str, Any]:
        return self.service.handle(operation, params)

    def machine(self, states: Mapping[str, Any], name: str = "machine", **top: Any) -> str:
        """Store a machine that starts at its first state; its ARN."""
        arn = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{name}"
        definition = {"QueryLanguage": "JSONata", "StartAt": next(iter(states)), "States": states, **top}
        self.machines[arn] = {
            "definition": json.dumps(definition),
            "roleArn": ROLE,
            "name": name,
            "type": "STANDARD",
            "creationDate": "2026-11-29T10:00:00Z",
        }
        return arn

    def start(self, states: Mapping[str, Any], value: Any = None, **top: Any) -> str:
        """Start a machine of these states; the execution's ARN."""
        arn = self.machine(states, **top)
        text = json.dumps({} if value is None else value, ensure_ascii=False)
        return str(self.api("StartExecution", stateMachineArn=arn, input=text)["executionArn"])

    def wait(self, arn: str, seconds: float = 20) -> dict[str, Any]:
        """The execution once it has ended."""
        deadline = time.monotonic() + seconds
        while (execution := self.api("DescribeExecution", executionArn=arn))["status"] == "RUNNING":
            assert time.monotonic() < deadline, "the execution did not end"
            time.sleep(0.005)
        return execution

    def run(self, states: Mapping[str, Any], value: Any = None, **top: Any) -> dict[str, Any]:
        """Run a machine to its end."""
        return self.wait(self.start(states, value, **top))

    def output(self, states: Mapping[str, Any], value: Any = None, **top: Any) -> Any:
        """The output of a machine that must succeed."""
        execution = self.run(states, value, **top)
        assert execution["status"] == "SUCCEEDED", execution
        return json.loads(execution["output"])

    def history(self, arn: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.api("GetExecutionHistory", executionArn=arn, maxResults=1000)["events"]
        return events

    def eventually(self, condition: Callable[[], Any], seconds: float = 10) -> Any:
        """Wait until ``condition()`` is true."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.005)
        return value


class Gate:
    """A Lambda function that answers when it is let: ``opened`` per payload, ``entered`` counts who waits."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.entered: list[Any] = []

    def __call__(self, payload: Any) -> Any:
        with self._lock:
            self.entered.append(payload)
        assert self._open.wait(20), "the gate was never opened"
        return payload

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.service.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()
