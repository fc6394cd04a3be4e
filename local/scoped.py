"""MiniStack's stores are scoped by account and Region, which it takes from the request being served."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any


class ScopedStore(MutableMapping[str, dict[str, Any]]):
    """One account's and Region's part of a MiniStack store, from whatever thread it is looked at."""

    def __init__(self, store: Any, account_id: str, region: str) -> None:
        self._store = store
        self._scope = (account_id, region)

    def __getitem__(self, key: str) -> dict[str, Any]:
        record: dict[str, Any] | None = self._store.get_scoped(*self._scope, key)
        if record is None:
            raise KeyError(key)
        return record

    def __setitem__(self, key: str, value: dict[str, Any]) -> None:
        self._store.set_scoped(*self._scope, key, value)

    def __delitem__(self, key: str) -> None:
        self._store.pop_scoped(*self._scope, key)

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, _ in self._store.items_scoped(*self._scope)])

    def __len__(self) -> int:
        return len(self._store.items_scoped(*self._scope))
