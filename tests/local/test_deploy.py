"""`sam build` and `sam deploy`, as one would run them for AWS."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from local.cloud import Cloud

STACK = Path(__file__).parent / "stack"


def sam(cloud: Cloud, directory: Path, *words: str) -> str:
    environment = {
        **os.environ,
        **cloud.operator_environment(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SAM_CLI_TELEMETRY": "0",
    }
    answer = subprocess.run(
        ["sam", *words], cwd=directory, env=environment, capture_output=True, text=True, timeout=240
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.timeout(600)
def test_a_stack_is_built_deployed_and_works_together(cloud: Cloud, tmp_path: Path) -> None:
    """Machine → Scheduler → queue → function → table; machine's end → rule → function; HTTP API → function."""
    directory = tmp_path / "stack"
    shutil.copytree(STACK, directory)
    sam(cloud, directory, "build")
    deploy = ("deploy", "--stack-name", "relay", "--resolve-s3", "--capabilities", "CAPABILITY_IAM")
    sam(cloud, directory, *deploy, "--no-confirm-changeset")
    stack = cloud.client("cloudformation").describe_stacks(StackName="relay")["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    at = time.strftime("at(%Y-%m-%dT%H:%M:%S)", time.gmtime(cloud.clock.time() + 120))
    cloud.client("stepfunctions").start_execution(stateMachineArn=outputs["Machine"], input=json.dumps({"at": at}))
    request = urllib.request.Request(
        f"{cloud.endpoint}/_aws/execute-api/{outputs['ApiId']}/$default/relay", data=b"{}", method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 202

    def kinds() -> set[str]:
        rows = cloud.client("dynamodb").scan(TableName=outputs["Table"])["Items"]
        return {row["pk"]["S"] for row in rows}

    def eventually(expected: set[str]) -> None:
        deadline = time.monotonic() + 30
        while kinds() != expected:
            assert time.monotonic() < deadline, f"{kinds()} is not {expected}"
            time.sleep(0.1)

    eventually({"/relay", "Step Functions Execution Status Change"})
    cloud.advance(121)
    eventually({"/relay", "Step Functions Execution Status Change", "scheduled"})
