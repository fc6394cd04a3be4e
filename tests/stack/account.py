"""An account in memory for the machines: the real definitions on the local Step Functions, everything else faked.

DynamoDB is moto's, so that conditions are evaluated. Every call is checked against the service's model (names,
required members, patterns, lengths) and against the role that the template gives the machine.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from carillon import keys
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.items import from_item, to_item
from carillon.shapes import Campaign, CampaignSpec, EnrolBatchResult, PrepareListResult, Schedule, Task
from carillon.transitions import CampaignState, TaskStatus
from local.clock import Clock
from local.contract import contract
from local.ports import AwsError
from local.stepfunctions.errors import matches
from local.stepfunctions.interpreter import Interpreter
from local.stepfunctions.runtime import Runtime
from local.stepfunctions.service import StepFunctions
from tools import definitions
from tools.permissions import allows

CAMPAIGN = "spring-sale"
BUCKET = "Bucket"
SPEC = CampaignSpec.model_validate(
    {
        "name": "Spring",
        "from": "Carillon <news@news.example.com>",
        "topic": "news",
        "steps": [{"template": "spring.html", "subject": "Spring", "rule": {"kind": "asap"}}],
    }
)
PREFIXES = {"stepfunctions": "states", "sesv2": "ses"}


class FunctionError(Exception):
    """What a Lambda function raised: its class's name and message."""

    def __init__(self, error: str, message: str = "because") -> None:
        super().__init__(error)
        self.payload = {"errorMessage": message, "errorType": error, "requestId": "1", "stackTrace": ["  line 1"]}


def denied() -> AwsError:
    """An error that no Retry covers and no Catch names."""
    return AwsError("AccessDeniedException", "User is not authorized to perform this action", 403)


class ReplyLost(AwsError):
    """The service did what it was asked, and nobody heard of it; ``then`` something else happens."""

    then: Callable[[], None] | None = None


