"""Task rows on DynamoDB: one claim wins, whoever asks when; the other is told what is there."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError

from carillon import keys
from carillon.adapters.items import from_item, to_item
from carillon.adapters.suppressions import SuppressionTable
from carillon.adapters.tasks import TaskRows
from carillon.delivery import claims, sequences
from carillon.delivery.claims import RowConflict
from carillon.shapes import Problem
from carillon.transitions import TaskStatus
from tests.unit.sending.examples import NOW, message, task
from tests.unit.sending.test_sequences import row as sequence_row


def put(client, row) -> None:
    item = keys.task_key(row.campaign_id, row.task) | row.model_dump(mode="json")
    client.put_item(TableName="Tasks", Item=to_item(item))


def get(client, row) -> dict:
    key = to_item(keys.task_key(row.campaign_id, row.task))
    return from_item(client.get_item(TableName="Tasks", Key=key)["Item"])


class Client:
    """The client, with one method in place of its own."""

    def __init__(self, client, **instead) -> None:
        self._client = client
        self.__dict__.update(instead)

    def __getattr__(self, name):
        return getattr(self._client, name)


@pytest.fixture
def rows(dynamodb):
    put(dynamodb, task(0))
    return TaskRows("Tasks", "Suppressions", dynamodb)


def win_once(rows) -> None:
    """Three senders, one claim."""
    assert [claims.claim(rows, message(0), f"t{n}", NOW) for n in range(3)] == [True, False, False]


def test_one_of_many_claims_wins(rows, dynamodb):
    """The condition is on the row: Pending, and of the message's generation and revision."""
    win_once(rows)
    assert get(dynamodb, task(0))["claim"] == {"token": "t0", "at": "2026-11-30T09:00:00Z"}


@pytest.mark.parametrize("change", [{"generation": 2}, {"revision": 3}, {"status": TaskStatus.CANCELLED}], ids=str)
def test_a_row_that_changed_after_it_was_read_is_not_claimed(rows, dynamodb, change):
    """Planned anew, given a new slot, or cancelled between the read and the claim."""
    put(dynamodb, task(0, **change))
    assert claims.claim(rows, message(0), "t", NOW) is False
    assert "claim" not in get(dynamodb, task(0))


def test_a_row_that_is_gone_is_not_claimed(rows):
    """A retention that is over makes no new row."""
    with pytest.raises(RowConflict) as caught:
        rows.apply(claims.fail_unclaimed(message(5), Problem(code="Suppressed", message="…")))
    assert caught.value.found is None
    assert claims.claim(rows, message(5), "t", NOW) is False


def test_boto3_repeating_a_claim_whose_reply_was_lost_meets_its_own_token(dynamodb, rows):
    """The write is done, its repetition fails on it: ours all the same."""

    def twice(**arguments):
        dynamodb.update_item(**arguments)
        return dynamodb.update_item(**arguments)

    unlucky = TaskRows("Tasks", "Suppressions", Client(dynamodb, update_item=twice))
    assert claims.claim(unlucky, message(0), "mine", NOW) is True
    assert claims.claim(unlucky, message(0), "other", NOW) is False


def test_what_is_provably_unsent_can_be_claimed_again(rows, dynamodb):
    """Released by its own token alone, and the claim is gone."""
    claims.claim(rows, message(0), "t", NOW)
    with pytest.raises(RowConflict):
        rows.apply(claims.release(message(0), "other"))
    rows.apply(claims.release(message(0), "t"))
    assert "claim" not in get(dynamodb, task(0))
    assert claims.claim(rows, message(0), "u", NOW) is True


def test_an_outcome_is_written_by_the_one_who_claimed(rows, dynamodb):
    """Finished with what SES said; a second outcome finds nothing Running."""
    claims.claim(rows, message(0), "t", NOW)
    rows.apply(claims.finish(message(0), "t", "Hi", "ses-1", NOW))
    row = get(dynamodb, task(0))
    assert (row["status"], row["subject"], row["message_id"], row["sent_at"]) == (
        "Finished",
        "Hi",
        "ses-1",
        "2026-11-30T09:00:00Z",
    )
    with pytest.raises(RowConflict) as caught:
        rows.apply(claims.fail(message(0), "t", Problem(code="MessageRejected", message="no")))
    assert caught.value.found.status is TaskStatus.FINISHED


