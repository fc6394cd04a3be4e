"""SES's two quotas, both counted in recipients: a rate per second and a sum over the last 24 hours."""

from __future__ import annotations

from collections import deque

DAY_SECONDS = 86_400


class RateLimit:
    """A token bucket: ``rate`` per second, with ``burst_seconds`` of it in hand after a pause."""

    def __init__(self, rate: float, burst_seconds: float) -> None:
        self._rate = rate
        self._capacity = max(rate * burst_seconds, 1.0)
        self._tokens = self._capacity
        self._at: float | None = None

    def permits(self, count: int, now: float) -> bool:
        """Whether ``count`` may go at ``now``. A message with more recipients than the bucket holds waits
        for a full one, for it could never go otherwise."""
        if self._at is not None:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens >= min(count, self._capacity)

    def take(self, count: int) -> None:
        """Count ``count`` that were permitted just now; the bucket may owe for a large message."""
        self._tokens -= count


class RollingCount:
    """How many in the 24 hours up to now, kept in whole seconds so that a day is at most 86,401 entries."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        self._sum = 0

    def at(self, now: float) -> int:
        """The sum at ``now`` (seconds since the epoch)."""
        # A second leaves when all of it is 24 hours old.
        while self._seconds and self._seconds[0][0] + 1 <= now - DAY_SECONDS:
            self._sum -= self._seconds.popleft()[1]
        return self._sum

    def add(self, count: int, now: float) -> None:
        """Count ``count`` at ``now``."""
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += count
        else:
            self._seconds.append([second, count])
        self._sum += count
