"""Who sends, as every e-mail has to say: the setting, remembered for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from carillon.adapters import clock
from carillon.adapters.settings import SettingsTable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SECONDS = 30.0
"""How long an address that was read is good: a correction reaches the e-mails within half a minute."""


class SenderImprint:
    """`carillon.delivery.sending.Imprint` on DynamoDB."""

    def __init__(
        self, table: str, client: DynamoDBClient | None = None, now: Callable[[], float] = clock.epoch
    ) -> None:
        self._read = SettingsTable(table, client).postal_address
        self._now = now
        self._read_at = float("-inf")
        self._address = ""

    def postal_address(self) -> str:
        """The sender's postal address.

        Raises:
            LookupError: nobody has set one (any more).
        """
        if not 0 <= self._now() - self._read_at < SECONDS:
            self._address = (self._read() or "").strip()
            self._read_at = self._now()
        if not self._address:
            self._read_at = float("-inf")
            raise LookupError("there is no postal_address in the setting sender: PUT /settings/sender")
        return self._address
