"""Prepared templates from the bucket, compiled once for each campaign and process."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from carillon import keys
from carillon.adapters import aws
from carillon.content.templates import Prepared, Renderer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_KEPT = 64
"""Compiled steps in memory: a process meets few campaigns at once, and a template is at most half a megabyte."""


class PreparedTemplates:
    """`carillon.delivery.sending.Templates` on S3."""

    def __init__(self, bucket: str, client: S3Client | None = None) -> None:
        self._bucket = bucket
        self._client = client or aws.s3()
        self.renderer = lru_cache(maxsize=_KEPT)(self._load)
        """The step's renderer: (campaign id, preparation, step). What a preparation wrote never changes."""

    def _load(self, campaign_id: str, prepared: str, step: int) -> Renderer:
        answer = self._client.get_object(Bucket=self._bucket, Key=keys.template(campaign_id, prepared, step))
        return Renderer(Prepared.model_validate_json(answer["Body"].read()))