def claimed_with_follower(rows, dynamodb, **changes):
    """Person 0's first step, claimed, and the second, which waits for it."""
    follower = sequence_row(2, **changes)
    put(dynamodb, follower)
    claims.claim(rows, message(0), "t", NOW)
    return [claims.finish(message(0), "t", "Hi", "ses-1", NOW), sequences.release(sequence_row(2), 1_800_000_000)]


def test_an_outcome_and_a_release_are_written_together(rows, dynamodb):
    """Both rows, by one TransactWriteItems."""
    rows.apply_together(claimed_with_follower(rows, dynamodb))
    assert get(dynamodb, task(0))["status"] == "Finished"
    follower = get(dynamodb, sequence_row(2))
    assert (follower["status"], follower["waits"], follower["slot"]) == ("Pending", False, 1_800_000_000)


@pytest.mark.parametrize("change", [{"generation": 2}, {"waits": False}, {"status": TaskStatus.CANCELLED}], ids=str)
def test_of_two_that_are_written_together_neither_is_without_the_other(rows, dynamodb, change):
    """The second is not as expected: nothing is done, and what is there is told."""
    changes = claimed_with_follower(rows, dynamodb, **change)
    with pytest.raises(RowConflict) as caught:
        rows.apply_together(changes)
    assert caught.value.found == sequence_row(2, **change)
    assert get(dynamodb, task(0))["status"] == "Running"


def test_a_transaction_has_a_token_that_makes_its_repetition_an_echo(rows, dynamodb):
    """botocore fills in ClientRequestToken before its retries, so that they all carry the same."""
    bodies = []
    dynamodb.meta.events.register("before-call.dynamodb.TransactWriteItems", lambda params, **_: bodies.append(params))
    rows.apply_together(claimed_with_follower(rows, dynamodb))
    (sent,) = bodies
    assert len(json.loads(sent["body"])["ClientRequestToken"]) == 36


def test_a_transaction_that_is_refused_for_another_reason_is_no_conflict():
    """Throttled, or in conflict with another write: nobody knows what is there."""

    def cancelled(**_):
        reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
        answer = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": reasons}
        raise ClientError(answer, "TransactWriteItems")

    store = TaskRows("Tasks", "Suppressions", Client(None, transact_write_items=cancelled))
    with pytest.raises(ClientError):
        store.apply_together([sequences.release(sequence_row(2), 1)])


def test_no_change_is_made_that_the_table_of_transitions_does_not_know():
    """A task fails unclaimed only where nothing was tried."""
    with pytest.raises(ValueError, match="no task goes from Pending to Failed"):
        claims.fail_unclaimed(message(0), Problem(code="MessageRejected", message="no"))


def test_rows_and_suppressions_come_in_one_consistent_read(rows, dynamodb):
    """And keys that DynamoDB leaves unprocessed are asked for again."""
    asked = []

    def stingy(RequestItems):
        asked.append(RequestItems)
        assert all(table["ConsistentRead"] for table in RequestItems.values())
        if len(asked) > 1:
            return dynamodb.batch_get_item(RequestItems=RequestItems)
        left = {"Tasks": RequestItems["Tasks"]}
        first = {name: table for name, table in RequestItems.items() if name not in left}
        return dynamodb.batch_get_item(RequestItems=first) | {"UnprocessedKeys": left}

    hashed = keys.address_hash("person.0@example.com")
    SuppressionTable("Suppressions", dynamodb).add(hashed, "offers", "unsubscribed", NOW)
    store = TaskRows("Tasks", "Suppressions", Client(dynamodb, batch_get_item=stingy))
    wanted = {("advent", task(0).task), ("advent", task(1).task)}
    found, suppressed = store.read(wanted, {(hashed, "offers"), (hashed, "*")})
    assert found == {("advent", task(0).task): task(0)}
    assert suppressed == {(hashed, "offers")}
    assert len(asked) == 2


def test_keys_that_stay_unprocessed_are_an_error(rows, dynamodb):
    """Who is suppressed must be known before anything is sent."""
    store = TaskRows(
        "Tasks",
        "Suppressions",
        Client(dynamodb, batch_get_item=lambda RequestItems: {"Responses": {}, "UnprocessedKeys": RequestItems}),
    )
    with pytest.raises(TimeoutError):
        store.read({("advent", task(0).task)}, {("h", "*")})
