"""Who may run which PartiQL statement, as DynamoDB's guide has it ("IAM security policies with PartiQL")."""

import json
import uuid
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.caller import client_of
from local.cloud import REGION, Cloud

INSERT = "INSERT INTO \"{0}\" VALUE {{'pk': ?}}"
UPDATE = 'UPDATE "{0}" SET "n" = ? WHERE "pk" = ?'


def granted(cloud: Cloud, actions: list[str]) -> tuple[Any, str]:
    """A client of a role that may do ``actions`` on a fresh table, and the table's name."""
    name = f"partiql-{uuid.uuid4().hex[:8]}"
    table = cloud.client("dynamodb").create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
    )["TableDescription"]
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    policy = {"Effect": "Allow", "Action": actions, "Resource": table["TableArn"]}
    iam = cloud.client("iam")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))["Role"]
    iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=json.dumps({"Statement": [policy]}))
    identity = cloud.iam.assume(role["Arn"], "lambda.amazonaws.com")
    return client_of("dynamodb", identity, cloud.endpoint, REGION), name


def statement(text: str, table: str, *values: str) -> dict[str, Any]:
    return {"Statement": text.format(table), "Parameters": [{"S": value} for value in values]}


def test_a_statement_needs_the_action_of_its_verb_on_its_table(cloud: Cloud) -> None:
    """PartiQLInsert allows INSERT on that table, and neither UPDATE nor another table."""
    client, table = granted(cloud, ["dynamodb:PartiQLInsert"])
    _, other = granted(cloud, [])
    client.batch_execute_statement(Statements=[statement(INSERT, table, "a"), statement(INSERT, table, "b")])
    for refused in (statement(UPDATE, table, "x", "a"), statement(INSERT, other, "a")):
        with pytest.raises(ClientError, match="AccessDenied"):
            client.batch_execute_statement(Statements=[statement(INSERT, table, "c"), refused])
    with pytest.raises(ClientError, match="AccessDenied"):
        client.execute_statement(**statement(UPDATE, table, "x", "a"))


def test_the_name_of_the_call_is_no_permission(cloud: Cloud) -> None:
    """IAM has no action BatchExecuteStatement: a role with that alone may do nothing."""
    client, table = granted(cloud, ["dynamodb:BatchExecuteStatement"])
    with pytest.raises(ClientError, match="AccessDenied"):
        client.batch_execute_statement(Statements=[statement(INSERT, table, "a")])
