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
    match plain:  # by hand: boto3's serialiser was half of a sender's own CPU
        case str():
            return {"S": str(plain)}
        case bool():
            return {"BOOL": plain}
        case int():
            return {"N": str(int(plain))}
        case float():
            return _serialise(Decimal(repr(plain)))
        case Mapping():
            return {"M": {str(name): value(v) for name, v in plain.items() if v is not None}}
        case list() | tuple():
            return {"L": [value(v) for v in plain]}
        case _:
            return _serialise(plain)


def from_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as plain values; whole numbers are ``int``, others ``float``."""
    return {name: _native(v) for name, v in item.items()}


def _native(attribute: Mapping[str, Any]) -> Any:
    ((kind, v),) = attribute.items()
    match kind:
        case "S" | "BOOL":
            return v
        case "N":
            return int(v) if v.isdecimal() else _number(Decimal(v))
        case "M":
            return {name: _native(x) for name, x in v.items()}
        case "L":
            return [_native(x) for x in v]
        case _:
            return _deserialise(attribute)  # type: ignore[arg-type]  # one of the kinds that its type lists


def _number(v: Decimal) -> int | float:
    return int(v) if v == v.to_integral_value() else float(v)
