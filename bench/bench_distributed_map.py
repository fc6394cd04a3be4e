"""How many schedules a second a Distributed Map creates, beside a bare loop over the same Caller.

The machine has the shape of ``launch_campaign``'s fan-out: EXPRESS children over a manifest, each invoking
EnrolBatch and then creating its 500 schedules one by one through ``aws-sdk:scheduler:createSchedule``. The
Caller checks every request against the service model and keeps it in a dictionary, so what is measured is
Step Functions, not Scheduler.

    python bench/bench_distributed_map.py [recipients]     (default 20000; the goal is 1,000 schedules a second)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from local.clock import Clock
from local.contract import contract
from local.stepfunctions.service import StepFunctions

BATCH = 500
ACCOUNT, REGION = "000000000000", "eu-central-1"
MACHINE = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:bench"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/launch"
TARGET = {
    "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:send",
    "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/scheduler",
    "RetryPolicy": {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": 3600},
    "DeadLetterConfig": {"Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"},
}

DEFINITION = {
    "QueryLanguage": "JSONata",
    "StartAt": "FanOut",
    "States": {
        "FanOut": {
            "Type": "Map",
            "ItemReader": {
                "Resource": "arn:aws:states:::s3:getObject",
                "ReaderConfig": {"InputType": "JSONL"},
                "Arguments": {"Bucket": "lists", "Key": "manifest.jsonl"},
            },
            "MaxConcurrency": 20,
            "ToleratedFailurePercentage": 100,
            "ResultWriter": {
                "Resource": "arn:aws:states:::s3:putObject",
                "Arguments": {"Bucket": "lists", "Prefix": "results"},
            },
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "EXPRESS"},
                "StartAt": "EnrolBatch",
                "States": {
                    "EnrolBatch": {
                        "Type": "Task",
                        "Resource": "arn:aws:states:::lambda:invoke",
                        "TimeoutSeconds": 60,
                        "Arguments": {"FunctionName": "enrol-batch", "Payload": "{% $states.input %}"},
                        "Output": "{% $states.result.Payload %}",
                        "Next": "CreateSchedules",
                    },
                    "CreateSchedules": {
                        "Type": "Map",
                        "Items": "{% $states.input.schedules %}",
                        "ItemProcessor": {
                            "StartAt": "CreateSchedule",
                            "States": {
                                "CreateSchedule": {
                                    "Type": "Task",
                                    "Resource": "arn:aws:states:::aws-sdk:scheduler:createSchedule",
                                    "TimeoutSeconds": 30,
                                    "Arguments": {
                                        "Name": "{% $states.input.name %}",
                                        "GroupName": "{% $states.input.group %}",
                                        "ScheduleExpression": "{% 'at(' & $states.input.at & ')' %}",
                                        "ScheduleExpressionTimezone": "UTC",
                                        "ActionAfterCompletion": "DELETE",
                                        "ClientToken": "{% $states.input.client_token %}",
                                        "FlexibleTimeWindow": {"Mode": "OFF"},
                                        "Target": {**TARGET, "Input": "{% $states.input.input %}"},
                                    },
                                    "Output": {},
                                    "Retry": [
                                        {
                                            "ErrorEquals": ["Scheduler.ThrottlingException"],
                                            "IntervalSeconds": 1,
                                            "MaxAttempts": 8,
                                            "MaxDelaySeconds": 20,
                                            "JitterStrategy": "FULL",
                                        }
                                    ],
                                    "Catch": [
                                        {
                                            "ErrorEquals": ["Scheduler.ConflictException"],
                                            "Output": {},
                                            "Next": "AlreadyThere",
                                        }
                                    ],
                                    "End": True,
                                },
                                "AlreadyThere": {"Type": "Pass", "End": True},
                            },
                        },
                        "Output": "{% {'created': $count($states.result)} %}",
                        "End": True,
                    },
                },
            },
            "End": True,
        }
    },
}


class Memory:
    """A Caller that answers from memory, in the calling thread."""

    def __init__(self, batches: int) -> None:
        lines = [json.dumps({"batch": batch, "count": BATCH}) for batch in range(batches)]
        self.objects = {"manifest.jsonl": "\n".join(lines).encode()}
        self.schedules: dict[str, Mapping[str, Any]] = {}

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        """See ``Caller.call``."""
        if service == "lambda":
            batch = json.loads(params["Payload"])
            return {"StatusCode": 200, "Payload": json.dumps({"schedules": enrolled(batch["batch"])}).encode()}
        if service == "s3" and operation == "GetObject":
            return {"Body": self.objects[params["Key"]]}
        if service == "s3":
            self.objects[params["Key"]] = params["Body"]
            return {}
        contract(service).operation(operation).validate(params)
        self.schedules[params["Name"]] = params
        return {"ScheduleArn": f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/g/{params['Name']}"}


def enrolled(batch: int) -> list[dict[str, str]]:
    """What EnrolBatch answers for one batch."""
    message = json.dumps({"campaign": "bench", "task": "0" * 34, "to": "someone@example.com", "data": {"n": "x" * 60}})
    return [
        {
            "name": f"1-{batch:08d}{number:024d}",
            "group": "campaign-bench-g1",
            "at": "2027-01-01T09:00:00",
            "client_token": f"{batch}-{number}",
            "input": message,
        }
        for number in range(BATCH)
    ]


def by_machine(batches: int) -> float:
    """Seconds for the Distributed Map."""
    caller = Memory(batches)
    stored = {"definition": json.dumps(DEFINITION), "roleArn": ROLE, "name": "bench", "type": "STANDARD"}
    service = StepFunctions(Clock(), caller, lambda: {MACHINE: stored}, lambda event: None, ACCOUNT, REGION)
    begun = time.perf_counter()
    arn = service.handle("StartExecution", {"stateMachineArn": MACHINE})["executionArn"]
    while (execution := service.handle("DescribeExecution", {"executionArn": arn}))["status"] == "RUNNING":
        time.sleep(0.02)
    taken = time.perf_counter() - begun
    service.close()
    if execution["status"] != "SUCCEEDED" or len(caller.schedules) != batches * BATCH:
        raise SystemExit(f"{execution['status']}: {len(caller.schedules)} schedules, {execution.get('cause')}")
    return taken


def by_loop(batches: int) -> float:
    """Seconds for a bare loop that makes the same calls."""
    caller = Memory(batches)
    begun = time.perf_counter()
    for batch in range(batches):
        for each in enrolled(batch):
            params = {
                "Name": each["name"],
                "GroupName": each["group"],
                "ScheduleExpression": f"at({each['at']})",
                "ScheduleExpressionTimezone": "UTC",
                "ActionAfterCompletion": "DELETE",
                "ClientToken": each["client_token"],
                "FlexibleTimeWindow": {"Mode": "OFF"},
                "Target": {**TARGET, "Input": each["input"]},
            }
            caller.call("scheduler", "CreateSchedule", params, ROLE)
    return time.perf_counter() - begun


if __name__ == "__main__":
    batches = max(1, int(sys.argv[1]) // BATCH) if len(sys.argv) > 1 else 40
    made = batches * BATCH
    loop, machine = by_loop(batches), by_machine(batches)
    print(f"bare loop        {made / loop:8.0f} schedules/s")
    print(f"Distributed Map  {made / machine:8.0f} schedules/s, {machine / loop:.1f} times the bare loop's time")