class Account:
    """The ``Caller`` of the machines, and all that they see."""

    def __init__(self) -> None:
        self._aws = mock_aws()
        self._patches = pytest.MonkeyPatch()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            self._patches.setenv(name, "x")
        self._patches.setenv("AWS_DEFAULT_REGION", definitions.REGION)
        self._patches.delenv("AWS_ENDPOINT_URL", raising=False)
        self._aws.start()
        self.dynamodb = boto3.client("dynamodb")
        for name, table in definitions.resources("AWS::DynamoDB::Table").items():
            wanted = ("AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes", "BillingMode")
            described = {part: table["Properties"][part] for part in wanted if part in table["Properties"]}
            self.dynamodb.create_table(TableName=name, **described)
        self.campaigns = CampaignStore("CampaignsTable", self.dynamodb)
        self.clock = Clock()
        self.faults: dict[str, list[Exception]] = defaultdict(list)
        """How the next calls of a Task state (by name), or of FanOut itself, end."""
        self.before: dict[str, Callable[[], None]] = {}
        """What happens just before a state (by name) is entered."""
        self.visited: list[str] = []
        self.caught: list[tuple[str, int]] = []
        self.functions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "PrepareListFunction": self._prepare,
            "EnrolBatchFunction": self._enrol,
            "ConfirmFanOutFunction": lambda event: {"remaining": 0, "manifest_key": None, "refused": 0},
            "CancelTasksFunction": self._cancel,
        }
        self.invoked: list[tuple[str, dict[str, Any]]] = []
        self.objects: dict[str, bytes] = {}
        self.groups: set[str] = set()
        self.schedules: dict[tuple[str, str], dict[str, Any]] = {}
        self.refused: dict[str, AwsError] = {}
        """By a schedule's name: what CreateSchedule answers."""
        self.tables: dict[str, dict[str, Any]] = {}
        self.templates: set[str] = set()
        """SES's, by name."""
        self.stopped: list[str] = []
        self.map_runs: list[list[dict[str, Any]]] = [[]]
        """What ListMapRuns answers; the last one for good."""
        self.batches = [["0-" + f"{b:02x}{n:030x}" for n in range(3)] for b in range(2)]
        self._machines = _stored_machines()
        self.events: list[dict[str, Any]] = []
        self.service = StepFunctions(
            self.clock, self, lambda: self._machines, self.events.append, definitions.ACCOUNT_ID, definitions.REGION
        )
        self._watch()

    def close(self) -> None:
        self.service.close()
        self._aws.stop()
        self._patches.undo()

    # What tests arrange

    def create(self, state: CampaignState = CampaignState.CREATED, **fields: Any) -> None:
        """A campaign record, as the API and the functions write it."""
        now = self.clock.time()
        record = {
            "campaign_id": CAMPAIGN,
            "spec": SPEC,
            "state": state,
            "created_at": "2026-11-29T10:00:00Z",
            "changed_at": "2026-11-29T10:00:00Z",
            "expires_at": int(now) + 86400,
        }
        self.campaigns.create(Campaign.model_validate({**record, **fields}))

    def fail(self, state: str, *errors: Exception) -> None:
        """Let the next calls of a Task state end so, and not reach the service."""
        self.faults[state].extend(errors)

    def lose_reply(self, state: str, then: Callable[[], None] | None = None) -> None:
        """Let the next call of a Task state be done and its answer be lost; what happens before it is repeated."""
        lost = ReplyLost("InternalServerError", "the answer was lost", 500)
        lost.then = then
        self.fail(state, lost)

    def campaign(self) -> Campaign:
        return self.campaigns.get(CAMPAIGN)

    def change(self, **fields: Any) -> None:
        """Write fields of the campaign as somebody else would."""
        names = {f"#{name}": name for name in fields}
        self.dynamodb.update_item(
            TableName="CampaignsTable",
            Key={"campaign_id": {"S": CAMPAIGN}},
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in fields),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=to_item({f":{name}": value for name, value in fields.items()}),
        )

    def task(self, name: str) -> dict[str, Any]:
        key = to_item(keys.task_key(CAMPAIGN, name))
        return from_item(self.dynamodb.get_item(TableName="TasksTable", Key=key)["Item"])

    def run(self, machine: str, value: Any, name: str = "run") -> dict[str, Any]:
        """Run a machine (``launch_campaign``) to its end, its waits skipped; DescribeExecution."""
        resource = next(m.resource for m in definitions.state_machines() if m.name == machine)
        arn = str(
            self.service.handle(
                "StartExecution",
                {"stateMachineArn": definitions.arn(resource), "name": name, "input": json.dumps(value)},
            )["executionArn"]
        )
        deadline = time.monotonic() + 60
        while (execution := self.service.handle("DescribeExecution", {"executionArn": arn}))["status"] == "RUNNING":
            assert time.monotonic() < deadline, f"it did not end: {self.visited[-5:]}"
            if waits := self.service._runtime._heap[:1]:
                self.clock.advance(max(0.0, waits[0][0] - self.clock.time()))
            time.sleep(0.002)
        return execution

    def launch(self, **options: Any) -> dict[str, Any]:
        return self.run("launch_campaign", {"campaign_id": CAMPAIGN, **options}, "launch")

    def cancel(self) -> dict[str, Any]:
        return self.run("cancel_campaign", {"campaign_id": CAMPAIGN}, "cancel")

    # The Caller

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        self.check(service, operation, params, role_arn)
        if self.faults["FanOut"]:  # what a Map itself does: its reader and its writer
            raise self.faults["FanOut"].pop(0)
        return self.answer(service, operation, params)

    def check(self, service: str, operation: str, params: Mapping[str, Any], role_arn: str) -> None:
        """Refuse what the service's model or the machine's role does not allow."""
        contract(service).operation(operation).validate(params)
        self._permit(service, operation, params, role_arn.rpartition("/")[2])

    def answer(self, service: str, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """What the service does."""
        match service, operation:
            case "dynamodb", _:
                try:
                    answer: dict[str, Any] = self.dynamodb._make_api_call(operation, dict(params))
                except ClientError as error:
                    raise AwsError(error.response["Error"]["Code"], error.response["Error"]["Message"]) from error
                answer.pop("ResponseMetadata")
                return answer
            case "lambda", "Invoke":
                name, event = params["FunctionName"].rpartition(":")[2], json.loads(params["Payload"])
                self.invoked.append((name, event))
                try:
                    payload, ended = self.functions[name](event), {}
                except FunctionError as error:
                    payload, ended = error.payload, {"FunctionError": "Unhandled"}
                return {"StatusCode": 200, "Payload": json.dumps(payload).encode(), **ended}
            case "s3", "GetObject":
                # A launch's manifest is pinned; that of a cancel is the first preparation's, which nobody writes again.
                assert params.get("VersionId") == (None if "EnrolUnreached" in self.visited else "v1")
                return {"Body": self.objects[params["Key"]]}
            case "s3", "PutObject":
                self.objects[params["Key"]] = params["Body"]
                return {}
            case "glue", "CreateTable" | "UpdateTable":
                table = params["TableInput"]
                if operation == "CreateTable" and table["Name"] in self.tables:
                    raise AwsError("AlreadyExistsException", "Table already exists.")
                self.tables[table["Name"]] = table
                return {}
            case "scheduler", "CreateScheduleGroup":
                if params["Name"] in self.groups:
                    raise AwsError("ConflictException", "Schedule group already exists.", 409)
                self.groups.add(params["Name"])
                return {"ScheduleGroupArn": f"arn:aws:scheduler:eu-central-1:1:schedule-group/{params['Name']}"}
            case "scheduler", "DeleteScheduleGroup":
                if params["Name"] not in self.groups:
                    raise AwsError("ResourceNotFoundException", "Schedule group does not exist.", 404)
                self.groups.discard(params["Name"])
                self.schedules = {key: s for key, s in self.schedules.items() if key[0] != params["Name"]}
                return {}
            case "scheduler", "CreateSchedule":
                if params["Name"] in self.refused:
                    raise self.refused[params["Name"]]
                if (params["GroupName"], params["Name"]) in self.schedules:
                    raise AwsError("ConflictException", "Schedule already exists.", 409)
                self.schedules[params["GroupName"], params["Name"]] = dict(params)
                return {"ScheduleArn": "arn:aws:scheduler:eu-central-1:1:schedule/x"}
            case "sesv2", "DeleteEmailTemplate":
                if params["TemplateName"] not in self.templates:
                    raise AwsError("NotFoundException", "Template does not exist.", 404)
                self.templates.discard(params["TemplateName"])
                return {}
            case "stepfunctions", "StopExecution":
                self.stopped.append(params["executionArn"])
                return {"stopDate": datetime(2026, 11, 29, tzinfo=UTC)}
            case "stepfunctions", "ListMapRuns":
                return {"mapRuns": self.map_runs.pop(0) if len(self.map_runs) > 1 else self.map_runs[0]}
        raise AssertionError(f"no machine calls {service} {operation}")

    def _permit(self, service: str, operation: str, params: Mapping[str, Any], role: str) -> None:
        here = f"{definitions.REGION}:{definitions.ACCOUNT_ID}"
        action = f"{PREFIXES.get(service, service)}:{operation}"
        needed: list[tuple[str, str]] = []
        match service, operation:
            case "dynamodb", _:
                needed = [(action, definitions.arn(params["TableName"]))]
            case "lambda", "Invoke":
                needed = [("lambda:InvokeFunction", params["FunctionName"])]
            case "s3", "GetObject" | "PutObject":
                needed = [(action, f"{definitions.arn(params['Bucket'])}/{params['Key']}")]
                if "VersionId" in params:
                    needed.append(("s3:GetObjectVersion", needed[0][1]))
            case "glue", _:
                database = params["DatabaseName"]
                table = params["TableInput"]["Name"]
                needed = [
                    (action, f"arn:aws:glue:{here}:{what}")
                    for what in ("catalog", f"database/{database}", f"table/{database}/{table}")
                ]
            case "scheduler", "CreateSchedule":
                needed = [
                    (action, f"arn:aws:scheduler:{here}:schedule/{params['GroupName']}/{params['Name']}"),
                    ("iam:PassRole", params["Target"]["RoleArn"]),
                ]
            case "scheduler", "CreateScheduleGroup":
                needed = [(action, f"arn:aws:scheduler:{here}:schedule-group/{params['Name']}")]
            case "scheduler", "DeleteScheduleGroup":
                needed = [
                    (action, f"arn:aws:scheduler:{here}:schedule-group/{params['Name']}"),
                    # Service Authorization Reference, EventBridge Scheduler: the operation asks for both.
                    ("scheduler:DeleteSchedule", f"arn:aws:scheduler:{here}:schedule/{params['Name']}/x"),
                ]
            case "sesv2", _:
                needed = [(action, f"arn:aws:ses:{here}:template/{params['TemplateName']}")]
            case "stepfunctions", _:
                needed = [(action, params["executionArn"])]
        assert needed, (service, operation)
        for action, resource in needed:
            assert allows(role, action, resource), f"{role} may not {action} on {resource}"

    # The functions

    def _prepare(self, event: dict[str, Any]) -> dict[str, Any]:
        generation = event["generation"]
        if event["plan"]:
            return {"hash": "a1b2", "valid": 6}
        lines = [
            {"batch": f"g{generation}-aaaa/{n}", "count": len(batch), "first_slot": 1_800_000_000}
            for n, batch in enumerate(self.batches)
        ]
        key = keys.manifest(CAMPAIGN, f"g{generation}-aaaa")
        self.objects[key] = "".join(json.dumps(line) + "\n" for line in lines).encode()
        return PrepareListResult(
            rows=6,
            valid=6,
            rejected={},
            past=0,
            count=sum(len(batch) for batch in self.batches),
            batches=len(self.batches),
            bucket=BUCKET,
            manifest_key=key,
            manifest_version="v1",
            first_slot=None,
            last_slot=None,
            columns=[{"Name": "email", "Type": "string"}],
            recipients_location=f"s3://{BUCKET}/{keys.preparation(CAMPAIGN, 'g1-aaaa')}recipients/",
            address_column="email",
            list_version="v1",
        ).model_dump()

    def _enrol(self, event: dict[str, Any]) -> dict[str, Any]:
        generation, campaign = event["generation"], self.campaign()
        closing = {CampaignState.CANCELLING, CampaignState.CANCELLED}
        expected = closing if event.get("cancelled") else {CampaignState.ENQUEUED}
        if campaign.state not in expected or campaign.generation != generation:
            raise FunctionError("CampaignStateConflict", f"campaign {CAMPAIGN} is {campaign.state}")
        attempt, number = event["batch"].split("/")
        assert attempt == f"g{generation}-aaaa"
        names = self.batches[int(number)]
        direct = campaign.spec.route == "direct"
        for name in [] if direct else names:
            row = Task(
                campaign_id=CAMPAIGN,
                task=name,
                step=0,
                address="ada@example.com",
                slot=1_800_000_000,
                status=TaskStatus.CANCELLED if event.get("cancelled") else TaskStatus.PENDING,
                generation=generation,
                revision=0,
                batch=event["batch"],
                client_token="t",
                expires_at=1_900_000_000,
            )
            item = to_item(keys.task_key(CAMPAIGN, name) | row.model_dump(mode="json"))
            self.dynamodb.put_item(TableName="TasksTable", Item=item)
        return EnrolBatchResult(
            schedules=[
                Schedule(
                    name=name,
                    group=keys.group(CAMPAIGN, generation),
                    at="2027-01-15T08:00:00",
                    client_token=keys.client_token(CAMPAIGN, generation, name, 0),
                    input=json.dumps({"QueueUrl": "https://x", "MessageBody": "{}", "DelaySeconds": 0}),
                    **({"target": "sesv2:sendEmail", "window": 17, "retries": 10} if direct else {}),
                )
                for name in names
            ],
            enrolled=len(names),
            settled=0,
        ).model_dump()

    def _cancel(self, event: dict[str, Any]) -> dict[str, Any]:
        shard = keys.partition(CAMPAIGN, event["shard"])
        rows = self.dynamodb.query(
            TableName="TasksTable",
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": shard}},
        )["Count"]
        return {"cancelled": 1, "running": 0, "rows": rows}

    # Watching the machines

    def _watch(self) -> None:
        visit, catch, task = Interpreter._visit, Interpreter._catch, Interpreter._task
        account = self

        async def watched_visit(self: Interpreter, state: Any, *rest: Any) -> Any:
            account.visited.append(state.name)
            if before := account.before.pop(state.name, None):
                before()
            return await visit(self, state, *rest)

        def watched_catch(self: Interpreter, state: Any, error: Any, moment: Any) -> Any:
            outcome = catch(self, state, error, moment)
            account.caught.append(
                (state.name, next(n for n, c in enumerate(state.catch) if matches(error.error, c.error_equals)))
            )
            return outcome

        async def watched_task(self: Interpreter, state: Any, *rest: Any) -> Any:
            named = copy(self)
            named.caller = _CallerOfState(account, state.name)
            return await task(named, state, *rest)

        async def without_deadline(self: Runtime, work: Any, deadline: float | None) -> Any:
            """The clock jumps from wait to wait here, so a call's time limit would come too early."""
            return await work

        self._patches.setattr(Interpreter, "_visit", watched_visit)
        self._patches.setattr(Interpreter, "_catch", watched_catch)
        self._patches.setattr(Interpreter, "_task", watched_task)
        self._patches.setattr(Runtime, "within", without_deadline)


@cache
def _stored_machines() -> dict[str, dict[str, Any]]:
    """The machines as CloudFormation stores them; as JSON, which parses in a tenth of YAML's time."""
    described = definitions.resources("AWS::Serverless::StateMachine")
    return {
        definitions.arn(machine.resource): {
            "definition": json.dumps(machine.definition),
            "roleArn": definitions.resolved(described[machine.resource]["Properties"]["Role"]),
            "name": definitions.arn(machine.resource).rpartition(":")[2],
            "type": "STANDARD",
            "creationDate": "2026-11-29T10:00:00Z",
        }
        for machine in definitions.state_machines()
    }


@dataclass(frozen=True)
class _CallerOfState:
    """The account as one Task state calls it."""

    account: Account
    state: str

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        self.account.check(service, operation, params, role_arn)
        fault = self.account.faults[self.state].pop(0) if self.account.faults[self.state] else None
        if isinstance(fault, FunctionError):
            return {"FunctionError": "Unhandled", "Payload": json.dumps(fault.payload).encode(), "StatusCode": 200}
        if fault is not None and not isinstance(fault, ReplyLost):
            raise fault
        answer = self.account.answer(service, operation, params)
        if fault is not None:
            if fault.then:
                fault.then()
            raise fault
        return answer
