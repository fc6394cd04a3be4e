"""Firehose to S3, over MiniStack's own module for the streams and an S3 that only listens."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from local import seams
from local.clock import Clock
from local.firehose import Firehose
from local.ministack import private
from local.ports import AwsError

ROLE = "arn:aws:iam::000000000000:role/firehose-to-s3"
KEY = r"-(\d+)-(\d{4})-(\d\d)-(\d\d)-(\d\d)-(\d\d)-(\d\d)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class ListeningS3:
    def __init__(self) -> None:
        self.objects: list[tuple[Mapping[str, Any], str]] = []
        self.sources: set[str] = set()
        self.refusals: list[AwsError] = []

    def call(
        self, service: str, operation: str, params: Mapping[str, Any], role_arn: str, source_arn: str = ""
    ) -> dict[str, Any]:
        assert (service, operation) == ("s3", "PutObject")
        if self.refusals:
            raise self.refusals.pop(0)
        self.objects.append((params, role_arn))
        self.sources.add(source_arn)
        return {}

    @property
    def keys(self) -> list[str]:
        return [params["Key"] for params, _ in self.objects]

    @property
    def bodies(self) -> list[bytes]:
        return [params["Body"] for params, _ in self.objects]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def s3() -> ListeningS3:
    return ListeningS3()


@pytest.fixture
def firehose(clock: Clock, s3: ListeningS3) -> Iterator[Firehose]:
    module = private("services.firehose")
    module.reset()
    # Outside a request MiniStack works in the account and Region it was started with, if it was.
    scope = private("core.responses")
    firehose = Firehose(clock, s3, scope.get_account_id(), scope.get_region())
    firehose.facade(module)
    yield firehose
    module.reset()


def stream(name: str = "events", **destination: Any) -> dict[str, Any]:
    """CreateDeliveryStream's members; ``destination`` adds to or replaces what the S3 destination has."""
    return {
        "DeliveryStreamName": name,
        "ExtendedS3DestinationConfiguration": {
            "RoleARN": ROLE,
            "BucketARN": "arn:aws:s3:::archive",
            "BufferingHints": {"SizeInMBs": 1, "IntervalInSeconds": 60},
            **destination,
        },
    }


def put(firehose: Firehose, *records: bytes, name: str = "events") -> dict[str, Any]:
    entries = [{"Data": record} for record in records]
    return firehose.handle("PutRecordBatch", {"DeliveryStreamName": name, "Records": entries})


def refusal(firehose: Firehose, **destination: Any) -> AwsError:
    with pytest.raises(AwsError) as refused:
        firehose.handle("CreateDeliveryStream", stream(**destination))
    return refused.value


def test_records_of_one_interval_are_one_object(firehose: Firehose, clock: Clock, s3: ListeningS3) -> None:
    """Botocore firehose BufferingHints: buffered for IntervalInSeconds, then joined as they came."""
    firehose.handle("CreateDeliveryStream", stream())
    put(firehose, b"one\n", b"two\n")
    clock.advance(59)
    put(firehose, b"three\n")
    assert firehose.deliver_due() == 0
    clock.advance(2)
    assert firehose.deliver_due() == 1
    assert s3.bodies == [b"one\ntwo\nthree\n"]
    assert s3.objects[0][0]["Bucket"] == "archive"
    assert s3.objects[0][1] == ROLE
    assert s3.sources == {firehose.resource_of("PutRecord", {"DeliveryStreamName": "events"})}


def test_a_full_buffer_does_not_wait(firehose: Firehose, s3: ListeningS3) -> None:
    """Botocore firehose BufferingHints: delivered at SizeInMBs, counted in MiB before compression."""
    firehose.handle("CreateDeliveryStream", stream(CompressionFormat="GZIP"))
    put(firehose, b"x" * 524_288)
    assert firehose.deliver_due() == 0
    put(firehose, b"x" * 524_288)
    assert firehose.deliver_due() == 1
    assert gzip.decompress(s3.bodies[0]) == b"x" * 1_048_576


def test_an_interval_of_zero_delivers_at_once(firehose: Firehose, s3: ListeningS3) -> None:
    """Botocore firehose IntervalInSeconds: 0 to 900."""
    hints = {"SizeInMBs": 1, "IntervalInSeconds": 0}
    firehose.handle("CreateDeliveryStream", stream(BufferingHints=hints))
    put(firehose, b"now")
    assert firehose.deliver_due() == 1


