"""Suppression lists in and out: moto's S3, the real table, and a Lambda that only takes notes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from campaign_api import app as api_app
from carillon import keys
from carillon.adapters import aws, clock
from carillon.adapters.functions import BackgroundFunction
from carillon.adapters.objects import Objects
from carillon.adapters.suppressions import SuppressionTable
from carillon.adapters.uploads import Uploads
from carillon.consent import transfers
from carillon.consent.suppressions import Suppression
from carillon.consent.transferring import HEADER, Transferring
from carillon.consent.transfers import Transfer, Transfers
from carillon.environment import load
from transfer_suppressions import app

from .conftest import ANA, CONTEXT, NOW, TASK

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from carillon.consent.transfers import Progress

AT = "2026-11-29T08:00:00Z"
BEN = keys.address_hash("ben@example.com")
ID = "3fa9c2d17b604e85"


@dataclass
class World:
    """The bucket, the list, and what was handed to Lambda."""

    objects: Objects
    table: SuppressionTable
    later: list[Mapping[str, Any]] = field(default_factory=list)

    def run_later(self, given: Mapping[str, Any]) -> None:
        self.later.append(given)

    def transfers(self) -> Transfers:
        return Transfers(self.objects, Uploads("bucket", aws.s3()), self)

    def bring(self, content: str | bytes, **asked: Any) -> Progress:
        raw = content.encode() if isinstance(content, str) else content
        self.objects.put(transfers.upload_key(ID), raw, "text/csv")
        return self.run(Transfer(transfer=ID, direction="import", **asked))

    def run(self, asked: Transfer, deadline: float = 1e12) -> Progress:
        return Transferring(self.objects, self.table, lambda: NOW, deadline).run(asked)

    def file(self, direction: str = "import") -> list[list[str]]:
        content = self.objects.read(transfers.result_key(ID, direction))
        assert content is not None
        return list(csv.reader(io.StringIO(content.decode())))

    def rows(self) -> set[tuple[str, str, str, str]]:
        return {(row.address_hash, row.topic, row.reason, row.at) for page in self.table.every() for row in page}


@pytest.fixture
def world(table: SuppressionTable, dynamodb: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(clock, "epoch", NOW.timestamp)
    with mock_aws(config={"core": {"passthrough": {"services": ["dynamodb"]}}}):  # its tables are MiniStack's
        s3 = boto3.client("s3", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y")
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        monkeypatch.setattr(aws, "s3", lambda: s3)
        monkeypatch.setattr(aws, "dynamodb", lambda: dynamodb)
        yield World(Objects("bucket", s3), table)


def test_an_uploaded_list_is_suppressed(world: World) -> None:
    """Its address column is found as a campaign's is; what is no address is counted, with its line."""
    done = world.bring(
        "\ufeffName;E-Mail\r\nAna;ANA@example.com\r\nBen;ben@example.com\r\nNobody;none\r\nAna;ana@example.com\r\n",
        topic="news",
        reason="moved",
    )
    assert (done.state, done.rows, done.added, done.present) == ("completed", 4, 2, 1)
    assert done.rejected == {"invalid_address": 1}
    assert world.rows() == {(ANA, "news", "moved", AT), (BEN, "news", "moved", AT)}
    assert world.file() == [["line", "reason"], ["4", "invalid_address"]]


def test_importing_twice_changes_nothing(world: World) -> None:
    """The first reason and time stay, whoever imports later."""
    world.table.put_first(Suppression(ANA, "*", "one_click", "2025-01-01T00:00:00Z", "advent", TASK))
    for added in (1, 0):
        done = world.bring("email\nana@example.com\nben@example.com\n")
        assert (done.added, done.present) == (added, 2 - added)
    assert world.rows() == {(ANA, "*", "one_click", "2025-01-01T00:00:00Z"), (BEN, "*", "import", AT)}


def test_columns_of_the_list_win_over_what_the_call_says(world: World) -> None:
    """Topic, reason and time a row; a row with a topic or reason that cannot be is left out."""
    done = world.bring(
        "email,topic,reason,at\n"
        "ana@example.com,news,complained,2020-02-29T10:00:00Z\n"
        "ben@example.com,,,yesterday\n"
        "cem@example.com,two words,,\n"
        "dan@example.com,news,dan@example.com,\n",
        topic="offers",
    )
    assert done.rejected == {"invalid_topic": 1, "invalid_reason": 1}
    assert world.rows() == {(ANA, "news", "complained", "2020-02-29T10:00:00Z"), (BEN, "offers", "import", AT)}


