"""What is wrong with a field, said to whoever wrote it in JSON and not to whoever reads Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_DATE = "must be a date, written 2027-03-20"
_INSTANT = "must be an instant with its offset from UTC, written 2027-03-20T09:00:00+01:00 or 2027-03-20T08:00:00Z"
_TIME = "must be a time of day, written 09:00"

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "there is no such field",
    "tuple_type": "must be a list",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "date_parsing": _DATE,
    "date_from_datetime_parsing": _DATE,
    "date_from_datetime_inexact": _DATE,
    "time_parsing": _TIME,
    "datetime_parsing": _INSTANT,
    "datetime_from_date_parsing": _INSTANT,
    "timezone_aware": _INSTANT,
}
"""By pydantic's type of error: its own words for these are about Python."""


def of(error: Mapping[str, Any]) -> str:
    """What an error of pydantic's ``errors()`` means, to stand after the field's name."""
    if error["type"] == "union_tag_invalid":
        name = str(error["ctx"]["discriminator"]).strip("'")
        return f"{name} is {error['ctx']['tag']!r}, and must be one of {error['ctx']['expected_tags']}"
    return _WORDS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
