"""A canary for each seam in MiniStack 1.5.33: when one dies, MiniStack has changed and the seam must be cut anew."""

import io
import json
import time
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local import seams
from local.caller import client_of
from local.cloud import ACCOUNT_ID, REGION, Cloud
from local.identity import Identity
from local.ministack import private
from local.ports import AwsError


def name_of(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


def eventually(holds: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return answer


def make_role(cloud: Cloud, service: str, *statements: dict[str, Any]) -> str:
    iam, name = cloud.client("iam"), name_of("role")
    trust = {"Effect": "Allow", "Principal": {"Service": f"{service}.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
    if statements:
        policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
        iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=policy)
    return arn


def allow(action: str | list[str], resource: str, **condition: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    return {**statement, "Condition": condition} if condition else statement


def as_role(cloud: Cloud, role_arn: str, principal: str, service: str) -> Any:
    identity = cloud.iam.assume(role_arn, f"{principal}.amazonaws.com")
    return client_of(service, identity, cloud.endpoint, REGION)


def make_function(cloud: Cloud, code: str, *statements: dict[str, Any], timeout: int = 10) -> tuple[str, str]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("app.py", code)
    answer = cloud.client("lambda").create_function(
        FunctionName=name_of("function"),
        Runtime="python3.13",
        Handler="app.handler",
        Role=make_role(cloud, "lambda", *statements),
        Code={"ZipFile": archive.getvalue()},
        Timeout=timeout,
    )
    return answer["FunctionName"], answer["FunctionArn"]


def invoke(cloud: Cloud, function: str, event: Any = None) -> tuple[str | None, Any]:
    answer = cloud.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event).encode())
    return answer.get("FunctionError"), json.loads(answer["Payload"].read())


def make_queue(cloud: Cloud, **attributes: str) -> tuple[str, str]:
    name = name_of("queue")
    url: str = cloud.client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url, f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{name}"


def make_bucket(cloud: Cloud) -> str:
    name = name_of("bucket")
    cloud.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    return name


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    code: str = refused.value.response["Error"]["Code"]
    return code


def refusal(*arguments: Any, **options: Any) -> tuple[int, str]:
    """Status and body of a plain HTTP request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(*arguments, **options)
    return refused.value.code, refused.value.read().decode()


def send_message(role: str) -> dict[str, Any]:
    """The members of a schedule for 2030 that calls nothing of importance."""
    return {
        "ScheduleExpression": "at(2030-01-01T00:00:00)",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {"Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:q", "RoleArn": role, "Input": "x"},
    }


# MiniStack's names


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seams are private names: any other MiniStack is refused at start, by name."""
    seams.check_version()
    monkeypatch.setattr(seams, "EXPECTED_VERSION", "1.5.34")
    with pytest.raises(RuntimeError, match=r"needs ministack 1\.5\.34"):
        seams.check_version()


def test_a_name_that_is_gone_is_told(cloud: Cloud) -> None:
    """A seam on nothing says what is missing, instead of doing nothing."""
    with pytest.raises(RuntimeError, match=r"had ministack\.core\.arn\.nothing"):
        seams.replace("core.arn", "nothing", lambda original: original)


def test_a_second_cloud_in_one_process_is_refused(cloud: Cloud) -> None:
    """MiniStack keeps its state in modules."""
    with pytest.raises(RuntimeError, match="already has a local cloud"):
        Cloud(cloud.directory / "second")


# Who calls


def test_the_operator_is_a_user_and_no_root(cloud: Cloud) -> None:
    """All local runs use an IAM user's keys."""
    arn = cloud.client("sts").get_caller_identity()["Arn"]
    assert arn == f"arn:aws:iam::{ACCOUNT_ID}:user/carillon-operator"


@pytest.mark.parametrize("key", ["test", ACCOUNT_ID, "AKIAIOSFODNN7EXAMPLE"])
def test_keys_that_ministack_takes_for_root_are_refused(cloud: Cloud, key: str) -> None:
    """`test` and account numbers do everything in MiniStack, unsigned."""
    stranger = client_of("sqs", Identity(key, "test"), cloud.endpoint, REGION)
    with pytest.raises(ClientError) as refused:
        stranger.list_queues()
    assert code_of(refused) in ("InvalidClientTokenId", "UnrecognizedClientException")


def test_a_wrong_secret_is_refused(cloud: Cloud) -> None:
    """Signatures of the operator's key are checked."""
    key = cloud.operator_environment()["AWS_ACCESS_KEY_ID"]
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|InvalidSignatureException"):
        client_of("sqs", Identity(key, "wrong"), cloud.endpoint, REGION).list_queues()


def test_a_role_is_assumed_only_by_whom_it_trusts(cloud: Cloud) -> None:
    """The operator may do everything, but a role's trust policy decides who becomes it."""
    role = make_role(cloud, "scheduler")
    with pytest.raises(ClientError) as refused:
        cloud.client("sts").assume_role(RoleArn=role, RoleSessionName="someone")
    assert code_of(refused) == "AccessDenied"


def test_ministacks_own_reset_and_settings_are_shut(cloud: Cloud) -> None:
    """They ask for no credentials."""
    for path in ("reset", "config"):
        request = urllib.request.Request(f"{cloud.endpoint}/_ministack/{path}", data=b"{}")
        assert refusal(request)[0] == 404


def test_the_control_path_wants_its_token(cloud: Cloud) -> None:
    """Whoever reads the state file, and nobody else, may move the clock; unknown switches are refused."""
    request = urllib.request.Request(f"{cloud.endpoint}/_carillon/reset", data=b"{}")
    assert refusal(request)[0] == 403
    request = urllib.request.Request(
        f"{cloud.endpoint}/_carillon/nothing", data=b"{}", headers={"x-carillon-token": cloud.token}
    )
    assert refusal(request)[0] == 404


def test_faults_are_switched_over_the_control_path(cloud: Cloud) -> None:
    """For tests that drive a cloud in another process; what cannot be is refused."""

    def switch(path: str, document: Any) -> urllib.request.Request:
        return urllib.request.Request(
            f"{cloud.endpoint}/_carillon/{path}",
            data=json.dumps(document).encode(),
            headers={"x-carillon-token": cloud.token},
        )

    group, scheduler = name_of("group"), cloud.client("scheduler")
    fault = {"code": "ThrottlingException", "operation": "CreateScheduleGroup", "name": group, "times": 1}
    urllib.request.urlopen(switch("scheduler/faults", {"faults": [fault]})).close()
    with pytest.raises(ClientError, match="ThrottlingException"):
        scheduler.create_schedule_group(Name=group)
    scheduler.create_schedule_group(Name=group)
    assert refusal(switch("scheduler/faults", {"faults": [{"colour": "red"}]}))[0] == 400
    assert refusal(switch("clock/advance", {"seconds": -1}))[0] == 400
    urllib.request.urlopen(switch("scheduler/faults", {"faults": []})).close()


# Scheduler over HTTP


def test_scheduler_is_ours_over_http(cloud: Cloud) -> None:
    """boto3 checks no maximum; MiniStack's own takes a name of 65 characters."""
    role = make_role(cloud, "scheduler")
    with pytest.raises(ClientError, match="length less than or equal to 64") as refused:
        cloud.client("scheduler").create_schedule(Name="n" * 65, **send_message(role))
    assert code_of(refused) == "ValidationException"


def test_iam_sees_a_schedules_group(cloud: Cloud) -> None:
    """A role for `schedule/campaign-*/*` may create there and nowhere else, and pass one role."""
    target = make_role(cloud, "scheduler")
    group, other = name_of("campaign"), name_of("other")
    arn = f"arn:aws:scheduler:{REGION}:{ACCOUNT_ID}:schedule/campaign-*/*"
    passing = allow("iam:PassRole", target, StringEquals={"iam:PassedToService": "scheduler.amazonaws.com"})
    role = make_role(cloud, "lambda", allow(["scheduler:CreateSchedule", "scheduler:DeleteSchedule"], arn), passing)
    for each in (group, other):
        cloud.client("scheduler").create_schedule_group(Name=each)
    scheduler = as_role(cloud, role, "lambda", "scheduler")
    scheduler.create_schedule(Name="a", GroupName=group, **send_message(target))
    scheduler.delete_schedule(Name="a", GroupName=group)
    for refused_group, refused_role in ((other, target), (group, make_role(cloud, "scheduler"))):
        with pytest.raises(ClientError) as refused:
            scheduler.create_schedule(Name="a", GroupName=refused_group, **send_message(refused_role))
        assert code_of(refused) == "AccessDeniedException"


def test_a_schedule_reaches_a_real_queue_as_its_role(cloud: Cloud) -> None:
    """Both target kinds; DelaySeconds counts on the clock; without permission it is the dead-letter queue's."""
    url, arn = make_queue(cloud)
    dead_url, dead_arn = make_queue(cloud)
    role = make_role(cloud, "scheduler", allow("sqs:SendMessage", arn), allow("sqs:SendMessage", dead_arn))
    scheduler, sqs = cloud.client("scheduler"), cloud.client("sqs")
    due = time.strftime("at(%Y-%m-%dT%H:%M:%S)", time.gmtime(cloud.clock.time() + 60))
    universal = json.dumps({"QueueUrl": url, "MessageBody": "universal", "DelaySeconds": 300})
    elsewhere = json.dumps({"QueueUrl": make_queue(cloud)[0], "MessageBody": "elsewhere"})
    for target_arn, text in (
        (arn, "templated"),
        ("arn:aws:scheduler:::aws-sdk:sqs:sendMessage", universal),
        ("arn:aws:scheduler:::aws-sdk:sqs:sendMessage", elsewhere),
    ):
        scheduler.create_schedule(
            Name=name_of("s"),
            ScheduleExpression=due,
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={"Arn": target_arn, "RoleArn": role, "Input": text, "DeadLetterConfig": {"Arn": dead_arn}},
        )

    def received(queue: str) -> list[str]:
        messages = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"]).get("Messages", [])
        for message in messages:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return [message["Body"] for message in messages]

    assert received(url) == []
    cloud.advance(61)
    assert eventually(lambda: received(url)) == ["templated"]
    assert eventually(lambda: received(dead_url)) == [elsewhere]
    cloud.advance(290)
    assert received(url) == []
    cloud.advance(20)
    assert eventually(lambda: received(url)) == ["universal"]


# CloudFormation


def deploy(cloud: Cloud, resources: dict[str, Any], stack: str = "", **parameters: str) -> tuple[str, str, str]:
    """Create or update a stack; its name, end state and the first reason of a failure."""
    template = {"Resources": resources, "Parameters": {name: {"Type": "String"} for name in parameters}}
    members = {
        "TemplateBody": json.dumps(template),
        "Capabilities": ["CAPABILITY_IAM"],
        "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
    }
    client = cloud.client("cloudformation")
    if stack:
        client.update_stack(StackName=stack, **members)
    else:
        stack = name_of("stack")
        client.create_stack(StackName=stack, **members)

    def ended() -> str:
        status: str = client.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        return "" if status.endswith("IN_PROGRESS") else status

    status = eventually(ended)
    events = client.describe_stack_events(StackName=stack)["StackEvents"]
    reasons = [event.get("ResourceStatusReason", "") for event in events if "FAILED" in event["ResourceStatus"]]
    return stack, status, reasons[-1] if reasons else ""


def test_cloudformation_makes_schedules_through_ours(cloud: Cloud) -> None:
    """Created, updated in place, moved to another group, deleted; numbers may come as text."""
    role = make_role(cloud, "scheduler")
    group = name_of("group")

    def resources(schedule_group: Any, hour: int) -> dict[str, Any]:
        target = {**send_message(role)["Target"], "RetryPolicy": {"MaximumRetryAttempts": {"Ref": "Retries"}}}
        schedule = {
            **send_message(role),
            "Name": "nightly",
            "GroupName": schedule_group,
            "ScheduleExpression": f"at(2030-01-01T{hour:02}:00:00)",
            "ScheduleExpressionTimezone": "Europe/Berlin",
            "Target": target,
        }
        return {
            "Group": {"Type": "AWS::Scheduler::ScheduleGroup", "Properties": {"Name": group}},
            "Nightly": {"Type": "AWS::Scheduler::Schedule", "Properties": schedule},
        }

    scheduler = cloud.client("scheduler")
    stack, status, reason = deploy(cloud, resources({"Ref": "Group"}, 1), Retries="3")
    assert (status, reason) == ("CREATE_COMPLETE", "")
    created = scheduler.get_schedule(Name="nightly", GroupName=group)
    assert created["ScheduleExpressionTimezone"] == "Europe/Berlin"
    assert created["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 3
    deploy(cloud, resources({"Ref": "Group"}, 2), stack, Retries="3")
    updated = scheduler.get_schedule(Name="nightly", GroupName=group)
    assert updated["ScheduleExpression"] == "at(2030-01-01T02:00:00)"
    assert updated["CreationDate"] == created["CreationDate"]
    deploy(cloud, resources("default", 2), stack, Retries="3")
    assert scheduler.get_schedule(Name="nightly", GroupName="default")["State"] == "ENABLED"
    assert eventually(lambda: scheduler.list_schedules(GroupName=group)["Schedules"] == [])
    cloud.client("cloudformation").delete_stack(StackName=stack)
    assert eventually(lambda: scheduler.list_schedules(GroupName="default", NamePrefix="nightly")["Schedules"] == [])


def test_a_schedule_that_aws_refuses_rolls_the_stack_back(cloud: Cloud) -> None:
    """An error in a handler is the resource's failure."""
    schedule = {**send_message(make_role(cloud, "scheduler")), "ScheduleExpression": "at(2030-01-01)"}
    _, status, reason = deploy(cloud, {"Bad": {"Type": "AWS::Scheduler::Schedule", "Properties": schedule}})
    assert status.startswith("ROLLBACK")
    assert "Invalid Schedule Expression" in reason


def test_a_reference_to_a_secret_is_its_arn(cloud: Cloud) -> None:
    """CloudFormation's reference of AWS::SecretsManager::Secret; policies name it by that."""
    properties = {"GenerateSecretString": {"PasswordLength": 40}, "Description": "one"}
    resources = {"Token": {"Type": "AWS::SecretsManager::Secret", "Properties": properties}}
    stack, *_ = deploy(cloud, resources)
    secrets, client = cloud.client("secretsmanager"), cloud.client("cloudformation")

    def physical_id() -> str:
        resource = client.describe_stack_resource(StackName=stack, LogicalResourceId="Token")
        identifier: str = resource["StackResourceDetail"]["PhysicalResourceId"]
        return identifier

    arn = physical_id()
    assert arn.startswith(f"arn:aws:secretsmanager:{REGION}:{ACCOUNT_ID}:secret:")
    token = secrets.get_secret_value(SecretId=arn)["SecretString"]
    properties["Description"] = "two"
    assert deploy(cloud, resources, stack)[1] == "UPDATE_COMPLETE"
    assert physical_id() == arn
    assert secrets.describe_secret(SecretId=arn)["Description"] == "two"
    assert secrets.get_secret_value(SecretId=arn)["SecretString"] == token
    client.delete_stack(StackName=stack)
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        eventually(lambda: "DeletedDate" in secrets.describe_secret(SecretId=arn))


def test_a_functions_variables_are_text(cloud: Cloud) -> None:
    """Numbers and truth values of a template reach the function as CloudFormation spells them."""
    resource = function_resource(make_role(cloud, "lambda"))
    resource["Properties"]["Environment"] = {"Variables": {"SECONDS": 30, "FAST": True}}
    code = "import os\ndef handler(event, context): return os.environ['SECONDS'], os.environ['FAST']"
    resource["Properties"]["Code"] = {"ZipFile": code}
    stack, _, reason = deploy(cloud, {"F": resource})
    assert reason == ""
    name = cloud.client("cloudformation").describe_stack_resource(StackName=stack, LogicalResourceId="F")
    assert invoke(cloud, name["StackResourceDetail"]["PhysicalResourceId"])[1] == ["30", "true"]


def function_resource(role: str, timeout: int = 10) -> dict[str, Any]:
    properties = {
        "Runtime": "python3.13",
        "Handler": "index.handler",
        "Role": role,
        "Timeout": timeout,
        "Code": {"ZipFile": "def handler(event, context): return event"},
    }
    return {"Type": "AWS::Lambda::Function", "Properties": properties}


def test_a_functions_role_must_trust_lambda(cloud: Cloud) -> None:
    """AWS refuses a role that Lambda cannot assume."""
    _, status, reason = deploy(cloud, {"F": function_resource(make_role(cloud, "scheduler"))})
    assert status.startswith("ROLLBACK")
    assert "cannot be assumed by Lambda" in reason


@pytest.mark.parametrize(
    ("actions", "visibility", "told"),
    [
        (["sqs:ReceiveMessage", "sqs:GetQueueAttributes"], "30", "does not have permissions to call DeleteMessage"),
        ("sqs:*", "9", "visibility timeout: 9 seconds is less than Function timeout: 10"),
        ("sqs:*", "30", ""),
    ],
)
def test_a_mapping_needs_permission_and_time(cloud: Cloud, actions: Any, visibility: str, told: str) -> None:
    """AWS refuses an event source mapping whose role cannot poll, or whose messages would come back too soon."""
    _, arn = make_queue(cloud, VisibilityTimeout=visibility)
    role = make_role(cloud, "lambda", allow(actions, arn))
    mapping = {"FunctionName": {"Ref": "F"}, "EventSourceArn": arn}
    resources = {
        "F": function_resource(role),
        "M": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": mapping},
    }
    _, status, reason = deploy(cloud, resources)
    assert (told in reason, status.startswith("ROLLBACK")) == (True, bool(told))


# Functions


def test_a_function_signs_as_its_role_and_reads_our_clock(cloud: Cloud) -> None:
    """Its environment has the endpoint, the clock's file, and no operator's key."""
    code = (
        "import os, boto3\n"
        "def handler(event, context):\n"
        "    with open(os.environ['CARILLON_CLOCK_FILE']) as file: offset = float(file.read())\n"
        "    return {'who': boto3.client('sts').get_caller_identity()['Arn'], 'offset': offset}\n"
    )
    function, _ = make_function(cloud, code)
    _, answer = invoke(cloud, function)
    assert ":assumed-role/role-" in answer["who"]
    assert answer["offset"] == cloud.clock.offset


def test_a_function_may_do_what_its_role_may(cloud: Cloud) -> None:
    """AUTH=true: the role's policies are evaluated."""
    url, arn = make_queue(cloud)
    other, _ = make_queue(cloud)
    code = (
        "import boto3, botocore\n"
        "def handler(event, context):\n"
        "    try: boto3.client('sqs').send_message(QueueUrl=event, MessageBody='x')\n"
        "    except botocore.exceptions.ClientError as refused: return refused.response['Error']['Code']\n"
    )
    function, _ = make_function(cloud, code, allow("sqs:SendMessage", arn))
    assert invoke(cloud, function, url)[1] is None
    assert "AccessDenied" in invoke(cloud, function, other)[1]


def test_an_error_carries_its_class(cloud: Cloud) -> None:
    """Machines catch functions' errors by class name."""
    code = "class ListRejected(Exception): pass\ndef handler(event, context): raise ListRejected('no one')\n"
    error, payload = invoke(cloud, make_function(cloud, code)[0])
    assert (error, payload["errorType"], payload["errorMessage"]) == ("Unhandled", "ListRejected", "no one")
    assert "raise ListRejected" in payload["stackTrace"][-1]


def test_a_timeout_has_its_own_name(cloud: Cloud) -> None:
    """Lambda's name for it is Sandbox.Timedout."""
    code = "import time\ndef handler(event, context): time.sleep(5)\n"
    _, payload = invoke(cloud, make_function(cloud, code, timeout=1)[0])
    assert payload["errorType"] == "Sandbox.Timedout"


def test_a_function_sees_the_sdk_and_not_this_machines_packages(cloud: Cloud) -> None:
    """What a function needs beyond boto3 it brings, or a layer does."""
    error, payload = invoke(cloud, make_function(cloud, "import boto3, duckdb\ndef handler(e, c): pass\n")[0])
    assert (error, payload["errorType"]) == ("Unhandled", "Runtime.ImportModuleError")
    assert "duckdb" in payload["errorMessage"]


def test_code_is_unpacked_once_for_all_its_workers(cloud: Cloud) -> None:
    """Cold starts of the same code find it unpacked and compiled."""
    mark = name_of("mark")
    code = f"import os\n# {mark}\ndef handler(event, context): return [os.getpid(), os.path.realpath(__file__)]\n"
    (_, first), (_, second) = (invoke(cloud, make_function(cloud, code)[0]) for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert first[1].startswith(str(cloud.directory / "code"))


# Events


def make_rule(cloud: Cloud, function_arn: str, *, permitted: bool, **rule: Any) -> None:
    events, name = cloud.client("events"), name_of("rule")
    arn = events.put_rule(Name=name, **rule)["RuleArn"]
    events.put_targets(Rule=name, Targets=[{"Id": "f", "Arn": function_arn}])
    if permitted:
        cloud.client("lambda").add_permission(
            FunctionName=function_arn,
            StatementId="rule",
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
            SourceArn=arn,
        )


RELAY = (
    "import boto3, json\n"
    "def handler(event, context):\n"
    "    boto3.client('sqs').send_message(QueueUrl='%s', MessageBody=json.dumps(event))\n"
)


def test_an_event_of_a_service_reaches_a_function_that_permits_the_rule(cloud: Cloud) -> None:
    """And none that does not: EventBridge needs a statement in the function's policy."""
    pattern = json.dumps({"source": ["aws.states"], "detail": {"status": ["ABORTED"], "name": [name_of("run")]}})
    urls = []
    for permitted in (False, True):
        url, arn = make_queue(cloud)
        _, function_arn = make_function(cloud, RELAY % url, allow("sqs:SendMessage", arn))
        make_rule(cloud, function_arn, permitted=permitted, EventPattern=pattern)
        urls.append(url)
    detail = {"status": "ABORTED", "name": json.loads(pattern)["detail"]["name"][0]}
    cloud.emit(
        {
            "source": "aws.states",
            "detail-type": "Step Functions Execution Status Change",
            "detail": detail,
            "time": "2030-01-01T00:00:00Z",
            "resources": ["arn:x"],
        }
    )
    sqs = cloud.client("sqs")
    message = eventually(lambda: sqs.receive_message(QueueUrl=urls[1], WaitTimeSeconds=1).get("Messages"))
    event = json.loads(message[0]["Body"])
    assert (event["source"], event["detail"], event["resources"]) == ("aws.states", detail, ["arn:x"])
    assert "Messages" not in sqs.receive_message(QueueUrl=urls[0])


def test_a_rules_rate_follows_the_clock(cloud: Cloud) -> None:
    """Half an hour of the clock, not of the machine."""
    url, arn = make_queue(cloud)
    _, function_arn = make_function(cloud, RELAY % url, allow("sqs:SendMessage", arn))
    make_rule(cloud, function_arn, permitted=True, ScheduleExpression="rate(30 minutes)")
    sqs = cloud.client("sqs")
    time.sleep(1.5)  # a look at the rules goes by
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    cloud.advance(1801)
    eventually(lambda: sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages"))


def test_an_http_api_needs_the_functions_permission(cloud: Cloud) -> None:
    """Without it API Gateway answers 500 and does not call; `$default` stage, explicit resources."""
    _, function_arn = make_function(cloud, "def handler(event, context): return {'statusCode': 204}\n")
    api = cloud.client("apigatewayv2")
    api_id = api.create_api(Name=name_of("api"), ProtocolType="HTTP")["ApiId"]
    integration = api.create_integration(
        ApiId=api_id, IntegrationType="AWS_PROXY", IntegrationUri=function_arn, PayloadFormatVersion="2.0"
    )["IntegrationId"]
    api.create_route(ApiId=api_id, RouteKey="GET /campaigns/{id}", Target=f"integrations/{integration}")
    api.create_stage(ApiId=api_id, StageName="$default", AutoDeploy=True)
    url = f"{cloud.endpoint}/_aws/execute-api/{api_id}/$default/campaigns/1"
    assert refusal(url) == (500, '{"message": "Internal Server Error"}')
    cloud.client("lambda").add_permission(
        FunctionName=function_arn,
        StatementId="api",
        Action="lambda:InvokeFunction",
        Principal="apigateway.amazonaws.com",
        SourceArn=f"arn:aws:execute-api:{REGION}:{ACCOUNT_ID}:{api_id}/*/GET/campaigns/{{id}}",
    )
    with urllib.request.urlopen(url) as answer:
        assert answer.status == 204


# Queues and objects


def test_visibility_and_delay_follow_the_clock(cloud: Cloud) -> None:
    """A message comes back when the clock says so."""
    url, _ = make_queue(cloud, VisibilityTimeout="600")
    sqs = cloud.client("sqs")
    sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=900)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    cloud.advance(901)
    assert sqs.receive_message(QueueUrl=url)["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    cloud.advance(601)
    assert sqs.receive_message(QueueUrl=url)["Messages"]


def test_a_policy_that_demands_tls_counts_loopback_as_such(cloud: Cloud) -> None:
    """The product's bucket denies plain HTTP; here there is nothing else."""
    bucket, s3 = make_bucket(cloud), cloud.client("s3")
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{bucket}/*"}
    deny["Condition"] = {"Bool": {"aws:SecureTransport": "false"}}  # type: ignore[assignment]
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    s3.put_object(Bucket=bucket, Key="a", Body=b"x")


def test_s3_is_not_for_anyone(cloud: Cloud) -> None:
    """A request without credentials is refused, also for an object that exists."""
    bucket = make_bucket(cloud)
    cloud.client("s3").put_object(Bucket=bucket, Key="a", Body=b"x")
    status, body = refusal(f"{cloud.endpoint}/{bucket}/a")
    assert (status, "<Code>AccessDenied</Code>" in body) == (403, True)


def test_a_presigned_link_expires(cloud: Cloud) -> None:
    """S3: AccessDenied, `Request has expired`."""
    bucket, s3 = make_bucket(cloud), cloud.client("s3")
    s3.put_object(Bucket=bucket, Key="a", Body=b"x")
    link = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a"}, ExpiresIn=1)
    with urllib.request.urlopen(link) as answer:
        assert answer.read() == b"x"
    time.sleep(2.1)
    status, body = refusal(link)
    assert (status, "Request has expired" in body) == (403, True)


def upload(form: dict[str, Any], content: bytes) -> urllib.request.Request:
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in form["fields"].items()
    ]
    file = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="list.csv"\r\n\r\n'.encode()
    body = b"".join([*parts, file, content, f"\r\n--{boundary}--\r\n".encode()])
    return urllib.request.Request(
        form["url"], data=body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}
    )


def test_a_presigned_form_uploads_as_whoever_signed_it(cloud: Cloud) -> None:
    """The signer's own permission counts, for the key that is written; so do its conditions."""
    bucket = make_bucket(cloud)
    role = make_role(cloud, "lambda", allow("s3:PutObject", f"arn:aws:s3:::{bucket}/lists/*"))
    signer = as_role(cloud, role, "lambda", "s3")
    size = [["content-length-range", 1, 10]]
    allowed = signer.generate_presigned_post(bucket, "lists/a.csv", Conditions=size, ExpiresIn=60)
    with urllib.request.urlopen(upload(allowed, b"0123456789")) as answer:
        assert answer.status == 204
    assert "EntityTooLarge" in refusal(upload(allowed, b"0123456789a"))[1]
    elsewhere = signer.generate_presigned_post(bucket, "other/a.csv", ExpiresIn=60)
    assert "AccessDenied" in refusal(upload(elsewhere, b"x"))[1]
    moved = {**allowed, "fields": {**allowed["fields"], "key": "lists/b.csv"}}
    assert refusal(upload(moved, b"x"))[0] == 403


# Calls as a role, in process


def test_a_role_calls_ministack_in_process_under_iam(cloud: Cloud) -> None:
    """What boto3 would return, and errors with their members."""
    table = name_of("table")
    cloud.client("dynamodb").create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
    )
    arn = f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{table}"
    role = make_role(cloud, "states", allow(["dynamodb:PutItem", "dynamodb:GetItem"], arn))
    call = cloud.states_caller.call
    item = {"pk": {"S": "a"}, "data": {"B": b"\x00\xff"}}
    call("dynamodb", "PutItem", {"TableName": table, "Item": item}, role)
    assert call("dynamodb", "GetItem", {"TableName": table, "Key": {"pk": {"S": "a"}}}, role) == {"Item": item}
    condition = {
        "ConditionExpression": "attribute_not_exists(pk)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    with pytest.raises(AwsError) as refused:
        call("dynamodb", "PutItem", {"TableName": table, "Item": item, **condition}, role)
    assert (refused.value.code, refused.value.members) == ("ConditionalCheckFailedException", {"Item": item})
    with pytest.raises(AwsError) as refused:
        call("dynamodb", "DeleteItem", {"TableName": table, "Key": {"pk": {"S": "a"}}}, role)
    assert refused.value.code == "AccessDeniedException"


def test_a_role_reads_objects_and_invokes_functions(cloud: Cloud) -> None:
    """Streams come as bytes; a function's error is an answer, not an exception."""
    bucket = make_bucket(cloud)
    cloud.client("s3").put_object(Bucket=bucket, Key="a", Body=b"x")
    function, arn = make_function(cloud, "def handler(event, context): return event['x']\n")
    role = make_role(cloud, "states", allow("s3:GetObject", f"arn:aws:s3:::{bucket}/*"), allow("lambda:*", arn))
    call = cloud.states_caller.call
    assert call("s3", "GetObject", {"Bucket": bucket, "Key": "a"}, role)["Body"] == b"x"
    assert call("lambda", "Invoke", {"FunctionName": function, "Payload": b'{"x": 1}'}, role)["Payload"] == b"1"
    failed = call("lambda", "Invoke", {"FunctionName": function, "Payload": b"{}"}, role)
    assert failed["FunctionError"] == "Unhandled"
    assert json.loads(failed["Payload"])["errorType"] == "KeyError"
    with pytest.raises(AwsError) as refused:
        call("s3", "GetObject", {"Bucket": make_bucket(cloud), "Key": "a"}, role)
    assert refused.value.code == "AccessDenied"


def test_a_role_calls_our_services_in_process_under_iam(cloud: Cloud) -> None:
    """The machine's role: its schedules' group, and the role it passes."""
    target, group = make_role(cloud, "scheduler"), name_of("campaign")
    cloud.client("scheduler").create_schedule_group(Name=group)
    arn = f"arn:aws:scheduler:{REGION}:{ACCOUNT_ID}:schedule/{group}/*"
    role = make_role(cloud, "states", allow("scheduler:CreateSchedule", arn), allow("iam:PassRole", target))
    call = cloud.states_caller.call
    call("scheduler", "CreateSchedule", {"Name": "a", "GroupName": group, **send_message(target)}, role)
    for members in (
        {"Name": "a", **send_message(target)},
        {"Name": "b", "GroupName": group, **send_message(make_role(cloud, "scheduler"))},
    ):
        with pytest.raises(AwsError) as refused:
            call("scheduler", "CreateSchedule", members, role)
        assert refused.value.code == "AccessDeniedException"


def test_a_service_calls_only_as_roles_that_trust_it(cloud: Cloud) -> None:
    """A machine cannot call as Scheduler's role; conditions of the trust count."""
    with pytest.raises(AwsError, match="AccessDenied"):
        cloud.states_caller.call("sqs", "ListQueues", {}, make_role(cloud, "scheduler"))
    name = name_of("role")
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "states.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": ACCOUNT_ID}, "ArnLike": {"aws:SourceArn": "arn:x:*"}},
    }
    arn = cloud.client("iam").create_role(
        RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    )["Role"]["Arn"]
    cloud.iam.assume(arn, "states.amazonaws.com", "arn:x:1")
    with pytest.raises(AwsError):
        cloud.iam.assume(arn, "states.amazonaws.com", "arn:y:1")


def test_the_facade_falls_through_to_the_module_behind_it(cloud: Cloud) -> None:
    """Other parts of MiniStack reach for a module's attributes."""
    assert private("app")._loaded_modules["scheduler"]._schedule_arn("g", "n").endswith("schedule/g/n")


def test_an_email_is_allowed_by_the_identity_that_it_is_sent_from(cloud: Cloud) -> None:
    """Service Authorization Reference, SES v2: SendEmail is asked about the identity, over HTTP too."""
    identity = f"arn:aws:ses:{REGION}:{ACCOUNT_ID}:identity/news.example.com"
    sender = as_role(cloud, make_role(cloud, "lambda", allow("ses:SendEmail", identity)), "lambda", "sesv2")

    def refusal(address: str) -> str:
        content = {"Simple": {"Subject": {"Data": "s"}, "Body": {"Text": {"Data": "t"}}}}
        try:
            sender.send_email(
                FromEmailAddress=f"News <{address}>", Destination={"ToAddresses": ["a@example.com"]}, Content=content
            )
        except ClientError as refused:
            return str(refused.response["Error"]["Code"])
        return ""

    assert refusal("news@News.example.com") != "AccessDeniedException"
    assert refusal("news@other.example.com") == "AccessDeniedException"


def test_a_role_is_held_to_from_addresses(cloud: Cloud) -> None:
    """``ses:FromAddress`` is the bare address, compared case by case (SES's guide, "Sending policy examples")."""
    identities = f"arn:aws:ses:{REGION}:{ACCOUNT_ID}:identity/*"
    patterns = {"ses:FromAddress": ["*@news.example.com", "*@*.news.example.com"]}
    statement = allow("ses:SendEmail", identities, StringLike=patterns)
    sender = as_role(cloud, make_role(cloud, "lambda", statement), "lambda", "sesv2")
    content = {"Simple": {"Subject": {"Data": "s"}, "Body": {"Text": {"Data": "t"}}}}

    def is_allowed(address: str) -> bool:
        try:
            sender.send_email(
                FromEmailAddress=f"News <{address}>", Destination={"ToAddresses": ["a@example.com"]}, Content=content
            )
        except ClientError as refused:
            return str(refused.response["Error"]["Code"]) != "AccessDeniedException"
        return True

    assert is_allowed("news@news.example.com")
    assert is_allowed("news@sub.news.example.com")
    assert not is_allowed("news@NEWS.example.com")
    assert not is_allowed("news@fakenews.example.com")
