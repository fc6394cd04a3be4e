"""A stack's tables, bucket and queues in moto, and SES on the loopback."""

from __future__ import annotations

import boto3
import pytest
from moto import mock_aws

from carillon.adapters import aws
from tests.unit.sending.ses_server import SesServer

TABLES = {
    "Campaigns": [("campaign_id", "HASH")],
    "Tasks": [("pk", "HASH"), ("sk", "RANGE")],
    "Settings": [("name", "HASH")],
    "Suppressions": [("address_hash", "HASH"), ("topic", "RANGE")],
}


@pytest.fixture
def ses():
    server = SesServer()
    yield server
    server.close()


@pytest.fixture
def account(monkeypatch):
    """Moto instead of an account; clients made before are forgotten."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    cached = [aws.dynamodb, aws.s3, aws.sqs]
    with mock_aws():
        for client in cached:
            client.cache_clear()
        yield
    for client in cached:
        client.cache_clear()


@pytest.fixture
def dynamodb(account):
    """A DynamoDB client, the stack's tables made."""
    client = boto3.client("dynamodb")
    for table, key in TABLES.items():
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in key],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in key],
            BillingMode="PAY_PER_REQUEST",
        )
    return client
