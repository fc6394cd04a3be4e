"""Firehose to S3 as AWS does it: records are buffered by size and time, compressed, and named by when they came.

MiniStack keeps the streams (also those of CloudFormation) and answers everything but the puts; it would write
each record as an object of its own, uncompressed. Only DirectPut streams to S3 exist here; what a stream
cannot do is refused by name when it is created.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import secrets
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from botocore.model import ListShape, Shape, StructureShape

from local import seams
from local.background import Background
from local.clock import Clock
from local.contract import contract
from local.ports import AwsError, Caller
from local.scoped import ScopedStore

log = logging.getLogger(__name__)

_MEBIBYTE = 1024 * 1024
_MAX_BATCH_BYTES = 4 * _MEBIBYTE  # botocore firehose, PutRecordBatch
_DEFAULT_HINTS = {"SizeInMBs": 5, "IntervalInSeconds": 300}  # botocore firehose, BufferingHints
_MAX_PREFIX = 512  # contract sheet, section 4; counted after evaluation
_RETRY_SECONDS = 5.0
_KEPT_SECONDS = 86_400.0  # "stored for 24 hours": botocore firehose, PutRecord
_DEFAULT_TIMESTAMP = "yyyy/MM/dd/HH/"
_EXPRESSION = re.compile(r"!{([^:}]*):([^}]*)}")
_ERROR_TYPE = "!{firehose:error-output-type}"
# The letters of Java's DateTimeFormatter that prefixes are made of, with what strftime calls them.
_TIMESTAMP_LETTERS = {
    "yyyy": "%Y",
    "uuuu": "%Y",
    "yy": "%y",
    "MM": "%m",
    "dd": "%d",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "DDD": "%j",
}
_TIMESTAMP_PART = re.compile(r"'([^']*)'|([A-Za-z])\2*|[^A-Za-z']+")
_SUPPORTED = frozenset(
    {
        "RoleARN",
        "BucketARN",
        "Prefix",
        "ErrorOutputPrefix",
        "BufferingHints",
        "CompressionFormat",
        "EncryptionConfiguration",
        "CloudWatchLoggingOptions",
        "S3BackupMode",
        "FileExtension",
        "CustomTimeZone",
        "ProcessingConfiguration",
        "DataFormatConversionConfiguration",
        "DynamicPartitioningConfiguration",
    }
)


@dataclass
class _Buffer:
    """What a stream has taken and not delivered; ``oldest`` is when the first of it came (epoch seconds)."""

    records: list[bytes] = field(default_factory=list)
    size: int = 0
    oldest: float = 0.0
    not_before: float = 0.0


class Firehose:
    """Takes records and writes them to S3 as the stream's role.

    Delivery happens on ``clock`` once ``start`` was called, when a buffer is full, and on ``flush``.
    """

    name = "firehose"

    def __init__(self, clock: Clock, caller: Caller, account_id: str, region: str) -> None:
        self._clock = clock
        self._caller = caller
        self._account_id = account_id
        self._region = region
        self._original: Any = None
        self._streams: Mapping[str, dict[str, Any]] = {}
        self._buffers: dict[str, _Buffer] = {}
        self._lock = threading.Lock()
        self._delivering = threading.Lock()
        self._background = Background("firehose", clock, self.deliver_due, self._next_due)

    def facade(self, original_module: Any) -> seams.Facade:
        """What stands for MiniStack's ``firehose`` module in ``app._loaded_modules``; CloudFormation's streams
        pass the same checks as CreateDeliveryStream's.

        Seams: ``_streams``, ``_create_delivery_stream``, ``_update_destination`` and
        ``_resolve_dest_type_and_config``, which both ways of creating and CloudFormation's update call.
        """
        self._original = original_module
        self._streams = ScopedStore(original_module._streams, self._account_id, self._region)
        seams.replace("services.firehose", "_resolve_dest_type_and_config", _checked)
        return seams.Facade(original_module, self, frozenset(_OPERATIONS))

    def start(self) -> None:
        """Deliver in the background from now on."""
        self._background.start()

    def stop(self) -> None:
        """End the background thread; what is still buffered is lost."""
        self._background.stop()

    def reset(self) -> None:
        """Forget everything that is still buffered."""
        with self._lock:
            self._buffers.clear()

    def handle(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one operation.

        Raises:
            AwsError
        """
        contract(self.name).operation(operation).validate(params)
        return _OPERATIONS[operation](self, params)

    def resource_of(self, operation: str, params: Mapping[str, Any]) -> str:
        """The stream's ARN, which IAM is asked about."""
        stream = params.get("DeliveryStreamName")
        return f"arn:aws:firehose:{self._region}:{self._account_id}:deliverystream/{stream}"

    def flush(self) -> int:
        """Deliver everything that is buffered now; how many objects were written."""
        return self._deliver(lambda name, buffer: True)

    def deliver_due(self) -> int:
        """Deliver what is full or has waited its interval; how many objects were written."""
        return self._deliver(self._is_due)

    def _create(self, params: Mapping[str, Any]) -> dict[str, Any]:
        check_stream(params)
        return _answer(self._original._create_delivery_stream(dict(params)))

    def _update(self, params: Mapping[str, Any]) -> dict[str, Any]:
        stream = self._stream(params["DeliveryStreamName"])
        others = [key for key in params if key.endswith("Update") and key != "ExtendedS3DestinationUpdate"]
        if others:
            raise _not_here(others[0])
        update = params.get("ExtendedS3DestinationUpdate") or {}
        check_destination({**stream["destinations"][0]["config"], **update})
        return _answer(self._original._update_destination(dict(params)))

    def _put_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        (record_id,) = self._take(params["DeliveryStreamName"], [params["Record"]])
        return {"RecordId": record_id, "Encrypted": False}

    def _put_record_batch(self, params: Mapping[str, Any]) -> dict[str, Any]:
        taken = self._take(params["DeliveryStreamName"], params["Records"])
        responses = [{"RecordId": record_id} for record_id in taken]
        return {"FailedPutCount": 0, "Encrypted": False, "RequestResponses": responses}

    def _take(self, name: str, records: list[Mapping[str, Any]]) -> list[str]:
        self._stream(name)
        taken = [_bytes(record["Data"]) for record in records]
        size = sum(map(len, taken))
        if size > _MAX_BATCH_BYTES:
            raise _invalid(f"Records size exceeds {_MAX_BATCH_BYTES} bytes")
        with self._lock:
            buffer = self._buffers.setdefault(name, _Buffer())
            if not buffer.records:
                buffer.oldest = self._clock.time()
            buffer.records += taken
            buffer.size += size
        self._background.wake()
        return [secrets.token_urlsafe(120) for _ in taken]

    def _stream(self, name: str) -> dict[str, Any]:
        stream = self._streams.get(name)
        if stream is None:
            raise contract(self.name).error(
                "ResourceNotFoundException", f"Firehose {name} under account {self._account_id} not found."
            )
        return stream

    def _next_due(self) -> float:
        with self._lock:
            buffers = list(self._buffers.items())
        return min((self._due_at(name, buffer) for name, buffer in buffers if buffer.records), default=float("inf"))

    def _due_at(self, name: str, buffer: _Buffer) -> float:
        hints = self._hints(name)
        if buffer.size >= hints["SizeInMBs"] * _MEBIBYTE:
            return buffer.not_before
        return max(buffer.oldest + hints["IntervalInSeconds"], buffer.not_before)

    def _is_due(self, name: str, buffer: _Buffer) -> bool:
        return self._due_at(name, buffer) <= self._clock.time()

    def _hints(self, name: str) -> Mapping[str, int]:
        stream = self._streams.get(name)
        hints = stream["destinations"][0]["config"].get("BufferingHints") if stream else None
        return hints or _DEFAULT_HINTS

    def _deliver(self, wanted: Callable[[str, _Buffer], bool]) -> int:
        written = 0
        with self._delivering:
            with self._lock:
                names = [name for name, buffer in self._buffers.items() if buffer.records and wanted(name, buffer)]
                taken = {name: self._buffers.pop(name) for name in names}
            for name, buffer in taken.items():
                written += self._write(name, buffer)
        return written

    def _write(self, name: str, buffer: _Buffer) -> int:
        """Write ``buffer`` as one object; 0 when it could not be written, and then it is buffered again."""
        stream = self._streams.get(name)
        if stream is None:
            log.warning("%d records were lost with their deleted stream %s", len(buffer.records), name)
            return 0
        destination = stream["destinations"][0]["config"]
        data = b"".join(buffer.records)
        gzipped = destination.get("CompressionFormat") == "GZIP"
        params = {
            "Bucket": destination["BucketARN"].rpartition(":::")[2],
            "Key": object_key(name, stream["version"], destination, buffer.oldest),
            "Body": gzip.compress(data, mtime=int(buffer.oldest)) if gzipped else data,
        }
        try:
            self._caller.call("s3", "PutObject", params, destination["RoleARN"], stream["arn"])
        except AwsError as error:
            self._keep(name, buffer, error)
            return 0
        return 1

    def _keep(self, name: str, buffer: _Buffer, error: AwsError) -> None:
        log.warning("%s could not deliver to S3: %s", name, error.code)
        now = self._clock.time()
        if now - buffer.oldest > _KEPT_SECONDS:
            log.error("%d records of %s were lost after 24 hours", len(buffer.records), name)
            return
        buffer.not_before = now + _RETRY_SECONDS
        with self._lock:
            newer = self._buffers.get(name)
            if newer is not None:
                buffer.records += newer.records
                buffer.size += newer.size
            self._buffers[name] = buffer


