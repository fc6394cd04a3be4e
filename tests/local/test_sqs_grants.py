"""Who may call SQS's batches: SQS's API reference, AddPermission, has no permission of their own for them."""

import json
import uuid

import pytest
from botocore.exceptions import ClientError

from local.caller import client_of
from local.cloud import REGION, Cloud


def test_the_permission_for_one_message_is_that_for_a_batch(cloud: Cloud) -> None:
    """ChangeMessageVisibility allows ChangeMessageVisibilityBatch on that queue, and no SendMessageBatch."""
    name = f"batches-{uuid.uuid4().hex[:8]}"
    sqs, iam = cloud.client("sqs"), cloud.client("iam")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.send_message(QueueUrl=url, MessageBody="…")
    receipt = sqs.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    policy = {"Effect": "Allow", "Action": "sqs:ChangeMessageVisibility", "Resource": arn}
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))["Role"]
    iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=json.dumps({"Statement": [policy]}))
    client = client_of("sqs", cloud.iam.assume(role["Arn"], "lambda.amazonaws.com"), cloud.endpoint, REGION)
    changed = client.change_message_visibility_batch(
        QueueUrl=url, Entries=[{"Id": "0", "ReceiptHandle": receipt, "VisibilityTimeout": 60}]
    )
    assert [entry["Id"] for entry in changed["Successful"]] == ["0"]
    with pytest.raises(ClientError, match="AccessDenied"):
        client.send_message_batch(QueueUrl=url, Entries=[{"Id": "0", "MessageBody": "…"}])
