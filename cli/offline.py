"""A stack that is not there: one campaign, its list and templates in local files, and an account as it is assumed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from carillon import keys
from carillon.content.typesetting import SesTemplate
from carillon.launch.readiness import Account, PricePlan
from carillon.shapes import Campaign, CampaignSpec, Task
from carillon.timing.ledger import Day
from carillon.timing.pace import Pace
from carillon.transitions import CampaignState, TaskStatus

CAMPAIGN = "offline"
UNKNOWN = 2**40
"""Of an instant in epoch seconds: how long a stack would keep the campaign."""


@dataclass
class OneCampaign:
    """`carillon.launch.preparation.Campaigns`: created, and never launched."""

    spec: CampaignSpec

    def get(self, campaign_id: str, *, consistent: bool = True) -> Campaign:
        """The campaign."""
        return Campaign(
            campaign_id=campaign_id, spec=self.spec, state=CampaignState.CREATED, created_at="", changed_at="",
            expires_at=UNKNOWN,
        )  # fmt: skip

    def record_plan(self, campaign_id: str, plan: Mapping[str, Any], *, now: datetime) -> Campaign:
        """Nothing is recorded: the plan is what is shown."""
        return self.get(campaign_id)

    def record_preparation(
        self, campaign_id: str, generation: int, *, now: datetime, summary: Mapping[str, Any], **first: Any
    ) -> Campaign:
        """Nothing is launched from here."""
        raise NotImplementedError


@dataclass
class LocalFiles:
    """`carillon.launch.preparation.Objects` on the files that were named; of what is written only the rejects can be
    kept."""

    files: Mapping[str, Path]
    """By the key that an upload would have."""
    rejects: Path | None
    bucket: str = "offline"

    def version(self, key: str) -> str | None:
        """There is one version of a file."""
        return "null" if key in self.files else None

    def read(self, key: str) -> bytes | None:
        """The file's bytes."""
        return self.files[key].read_bytes() if key in self.files else None

    def read_all(self, keys: Iterable[str]) -> Iterator[bytes | None]:
        """Each file's."""
        return map(self.read, keys)

    def fetch(self, key: str, version: str, target: Path) -> None:
        """A copy."""
        shutil.copyfile(self.files[key], target)

    def upload(self, source: Path, key: str, content_type: str) -> None:
        """Keep the rejects, if somebody wants them."""
        if self.rejects is not None:
            shutil.copyfile(source, self.rejects)

    def put(self, key: str, content: bytes, content_type: str) -> str:
        """Not kept."""
        return "null"

    def put_all(self, contents: Iterable[tuple[str, bytes]], content_type: str) -> None:
        """Not kept."""

    def copy(self, key: str, version: str, target: str) -> None:
        """Not kept."""


@dataclass
class Assumed:
    """What only an account knows, as it is assumed: suppressions, identities, pace and imprint."""

    pace: Pace
    price_plan: PricePlan

    def read(self) -> Pace:
        """The pace that was given."""
        return self.pace

    def suppressed(self, pages: Iterable[Sequence[str]], count: int, topic: str) -> set[str]:
        """Nobody."""
        return set()

    def verified(self, identity: str) -> bool | None:
        """The sender is."""
        return True

    def account(self) -> Account:
        """In production, with the rate that was given and no quota of its own."""
        return Account(
            production=True, enabled=True, max_24_hour_send=-1, max_send_rate=self.pace.rate_per_second,
            price_plan=self.price_plan,
        )  # fmt: skip

    def record_quota(self, max_24_hour_send: int) -> None:
        """Nobody sends."""

    def postal_address(self) -> str | None:
        """It is set."""
        return "the sender's postal address"

    def put_template(self, name: str, template: SesTemplate) -> None:
        """A plan leaves nothing at SES."""

    def delete_template(self, name: str) -> None:
        """There is none."""


class EmptyLedger:
    """`carillon.timing.ledger.Ledger` of an account with no other campaign."""

    def read(self, days: Iterable[date]) -> list[Day]:
        """Nothing is taken."""
        return [Day(day, 0, {}) for day in days]

    def take(self, campaign_id: str, day: Day, entry: bytes | None) -> None:
        """A plan takes nothing."""

    def give_back(self, campaign_id: str, days: Iterable[date]) -> None:
        """There is nothing to give back."""


class NoRows:
    """`carillon.launch.resuming.Rows`: nobody has been enrolled."""

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        """None."""
        return iter(())

    def cancel(self, tasks: Sequence[Task]) -> int:
        """None."""
        return 0

    def enrol(self, wanted: Sequence[Task]) -> list[Task]:
        """Nobody is enrolled from here."""
        raise NotImplementedError


def uploads(source: Path, templates: Mapping[str, Path]) -> dict[str, Path]:
    """The list and templates by the keys that uploads would have."""
    ending = "jsonl" if source.suffix.lower() in (".jsonl", ".ndjson") else "csv"
    return {keys.upload(CAMPAIGN, f"list.{ending}"): source} | {
        keys.upload(CAMPAIGN, f"templates/{name}"): path for name, path in templates.items()
    }