def test_without_hints_the_buffer_is_5_mib_or_300_seconds(firehose: Firehose, clock: Clock) -> None:
    """Botocore firehose BufferingHints: the defaults."""
    params = stream()
    del params["ExtendedS3DestinationConfiguration"]["BufferingHints"]
    firehose.handle("CreateDeliveryStream", params)
    put(firehose, b"x")
    clock.advance(299)
    assert firehose.deliver_due() == 0
    clock.advance(1)
    assert firehose.deliver_due() == 1


def test_flush_delivers_what_is_there(firehose: Firehose, s3: ListeningS3) -> None:
    """Tests and the demo need not wait for the interval; an empty buffer writes nothing."""
    firehose.handle("CreateDeliveryStream", stream())
    put(firehose, b"x")
    assert (firehose.flush(), firehose.flush()) == (1, 0)
    assert s3.bodies == [b"x"]


def test_the_background_delivers_when_the_clock_moves(firehose: Firehose, clock: Clock, s3: ListeningS3) -> None:
    """Nobody has to call anything: moving the clock past the interval is enough."""
    firehose.handle("CreateDeliveryStream", stream())
    firehose.start()
    try:
        put(firehose, b"x")
        clock.advance(61)
        give_up = clock.time() + 10
        while not s3.objects and clock.time() < give_up:
            clock.sleep(0.02)
    finally:
        firehose.stop()
    assert s3.bodies == [b"x"]


def test_gzip_objects_say_so_in_their_name(firehose: Firehose, s3: ListeningS3) -> None:
    """Firehose's guide, "object name format": the default extension of GZIP is .gz."""
    firehose.handle("CreateDeliveryStream", stream(CompressionFormat="GZIP"))
    put(firehose, b'{"a":1}\n')
    firehose.flush()
    assert s3.keys[0].endswith(".gz")
    assert json.loads(gzip.decompress(s3.bodies[0])) == {"a": 1}


def test_an_object_is_named_by_when_its_oldest_record_came(firehose: Firehose, clock: Clock, s3: ListeningS3) -> None:
    """Contract sheet, section 4: time of the oldest record, UTC; name, version, time and uuid as in the guide."""
    clock.advance_to(datetime(2030, 3, 14, 23, 59, 30, tzinfo=UTC))
    prefix = "events/day=!{timestamp:yyyy-MM-dd}/"
    firehose.handle(
        "CreateDeliveryStream", stream(Prefix=prefix, ErrorOutputPrefix="errors/!{firehose:error-output-type}/")
    )
    put(firehose, b"late\n")
    clock.advance(60)
    put(firehose, b"next day\n")
    firehose.deliver_due()
    found = re.fullmatch(rf"events/day=2030-03-14/events{KEY}", s3.keys[0])
    assert found is not None
    assert found.groups()[:6] == ("1", "2030", "03", "14", "23", "59")


def test_the_name_tells_the_version_of_the_stream(firehose: Firehose, s3: ListeningS3) -> None:
    """Firehose's guide, "object name format": every change of configuration raises the version."""
    firehose.handle("CreateDeliveryStream", stream(Prefix="p/"))
    described = private("services.firehose")._streams.get("events")
    firehose.handle(
        "UpdateDestination",
        {
            "DeliveryStreamName": "events",
            "CurrentDeliveryStreamVersionId": "1",
            "DestinationId": described["destinations"][0]["id"],
            "ExtendedS3DestinationUpdate": {"CompressionFormat": "GZIP"},
        },
    )
    put(firehose, b"x")
    firehose.flush()
    assert re.search(r"events-2-\d{4}", s3.keys[0])
    assert s3.keys[0].endswith(".gz")


@pytest.mark.parametrize(
    ("prefix", "folder"),
    [
        ("", r"2030/03/14/09/"),
        ("static/", r"static/2030/03/14/09/"),
        ("a/!{timestamp:yyyy}/!{timestamp:'h='HH}/", r"a/2030/h=09/"),
        ("r/!{firehose:random-string}/!{timestamp:yy.DDD}/", r"r/[0-9a-zA-Z]{11}/30.073/"),
        ("r/!{firehose:random-string}/", r"r/[0-9a-zA-Z]{11}/2030/03/14/09/"),
    ],
)
def test_prefixes_are_evaluated(firehose: Firehose, clock: Clock, s3: ListeningS3, prefix: str, folder: str) -> None:
    """Contract sheet, section 4: expressions; without a timestamp expression yyyy/MM/dd/HH/ is appended."""
    clock.advance_to(datetime(2030, 3, 14, 9, 5, tzinfo=UTC))
    firehose.handle("CreateDeliveryStream", stream(Prefix=prefix, ErrorOutputPrefix="e/!{firehose:error-output-type}/"))
    put(firehose, b"x")
    firehose.flush()
    assert re.fullmatch(rf"{folder}events{KEY}", s3.keys[0])


