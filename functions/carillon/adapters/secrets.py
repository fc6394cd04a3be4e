"""What Secrets Manager keeps: the API's bearer tokens, and the keys of unsubscribe links."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from carillon.adapters import aws, clock
from carillon.consent.unsubscribing import KeyRing

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient

STAGES = ("AWSCURRENT", "AWSPREVIOUS")
"""Both are valid, so that whoever calls the API has until the next rotation to change."""


class Tokens:
    """The values of one secret. A token taken away is refused within ``seconds``."""

    def __init__(
        self,
        secret: str,
        client: SecretsManagerClient | None = None,
        *,
        seconds: float = 60.0,
        now: Callable[[], float] = clock.epoch,
    ) -> None:
        self._secret = secret
        self._client = client or aws.secretsmanager()
        self._seconds = seconds
        self._now = now
        self._read_at = float("-inf")
        self._values: tuple[str, ...] = ()

    def valid(self) -> tuple[str, ...]:
        """The current token, and the previous one if there is one."""
        if self._now() - self._read_at >= self._seconds:
            found = (self._value(stage) for stage in STAGES)
            self._values = tuple(value for value in found if value)
            self._read_at = self._now()
        return self._values

    def _value(self, stage: str) -> str | None:
        try:
            return self._client.get_secret_value(SecretId=self._secret, VersionStage=stage)["SecretString"]
        except self._client.exceptions.ResourceNotFoundException:
            return None


class UnsubscribeKeys:
    """`carillon.consent.unsubscribing.Keys` on Secrets Manager: a JSON object of keys by number, none of which is ever
    taken away. The newest may sign some minutes late, for those before it stay good."""

    def __init__(
        self,
        secret: str,
        client: SecretsManagerClient | None = None,
        *,
        seconds: float = 300.0,
        again: float = 10.0,
        now: Callable[[], float] = clock.epoch,
    ) -> None:
        self._secret = secret
        self._client = client or aws.secretsmanager()
        self._seconds = seconds
        self._again = again
        self._now = now
        self._read_at = float("-inf")
        self._ring = KeyRing({})

    def ring(self) -> KeyRing:
        """See `carillon.consent.unsubscribing.Keys.ring`; read anew every ``seconds``."""
        return self._newer_than(self._seconds)

    def reread(self) -> KeyRing:
        """See `carillon.consent.unsubscribing.Keys.reread`; not more often than ``again`` says, whoever sends
        nonsense."""
        return self._newer_than(self._again)

    def _newer_than(self, seconds: float) -> KeyRing:
        if self._now() - self._read_at >= seconds:
            self._ring = KeyRing.parse(self._client.get_secret_value(SecretId=self._secret)["SecretString"])
            self._read_at = self._now()
        return self._ring
