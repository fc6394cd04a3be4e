"""Rows as DynamoDB's attribute values and back."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

_serialise = TypeSerializer().serialize
_deserialise = TypeDeserializer().deserialize


def to_item(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values as an item. ``None`` is left out: an attribute that is absent is the null of our rows."""
    return {name: value(v) for name, v in values.items() if v is not None}


def value(plain: Any) -> Any:
    """One attribute value; an enumeration is its string, a float its exact decimal."""
    match plain:  # the two most frequent by hand: boto3's serialiser is half of a sender's own CPU
        case str():
            return {"S": str(plain)}
        case int() if not isinstance(plain, bool):
            return {"N": str(int(plain))}
        case _:
            return _serialise(_plain(plain))


def from_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as plain values; whole numbers are ``int``, others ``float``."""
    return {name: _native(_deserialise(v)) for name, v in item.items()}


def _plain(v: Any) -> Any:
    match v:
        case float():
            return Decimal(repr(v))
        case str():
            return str(v)
        case Mapping():
            return {str(k): _plain(x) for k, x in v.items() if x is not None}
        case list() | tuple():
            return [_plain(x) for x in v]
        case _:
            return v


def _native(v: Any) -> Any:
    match v:
        case Decimal():
            return int(v) if v == v.to_integral_value() else float(v)
        case dict():
            return {k: _native(x) for k, x in v.items()}
        case list():
            return [_native(x) for x in v]
        case _:
            return v
