"""SES and Firehose in their places inside the local cloud: real boto3 clients over HTTP, a real stack."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from local.caller import client_of
from local.cloud import ACCOUNT_ID, REGION, Cloud
from local.ministack import private
from local.ses.faults import Fault
from local.ses.mailbox import accepted
from local.ses.settings import Behaviour, SesSettings

from .conftest import email

SETTINGS = SesSettings(
    identities=("mail.example.com",),
    behaviour=Behaviour(),
    behaviour_by_domain={},
    calls_per_second=1_000_000,
)
SET_ARN = f"arn:aws:ses:{REGION}:{ACCOUNT_ID}:configuration-set/campaigns"
STREAM_ARN = f"arn:aws:firehose:{REGION}:{ACCOUNT_ID}:deliverystream/events"
# Each may be assumed by its service, and only for what it is there for.
ROLES = {
    role: {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"Service": f"{service}.amazonaws.com"},
                        "Action": "sts:AssumeRole",
                        "Condition": {"StringEquals": {"aws:SourceArn": source}},
                    }
                ],
            },
            "Policies": [
                {
                    "PolicyName": "p",
                    "PolicyDocument": {
                        "Version": "2012-10-17",
                        "Statement": [{"Effect": "Allow", "Action": action, "Resource": resource}],
                    },
                }
            ],
        },
    }
    for role, service, source, action, resource in (
        ("SesRole", "ses", SET_ARN, "firehose:PutRecordBatch", STREAM_ARN),
        ("StreamRole", "firehose", STREAM_ARN, "s3:PutObject", "arn:aws:s3:::archive/events/*"),
    )
}


def template(prefix: str = "events/day=!{timestamp:yyyy-MM-dd}/", **destination: Any) -> str:
    """A stack that archives the events of the configuration set ``campaigns``."""
    target = destination or {
        "KinesisFirehoseDestination": {
            "IAMRoleARN": {"Fn::GetAtt": ["SesRole", "Arn"]},
            "DeliveryStreamARN": {"Fn::GetAtt": ["Stream", "Arn"]},
        }
    }
    return json.dumps(
        {
            "Resources": {
                **ROLES,
                "Archive": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "archive"}},
                "Stream": {
                    "Type": "AWS::KinesisFirehose::DeliveryStream",
                    "Properties": {
                        "DeliveryStreamName": "events",
                        "ExtendedS3DestinationConfiguration": {
                            "RoleARN": {"Fn::GetAtt": ["StreamRole", "Arn"]},
                            "BucketARN": {"Fn::GetAtt": ["Archive", "Arn"]},
                            "Prefix": prefix,
                            "ErrorOutputPrefix": "errors/!{firehose:error-output-type}/",
                            "BufferingHints": {"SizeInMBs": 5, "IntervalInSeconds": 60},
                            "CompressionFormat": "GZIP",
                        },
                    },
                },
                "Set": {"Type": "AWS::SES::ConfigurationSet", "Properties": {"Name": "campaigns"}},
                "Destination": {
                    "Type": "AWS::SES::ConfigurationSetEventDestination",
                    "Properties": {
                        "ConfigurationSetName": {"Ref": "Set"},
                        "EventDestination": {
                            "Name": "archive",
                            "Enabled": True,
                            "MatchingEventTypes": ["send", "delivery", "bounce", "renderingFailure"],
                            **target,
                        },
                    },
                },
            }
        }
    )


pytestmark = pytest.mark.own_cloud


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    cloud = Cloud(tmp_path_factory.mktemp("cloud"), ses=SETTINGS)
    yield cloud
    cloud.stop()


@pytest.fixture
def cloud(shared: Cloud) -> Iterator[Cloud]:
    yield shared
    shared.reset()


def deploy(cloud: Cloud, body: str) -> str:
    """Create the stack ``archive`` and return its final status."""
    cloudformation = cloud.client("cloudformation")
    cloudformation.create_stack(StackName="archive", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])
    for _ in range(400):
        status: str = cloudformation.describe_stacks(StackName="archive")["Stacks"][0]["StackStatus"]
        if not status.endswith("IN_PROGRESS"):
            return status
        time.sleep(0.05)
    return status


def archived(cloud: Cloud) -> dict[str, list[dict[str, Any]]]:
    """Every event in the archive, by object key, once there is one."""
    s3 = cloud.client("s3")
    for _ in range(200):
        found = s3.list_objects_v2(Bucket="archive").get("Contents", [])
        if found:
            break
        time.sleep(0.05)
    return {
        each["Key"]: [
            json.loads(line)
            for line in gzip.decompress(s3.get_object(Bucket="archive", Key=each["Key"])["Body"].read()).splitlines()
        ]
        for each in found
    }


def impatient(cloud: Cloud, seconds: float) -> Any:
    """A client that waits ``seconds`` for an answer and asks once."""
    environment = cloud.operator_environment()
    return boto3.client(
        "sesv2",
        endpoint_url=cloud.endpoint,
        region_name=REGION,
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(read_timeout=seconds, retries={"total_max_attempts": 1}),
    )


def plain(**members: Any) -> dict[str, Any]:
    """A message without a configuration set."""
    return email(ConfigurationSetName=None, **members)


def wait_for(condition: Any) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come about in 4 s")


def count(cloud: Cloud) -> int:
    return len(list(accepted(cloud.mailbox)))


def test_events_of_a_deployed_stack_reach_its_bucket(cloud: Cloud) -> None:
    """CloudFormation's configuration set, event destination and stream are those that SES uses: Send and
    Delivery arrive gzipped under the day, one JSON object a line, written as the stack's roles."""
    assert deploy(cloud, template()) == "CREATE_COMPLETE"
    tags = [{"Name": "campaign", "Value": "c-1"}]
    sent = cloud.client("sesv2").send_email(**email(ConfigurationSetName="campaigns", EmailTags=tags))
    cloud.advance(10)
    wait_for(lambda: not cloud.ses.publish_due())
    cloud.advance(61)
    (key, events), *others = archived(cloud).items()
    assert others == []
    assert key.startswith(f"events/day={cloud.clock.now():%Y-%m-%d}/events-1-")
    assert key.endswith(".gz")
    assert [event["eventType"] for event in events] == ["Send", "Delivery"]
    for event in events:
        assert event["mail"]["messageId"] == sent["MessageId"]
        assert event["mail"]["tags"]["campaign"] == ["c-1"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (template(SnsDestination={"TopicARN": "arn:aws:sns:us-east-1:1:t"}), "SnsDestination"),
        (template(prefix="!{firehose:error-output-type}/"), "Prefix"),
    ],
    ids=["event destination", "stream prefix"],
)
def test_a_stack_with_what_is_refused_rolls_back(cloud: Cloud, body: str, name: str) -> None:
    """What SES or Firehose would refuse, or this cloud does not do, fails at creation and names itself."""
    assert deploy(cloud, body).startswith("ROLLBACK")
    events = cloud.client("cloudformation").describe_stack_events(StackName="archive")["StackEvents"]
    assert any(name in event.get("ResourceStatusReason", "") for event in events)


