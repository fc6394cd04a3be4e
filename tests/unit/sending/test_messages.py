"""The queue and the templates behind the sender's ports."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest

from carillon import keys
from carillon.adapters.messages import Messages, partial_response, records
from carillon.adapters.prepared import PreparedTemplates
from tests.unit.sending.examples import PREPARED, record


class Sqs:
    """SQS that notes visibility, and refuses it for one message."""

    def __init__(self, refuses: str = "") -> None:
        self.entries: list[dict] = []
        self._refuses = refuses

    def change_message_visibility_batch(self, QueueUrl, Entries):
        assert QueueUrl == "queue"
        assert len(Entries) <= 10, "SQS takes ten at most"
        self.entries += Entries
        failed = [
            {"Id": e["Id"], "Code": "ReceiptHandleIsInvalid"} for e in Entries if self._refuses in e["ReceiptHandle"]
        ]
        return {"Successful": [], "Failed": failed if self._refuses else []}


def test_a_record_is_read_from_lambdas_event():
    """As in events of the SQS event source."""
    (read,) = records(
        {
            "Records": [
                {
                    "messageId": "m",
                    "receiptHandle": "r",
                    "body": "{}",
                    "attributes": {
                        "ApproximateReceiveCount": "7",
                        "ApproximateFirstReceiveTimestamp": "1796029200500",
                    },
                }
            ]
        }
    )
    assert (read.message_id, read.receipt, read.body, read.receives) == ("m", "r", "{}", 7)
    assert read.first_received == datetime(2026, 11, 30, 9, 0, 0, 500_000, UTC)


def test_messages_that_stay_are_named_to_lambda():
    """The form of ReportBatchItemFailures."""
    assert partial_response(["a", "b"]) == {"batchItemFailures": [{"itemIdentifier": "a"}, {"itemIdentifier": "b"}]}


@pytest.mark.parametrize("refuses", ["", "receipt-m3"])
def test_each_message_is_delayed_by_its_own_time(refuses):
    """By visibility, ten at a time; one that is refused takes the queue's own."""
    sqs = Sqs(refuses)
    Messages("queue", "dead", sqs).delay({record("{}", f"m{n}"): n for n in range(12)})
    assert [(e["ReceiptHandle"], e["VisibilityTimeout"]) for e in sqs.entries] == [
        (f"receipt-m{n}", n) for n in range(12)
    ]


def test_a_template_is_fetched_once_for_each_preparation(account):
    """What a preparation wrote never changes; another one is another template."""
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for attempt, text in (("g1-aaaa", "Hello"), ("g2-bbbb", "Bye")):
        body = PREPARED.model_copy(update={"text": text}).model_dump_json()
        s3.put_object(Bucket="bucket", Key=keys.template("advent", attempt, 0), Body=body)
    templates = PreparedTemplates("bucket", s3)
    first = templates.renderer("advent", "g1-aaaa", 0)
    assert templates.renderer("advent", "g1-aaaa", 0) is first
    assert templates.renderer("advent", "g2-bbbb", 0).render({"first_name": "A"}).text == "Bye"