def test_a_custom_time_zone_moves_the_day(firehose: Firehose, clock: Clock, s3: ListeningS3) -> None:
    """Botocore firehose CustomTimeZone: UTC is the default."""
    clock.advance_to(datetime(2030, 3, 14, 23, 30, tzinfo=UTC))
    firehose.handle("CreateDeliveryStream", stream(CustomTimeZone="Europe/Berlin"))
    put(firehose, b"x")
    firehose.flush()
    assert s3.keys[0].startswith("2030/03/15/00/")


@pytest.mark.parametrize(
    "destination",
    [
        {"Prefix": "d=!{timestamp:yyyy}/"},
        {"Prefix": "d=!{timestamp:yyyy}/", "ErrorOutputPrefix": "errors/"},
        {
            "Prefix": "!{firehose:error-output-type}/!{timestamp:yyyy}/",
            "ErrorOutputPrefix": "!{firehose:error-output-type}/",
        },
        {"Prefix": "x" * 513},
        {"Prefix": "!{timestamp:QQ}/", "ErrorOutputPrefix": "!{firehose:error-output-type}/"},
        {"Prefix": "!{timestamp:'yyyy}/", "ErrorOutputPrefix": "!{firehose:error-output-type}/"},
        {"Prefix": "!{clock:yyyy}/", "ErrorOutputPrefix": "!{firehose:error-output-type}/"},
        {"Prefix": "!{timestamp:yyyy/", "ErrorOutputPrefix": "!{firehose:error-output-type}/"},
        {"BufferingHints": {"SizeInMBs": 5}},
        {"CustomTimeZone": "Mars/Olympus"},
    ],
)
def test_what_aws_refuses_is_refused_when_the_stream_is_created(
    firehose: Firehose, destination: dict[str, Any]
) -> None:
    """Contract sheet, section 4 (prefixes), botocore firehose (hints): InvalidArgumentException."""
    assert refusal(firehose, **destination).code == "InvalidArgumentException"


@pytest.mark.parametrize(
    "destination",
    [
        {"BufferingHints": {"SizeInMBs": 129, "IntervalInSeconds": 60}},
        {"BufferingHints": {"SizeInMBs": 1, "IntervalInSeconds": 901}},
        {"CompressionFormat": "BROTLI"},
        {"RoleARN": "firehose-to-s3"},
        {"BucketARN": "archive"},
    ],
)
def test_the_models_patterns_and_limits_hold(firehose: Firehose, destination: dict[str, Any]) -> None:
    """Botocore firehose ExtendedS3DestinationConfiguration: 1–128 MiB, 0–900 s, formats and ARNs."""
    assert refusal(firehose, **destination).code == "ValidationException"


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        ({"CompressionFormat": "Snappy"}, "Snappy"),
        ({"S3BackupMode": "Enabled"}, "S3BackupMode"),
        ({"DynamicPartitioningConfiguration": {"Enabled": True}}, "DynamicPartitioningConfiguration"),
        ({"ProcessingConfiguration": {"Enabled": True}}, "ProcessingConfiguration"),
        ({"DataFormatConversionConfiguration": {}}, "DataFormatConversionConfiguration"),
    ],
)
def test_what_this_cloud_does_not_do_is_refused_by_name(
    firehose: Firehose, destination: dict[str, Any], name: str
) -> None:
    """Nothing that would change the objects is silently ignored."""
    assert name in refusal(firehose, **destination).message


def test_other_sources_and_destinations_are_refused_by_name(firehose: Firehose) -> None:
    """Only DirectPut to S3 exists here."""
    for params in (
        {"DeliveryStreamName": "s", "DeliveryStreamType": "KinesisStreamAsSource"},
        {"DeliveryStreamName": "s", "S3DestinationConfiguration": {"RoleARN": ROLE, "BucketARN": "arn:aws:s3:::b"}},
        {"DeliveryStreamName": "s"},
        stream() | {"DeliveryStreamEncryptionConfigurationInput": {"KeyType": "CUSTOMER_MANAGED_CMK"}},
    ):
        with pytest.raises(AwsError) as refused:
            firehose.handle("CreateDeliveryStream", params)
        assert refused.value.code == "InvalidArgumentException"


def test_a_stream_may_be_encrypted_by_awss_own_key(firehose: Firehose) -> None:
    """Botocore firehose KeyType: AWS_OWNED_CMK is nobody's to see or to lose."""
    encryption = {"DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"}}
    assert firehose.handle("CreateDeliveryStream", stream() | encryption)["DeliveryStreamARN"]


