"""What the stack promises beside its machines and roles: environments, encryption, retention, names."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.stack.handlers import handler_module
from tools import definitions
from tools.definitions import ROOT, resolved, template

FUNCTIONS = definitions.resources("AWS::Serverless::Function")
READERS = {"PrepareListFunction", "TransferSuppressionsFunction"}
SET_BY_LAMBDA = {"aws_lambda_function_memory_size"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_told_what_it_asks_for_and_no_more(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variable of its Settings is in the template, and none that nobody reads."""
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "carillon")
    model = handler_module(FUNCTIONS[function]["Properties"]["Handler"].split(".")[0]).Settings
    given = set(FUNCTIONS[function]["Properties"]["Environment"]["Variables"])
    asked = {name.upper() for name in model.model_fields if name not in SET_BY_LAMBDA}
    assert given == asked


def test_nothing_is_written_twice() -> None:
    """CloudFormation refuses a template with two equal keys, which PyYAML and sam build take."""
    doubled = (
        (ROOT / "template.yaml").read_text().replace("Parameters:\n", "Parameters:\n  DataPolicy: {Type: String}\n")
    )
    with pytest.raises(yaml.constructor.ConstructorError, match="DataPolicy"):
        yaml.load(doubled, definitions._CloudFormationLoader)
    assert template()["Parameters"]


def test_no_number_is_so_large_that_cloudformation_writes_it_otherwise() -> None:
    """From ten million on it may become 1.0E7 on the way (aws/serverless-application-model#200), which is no int of a
    function's environment; in quotes it stays as it is."""

    def numbers(node: Any) -> list[int]:
        match node:
            case dict():
                return [n for member in node.values() for n in numbers(member)]
            case list():
                return [n for member in node for n in numbers(member)]
            case bool():
                return []
        return [node] if isinstance(node, int) else []

    assert max(numbers(template())) < 10**7


def test_every_folder_with_a_handler_is_a_function_of_the_stack() -> None:
    """And the other way round."""
    folders = {path.parent.name for path in (ROOT / "functions").glob("*/app.py")}
    handlers = {function["Properties"]["Handler"] for function in FUNCTIONS.values()}
    assert handlers == {f"{folder}.app.handler" for folder in folders}


def test_only_readers_of_lists_carry_the_heavy_packages() -> None:
    """Whatever imports duckdb or numpy is behind PrepareList, and what reads files behind that or the transfers."""
    assert {name for name, f in FUNCTIONS.items() if f["Properties"].get("Layers")} == READERS


def test_functions_run_on_arm_unless_told_otherwise() -> None:
    """Python 3.13, arm64; but those with the layer, which run on what that is built for."""
    shared = template()["Globals"]["Function"]
    assert shared["Runtime"] == "python3.13"
    assert resolved(shared["Architectures"]) == ["arm64"]
    assert resolved(shared["Architectures"], {"Architecture": "x86_64"}) == ["x86_64"]
    layer = template()["Resources"]["ListLayer"]
    built_for = [layer["Metadata"]["BuildArchitecture"]]
    own = {n: f["Properties"]["Architectures"] for n, f in FUNCTIONS.items() if "Architectures" in f["Properties"]}
    assert own == dict.fromkeys(READERS, built_for)
    assert layer["Properties"]["CompatibleArchitectures"] == built_for
    assert resolved(built_for) == ["x86_64"]