_OPERATIONS: dict[str, Callable[[Firehose, Mapping[str, Any]], dict[str, Any]]] = {
    "CreateDeliveryStream": Firehose._create,
    "UpdateDestination": Firehose._update,
    "PutRecord": Firehose._put_record,
    "PutRecordBatch": Firehose._put_record_batch,
}


def check_stream(params: Mapping[str, Any]) -> None:
    """Refuse a stream that AWS would refuse, or that does what this cloud does not do.

    Raises:
        AwsError: ``InvalidArgumentException``.
    """
    if params.get("DeliveryStreamType", "DirectPut") != "DirectPut":
        raise _not_here(f"DeliveryStreamType {params['DeliveryStreamType']}")
    sources = [key for key in params if key.endswith("SourceConfiguration")]
    others = [key for key in params if key.endswith("DestinationConfiguration") and not key.startswith("ExtendedS3")]
    for key in (*sources, *others):
        if params.get(key):
            raise _not_here(key)
    # A key of the service's own needs no grant and shows nowhere; one of the customer's would be KMS's part.
    encryption = params.get("DeliveryStreamEncryptionConfigurationInput") or {}
    if encryption.get("KeyType", "AWS_OWNED_CMK") != "AWS_OWNED_CMK":
        raise _not_here(f"KeyType {encryption['KeyType']}")
    if not params.get("ExtendedS3DestinationConfiguration"):
        raise _invalid("Exactly one destination configuration must be specified")
    check_destination(params["ExtendedS3DestinationConfiguration"])


