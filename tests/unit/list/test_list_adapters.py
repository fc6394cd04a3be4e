"""The adapters of a preparation: versions are pinned, and every suppression is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.stub import Stubber

from carillon import keys
from carillon.adapters.identities import Identities
from carillon.adapters.suppressed import ASKED, SuppressionLookup
from carillon.launch.readiness import Account

from .conftest import BUCKET, NOW, World, client


def test_a_version_is_fetched_and_copied_whatever_came_after(world: World, tmp_path: Path) -> None:
    """What is prepared is what was looked at."""
    version = world.objects.put("a", b"first", "text/plain")
    world.objects.put("a", b"second", "text/plain")
    world.objects.fetch("a", version, tmp_path / "a")
    world.objects.copy("a", version, "b")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert world.objects.read("b") == b"first"
    assert world.objects.version("a") != version


def test_what_is_not_there_is_none(world: World) -> None:
    """Absence is an answer; everything else is an error."""
    assert world.objects.version("nothing") is None
    assert world.objects.read("nothing") is None


def test_a_bucket_without_versions_works_as_well(world: World, tmp_path: Path) -> None:
    """S3 calls the only version null."""
    client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    client("s3").create_bucket(Bucket="plain", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    objects = type(world.objects)("plain", client("s3"))
    assert objects.put("a", b"x", "text/plain") == "null"
    assert objects.version("a") == "null"
    objects.fetch("a", "null", tmp_path / "a")
    objects.copy("a", "null", "b")
    assert objects.read("b") == b"x"


def test_many_objects_are_all_written_and_read_in_their_order(world: World) -> None:
    """Several at a time, none forgotten, and none made before its turn comes."""
    made = []

    def contents() -> Iterator[tuple[str, bytes]]:
        for n in range(150):
            made.append(n)
            yield f"batches/{n}", b"%d" % n

    put, waiting = world.objects.put, []

    def watched(*given: Any) -> str:
        waiting.append(len(made))
        return put(*given)

    world.objects.put = watched  # type: ignore[method-assign]
    world.objects.put_all(contents(), "application/jsonl")
    assert waiting[0] < 150
    keys_there = [*(f"batches/{n}" for n in range(150)), "nothing"]
    assert list(world.objects.read_all(keys_there)) == [*(b"%d" % n for n in range(150)), None]


def test_suppressions_of_the_topic_and_of_every_topic_are_found(world: World) -> None:
    """More addresses than one call takes; another topic's do not count."""
    hashes = [keys.address_hash(f"p{n}@example.com") for n in range(230)]
    world.suppressions.add(hashes[3], "offers", "unsubscribed", NOW)
    world.suppressions.add(hashes[120], "*", "bounced", NOW)
    world.suppressions.add(hashes[229], "*", "bounced", NOW)
    world.suppressions.add(hashes[229], "offers", "unsubscribed", NOW)
    world.suppressions.add(hashes[7], "news", "unsubscribed", NOW)
    lookup = SuppressionLookup("suppressions", client("dynamodb"))
    for count in (len(hashes), ASKED):  # by key, and by reading the table
        assert lookup.suppressed([hashes[:200], hashes[200:]], count, "offers") == {hashes[3], hashes[120], hashes[229]}


def test_a_table_that_is_long_beside_the_list_is_asked_by_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it whole would take longer; nobody who is not asked for is found then."""
    monkeypatch.setattr("carillon.adapters.suppressed.ROWS_EACH", 3 / ASKED)
    hashes = [keys.address_hash(f"p{n}@example.com") for n in range(40)]
    for each in hashes:
        world.suppressions.add(each, "offers", "unsubscribed", NOW)
    lookup = SuppressionLookup("suppressions", client("dynamodb"))
    assert lookup.suppressed([hashes[:5]], ASKED, "offers") == set(hashes[:5])


def unprocessed(*asked: dict[str, Any]) -> dict[str, Any]:
    return {"suppressions": {"Keys": list(asked), "ProjectionExpression": "address_hash"}}


def test_keys_that_dynamodb_puts_off_are_asked_for_again(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy table answers in part: BatchGetItem's UnprocessedKeys. Nobody slips through."""
    monkeypatch.setattr("carillon.adapters.suppressed.clock.sleep", lambda seconds: None)
    dynamodb = boto3.client("dynamodb")
    topic, every = ({"address_hash": {"S": "h"}, "topic": {"S": t}} for t in ("offers", "*"))
    with Stubber(dynamodb) as stub:
        stub.add_response("batch_get_item", {"Responses": {}, "UnprocessedKeys": unprocessed(every)})
        stub.add_response(
            "batch_get_item",
            {"Responses": {"suppressions": [{"address_hash": {"S": "h"}}]}},
            expected_params={"RequestItems": unprocessed(every)},
        )
        assert SuppressionLookup("suppressions", dynamodb).suppressed([["h"]], 1, "offers") == {"h"}
    with Stubber(dynamodb) as stub:
        for _ in range(10):
            stub.add_response("batch_get_item", {"Responses": {}, "UnprocessedKeys": unprocessed(topic, every)})
        with pytest.raises(TimeoutError):
            SuppressionLookup("suppressions", dynamodb).suppressed([["h"]], 1, "offers")


def test_an_identity_is_verified_waiting_or_unknown(aws: None) -> None:
    """As botocore's model of GetEmailIdentity and GetAccount has it."""
    ses = boto3.client("sesv2")
    with Stubber(ses) as stub:
        stub.add_response("get_email_identity", {"VerifiedForSendingStatus": True})
        stub.add_response("get_email_identity", {"VerifiedForSendingStatus": False})
        stub.add_client_error("get_email_identity", "NotFoundException")
        quota = {"Max24HourSend": -1.0, "MaxSendRate": 14.0, "SentLast24Hours": 3.0}
        account = {"ProductionAccessEnabled": False, "SendingEnabled": True, "SendQuota": quota}
        stub.add_response("get_account", {**account, "PricingAttributes": {"CurrentPlan": "NONE"}})
        identities = Identities(ses)
        assert [identities.verified("shop.example") for _ in range(3)] == [True, False, None]
        assert identities.account() == Account(
            production=False, enabled=True, max_24_hour_send=-1, max_send_rate=14.0, price_plan="NONE"
        )


@pytest.mark.parametrize(
    ("pricing", "plan"), [({"PricingAttributes": {"CurrentPlan": "ESSENTIALS"}}, "ESSENTIALS"), ({}, "NONE")]
)
def test_an_sdk_older_than_the_price_plans_still_tells_the_accounts(pricing: Any, plan: str) -> None:
    """The functions take Lambda's boto3, which may be months behind; else every e-mail would look à la carte."""
    session = boto3.Session("id", "secret", region_name="eu-central-1")
    ses = session.client("sesv2")
    del ses.meta.service_model._service_description["shapes"]["GetAccountResponse"]["members"]["PricingAttributes"]  # type: ignore[attr-defined]
    quota = {"Max24HourSend": 50_000.0, "MaxSendRate": 14.0, "SentLast24Hours": 3.0}
    body = json.dumps({"ProductionAccessEnabled": True, "SendingEnabled": True, "SendQuota": quota, **pricing}).encode()
    raw = SimpleNamespace(stream=lambda: iter([body]))
    ses.meta.events.register("before-send.sesv2.GetAccount", lambda **_: AWSResponse("https://x", 200, {}, raw))
    assert "PricingAttributes" not in ses.get_account()
    assert Identities(ses).account().price_plan == plan
