"""The sender's postal address: read now and then, never done without."""

from __future__ import annotations

import pytest

from carillon.adapters.imprint import SECONDS, SenderImprint


def put(client, address):
    client.put_item(TableName="Settings", Item={"name": {"S": "sender"}, "postal_address": {"S": address}})


def test_an_address_is_kept_for_half_a_minute(dynamodb):
    """And a correction reaches the e-mails after that."""
    now = [1000.0]
    imprint = SenderImprint("Settings", dynamodb, lambda: now[0])
    for address, later, seen in (("A 1", 0, "A 1"), ("B 2", SECONDS - 1, "A 1"), ("B 2", 1, "B 2")):
        put(dynamodb, address)
        now[0] += later
        assert imprint.postal_address() == seen


def test_without_an_address_there_is_an_error_until_somebody_sets_one(dynamodb):
    """Missing and blank are the same, and neither is remembered."""
    imprint = SenderImprint("Settings", dynamodb, lambda: 1000.0)
    with pytest.raises(LookupError, match="PUT /settings/sender"):
        imprint.postal_address()
    put(dynamodb, "  ")
    with pytest.raises(LookupError):
        imprint.postal_address()
    put(dynamodb, "A 1")
    assert imprint.postal_address() == "A 1"