def test_only_readers_of_lists_import_what_is_in_the_layer() -> None:
    """Every other function would fail at its first import on Lambda."""
    in_layer = [line.replace("-", "_") for line in (ROOT / "layers/list/requirements.in").read_text().split()]
    others = [f["Properties"]["Handler"] for name, f in FUNCTIONS.items() if name not in READERS]
    apps = [handler.removesuffix(".handler") for handler in others]
    program = f"""
import importlib, sys
sys.path.insert(0, {str(ROOT / "functions")!r})
sys.modules.update(dict.fromkeys({in_layer!r}))  # None: an import of it fails
for app in {apps!r}:
    importlib.import_module(app)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "POWERTOOLS_SERVICE_NAME": "x"})


@pytest.mark.parametrize("table", definitions.resources("AWS::DynamoDB::Table"))
def test_tables_are_on_demand_recoverable_encrypted_and_kept(table: str) -> None:
    """And go with the stack only where that is asked for."""
    resource = template()["Resources"][table]
    properties = resource["Properties"]
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert properties["SSESpecification"] == {"SSEEnabled": True}
    assert resolved(resource["DeletionPolicy"]) == resolved(resource["UpdateReplacePolicy"]) == "Retain"
    assert resolved(resource["DeletionPolicy"], {"DataPolicy": "Delete"}) == "Delete"


def test_rows_expire_and_suppressions_never_do() -> None:
    """TTL is on what has an expires_at."""
    with_ttl = {
        name
        for name, table in definitions.resources("AWS::DynamoDB::Table").items()
        if table["Properties"].get("TimeToLiveSpecification") == {"AttributeName": "expires_at", "Enabled": True}
    }
    assert with_ttl == {"CampaignsTable", "SettingsTable", "TasksTable"}


def test_the_bucket_is_private_versioned_and_encrypted() -> None:
    """A running launch pins the version of its list, so versions are kept for a while."""
    properties = template()["Resources"]["Bucket"]["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert properties["BucketEncryption"]


@pytest.mark.parametrize("queue", definitions.resources("AWS::SQS::Queue"))
def test_queues_are_encrypted_and_keep_their_messages(queue: str) -> None:
    """14 days: SQS's most."""
    properties = template()["Resources"][queue]["Properties"]
    assert properties["SqsManagedSseEnabled"] is True
    assert properties["MessageRetentionPeriod"] == 14 * 86400


def test_a_message_stays_hidden_long_enough_for_its_sender() -> None:
    """Six times the function's time limit, as Lambda asks for."""
    sender = FUNCTIONS["SendBatchFunction"]["Properties"]
    assert template()["Resources"]["SendQueue"]["Properties"]["VisibilityTimeout"] >= 6 * sender["Timeout"]
    event = sender["Events"]["DueMessages"]["Properties"]
    assert event["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert event["BatchSize"] == 10


def test_every_dead_letter_queue_has_an_alarm() -> None:
    """What lies there needs a person."""
    watched = {
        alarm["Properties"]["Dimensions"][0]["Value"]["Fn::GetAtt"][0]
        for alarm in definitions.resources("AWS::CloudWatch::Alarm").values()
    }
    assert watched == {name for name in definitions.resources("AWS::SQS::Queue") if "DeadLetter" in name}


def test_every_log_group_expires() -> None:
    """And every function, machine, API and stream writes into one of them."""
    groups = definitions.resources("AWS::Logs::LogGroup")
    assert {str(group["Properties"]["RetentionInDays"]) for group in groups.values()} == {
        str({"Ref": "LogRetentionDays"})
    }
    for function in FUNCTIONS.values():
        assert function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] in groups
    assert len({group["Properties"]["LogGroupName"]["Fn::Sub"] for group in groups.values()}) == len(groups)


@pytest.mark.parametrize("machine", definitions.resources("AWS::Serverless::StateMachine"))
def test_a_machine_logs_errors_and_no_addresses(machine: str) -> None:
    """Its execution data hold addresses."""
    properties = template()["Resources"][machine]["Properties"]
    assert properties["Logging"]["IncludeExecutionData"] is False
    assert properties["Logging"]["Level"] == "ERROR"
    assert properties["Tracing"] == {"Enabled": True}


def test_names_that_roles_are_built_from_are_fixed() -> None:
    """A role names a machine's executions before the machine exists; this is what keeps the two together."""
    labels = {}
    text = (ROOT / "template.yaml").read_text()
    for machine in definitions.state_machines():
        name = template()["Resources"][machine.resource]["Properties"]["Name"]
        dashed = machine.name.replace("_", "-")
        assert resolved(name, {"BusinessUnit": "shop"}) == f"carillon-shop-{dashed}"
        for name, state, _ in definitions.states(machine.definition):
            if "Label" in state:
                labels[name] = state["Label"]
                assert f"execution:carillon-${{BusinessUnit}}-{dashed}/{state['Label']}:*" in text
    assert set(labels) == {"FanOut", "EnrolUnreached"}
    assert f"mapRun:carillon-${{BusinessUnit}}-launch-campaign/{labels['FanOut']}:*" in text