def check_destination(destination: Mapping[str, Any]) -> None:
    """Refuse an S3 destination that AWS would refuse, or that asks for what this cloud does not do."""
    for member in destination:
        if member not in _SUPPORTED:
            raise _not_here(member)
    # A format conversion that does not say is enabled (botocore firehose, DataFormatConversionConfiguration).
    for member, unsaid in (
        ("ProcessingConfiguration", False),
        ("DynamicPartitioningConfiguration", False),
        ("DataFormatConversionConfiguration", True),
    ):
        asked = destination.get(member)
        if asked is not None and asked.get("Enabled", unsaid):
            raise _not_here(member)
    if destination.get("S3BackupMode", "Disabled") != "Disabled":
        raise _not_here("S3BackupMode Enabled")
    if (destination.get("EncryptionConfiguration") or {}).get("KMSEncryptionConfig"):
        raise _not_here("KMSEncryptionConfig")
    compression = destination.get("CompressionFormat", "UNCOMPRESSED")
    if compression not in ("UNCOMPRESSED", "GZIP"):
        raise _not_here(f"CompressionFormat {compression}")
    if len(destination.get("BufferingHints") or _DEFAULT_HINTS) != len(_DEFAULT_HINTS):
        raise _invalid("BufferingHints needs both SizeInMBs and IntervalInSeconds")
    if destination.get("CustomTimeZone"):
        _zone(destination)
    _check_prefixes(destination.get("Prefix") or "", destination.get("ErrorOutputPrefix") or "")


def _check_prefixes(prefix: str, error_prefix: str) -> None:
    """Contract sheet, section 4."""
    if _ERROR_TYPE in prefix:
        raise _invalid(f"Prefix cannot contain {_ERROR_TYPE}")
    if "!{" in prefix and _ERROR_TYPE not in error_prefix:
        raise _invalid(f"ErrorOutputPrefix must contain {_ERROR_TYPE} when Prefix contains expressions")
    for what, text in (("Prefix", prefix), ("ErrorOutputPrefix", error_prefix)):
        evaluated = _EXPRESSION.sub(lambda found: _evaluate(found, datetime(2026, 1, 1, tzinfo=UTC)), text)
        if "!{" in evaluated:
            raise _invalid(f"{what} holds an expression that is not closed")
        if len(evaluated) > _MAX_PREFIX:
            raise _invalid(f"{what} is longer than {_MAX_PREFIX} characters when evaluated")


