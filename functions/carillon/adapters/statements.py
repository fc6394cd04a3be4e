"""PartiQL statements by the batch, each with its own outcome; those that DynamoDB puts off are asked again.

Batches of them, because they alone write 25 rows a call with an outcome for each: BatchWriteItem knows no condition,
and a transaction is all or nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import BatchStatementRequestTypeDef, BatchStatementResponseTypeDef

AT_ONCE = 25
"""PartiQLBatchRequest's maximum in botocore's model."""

ALREADY_THERE = "DuplicateItem"
"""What an INSERT says of a key that is there (BatchStatementErrorCodeEnum in botocore's model)."""

NOT_AS_EXPECTED = "ConditionalCheckFailed"
"""What an UPDATE says of a row that does not meet its condition."""

_NOT_NOW = frozenset(
    {"ThrottlingError", "ProvisionedThroughputExceeded", "RequestLimitExceeded", "InternalServerError"}
    | {"TransactionConflict"}
)
"""Outcomes of a single statement that the SDK does not repeat, because the call itself succeeded."""

_ATTEMPTS = 10
_LONGEST_WAIT = 5.0


def with_item(insert: str, item: Mapping[str, Any]) -> BatchStatementRequestTypeDef:
    """``insert`` (``INSERT INTO "table"``) of ``item`` (DynamoDB's JSON), which is put if there is none of its key."""
    attributes = ", ".join(f"'{name}': ?" for name in item)
    return {"Statement": f"{insert} VALUE {{{attributes}}}", "Parameters": [*item.values()]}


def run(
    client: DynamoDBClient,
    statements: Sequence[BatchStatementRequestTypeDef],
    sleep: Callable[[float], None],
    *answers: str,
) -> list[Any]:
    """Run every statement to an outcome that stands; those told "not now" are tried again, and only those.

    ``answers``: names of what may go otherwise, and is an answer all the same.

    Raises:
        TimeoutError: DynamoDB put some off for too long; those that are done stay done.
        RuntimeError: DynamoDB refused one for a reason that is no answer.
    """
    outcomes: list[BatchStatementResponseTypeDef] = [{} for _ in statements]
    left = list(range(len(statements)))
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(random.uniform(0, min(_LONGEST_WAIT, 0.05 * 2**attempt)))  # noqa: S311  (jitter)
        refused: list[int] = []
        for chunk in batched(left, AT_ONCE, strict=False):
            answer = client.batch_execute_statement(Statements=[statements[n] for n in chunk])
            for n, outcome in zip(chunk, answer["Responses"], strict=True):
                outcomes[n] = outcome
                if code_of(outcome) in _NOT_NOW:
                    refused.append(n)
        left = refused
        if not left:
            break
    else:
        raise TimeoutError(f"DynamoDB put off {len(left)} of {len(statements)} rows {_ATTEMPTS} times: try again")
    for outcome in outcomes:
        if (code := code_of(outcome)) is not None and code not in answers:
            raise RuntimeError(f"DynamoDB refused a row: {code}: {outcome['Error'].get('Message')}")
    return outcomes


def code_of(outcome: BatchStatementResponseTypeDef) -> str | None:
    """The name of what went otherwise; None: it is done."""
    return outcome["Error"]["Code"] if "Error" in outcome else None