def test_refusals_are_the_clients_modelled_errors(cloud: Cloud) -> None:
    """Botocore sesv2: code, status and text arrive as from AWS."""
    ses = cloud.client("sesv2")
    with pytest.raises(ses.exceptions.MessageRejected, match=r"not verified.*EU-CENTRAL-1"):
        ses.send_email(**plain(FromEmailAddress="a@example.net"))
    with pytest.raises(ses.exceptions.NotFoundException):
        ses.send_email(**email(ConfigurationSetName="nowhere"))
    cloud.ses.faults.add(Fault("TooManyRequestsException"))
    with pytest.raises(ses.exceptions.TooManyRequestsException, match="Maximum sending rate exceeded") as refused:
        ses.send_email(**plain())
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429


def test_every_other_operation_answers_over_http(cloud: Cloud) -> None:
    """Botocore sesv2: paths, query strings and times as the client sends and reads them."""
    ses = cloud.client("sesv2")
    ses.create_email_identity(EmailIdentity="example.net")
    assert ses.get_email_identity(EmailIdentity="example.net")["VerificationStatus"] == "PENDING"
    assert len(ses.list_email_identities(PageSize=1)["EmailIdentities"]) == 1
    ses.put_suppressed_destination(EmailAddress="a+b@example.org", Reason="BOUNCE")
    listed = ses.get_suppressed_destination(EmailAddress="a+b@example.org")["SuppressedDestination"]
    assert listed["Reason"] == "BOUNCE"
    assert abs(listed["LastUpdateTime"].timestamp() - cloud.clock.time()) < 10
    assert len(ses.list_suppressed_destinations(Reasons=["BOUNCE"])["SuppressedDestinationSummaries"]) == 1
    content = {"Subject": "Hi {{name}}", "Text": "Hello {{name}}"}
    ses.create_email_template(TemplateName="welcome", TemplateContent=content)
    assert ses.get_email_template(TemplateName="welcome")["TemplateContent"] == content
    rendered = ses.test_render_email_template(TemplateName="welcome", TemplateData='{"name":"Ana"}')
    assert "Subject: Hi Ana\r\n" in rendered["RenderedTemplate"]
    assert ses.get_account()["SendQuota"]["MaxSendRate"] == SETTINGS.max_send_rate
    arn = f"arn:aws:ses:{REGION}:{ACCOUNT_ID}:identity/example.net"
    ses.tag_resource(ResourceArn=arn, Tags=[{"Key": "team", "Value": "news"}])
    assert ses.list_tags_for_resource(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "news"}]


