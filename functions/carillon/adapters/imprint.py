"""The item ``sender`` of the Settings table: who sends, as every e-mail has to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from carillon.adapters import aws, clock

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_KEY = {"name": {"S": "sender"}}
SECONDS = 30.0
"""How long an address that was read is good: a correction reaches the e-mails within half a minute."""


class SenderImprint:
    """`carillon.delivery.sending.Imprint` on DynamoDB."""

    def __init__(
        self, table: str, client: DynamoDBClient | None = None, now: Callable[[], float] = clock.epoch
    ) -> None:
        self._table = table
        self._client = client or aws.dynamodb()
        self._now = now
        self._read_at = float("-inf")
        self._address = ""

    def postal_address(self) -> str:
        """The sender's postal address.

        Raises:
            LookupError: nobody has set one (any more).
        """
        if not 0 <= self._now() - self._read_at < SECONDS:
            item = self._client.get_item(TableName=self._table, Key=_KEY, ConsistentRead=True).get("Item", {})
            self._address = item.get("postal_address", {}).get("S", "").strip()
            self._read_at = self._now()
        if not self._address:
            self._read_at = float("-inf")
            raise LookupError("there is no postal_address in the setting sender: PUT /settings/sender")
        return self._address
