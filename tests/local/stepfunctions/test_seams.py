"""Our Step Functions in MiniStack's place: each private name of 1.5.33 that is used has its canary here.

``LOCAL_CLOUD.md`` tells of the seams; AWS refuses an invalid definition when the stack is deployed.
"""

import asyncio
import inspect
import json
from typing import Any

import pytest

from local.ministack import private
from local.stepfunctions import seams

World = Any

GOOD = json.dumps({"QueryLanguage": "JSONata", "StartAt": "A", "States": {"A": {"Type": "Pass", "End": True}}})
BAD = GOOD.replace('"End": true', '"Next": "B"')


class Original:
    """MiniStack's module, as far as the facade hands requests on."""

    attribute = "kept"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def handle_request(self, method: str, path: str, headers: dict[str, str], body: bytes, query: Any) -> Any:
        self.asked.append(headers["x-amz-target"])
        return 200, {}, b'{"original": true}'

    def reset(self) -> None:
        self.asked.clear()


@pytest.fixture
def original() -> Original:
    return Original()


def ask(facade: Any, operation: str, **data: Any) -> tuple[int, dict[str, Any]]:
    headers = {"x-amz-target": f"AWSStepFunctions.{operation}"}
    status, _, body = asyncio.run(facade.handle_request("POST", "/", headers, json.dumps(data).encode(), {}))
    return status, json.loads(body or b"{}")


def test_executions_are_ours_and_storing_machines_stays_ministacks(world: World, original: Original) -> None:
    """StartExecution is answered by our service over the wire; CreateStateMachine reaches the module."""
    facade = seams._Facade(original, world.service)
    arn = world.machine({"A": {"Type": "Pass", "End": True}})
    status, answer = ask(facade, "StartExecution", stateMachineArn=arn, input='{"a":1}')
    assert status == 200
    assert isinstance(answer["startDate"], int | float)
    assert world.wait(answer["executionArn"])["output"] == '{"a":1}'
    created = ask(facade, "CreateStateMachine", name="n", roleArn="arn:aws:iam::000000000000:role/r", definition=GOOD)
    assert created == (200, {"original": True})
    assert facade.attribute == "kept"


def test_an_invalid_definition_never_reaches_the_store(world: World, original: Original) -> None:
    """CreateStateMachine and UpdateStateMachine answer InvalidDefinition, naming state and field."""
    facade = seams._Facade(original, world.service)
    role = "arn:aws:iam::000000000000:role/r"
    status, answer = ask(facade, "CreateStateMachine", name="n", roleArn=role, definition=BAD)
    assert status == 400
    assert answer["__type"].endswith("InvalidDefinition")
    assert "/States/A/Next" in answer["message"]
    status, answer = ask(facade, "UpdateStateMachine", stateMachineArn="arn:x", definition=BAD)
    assert (status, answer["__type"].rsplit("#", 1)[-1]) == (400, "InvalidDefinition")
    assert original.asked == []


def test_what_is_not_built_is_refused_over_the_wire(world: World, original: Original) -> None:
    """TestState is neither ours nor handed on."""
    status, answer = ask(seams._Facade(original, world.service), "RedriveExecution", executionArn="arn:x")
    assert status == 400
    assert "RedriveExecution" in answer["message"]
    assert original.asked == []


def test_a_deployment_with_an_invalid_definition_fails() -> None:
    """CloudFormation's handler raises, which rolls the stack back; substitutions are applied before the check."""
    provisioners = private("services.cloudformation.provisioners")
    own = inspect.unwrap(getattr(provisioners._sfn_definition, "original", provisioners._sfn_definition))
    checked = seams._checked(own)
    held = GOOD.replace('"End": true', '"${Flow}": true')
    assert checked({"DefinitionString": held, "DefinitionSubstitutions": {"Flow": "End"}}) == GOOD
    with pytest.raises(ValueError, match="Field 'Flow' is not supported at /States/A"):
        checked({"DefinitionString": held, "DefinitionSubstitutions": {"Flow": "Flow"}})
    with pytest.raises(ValueError, match="A machine of type EXPRESS"):
        checked({"DefinitionString": GOOD, "StateMachineType": "EXPRESS"})


def test_the_private_names_are_still_there() -> None:
    """The canary: who stores machines, who starts executions, who resolves definitions."""
    module, provisioners = private("services.stepfunctions"), private("services.cloudformation.provisioners")
    assert hasattr(module, "_start_execution")
    assert hasattr(provisioners, "_sfn_definition")
    for handler in ("_sfn_state_machine_create", "_sfn_state_machine_update"):
        source = inspect.getsource(getattr(provisioners, handler))
        assert "_sfn_definition(" in source
    assert "_sfn._start_execution(" in inspect.getsource(private("services.eventbridge")._dispatch_to_stepfunctions)
    with private("core.responses").request_scope("111122223333", "eu-west-1"):
        module._state_machines["arn:x"] = {"definition": GOOD, "roleArn": "r", "type": "STANDARD", "name": "n"}
    assert list(seams.stored_machines("111122223333", "eu-west-1")) == ["arn:x"]
    assert seams.stored_machines("111122223333", "eu-west-2") == {}
    with private("core.responses").request_scope("111122223333", "eu-west-1"):
        del module._state_machines["arn:x"]


def test_eventbridge_starts_executions_through_us(world: World) -> None:
    """A rule's target machine runs here: MiniStack's dispatcher calls the function that we give it."""
    arn = world.machine({"A": {"Type": "Pass", "End": True}})
    status, _, body = seams._starter(world.service)({"stateMachineArn": arn, "input": '{"from":"a rule"}'})
    assert status == 200
    assert world.wait(json.loads(body)["executionArn"])["output"] == '{"from":"a rule"}'