def test_an_export_is_the_whole_list_and_comes_in_again_as_it_was(world: World) -> None:
    """Hashes, topics, reasons and times, exit lists too: another stack suppresses whom this one does."""
    kept = [Suppression(keys.address_hash(f"p{n}@example.com"), "*", "import", AT) for n in range(1100)]
    kept.append(Suppression(ANA, "news", "one_click", AT, "advent", TASK, archived=True))
    kept.append(Suppression(ANA, "campaign.advent", "exit", AT))
    world.table.put_all(kept)
    before = world.rows()
    done = world.run(Transfer(transfer=ID, direction="export"))
    assert (done.state, done.rows) == ("completed", 1102)
    header, *lines = world.file("export")
    assert header == list(HEADER)
    assert len(lines) == 1102
    content = world.objects.read(transfers.result_key(ID, "export"))
    assert content is not None
    assert b"@" not in content
    world.table.delete_all([(row.address_hash, row.topic) for row in kept])
    assert world.rows() == set()
    assert world.bring(content).added == 1102
    assert world.rows() == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04 workbook", "not_csv"),
        ("", "empty_file"),
        ("ana@example.com\nben@example.com\n", "no_header"),
        ("name,city\nAna,Rome\n", "no_address_column"),
        ('{"email": "ana@example.com"}\n', "not_csv"),
    ],
)
def test_a_file_that_is_no_list_is_refused_in_the_readers_words(world: World, content: Any, reason: str) -> None:
    """Failed with cause and fix; nothing suppressed, nothing tried again, and no address quoted."""
    done = world.bring(content)
    assert done.state == "failed"
    assert done.error is not None
    assert (done.error.code, done.error.message.partition(":")[0]) == ("ListRejected", reason)
    assert "ana@example.com" not in done.error.message
    assert world.rows() == set()


def test_hashes_that_are_none_are_left_out(world: World) -> None:
    """An address in a column of hashes is no hash, and is not taken for one."""
    done = world.bring(f"address_hash\n{ANA.upper()}\nana@example.com\n{ANA[:-1]}\n\n")
    assert (done.added, done.rejected) == (1, {"invalid_hash": 2})
    assert world.rows() == {(ANA, "*", "import", AT)}


def test_a_list_that_takes_too_long_says_how_far_it_came(world: World) -> None:
    """What was written stays; the file is to be split."""
    world.objects.put(transfers.upload_key(ID), b"email\n" + b"ana@example.com\n" * 1500, "text/csv")
    done = world.run(Transfer(transfer=ID, direction="import"), deadline=NOW.timestamp() - 1)
    assert done.error is not None
    assert (done.state, done.error.code) == ("failed", "OutOfTime")
    assert "1000 rows" in done.error.message
    assert world.rows() == {(ANA, "*", "import", AT)}


