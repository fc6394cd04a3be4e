"""The files of a fan-out in S3: batches, manifests, and what ResultWriter wrote about each child."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from carillon import keys
from carillon.adapters import aws
from carillon.shapes import BatchLine, ManifestLine

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class FanOutFiles:
    """Reads and writes in the stack's bucket."""

    def __init__(self, bucket: str, client: S3Client | None = None) -> None:
        self._bucket = bucket
        self._client = client or aws.s3()

    def batch(self, campaign_id: str, name: str) -> list[BatchLine]:
        """The lines of the batch that the manifest calls ``name``: at most some hundreds (`PrepareList` cuts them).

        Raises:
            FileNotFoundError: there is no such batch. (To tell, S3 wants ListBucket as well.)
        """
        return [BatchLine.model_validate_json(line) for line in self._lines(keys.batch(campaign_id, name))]

    def manifest(self, key: str) -> list[ManifestLine]:
        """The lines of a manifest."""
        return [ManifestLine.model_validate_json(line) for line in self._lines(key)]

    def write_manifest(self, key: str, lines: Sequence[ManifestLine]) -> str | None:
        """Write a manifest; the version of the object, None in a bucket that keeps none."""
        body = "".join(line.model_dump_json() + "\n" for line in lines)
        answer = self._client.put_object(
            Bucket=self._bucket, Key=key, Body=body.encode(), ContentType="application/jsonl"
        )
        return answer.get("VersionId")

    def results(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """Every child's record of every Map Run that wrote results under ``prefix``.

        A Map Run writes ``{prefix}/{uuid}/manifest.json``, which names its files by status; each of those is a
        JSON array of executions (``Input`` and ``Output`` as JSON text), one line each if it was asked for JSONL.
        """
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=f"{prefix}/")
        for page in pages:
            for entry in page.get("Contents", []):
                if entry["Key"].endswith("/manifest.json"):
                    files = json.loads(self._read(entry["Key"]))["ResultFiles"]
                    for file in (f for of_status in files.values() for f in of_status):
                        yield from _records(self._read(file["Key"]))

    def _lines(self, key: str) -> list[bytes]:
        return [line for line in self._read(key).split(b"\n") if line.strip()]

    def _read(self, key: str) -> bytes:
        try:
            return self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            raise FileNotFoundError(f"{key} is not in the bucket") from None


def _records(content: bytes) -> list[Mapping[str, Any]]:
    if content.lstrip().startswith(b"["):
        records: list[Mapping[str, Any]] = json.loads(content)
        return records
    return [json.loads(line) for line in content.split(b"\n") if line.strip()]
