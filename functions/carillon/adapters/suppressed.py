"""Who of a whole list is suppressed: by our own table, read whole or by many keys at a time, and by SES's list."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from typing import TYPE_CHECKING, Any

from carillon.adapters import aws, clock
from carillon.adapters.suppressions import key
from carillon.consent.suppressions import EVERY_TOPIC, hash_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sesv2 import SESV2Client

_log = logging.getLogger(__name__)

_AT_ONCE = 50
"""BatchGetItem takes 100 keys in botocore's model, and each address has two: the topic's and every topic's."""
_CALLS_AT_ONCE = 16
_ROUNDS = 10

ASKED = 10_000
"""Addresses of a list that are asked for one by one, whatever the table holds."""
ROWS_EACH = 2
"""Rows of the table for each address of a list up to which the table is read instead: a row of a Scan takes 9 µs of
CPU, an address of BatchGetItem 39, and costs as much as 47 rows."""
MOST_ROWS = 2_000_000
"""Rows that are read at most: what of them is the topic's is in memory, at some 150 bytes each."""
_SEGMENTS = 4

_PAGE = 1000
MOST_PAGES = 120
_BETWEEN_PAGES = 1.05
"""Seconds: SES takes one such call a second, and that quota cannot be raised (AWS_CONTRACTS 3)."""


class AccountSuppressions:
    """The account-level suppression list of SES, read once: hashes of who bounced for good or complained.

    SES itself sends nothing to whoever is on it, but counts the attempt against the daily quota and reports a bounce:
    so these are left out beforehand. Of a list longer than `MOST_PAGES` pages the rest is left to SES.
    """

    def __init__(self, client: SESV2Client | None = None, sleep: Callable[[float], None] = clock.sleep) -> None:
        self._client = client or aws.ses()
        self._sleep = sleep
        self._hashes: frozenset[str] | None = None

    def listed(self) -> frozenset[str]:
        """Their hashes (`carillon.keys.address_hash`), normalised as everywhere."""
        if self._hashes is None:
            self._hashes = frozenset(self._read())
        return self._hashes

    def _read(self) -> set[str]:
        found: set[str] = set()
        following: dict[str, Any] = {}
        for page in range(MOST_PAGES):
            if page:
                self._sleep(_BETWEEN_PAGES)
            answer = self._client.list_suppressed_destinations(PageSize=_PAGE, **following)
            hashes = (hash_of(each["EmailAddress"]) for each in answer.get("SuppressedDestinationSummaries", ()))
            found |= {address_hash for address_hash in hashes if address_hash is not None}
            if not answer.get("NextToken"):
                return found
            following = {"NextToken": answer["NextToken"]}
        _log.warning("the account's suppression list is longer than is read of it", extra={"read": len(found)})
        return found


class SuppressionLookup:
    """`carillon.launch.preparation.Suppressions` on DynamoDB and, where ``account`` is given, on SES's list too."""

    def __init__(
        self, table: str, client: DynamoDBClient | None = None, *, account: AccountSuppressions | None = None
    ) -> None:
        self._table = table
        self._client = client or aws.dynamodb()
        self._account = account

    def suppressed(self, pages: Iterable[Sequence[str]], count: int, topic: str) -> set[str]:
        """Hashes (`carillon.keys.address_hash`) that are not to be mailed about ``topic``: of the ``count`` on
        ``pages`` all, and maybe others.

        Raises:
            TimeoutError: DynamoDB leaves keys unprocessed.
        """
        found = self._everybody(topic, min(ROWS_EACH * count, MOST_ROWS)) if count >= ASKED else None
        if found is None:
            found = set()
            with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
                for page in pages:
                    found.update(*pool.map(lambda some: self._some(some, topic), batched(page, _AT_ONCE, strict=False)))
        return found if self._account is None else found | self._account.listed()

    def _everybody(self, topic: str, most: int) -> set[str] | None:
        """All of the table; None: it has more than about ``most`` rows."""
        with ThreadPoolExecutor(_SEGMENTS) as pool:
            found = list(pool.map(lambda segment: self._segment(segment, topic, most // _SEGMENTS), range(_SEGMENTS)))
        whole = [some for some in found if some is not None]
        return set().union(*whole) if len(whole) == _SEGMENTS else None

    def _segment(self, segment: int, topic: str, most: int) -> set[str] | None:
        found: set[str] = set()
        seen = 0
        for page in self._client.get_paginator("scan").paginate(
            TableName=self._table,
            Segment=segment,
            TotalSegments=_SEGMENTS,
            ProjectionExpression="address_hash",
            FilterExpression="#topic IN (:topic, :every)",
            ExpressionAttributeNames={"#topic": "topic"},
            ExpressionAttributeValues={":topic": {"S": topic}, ":every": {"S": EVERY_TOPIC}},
        ):
            found.update(item["address_hash"]["S"] for item in page["Items"])
            seen += page["ScannedCount"]
            if seen > most:
                return None
        return found

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
