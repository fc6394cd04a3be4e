"""Unsubscribing and the suppression list on the deployed stack: real routes, roles, queues and files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import time
from collections.abc import Callable
from typing import Any

import requests

from carillon import keys
from carillon.adapters.secrets import UnsubscribeKeys
from carillon.consent.unsubscribing import Links
from tests.local.end_to_end.stage import Stage


def link(stage: Stage, campaign_id: str, address: str, topic: str = "news") -> str:
    """The link as the sender makes it, at the local cloud's address."""
    stack = stage.stack
    known = UnsubscribeKeys(stack.outputs["UnsubscribeKeysSecret"], stack.client("secretsmanager"))
    made = Links("", known).unsubscribe(campaign_id, keys.task_id(1, address), topic, keys.address_hash(address))
    return stack.api.base + made


def suppressions(stage: Stage, address: str) -> set[str]:
    found = stage.stack.api.call("POST", "/suppressions/lookup", {"addresses": [address]})
    return {entry["topic"] for entry in found["entries"]}


def eventually[T](look: Callable[[], T], seconds: float = 60) -> T:
    """What ``look`` finds, once it finds something."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.5)
    return found


def archived(stage: Stage, campaign_id: str) -> list[dict[str, Any]]:
    """Unsubscriptions of a campaign in the archive."""
    s3, bucket = stage.stack.client("s3"), stage.stack.outputs["BucketName"]
    lines: list[bytes] = []
    for item in s3.list_objects_v2(Bucket=bucket, Prefix="events/").get("Contents", []):
        body = s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        lines += (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).splitlines()
    events = [json.loads(line) for line in lines]
    return [e for e in events if e["eventType"] == "Unsubscribe" and e["mail"]["tags"]["campaign"] == [campaign_id]]


def test_a_link_shows_a_page_and_one_click_unsubscribes(stage: Stage) -> None:
    """Public, by the deployed key; the event lies in the archive, once."""
    url, ana = link(stage, "linked", "ana.link@example.com"), "Ana.Link@Example.com"
    page = requests.get(url, headers={"Accept-Language": "de"}, timeout=30)
    assert page.status_code == 200
    assert "Abmelden" in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert requests.head(url, timeout=30).status_code == 200
    assert suppressions(stage, ana) == set()
    for _ in range(2):
        assert requests.post(url, data={"List-Unsubscribe": "One-Click"}, timeout=30).status_code == 200
    assert suppressions(stage, ana) == {"news"}
    assert requests.post(url, files={"everything": (None, "1")}, timeout=30).status_code == 200
    assert suppressions(stage, ana) == {"news", "*"}
    assert requests.post(url[:-1], timeout=30).status_code == 404
    stage.cloud.clock.advance(400)  # beyond Firehose's buffering
    events = eventually(lambda: archived(stage, "linked") if len(archived(stage, "linked")) >= 2 else [])
    assert sorted(event["unsubscribe"]["topic"] for event in events) == ["*", "news"]


def test_a_list_is_imported_exported_and_lifted(stage: Stage) -> None:
    """By links past the API, in a function that runs in the background, with its own role."""
    api = stage.stack.api
    upload = api.call("POST", "/suppressions/uploads")
    content = "E-Mail;Topic\r\nimported@example.com;\r\nnobody;\r\nÜ@bücher.example;\r\nb@BÜCHER.example;offers\r\n"
    form = requests.post(upload["url"], data=upload["fields"], files={"file": content.encode()}, timeout=30)
    assert form.status_code == 204, form.text
    api.call("POST", "/suppressions/imports", {"upload": upload["upload"], "topic": "news", "reason": "moved"})

    def ended(transfer: str) -> dict[str, Any]:
        seen = api.call("GET", f"/suppressions/transfers/{transfer}")
        return seen if seen["state"] != "running" else {}

    done = eventually(lambda: ended(upload["upload"]))
    assert (done["state"], done["added"], done["rejected"]) == ("completed", 2, {"invalid_address": 2})
    assert requests.get(done["url"], timeout=30).text.split() == [
        "line,reason",
        "3,invalid_address",
        "4,invalid_address",
    ]
    assert suppressions(stage, "imported@example.com") == {"news"}
    assert suppressions(stage, "b@xn--bcher-kva.example") == {"offers"}

    done = eventually(lambda: ended(api.call("POST", "/suppressions/exports")["transfer"]))
    rows = list(csv.DictReader(io.StringIO(requests.get(done["url"], timeout=30).text)))
    assert {(row["topic"], row["reason"]) for row in rows if row["reason"] == "moved"} == {
        ("news", "moved"),
        ("offers", "moved"),
    }
    lift = {"addresses": ["IMPORTED@example.com"], "topic": "news"}
    assert api.call("DELETE", "/suppressions", lift) == {"changed": 1, "unchanged": 0, "invalid": []}
    assert suppressions(stage, "imported@example.com") == set()
