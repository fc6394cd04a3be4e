"""Objects of the stack's bucket, as a preparation reads and writes them: through local files, never through httpfs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CALLS_AT_ONCE = 16
_AHEAD = 4 * _CALLS_AT_ONCE
"""Objects in memory at a time: a batch has some 200 KB."""
_TRANSFER = TransferConfig(multipart_threshold=64 * 2**20, multipart_chunksize=64 * 2**20)
_ABSENT = ("404", "NoSuchKey", "NotFound")


class Objects:
    """`carillon.launch.preparation.Objects` on S3. Versions are S3's, or ``null`` in a bucket that keeps none."""

    def __init__(self, bucket: str, client: S3Client | None = None) -> None:
        self.bucket = bucket
        self._client = client or aws.s3()

    def version(self, key: str) -> str | None:
        """The newest version of ``key``; None: there is none. (To tell, S3 wants ListBucket as well.)"""
        try:
            return self._client.head_object(Bucket=self.bucket, Key=key).get("VersionId", "null")
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                return None
            raise

    def read(self, key: str) -> bytes | None:
        """What is in ``key``; None: nothing is."""
        try:
            return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in _ABSENT:
                return None
            raise

    def fetch(self, key: str, version: str, target: Path) -> None:
        """Write that version of ``key`` to ``target``."""
        extra = {} if version == "null" else {"VersionId": version}
        self._client.download_file(self.bucket, key, str(target), ExtraArgs=extra, Config=_TRANSFER)

    def copy(self, key: str, version: str, target: str) -> None:
        """Copy that version of ``key`` to the key ``target``, inside S3."""
        source = {"Bucket": self.bucket, "Key": key} | ({} if version == "null" else {"VersionId": version})
        self._client.copy(source, self.bucket, target, Config=_TRANSFER)  # type: ignore[arg-type]  # a plain dict

    def put(self, key: str, content: bytes, content_type: str) -> str:
        """Write ``key``; its new version."""
        answer = self._client.put_object(Bucket=self.bucket, Key=key, Body=content, ContentType=content_type)
        return answer.get("VersionId", "null")

    def upload(self, source: Path, key: str, content_type: str) -> None:
        """Write the file ``source`` to ``key``."""
        self._client.upload_file(
            str(source), self.bucket, key, ExtraArgs={"ContentType": content_type}, Config=_TRANSFER
        )

    def put_all(self, contents: Iterable[tuple[str, bytes]], content_type: str) -> None:
        """`put` each of ``contents`` (key, content), several at a time, and no more in memory than that."""
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            for some in batched(contents, _AHEAD, strict=False):
                list(pool.map(lambda one: self.put(one[0], one[1], content_type), some))

    def read_all(self, keys: Iterable[str]) -> Iterator[bytes | None]:
        """`read` each of ``keys``, several at a time, in their order."""
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            for some in batched(keys, _AHEAD, strict=False):
                yield from pool.map(self.read, some)