def test_the_archive_is_gzipped_by_day_and_errors_lie_outside() -> None:
    """The table's location holds events and nothing else; an expression in Prefix asks for an error prefix with the
    error's type (contract sheet, section 4)."""
    destination = template()["Resources"]["EventStream"]["Properties"]["ExtendedS3DestinationConfiguration"]
    assert destination["CompressionFormat"] == "GZIP"
    assert destination["Prefix"] == "events/day=!{timestamp:yyyy-MM-dd}/"
    assert "!{firehose:error-output-type}" in destination["ErrorOutputPrefix"]
    assert not destination["ErrorOutputPrefix"].startswith("events/")


def test_every_event_of_ses_goes_to_the_archive() -> None:
    """All ten types that a configuration set knows."""
    destination = template()["Resources"]["EventDestination"]["Properties"]["EventDestination"]
    assert len(set(destination["MatchingEventTypes"])) == 10


def test_the_role_that_ses_takes_is_made_before_the_stream() -> None:
    """SES tries it when the destination is made, and refuses one that IAM has not spread yet (hashicorp/
    terraform-provider-aws#33367: "Could not assume IAM role"). A stream takes longer to make than that."""
    role = definitions.resources("AWS::IAM::Role")["EventDestinationRole"]["Properties"]
    assert "EventStream" not in str(role)
    stream = template()["Resources"]["EventStream"]["Properties"]["DeliveryStreamName"]
    (statement,) = role["Policies"][0]["PolicyDocument"]["Statement"]
    assert resolved(statement["Resource"]).endswith(f":deliverystream/{resolved(stream)}")


def test_a_launchs_end_is_heard_of() -> None:
    """The rule sees this machine's executions that did not succeed, and keeps trying for a day."""
    rule = FUNCTIONS["RecordLaunchEndFunction"]["Properties"]["Events"]["LaunchEnded"]["Properties"]
    assert rule["Pattern"] == {
        "source": ["aws.states"],
        "detail-type": ["Step Functions Execution Status Change"],
        "detail": {
            "status": ["FAILED", "TIMED_OUT", "ABORTED"],
            "stateMachineArn": [{"Ref": "LaunchCampaignStateMachine"}],
        },
    }
    assert rule["RetryPolicy"]["MaximumEventAgeInSeconds"] == 86400
    assert rule["DeadLetterConfig"]


def test_every_rule_may_use_the_queue_for_what_it_could_not_deliver() -> None:
    """Whatever the stack is called: a name that CloudFormation makes up is cut to a rule's 64 characters, and then does
    not begin with the whole of the stack's."""
    (_, allow) = template()["Resources"]["EventDeadLetterQueuePolicy"]["Properties"]["PolicyDocument"]["Statement"]
    longest = {"BusinessUnit": "b" * 20}
    pattern = resolved(allow["Condition"]["ArnLike"]["aws:SourceArn"], longest)
    rules = [
        event["Properties"].get("RuleName", event["Properties"].get("Name"))
        for function in FUNCTIONS.values()
        for event in function["Properties"].get("Events", {}).values()
        if event["Type"] in ("EventBridgeRule", "Schedule")
    ]
    assert len(rules) == 2
    for rule in rules:
        name = resolved(rule, longest)
        assert len(name) <= 64
        arn = f"arn:aws:events:{definitions.REGION}:{definitions.ACCOUNT_ID}:rule/{name}"
        assert fnmatch.fnmatchcase(arn, pattern)


def test_no_registry_and_no_machine_is_named() -> None:
    """Neither a host that packages come from, nor a path of somebody's computer."""
    files = [
        *ROOT.glob("*.yaml"),
        *ROOT.glob("*.toml"),
        *ROOT.glob("statemachines/*"),
        *ROOT.glob("functions/requirements*"),
        *ROOT.glob("layers/*/requirements*"),
        *ROOT.glob("requirements*"),
        *ROOT.glob("tools/*.json"),
        *ROOT.glob("events/**/*.json"),
    ]
    told = re.compile(r"index-url|registry\.|pypi\.|/home/|/root/|/tmp/|/work/|127\.0\.0\.1|localhost|resolved\"")
    assert {path.name: told.findall(path.read_text()) for path in files if told.search(path.read_text())} == {}


def test_handlers_say_what_they_read() -> None:
    """A handler without Settings would read its environment in some other way."""
    for path in (ROOT / "functions").glob("*/app.py"):
        classes: list[Any] = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        assert "Settings" in {node.name for node in classes}, path
