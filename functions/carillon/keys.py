"""How things are named: one place, for a name is what makes a second task for one person impossible."""

from __future__ import annotations

import hashlib

SHARDS = 32
"""Partitions of a campaign's rows: 32 × 1,000 writes/s (a DynamoDB partition's limit) carries the fan-out's 5,000/s."""

DIGITS = 32
"""Hex digits of SHA-256 kept of an address: 128 bits, and ``99-`` + 32 fits a schedule's 64 characters."""


def address_hash(normalised: str) -> str:
    """SHA-256 of a normalised address (lower-cased, domain as A-labels), 64 hex digits: the suppressions' key."""
    return hashlib.sha256(normalised.encode()).hexdigest()


def task_id(step: int, normalised: str) -> str:
    """``{step}-{32 hex digits}``: the schedule's name, the ``task`` tag, and the same for every launch."""
    return f"{step}-{address_hash(normalised)[:DIGITS]}"


def shard(task: str) -> int:
    """Which shard a task lives in. All steps of one person share it."""
    return int(task.partition("-")[2][:2], 16) % SHARDS


def partition(campaign_id: str, shard_number: int) -> str:
    """Partition key of Tasks."""
    return f"{campaign_id}#{shard_number:02d}"


def task_key(campaign_id: str, task: str) -> dict[str, str]:
    """Primary key of a row of Tasks: ``pk`` = ``campaign#shard``, ``sk`` = ``step#address_hash``."""
    step, _, digits = task.partition("-")
    return {"pk": partition(campaign_id, shard(task)), "sk": f"{step}#{digits}"}


def group(campaign_id: str, generation: int) -> str:
    """The schedule group of one generation; a resume never meets a group that is still being deleted."""
    return f"campaign-{campaign_id}-g{generation}"


def execution(campaign_id: str, generation: int, attempt: int) -> str:
    """Name of a launch execution: at most 80 characters."""
    return f"{campaign_id}-g{generation}-{attempt}"


def client_token(campaign_id: str, generation: int, task: str, revision: int, nonce: str = "") -> str:
    """ClientToken of one creation (64 of ``[a-zA-Z0-9-_]``): the same for its retries.

    ``nonce`` makes a fresh one for a schedule that vanished: the old token could be answered from memory.
    """
    seed = f"{campaign_id}#{generation}#{task}#{revision}#{nonce}"
    return hashlib.sha256(seed.encode()).hexdigest()[:40]


def upload(campaign_id: str, name: str) -> str:
    """S3 key that a presigned upload writes: ``list.csv``, ``list.jsonl`` or ``templates/{name}``."""
    return f"campaigns/{campaign_id}/upload/{name}"


def prefix(campaign_id: str) -> str:
    """S3 prefix of all that Carillon itself writes for a campaign, with its slash."""
    return f"campaigns/{campaign_id}/"


def attempt(generation: int, nonce: str) -> str:
    """Names one preparation: two of one generation never write to the same place. ``nonce`` is fresh."""
    return f"g{generation}-{nonce}"


def preparation(campaign_id: str, attempt: str) -> str:
    """S3 prefix, with its slash, of all that one preparation writes, and nobody ever writes again."""
    return f"{prefix(campaign_id)}prepared/{attempt}/"


def plan(campaign_id: str, nonce: str) -> str:
    """S3 prefix, with its slash, of what one dry run writes: ``plan.json`` and ``rejects.csv``."""
    return f"{prefix(campaign_id)}plans/{nonce}/"


def template(campaign_id: str, attempt: str, step: int) -> str:
    """S3 key of a step's prepared template (`carillon.content.templates.Prepared` as JSON)."""
    return f"{preparation(campaign_id, attempt)}templates/{step}.json"


def manifest(campaign_id: str, attempt: str) -> str:
    """S3 key of the Distributed Map's items."""
    return f"{preparation(campaign_id, attempt)}manifest.jsonl"


def retry_manifest(manifest_key: str, round_number: int) -> str:
    """S3 key of what of a manifest was missing, for the ``round_number``-th fan-out."""
    return manifest_key.removesuffix(".jsonl") + f"-retry-{round_number}.jsonl"


def summary(campaign_id: str, attempt: str) -> str:
    """S3 key of what a preparation found (`carillon.shapes.PrepareListResult` as JSON)."""
    return f"{preparation(campaign_id, attempt)}summary.json"


def batch(campaign_id: str, name: str) -> str:
    """S3 key of one batch's lines; its ``name`` is what manifest and rows say: ``{attempt}/{number}``."""
    attempt, _, number = name.partition("/")
    return f"{preparation(campaign_id, attempt)}batches/{int(number):06d}.jsonl"


def fan_out_results(campaign_id: str, generation: int) -> str:
    """S3 prefix that ResultWriter writes under."""
    return f"{prefix(campaign_id)}fan-out/g{generation}"
