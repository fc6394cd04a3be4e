"""The demo's lists: what they must be for its last line to be judged."""

from __future__ import annotations

from local.demo.recipients import both


def test_nobody_is_in_both_lists() -> None:
    """Who bounces in the first campaign is suppressed in the second, and its numbers would depend on chance."""
    first, second = both()
    assert len(first.valid) == 458
    assert len(second.valid) == 147
    assert not {address.lower() for address in first.valid} & {address.lower() for address in second.valid}
    assert not first.suppressed & second.valid
