"""Links to the bucket: nothing that an operator uploads or downloads passes through the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from carillon.adapters import aws

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Uploads:
    """Presigned POSTs into the stack's bucket, and GETs of what lies in it."""

    def __init__(self, bucket: str, client: S3Client | None = None) -> None:
        self._bucket = bucket
        self._client = client or aws.s3()

    def link(self, key: str, content_type: str, most_bytes: int, seconds: int) -> tuple[str, dict[str, str]]:
        """The URL and the form fields of an upload to ``key``: of this type, not empty, at most ``most_bytes``.

        The file goes last in the form, as the field ``file``. S3 itself refuses what is too large, of another
        type, or later than ``seconds`` from now.
        """
        link = self._client.generate_presigned_post(
            Bucket=self._bucket,
            Key=key,
            Fields={"Content-Type": content_type},
            Conditions=[{"Content-Type": content_type}, ["content-length-range", 1, most_bytes]],
            ExpiresIn=seconds,
        )
        return link["url"], link["fields"]

    def version(self, key: str) -> str | None:
        """The version of ``key`` that was uploaded last; None: none was. (S3 says 403 instead of 404 to whoever may not
        list the bucket.)"""
        try:
            return self._client.head_object(Bucket=self._bucket, Key=key).get("VersionId", "null")
        except ClientError as error:
            if error.response["Error"]["Code"] in ("404", "NoSuchKey", "NotFound"):
                return None
            raise

    def download(self, key: str, name: str, seconds: int) -> str:
        """The URL of a download of ``key``, which a browser saves as ``name``; good for ``seconds`` from now."""
        return self._client.generate_presigned_url(
            "get_object",
            Params={
                "Bucket": self._bucket,
                "Key": key,
                "ResponseContentDisposition": f'attachment; filename="{name}"',
            },
            ExpiresIn=seconds,
        )
