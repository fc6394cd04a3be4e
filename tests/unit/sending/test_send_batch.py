"""The handler with DynamoDB, S3 and SQS in moto and a real SES client."""

from __future__ import annotations

import io
import json
import logging
import os
import time
from types import SimpleNamespace

import boto3
import pytest

from carillon import keys
from carillon.adapters import aws
from carillon.adapters.campaigns import CampaignStore
from carillon.adapters.items import from_item, to_item
from carillon.adapters.schedules import brief_client
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.addresses import canonical
from carillon.consent.unsubscribing import read
from carillon.environment import load
from tests.unit.sending import examples

LIMIT_MS = 30_000
KEYS = json.dumps({"1": "k" * 64})


def sqs_event(bodies, url=""):
    now = str(int(time.time() * 1000))
    return {
        "Records": [
            {
                "messageId": f"m-{n}",
                "receiptHandle": f"r-{n}",
                "body": body,
                "attributes": {"ApproximateReceiveCount": "1", "ApproximateFirstReceiveTimestamp": now},
            }
            for n, body in enumerate(bodies)
        ]
    }


@pytest.fixture
def stack(dynamodb, ses, monkeypatch):
    """The function's environment, one dispatching campaign with ten tasks, and a pace of 200/s."""
    import send_batch.app as app
    from carillon.adapters import mail

    sqs, s3 = boto3.client("sqs"), boto3.client("s3")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    s3.put_object(Bucket="bucket", Key=keys.template("advent", "g1-aaaa", 0), Body=examples.PREPARED.model_dump_json())
    queue = sqs.create_queue(QueueName="send")["QueueUrl"]
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    environment = {
        "CAMPAIGNS_TABLE": "Campaigns",
        "TASKS_TABLE": "Tasks",
        "SETTINGS_TABLE": "Settings",
        "SUPPRESSIONS_TABLE": "Suppressions",
        "BUCKET": "bucket",
        "SEND_QUEUE_URL": queue,
        "SEND_DEAD_LETTER_QUEUE_URL": dead,
        "CONFIGURATION_SET": "carillon",
        "SENDING_DOMAIN": "example.com",
        "API_URL": "https://api.example.com",
        "UNSUBSCRIBE_KEYS_SECRET": boto3.client("secretsmanager").create_secret(Name="k", SecretString=KEYS)["ARN"],
        "SCHEDULER_ROLE_ARN": "arn:aws:iam::123456789012:role/schedules",
        "SCHEDULE_DEAD_LETTER_QUEUE_ARN": "arn:aws:sqs:eu-west-1:123456789012:late",
        "SEND_TIME_LIMIT": "30",
        "AWS_ENDPOINT_URL_SESV2": ses.url,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fresh = (load, app._sender, mail._sending_client, aws.dynamodb, aws.s3, aws.sqs, aws.secretsmanager, brief_client)
    for cached in fresh:
        cached.cache_clear()
    CampaignStore("Campaigns").create(examples.campaign())
    for n in range(10):
        row = examples.task(n)
        item = keys.task_key("advent", row.task) | row.model_dump(mode="json")
        dynamodb.put_item(TableName="Tasks", Item=to_item(item))
    dynamodb.put_item(TableName="Settings", Item=to_item({"name": "sender", "postal_address": "Main St 1"}))
    dynamodb.put_item(TableName="Settings", Item=to_item({"name": "pace", "rate_per_second": 200, "daily_cap": 1000}))
    yield SimpleNamespace(dynamodb=dynamodb, sqs=sqs, ses=ses, queue=queue, dead=dead, app=app)
    for cached in fresh:
        cached.cache_clear()


def rows(stack):
    return [from_item(item) for item in stack.dynamodb.scan(TableName="Tasks")["Items"]]


def call(stack, bodies):
    context = SimpleNamespace(
        get_remaining_time_in_millis=lambda: LIMIT_MS,
        function_name="send_batch",
        memory_limit_in_mb=1024,
        invoked_function_arn="arn:aws:lambda:eu-west-1:123456789012:function:send_batch",
        aws_request_id="r",
    )
    return stack.app.handler(sqs_event(bodies), context)


def test_ten_messages_become_ten_emails(stack):
    """Each is accepted once, its row Finished with what SES said, and nothing stays in the queue."""
    assert call(stack, [examples.message(n).model_dump_json() for n in range(10)]) == {"batchItemFailures": []}
    sent = sorted(e["Destination"]["ToAddresses"][0] for e in stack.ses.accepted)
    assert sent == sorted(examples.address(n) for n in range(10))
    assert {row["status"] for row in rows(stack)} == {"Finished"}
    assert sorted(row["message_id"] for row in rows(stack)) == sorted(f"ses-{n}" for n in range(1, 11))
    assert {row["subject"] for row in rows(stack)} == {f"Hello Name {n}" for n in range(10)}
    assert CampaignStore("Campaigns").get("advent").finished == 10


def test_the_email_is_the_campaigns_and_carries_its_tags(stack):
    """What SES gets: names as encoded words, both parts, List-Id, tags, the configuration set."""
    call(stack, [examples.message(3).model_dump_json()])
    (email,) = stack.ses.accepted
    assert email["FromEmailAddress"] == "=?utf-8?b?R2zDtmNrbmVy?= <shop@example.com>"
    assert email["ReplyToAddresses"] == ["reply@example.com"]
    simple = email["Content"]["Simple"]
    assert simple["Subject"]["Data"] == "Hello Name 3"
    assert simple["Body"]["Html"]["Data"] == "<p>Dear Name 3</p>"
    assert simple["Body"]["Text"]["Data"] == "Dear Name 3"
    headers = {header["Name"]: header["Value"] for header in simple["Headers"]}
    assert headers["List-Id"] == "<offers.example.com>"
    assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    link = headers["List-Unsubscribe"].removeprefix("<https://api.example.com/u/").removesuffix(">")
    said = read(link, UnsubscribeKeys(os.environ["UNSUBSCRIBE_KEYS_SECRET"]))
    hashed = keys.address_hash(canonical(examples.address(3)))
    assert (said.campaign_id, said.task, said.topic, said.address_hash) == (
        "advent",
        examples.task(3).task,
        "offers",
        hashed,
    )
    tags = {tag["Name"]: tag["Value"] for tag in email["EmailTags"]}
    assert tags == {"campaign": "advent", "task": examples.task(3).task, "step": "0"}
    assert email["ConfigurationSetName"] == "carillon"


def test_what_can_never_work_is_buried_with_a_reason_and_the_others_are_sent(stack):
    """A malformed message, an unknown campaign, an unknown task: dead-letter queue; the seven others: SES."""
    bodies = [examples.message(n).model_dump_json() for n in range(7)]
    bodies.insert(2, "{not json")
    bodies.insert(5, examples.message(7, campaign="nobody").model_dump_json())
    bodies.append(examples.message(99).model_dump_json())
    assert call(stack, bodies) == {"batchItemFailures": []}
    assert len(stack.ses.accepted) == 7
    found = stack.sqs.receive_message(QueueUrl=stack.dead, MaxNumberOfMessages=10, MessageAttributeNames=["All"])[
        "Messages"
    ]
    reasons = sorted(m["MessageAttributes"]["reason"]["StringValue"].split(":")[0] for m in found)
    assert reasons == ["MalformedMessage", "UnknownCampaign", "UnknownTask"]
    assert {m["Body"] for m in found} == {bodies[2], bodies[5], bodies[-1]}


def test_no_address_reaches_the_log(stack, monkeypatch):
    """Whatever goes wrong, log lines name campaign and task, never who it was for."""
    stack.ses.script.extend(
        [(400, "MessageRejected", "Address blacklisted: person.0@example.com"), (500, "InternalFailure", "person.1")]
    )
    bodies = [examples.message(n).model_dump_json() for n in range(3)]
    bodies += ['{"to": "person.9@example.com", "person.9@example.com": 1}', '"person.9@example.com"']
    log = io.StringIO()
    monkeypatch.setattr(stack.app.logger.registered_handler, "stream", log)
    assert stack.app.logger.registered_handler in logging.getLogger("carillon").handlers
    call(stack, bodies)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {line.get("campaign") for line in lines} == {"advent", None}
    assert {line.get("error") for line in lines} == {"InternalFailure", None}
    assert "person" not in log.getvalue().lower()


def test_every_claim_has_a_token_of_its_own(stack):
    """Also within one invocation: a token used twice would make a duplicate look like our own lost reply."""
    call(stack, [examples.message(n).model_dump_json() for n in range(5)])
    call(stack, [examples.message(n).model_dump_json() for n in range(5, 10)])
    assert len({row["claim"]["token"] for row in rows(stack)}) == 10


def test_a_message_delivered_again_after_an_unknown_outcome_sends_nothing(stack):
    """The second invocation finds the row Running, not its own."""
    stack.ses.script.append((500, "InternalFailure", "…"))
    body = examples.message(0).model_dump_json()
    for _ in range(3):
        assert call(stack, [body, body]) == {"batchItemFailures": []}
    assert len(stack.ses.requests) == 1