def test_an_operation_that_is_not_here_is_refused_by_name(cloud: Cloud) -> None:
    """MiniStack's own answer would pretend."""
    with pytest.raises(ClientError, match="CreateContactList"):
        cloud.client("sesv2").create_contact_list(ContactListName="l")


def test_a_dropped_connection_tells_nothing(cloud: Cloud) -> None:
    """Contract sheet, section 3: after a reset only SES knows whether the message was accepted. Nothing is
    when it was dropped before, everything when it was dropped after."""
    ses = impatient(cloud, 5)
    before = count(cloud)
    cloud.ses.control({"fault": {"when": "before"}})
    with pytest.raises(ConnectionClosedError):
        ses.send_email(**plain())
    assert count(cloud) == before
    cloud.ses.control({"fault": {"when": "after"}})
    with pytest.raises(ConnectionClosedError):
        ses.send_email(**plain())
    assert count(cloud) == before + 1
    ses.send_email(**plain())
    assert count(cloud) == before + 2


def test_a_hanging_call_times_out_although_it_was_accepted(cloud: Cloud) -> None:
    """Contract sheet, section 3: a read timeout is ambiguous; here the message did go."""
    before = count(cloud)
    cloud.ses.faults.add(Fault(when="after", hang_seconds=30))
    with pytest.raises(ReadTimeoutError):
        impatient(cloud, 0.5).send_email(**plain())
    assert count(cloud) == before + 1
    cloud.ses.faults.clear()


def test_sending_takes_the_permission_to_send(cloud: Cloud) -> None:
    """IAM: a role that may not do ses:SendEmail gets AccessDenied, and nothing is accepted."""
    iam = cloud.client("iam")
    statement = {"Effect": "Allow", "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    role = iam.create_role(RoleName="idle", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    session = cloud.iam.assume(role, "states.amazonaws.com")
    before = count(cloud)
    with pytest.raises(ClientError, match="AccessDenied"):
        client_of("sesv2", session, cloud.endpoint, REGION).send_email(**plain())
    assert count(cloud) == before


def test_a_reset_leaves_the_account_as_it_began(cloud: Cloud) -> None:
    """Configuration sets, templates and listings go; the account's own identities stay."""
    ses = cloud.client("sesv2")
    ses.create_configuration_set(ConfigurationSetName="x")
    ses.create_email_identity(EmailIdentity="example.net")
    ses.put_suppressed_destination(EmailAddress="a@example.org", Reason="BOUNCE")
    cloud.reset()
    ses = cloud.client("sesv2")
    assert ses.list_configuration_sets()["ConfigurationSets"] == []
    assert ses.list_suppressed_destinations()["SuppressedDestinationSummaries"] == []
    names = [each["IdentityName"] for each in ses.list_email_identities()["EmailIdentities"]]
    assert names == ["mail.example.com"]


def test_the_seams_are_where_they_were() -> None:
    """Canary: the private names of MiniStack 1.5.33 and Hypercorn that SES's facade stands on."""
    module = private("services.ses_v2")
    for name in ("_config_sets", "_identities", "_create_config_set", "_event_destination"):
        assert hasattr(module, name), name
    from hypercorn.asyncio.task_group import _handle
    from hypercorn.protocol.http_stream import HTTPStream

    assert "send" in _handle.__code__.co_varnames
    assert hasattr(HTTPStream, "app_send")
