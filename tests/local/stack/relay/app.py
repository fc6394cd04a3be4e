"""Keeps whatever wakes it."""

import json
import os

import boto3


def handler(event, context):
    """Write what came, by kind."""
    kind = event["Records"][0]["body"] if "Records" in event else event.get("detail-type") or event["rawPath"]
    item = {"pk": {"S": kind}, "event": {"S": json.dumps(event)}}
    boto3.client("dynamodb").put_item(TableName=os.environ["TABLE"], Item=item)
    return {"batchItemFailures": []} if "Records" in event else {"statusCode": 202}
