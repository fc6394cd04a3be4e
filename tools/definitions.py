"""The template and the state machines as data: for the checks, and for what is generated from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PARTITION, REGION, ACCOUNT_ID = "aws", "eu-central-1", "111122223333"
SUBSTITUTION = re.compile(r"\$\{(\w+)\}")


class _Strict(yaml.SafeLoader):
    """YAML without two equal keys: AWS refuses them, and PyYAML, so ``sam build`` too, would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping all of whose keys are different."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"written twice: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


class _CloudFormationLoader(_Strict):
    """YAML with CloudFormation's short tags, read as their long forms; a plain ``on`` stays text."""


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
        if suffix == "GetAtt":
            value = str(value).split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_CloudFormationLoader.add_multi_constructor("!", _tagged)


@cache
def template() -> dict[str, Any]:
    """``template.yaml``, functions such as ``!Ref`` in their long form."""
    parsed: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), _CloudFormationLoader)  # noqa: S506  (safe)
    return parsed


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """The template's resources of one type, by logical id."""
    return {name: r for name, r in template()["Resources"].items() if r["Type"] == kind}


def resolved(value: Any, parameters: Mapping[str, str] | None = None) -> Any:
    """``value`` of the template as a deployment might see it: what a reference gives is made up from its name.

    Queues, tables, roles … are named by their logical id, so that two values are equal only if they name the same.
    """
    match value:
        case {"Ref": str(name)}:
            return _ref(name, parameters or {})
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return arn(name) if attribute == "Arn" else f"{name}.{attribute}"
        case {"Fn::Sub": str(text)}:
            return re.sub(
                r"\$\{([\w:.]+)\}",
                lambda found: resolved(
                    {"Fn::GetAtt": found[1].split(".", 1)} if "." in found[1] else {"Ref": found[1]}, parameters
                ),
                text,
            )
        case dict():
            return {key: resolved(member, parameters) for key, member in value.items()}
        case list():
            return [resolved(member, parameters) for member in value]
    return value


def _ref(name: str, parameters: Mapping[str, str]) -> str:
    pseudo = {"AWS::Partition": PARTITION, "AWS::Region": REGION, "AWS::AccountId": ACCOUNT_ID}
    if name in pseudo:
        return pseudo[name]
    if name in template()["Parameters"]:
        samples = {"BusinessUnit": "demo", "SendingDomain": "news.example.com"}
        return str({**samples, **parameters}.get(name, template()["Parameters"][name].get("Default", "")))
    kind = template()["Resources"][name]["Type"] if name in template()["Resources"] else ""
    if kind in ("AWS::Serverless::StateMachine", "AWS::SecretsManager::Secret"):
        return arn(name)
    if kind == "AWS::SQS::Queue":
        return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT_ID}/{name}"
    if kind == "AWS::Glue::Database":
        return str(resolved(template()["Resources"][name]["Properties"]["DatabaseInput"]["Name"], parameters))
    if kind == "AWS::SES::ConfigurationSet":
        return str(resolved(template()["Resources"][name]["Properties"]["Name"], parameters))
    return name


_ARNS = {
    "AWS::Serverless::Function": "arn:{p}:lambda:{r}:{a}:function:{n}",
    "AWS::Serverless::StateMachine": "arn:{p}:states:{r}:{a}:stateMachine:{n}",
    "AWS::DynamoDB::Table": "arn:{p}:dynamodb:{r}:{a}:table/{n}",
    "AWS::S3::Bucket": "arn:{p}:s3:::{n}",
    "AWS::SQS::Queue": "arn:{p}:sqs:{r}:{a}:{n}",
    "AWS::IAM::Role": "arn:{p}:iam::{a}:role/{n}",
    "AWS::Logs::LogGroup": "arn:{p}:logs:{r}:{a}:log-group:{n}:*",
    "AWS::KinesisFirehose::DeliveryStream": "arn:{p}:firehose:{r}:{a}:deliverystream/{n}",
    "AWS::SecretsManager::Secret": "arn:{p}:secretsmanager:{r}:{a}:secret:{n}",
}


def arn(logical_id: str) -> str:
    """What ``!GetAtt X.Arn`` may give: machines by their fixed name, everything else by its logical id."""
    resource = template()["Resources"][logical_id]
    name = logical_id
    if resource["Type"] == "AWS::Serverless::StateMachine":
        name = resolved(resource["Properties"]["Name"])
    return _ARNS[resource["Type"]].format(p=PARTITION, r=REGION, a=ACCOUNT_ID, n=name)


@dataclass(frozen=True)
class StateMachine:
    """A machine of the template, its definition as it is on disk."""

    name: str
    """``launch_campaign``."""
    resource: str
    """Its logical id."""
    text: str
    """YAML, substitutions not yet made."""
    substitutions: dict[str, Any]

    @property
    def definition(self) -> dict[str, Any]:
        """Parsed, with the template's substitutions made."""
        parsed: dict[str, Any] = yaml.load(self.substituted(), _Strict)  # noqa: S506  (safe)
        return parsed

    def substituted(self) -> str:
        """The text as CloudFormation hands it to Step Functions."""
        values = resolved(self.substitutions)
        return SUBSTITUTION.sub(lambda found: str(values[found[1]]), self.text)


def state_machines() -> list[StateMachine]:
    """Every machine of the template."""
    machines = []
    for resource, described in resources("AWS::Serverless::StateMachine").items():
        path = ROOT / described["Properties"]["DefinitionUri"]
        machines.append(
            StateMachine(
                name=path.name.removesuffix(".asl.yaml"),
                resource=resource,
                text=path.read_text(),
                substitutions=described["Properties"]["DefinitionSubstitutions"],
            )
        )
    return machines


def states(definition: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Each state with its name and how many Maps it lies in, in the order of the file."""
    for name, state in definition["States"].items():
        yield name, state, depth
        if "ItemProcessor" in state:
            yield from states(state["ItemProcessor"], depth + 1)


def scopes(definition: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The machine and each Map's processor: what has a ``StartAt`` and ``States``."""
    yield definition
    for state in definition["States"].values():
        if "ItemProcessor" in state:
            yield from scopes(state["ItemProcessor"])


def successors(state: Mapping[str, Any]) -> Iterator[str]:
    """Where a state may lead, its catchers included."""
    for part in ("Next", "Default"):
        if part in state:
            yield state[part]
    for rule in (*state.get("Choices", ()), *state.get("Catch", ())):
        yield rule["Next"]
