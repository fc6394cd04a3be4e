"""Who of a whole list is suppressed: many keys at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from typing import TYPE_CHECKING

from carillon.adapters import aws, clock
from carillon.adapters.suppressions import key
from carillon.suppressions import EVERY_TOPIC

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_AT_ONCE = 50
"""BatchGetItem takes 100 keys in botocore's model, and each address has two: the topic's and every topic's."""
_CALLS_AT_ONCE = 16
_ROUNDS = 10


class SuppressionLookup:
    """`carillon.preparation.Suppressions` on DynamoDB."""

    def __init__(self, table: str, client: DynamoDBClient | None = None) -> None:
        self._table = table
        self._client = client or aws.dynamodb()

    def suppressed(self, hashes: Sequence[str], topic: str) -> set[str]:
        """Those of ``hashes`` (`carillon.keys.address_hash`) that are not to be mailed about ``topic``.

        Raises:
            TimeoutError: DynamoDB leaves keys unprocessed.
        """
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            found = pool.map(lambda some: self._some(some, topic), batched(hashes, _AT_ONCE, strict=False))
            return set().union(*found)

    def _some(self, hashes: Sequence[str], topic: str) -> set[str]:
        wanted = [key(each, t) for each in hashes for t in (topic, EVERY_TOPIC)]
        found: set[str] = set()
        for attempt in range(_ROUNDS):
            if attempt:
                clock.sleep(0.05 * 2**attempt)
            answer = self._client.batch_get_item(
                RequestItems={self._table: {"Keys": wanted, "ProjectionExpression": "address_hash"}}
            )
            found |= {item["address_hash"]["S"] for item in answer["Responses"].get(self._table, ())}
            left = answer.get("UnprocessedKeys", {}).get(self._table)
            if not left:
                return found
            wanted = list(left["Keys"])  # type: ignore[arg-type]  # what came back is what was sent
        raise TimeoutError("DynamoDB leaves suppressions unread: try again")