def object_key(name: str, version: int, destination: Mapping[str, Any], oldest: float) -> str:
    """The key of an object whose oldest record came at ``oldest`` (epoch seconds): the evaluated prefix, then
    ``name-version-YYYY-MM-DD-hh-mm-ss-uuid`` and an extension, in the stream's time zone (UTC)."""
    at = datetime.fromtimestamp(oldest, _zone(destination))
    prefix = destination.get("Prefix") or ""
    if "!{timestamp:" not in prefix:
        prefix += f"!{{timestamp:{_DEFAULT_TIMESTAMP}}}"
    gzipped = destination.get("CompressionFormat") == "GZIP"
    extension = destination.get("FileExtension") or (".gz" if gzipped else "")
    folder = _EXPRESSION.sub(lambda found: _evaluate(found, at), prefix)
    return f"{folder}{name}-{version}-{at:%Y-%m-%d-%H-%M-%S}-{uuid.uuid4()}{extension}"


def _evaluate(found: re.Match[str], at: datetime) -> str:
    namespace, value = found.groups()
    if namespace == "timestamp":
        return _timestamp(value, at)
    if (namespace, value) == ("firehose", "random-string"):
        return secrets.token_hex(6)[:11]
    if found[0] == _ERROR_TYPE:
        return "format-conversion-failed"
    raise _invalid(f"{found[0]} is not an expression of prefixes here")


def _timestamp(pattern: str, at: datetime) -> str:
    parts = []
    position = 0
    for part in _TIMESTAMP_PART.finditer(pattern):
        if part.start() != position:
            break
        position = part.end()
        if part[1] is not None:
            parts.append(part[1] or "'")
        elif part[2] is None:
            parts.append(part[0])
        elif part[0] in _TIMESTAMP_LETTERS:
            parts.append(at.strftime(_TIMESTAMP_LETTERS[part[0]]))
        else:
            raise _invalid(f"{part[0]} is not a timestamp pattern of prefixes here")
    if position != len(pattern):
        raise _invalid("a timestamp pattern has a quote that is not closed")
    return "".join(parts)


def _zone(destination: Mapping[str, Any]) -> ZoneInfo:
    try:
        return ZoneInfo(destination.get("CustomTimeZone") or "UTC")
    except ZoneInfoNotFoundError as reason:
        raise _invalid("CustomTimeZone is not a time zone") from reason


def _checked(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """MiniStack's reading of a stream's destination, after our checks; CloudFormation rolls back on a raise."""

    def resolve_checked(properties: dict[str, Any]) -> Any:
        operation = contract("firehose").operation("CreateDeliveryStream")
        params = _coerced(operation.model.input_shape, properties)
        try:
            operation.validate({"DeliveryStreamName": "unnamed", **params})
            check_stream(params)
        except AwsError as refused:
            raise ValueError(refused.message) from refused
        return resolve(params)

    return resolve_checked


def _coerced(shape: Shape | None, value: Any) -> Any:
    """A template's value as the API has it: parameters reach templates as text, also numbers."""
    if shape is None:
        return value
    if isinstance(shape, StructureShape) and isinstance(value, dict):
        return {key: _coerced(shape.members.get(key), item) for key, item in value.items()}
    if isinstance(shape, ListShape) and isinstance(value, list):
        return [_coerced(shape.member, item) for item in value]
    if shape.type_name == "integer" and isinstance(value, str) and value.isdecimal():
        return int(value)
    if shape.type_name == "boolean" and value in ("true", "false"):
        return value == "true"
    return value


def _answer(answer: tuple[int, Mapping[str, str], bytes]) -> dict[str, Any]:
    """What a MiniStack handler answered, as members or as the error that it is."""
    status, _, body = answer
    document: dict[str, Any] = json.loads(body)
    if status >= 400:
        code = str(document.get("__type", "InternalFailure")).rpartition("#")[2]
        raise AwsError(code, str(document.get("message", "")), status)
    return document


def _bytes(data: Any) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)


def _invalid(message: str) -> AwsError:
    return contract("firehose").error("InvalidArgumentException", message)


def _not_here(what: str) -> AwsError:
    return _invalid(f"the local cloud does not have {what}")
