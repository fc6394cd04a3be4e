"""Cached boto3 clients. Nothing is made at import, so a module can be loaded without an account."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_firehose import FirehoseClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_scheduler import EventBridgeSchedulerClient
    from mypy_boto3_secretsmanager import SecretsManagerClient
    from mypy_boto3_sesv2 import SESV2Client
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_stepfunctions import SFNClient

_PATIENT = Config(retries={"mode": "standard", "total_max_attempts": 5}, connect_timeout=3, read_timeout=10)
"""Reads and conditional writes may be repeated: each of our writes says what it expects."""


@cache
def dynamodb() -> DynamoDBClient:
    """DynamoDB, with room for a pool of threads."""
    return boto3.client("dynamodb", config=_PATIENT.merge(Config(max_pool_connections=32)))


@cache
def s3() -> S3Client:
    """S3 with SigV4 and the Region in the host's name, as presigned POSTs need.

    botocore would name ``s3.amazonaws.com``, which answers for a bucket of another Region with a redirect for its first
    hours, or with an error where the Region is a newer one: no form and no CORS request follows that.
    """
    regional = Config(signature_version="s3v4", s3={"addressing_style": "virtual"}, read_timeout=60)
    return boto3.client("s3", config=_PATIENT.merge(regional))


@cache
def sqs() -> SQSClient:
    """SQS."""
    return boto3.client("sqs", config=_PATIENT)


@cache
def scheduler() -> EventBridgeSchedulerClient:
    """EventBridge Scheduler."""
    return boto3.client("scheduler", config=_PATIENT)


@cache
def stepfunctions() -> SFNClient:
    """Step Functions."""
    return boto3.client("stepfunctions", config=_PATIENT)


@cache
def secretsmanager() -> SecretsManagerClient:
    """Secrets Manager."""
    return boto3.client("secretsmanager", config=_PATIENT)


@cache
def firehose() -> FirehoseClient:
    """Firehose."""
    return boto3.client("firehose", config=_PATIENT)


@cache
def functions() -> LambdaClient:
    """Lambda, for what runs in the background."""
    return boto3.client("lambda", config=_PATIENT)


@cache
def ses() -> SESV2Client:
    """SES for everything but sending: identities, quota. The sender has a client of its own that never retries."""
    return boto3.client("sesv2", config=_PATIENT)