def test_a_stream_that_exists_is_in_use(firehose: Firehose) -> None:
    """Botocore firehose CreateDeliveryStream: names are unique; ResourceInUseException."""
    firehose.handle("CreateDeliveryStream", stream())
    with pytest.raises(AwsError) as refused:
        firehose.handle("CreateDeliveryStream", stream())
    assert refused.value.code == "ResourceInUseException"


def test_puts_have_limits(firehose: Firehose) -> None:
    """Botocore firehose PutRecordBatch: 500 records, 1,000 KiB each, 4 MiB together; nothing is taken beyond."""
    firehose.handle("CreateDeliveryStream", stream())
    for records in ([b"x"] * 501, [b"x" * 1_024_001], [], [b"x" * 1_000_000] * 5):
        with pytest.raises(AwsError):
            put(firehose, *records)
    record = {"DeliveryStreamName": "events", "Record": {"Data": b"x" * 1_024_001}}
    with pytest.raises(AwsError):
        firehose.handle("PutRecord", record)
    assert firehose.flush() == 0
    answer = put(firehose, *[b"x"] * 500)
    assert answer["FailedPutCount"] == 0
    assert len({response["RecordId"] for response in answer["RequestResponses"]}) == 500


def test_a_put_to_a_stream_that_does_not_exist_is_not_found(firehose: Firehose) -> None:
    """Botocore firehose PutRecordBatch: ResourceNotFoundException."""
    with pytest.raises(AwsError) as refused:
        put(firehose, b"x", name="nowhere")
    assert refused.value.code == "ResourceNotFoundException"


def test_what_s3_refuses_is_kept_and_tried_again(firehose: Firehose, clock: Clock, s3: ListeningS3) -> None:
    """Botocore firehose PutRecord: records are stored for 24 hours while the destination cannot be reached;
    they stay before what came later."""
    firehose.handle("CreateDeliveryStream", stream())
    s3.refusals = [AwsError("AccessDenied", "no", 403)]
    put(firehose, b"first,")
    assert firehose.flush() == 0
    put(firehose, b"second")
    clock.advance(61)
    assert firehose.deliver_due() == 1
    assert s3.bodies == [b"first,second"]
    put(firehose, b"lost")
    clock.advance(86_401)
    s3.refusals = [AwsError("AccessDenied", "no", 403)]
    assert firehose.flush() == 0
    assert firehose.flush() == 0


def test_records_that_came_during_a_failed_delivery_follow_the_older_ones(
    firehose: Firehose, clock: Clock, s3: ListeningS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is buffered again stays in the order in which it came, and its interval counts from the oldest."""
    firehose.handle("CreateDeliveryStream", stream())
    put(firehose, b"first,")

    def refuse(*_: Any) -> dict[str, Any]:
        put(firehose, b"second")
        raise AwsError("SlowDown", "no", 503)

    with monkeypatch.context() as during:
        during.setattr(s3, "call", refuse)
        assert firehose.flush() == 0
    clock.advance(60)
    assert firehose.deliver_due() == 1
    assert s3.bodies == [b"first,second"]


def test_cloudformation_streams_pass_the_same_checks(firehose: Firehose) -> None:
    """Seam: CloudFormation's provisioner calls MiniStack's functions, and a raise there rolls the stack back.
    Numbers that came through template parameters are text, as CloudFormation takes them."""
    provisioners = private("services.cloudformation.provisioners")
    handlers = provisioners._RESOURCE_HANDLERS["AWS::KinesisFirehose::DeliveryStream"]
    hints = {"SizeInMBs": "1", "IntervalInSeconds": "60"}
    name, attributes = handlers["create"]("Events", stream("cfn", BufferingHints=hints), "stack")
    assert name == "cfn"
    assert attributes["Arn"].endswith(":deliverystream/cfn")
    stored = private("services.firehose")._streams.get("cfn")["destinations"][0]["config"]
    assert stored["BufferingHints"] == {"SizeInMBs": 1, "IntervalInSeconds": 60}
    with pytest.raises(ValueError, match="ErrorOutputPrefix"):
        handlers["create"]("Bad", stream("bad", Prefix="!{timestamp:yyyy}/"), "stack")
    with pytest.raises(ValueError, match="ErrorOutputPrefix"):
        handlers["update"]("cfn", stream("cfn"), stream("cfn", Prefix="!{timestamp:yyyy}/"), "stack")


def test_the_seam_is_where_it_was(firehose: Firehose) -> None:
    """Canary: the private names of MiniStack 1.5.33 that the facade stands on."""
    module = private("services.firehose")
    for name in ("_streams", "_create_delivery_stream", "_update_destination", "_resolve_dest_type_and_config"):
        assert hasattr(module, name), name
    facade = firehose.facade(module)
    assert isinstance(facade, seams.Facade)
    assert facade.get_state == module.get_state
