"""Rows as DynamoDB's attribute values: what boto3's own serialiser makes of them, only faster."""

from __future__ import annotations

from boto3.dynamodb.types import TypeDeserializer
from hypothesis import given, settings
from hypothesis import strategies as st

from carillon.adapters.items import from_item, to_item
from carillon.transitions import TaskStatus

PLAIN = st.recursive(
    st.text()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(-(2.0**53), 2.0**53).filter(lambda x: x == 0 or abs(x) > 1e-30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), PLAIN, max_size=5))
def test_what_is_written_is_read_again_and_boto3_reads_it_too(values):
    """Law: there and back is where we began, numbers by value."""
    item = to_item(values)
    assert from_item(item) == values
    read = TypeDeserializer().deserialize
    assert {name: read(v) for name, v in item.items()}.keys() == values.keys()


def test_nothing_is_left_out_but_none():
    """Absent is the null of our rows; what others have written as NULL is read as None."""
    claim = {"token": "t", "at": None}
    values = {"status": TaskStatus.PENDING, "waits": False, "rate": 0.5, "slot": 7, "claim": claim, "sent_at": None}
    item = to_item(values)
    assert item == {
        "status": {"S": "Pending"},
        "waits": {"BOOL": False},
        "rate": {"N": "0.5"},
        "slot": {"N": "7"},
        "claim": {"M": {"token": {"S": "t"}}},
    }
    assert from_item({"n": {"NULL": True}, "whole": {"N": "2E+1"}, "part": {"N": "-0.25"}}) == {
        "n": None,
        "whole": 20,
        "part": -0.25,
    }
