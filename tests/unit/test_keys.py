"""Names fit what AWS accepts, and are the same whoever makes them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from carillon import keys

SCHEDULE_NAME = re.compile(r"[0-9a-zA-Z-_.]{1,64}")  # botocore scheduler 2021-06-30: Name, GroupName
CLIENT_TOKEN = re.compile(r"[a-zA-Z0-9-_]{1,64}")  # botocore: ClientToken
TAG_VALUE = re.compile(r"[A-Za-z0-9_-]{1,256}")  # botocore sesv2: MessageTagValue
EXECUTION_NAME = re.compile(r"[0-9a-zA-Z-_]{1,80}")  # AWS_CONTRACTS section 2

campaigns = st.from_regex(r"[a-z0-9][a-z0-9-]{2,39}", fullmatch=True)
generations = st.integers(1, 9999)
steps = st.integers(1, 99)


@given(campaigns, generations, steps, st.text(min_size=1), st.integers(0, 9999))
def test_every_name_is_one_that_aws_accepts(campaign, generation, step, address, revision):
    """Longest id, largest generation and any address at all still give valid names."""
    task = keys.task_id(step, address)
    assert SCHEDULE_NAME.fullmatch(task)
    assert TAG_VALUE.fullmatch(task)
    assert SCHEDULE_NAME.fullmatch(keys.group(campaign, generation))
    assert EXECUTION_NAME.fullmatch(keys.execution(campaign, generation, 999))
    assert CLIENT_TOKEN.fullmatch(keys.client_token(campaign, generation, task, revision))


@given(st.text(min_size=1), steps, steps)
def test_all_steps_of_one_person_live_in_one_shard(address, one, other):
    """A person is one key look-up, whichever step is asked for."""
    assert keys.shard(keys.task_id(one, address)) == keys.shard(keys.task_id(other, address))


def test_a_task_key_is_campaign_and_shard_then_step_and_hash():
    """The row's key says whose task it is, so a second one for the same person cannot be put."""
    task = keys.task_id(3, "a@example.com")
    key = keys.task_key("spring", task)
    assert key == {"pk": f"spring#{keys.shard(task):02d}", "sk": "3#" + keys.address_hash("a@example.com")[:32]}


def test_shards_share_the_tasks_evenly():
    """No shard gets twice its share, so that no partition is hot."""
    counts = [0] * keys.SHARDS
    for n in range(32_000):
        counts[keys.shard(keys.task_id(1, f"person{n}@example.com"))] += 1
    assert max(counts) < 2 * 1000
    assert min(counts) > 1000 / 2


def test_a_fresh_nonce_makes_a_fresh_client_token():
    """A schedule that vanished is made again with a token that Scheduler cannot answer from memory."""
    first = keys.client_token("spring", 1, "1-ab", 0)
    assert first == keys.client_token("spring", 1, "1-ab", 0)
    assert first != keys.client_token("spring", 1, "1-ab", 0, nonce="again")
    assert first != keys.client_token("spring", 2, "1-ab", 0)
    assert first != keys.client_token("spring", 1, "1-ab", 1)