def test_progress_is_told_while_it_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every few seconds; whoever looks sees rows and not only a state."""
    reports: list[Any] = []
    real = world.objects.put

    def put(key: str, content: bytes, content_type: str) -> str:
        if key == transfers.progress_key(ID):
            reports.append(json.loads(content))
        return real(key, content, content_type)

    monkeypatch.setattr(world.objects, "put", put)
    times = iter(range(10_000))

    def now() -> datetime:
        return NOW + timedelta(seconds=3 * next(times))

    world.objects.put(transfers.upload_key(ID), b"email\n" + b"ana@example.com\n" * 4500, "text/csv")
    Transferring(world.objects, world.table, now, 1e12).run(Transfer(transfer=ID, direction="import"))
    rows = [report["rows"] for report in reports]
    assert rows == sorted(rows)
    assert len(set(rows)) > 2
    assert [report["state"] for report in reports] == ["running"] * (len(reports) - 1) + ["completed"]


def test_an_import_is_asked_for_and_watched_through_the_api(world: World) -> None:
    """Upload link, import, progress, and a link to what was left out."""
    made = world.transfers()
    upload = made.upload_link(NOW)
    assert upload.fields["key"] == transfers.upload_key(upload.upload)
    assert upload.expires_at == "2026-11-29T09:00:00Z"
    with pytest.raises(transfers.NothingUploaded, match="POST /suppressions/uploads"):
        made.start_import(transfers.Import(upload=upload.upload), NOW)
    assert world.later == []
    world.objects.put(transfers.upload_key(upload.upload), b"email\nana@example.com\nx\n", "text/csv")
    started = made.start_import(transfers.Import(upload=upload.upload, topic="news"), NOW)
    assert made.look(started.transfer).state == "running"
    (given,) = world.later
    world.run(Transfer.model_validate(json.loads(json.dumps(given))))
    seen = made.look(started.transfer)
    assert (seen.state, seen.added, seen.rejected) == ("completed", 1, {"invalid_address": 1})
    assert seen.url is not None
    assert f"suppressions/{started.transfer}/rejects.csv?" in seen.url


def test_an_export_is_fetched_by_a_link_that_expires(world: World) -> None:
    """Within the hour, and only once it is whole."""
    made = world.transfers()
    started = made.start_export(NOW)
    assert made.look(started.transfer).url is None
    world.run(Transfer.model_validate(world.later[0]))
    url = made.look(started.transfer).url
    assert url is not None
    assert "suppressions.csv?" in url
    assert "3600" in url


def test_what_was_never_started_is_not_found(world: World) -> None:
    """Or was forgotten, a week after."""
    with pytest.raises(transfers.TransferNotFound):
        world.transfers().look("0" * 16)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/suppressions/uploads", None, 201),
        ("POST", "/suppressions/exports", None, 202),
        ("POST", "/suppressions/imports", {"upload": "0" * 16}, 409),
        ("POST", "/suppressions/imports", {"upload": "../../x"}, 422),
        ("GET", "/suppressions/transfers/0000000000000000", None, 404),
        ("GET", "/suppressions/transfers/..", None, 422),
    ],
)
def test_the_api_answers(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any, status: int
) -> None:
    """Each route with its status."""
    monkeypatch.setattr(api_app, "_transfers", world.transfers)
    monkeypatch.setattr(api_app, "_tokens", lambda: SimpleNamespace(valid=lambda: ("right",)))
    event = {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {"content-type": "application/json", "authorization": "Bearer right"},
        "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
        "isBase64Encoded": False,
    } | ({} if body is None else {"body": json.dumps(body)})
    assert api_app.handler(event, CONTEXT)["statusCode"] == status


def test_the_function_is_wired_and_a_fault_is_raised_without_its_text(
    world: World, monkeypatch: pytest.MonkeyPatch, dynamodb: DynamoDBClient
) -> None:
    """Input in, progress out; what breaks is raised, so that Lambda tries again, and says no address."""
    load.cache_clear()
    monkeypatch.setenv("SUPPRESSIONS_TABLE", "Suppressions")
    monkeypatch.setenv("BUCKET", "bucket")
    context = SimpleNamespace(**vars(CONTEXT), get_remaining_time_in_millis=lambda: 900_000)
    world.objects.put(transfers.upload_key(ID), b"email\nana@example.com\n", "text/csv")
    assert app.handler({"transfer": ID, "direction": "import"}, context)["state"] == "completed"
    dynamodb.delete_table(TableName="Suppressions")
    written = io.StringIO()
    monkeypatch.setattr(app.logger.registered_handler, "stream", written)
    with pytest.raises(app.TransferBroken) as raised:
        app.handler({"transfer": ID, "direction": "import"}, context)
    assert raised.value.__cause__ is raised.value.__context__ is None
    assert "the transfer broke" in written.getvalue()
    assert "ana@" not in written.getvalue()
    assert world.transfers().look(ID).state == "failed"
    load.cache_clear()


def test_a_background_function_is_invoked_as_an_event() -> None:
    """Lambda's own queue: 202 at once, and two more tries (AWS_CONTRACTS 6)."""
    client = boto3.client("lambda", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="y")
    with Stubber(client) as stub:
        expected = {"FunctionName": "arn:f", "InvocationType": "Event", "Payload": b'{"transfer": "x"}'}
        stub.add_response("invoke", {"StatusCode": 202}, expected)
        BackgroundFunction("arn:f", client).run_later({"transfer": "x"})
        stub.assert_no_pending_responses()
