"""What a person writes is refused with the field and the fix, or means one thing."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from carillon.shapes import CampaignSpec

GOOD = {
    "name": "Spring",
    "from": "Ringer <ringer@news.example.com>",
    "topic": "news",
    "steps": [{"template": "spring.html", "subject": "Hello {{ first_name }}", "rule": {"kind": "asap"}}],
}


def spec(**changes):
    return CampaignSpec.model_validate({**GOOD, **changes})


def step(**changes):
    return [{**GOOD["steps"][0], **changes}]


def test_a_spec_survives_being_written_and_read():
    """What is stored in the Campaigns table reads back as the same spec."""
    original = spec(not_after="2026-12-24T12:00:00+01:00", pace={"per_day": 500})
    assert CampaignSpec.model_validate_json(original.model_dump_json(by_alias=True)) == original


@pytest.mark.parametrize(
    ("changes", "where", "says"),
    [
        ({"surprise": 1}, "surprise", "Extra inputs"),
        ({"steps": []}, "steps", "at least 1"),
        ({"steps": step(subject="Hi\r\nBcc: all@example.com")}, "subject", "one line"),
        ({"from": "a@example.com\nBcc: b@example.com"}, "from", "one line"),
        ({"name": "x\x00y"}, "name", "one line"),
        ({"topic": "spring news"}, "topic", "pattern"),
        ({"steps": step(template="../secret")}, "template", "pattern"),
        ({"steps": step(rule={"kind": "at", "at": "2026-12-24T12:00:00"})}, "at", "timezone"),
        ({"steps": step(rule={"kind": "local_time", "date": "2026-12-24"})}, "rule", "either time or time_column"),
        ({"steps": step(rule={"kind": "local_time", "date": "2026-12-24", "time": "09:00+01:00"})}, "rule", "offset"),
        ({"list": {"fallback_timezone": "CET+1"}}, "fallback_timezone", "IANA"),
        ({"list": {"fallback_timezone": "Mars/Phobos"}}, "fallback_timezone", "IANA"),
        ({"pace": {"per_day": 0}}, "per_day", "greater than or equal to 1"),
        ({"pace": {"per_day": -5}}, "per_day", "greater than or equal to 1"),
        ({"pace": {"weekdays": [0]}}, "weekdays", "greater than or equal to 1"),
        ({"pace": {"windows": []}}, "windows", "at least 1"),
        ({"pace": {"windows": [{"start": "17:00", "end": "09:00"}]}}, "windows", "after start"),
        ({"pace": {"windows": [{"start": "09:00", "end": "09:00"}]}}, "windows", "after start"),
        ({"pace": {"windows": [{"start": "09:00Z", "end": "12:00"}]}}, "windows", "offset"),
        ({"from": "nobody"}, "from", "one e-mail address"),
        ({"from": "a@example.com, b@example.com"}, "from", "one e-mail address"),
        ({"reply_to": "desk@localhost"}, "reply_to", "one e-mail address"),
        ({"steps": step(rule={"kind": "at", "at": "9999-12-31T23:59:59Z"})}, "at", "2099"),
        ({"steps": step(rule={"kind": "at", "at": 5})}, "at", "2000"),
        ({"steps": step(rule={"kind": "local_time", "date": "0001-01-01", "time": "09:00"})}, "date", "2000"),
        ({"not_after": "9999-12-31T23:59:59Z"}, "not_after", "2099"),
        ({"route": "fastest"}, "route", "guarded"),
        ({"steps": step(rule={"kind": "column", "column": "d", "offset": "P1M"})}, "offset", "P3D"),
        ({"steps": step(rule={"kind": "column", "column": "d", "offset": "P9999D"})}, "offset", "ten years"),
        ({"steps": step(rule={"kind": "after_previous", "offset": "P1D"})}, "steps", "first step"),
        ({"steps": step(rule={"kind": "after_previous", "offset": "-P1D"})}, "rule", "positive"),
        ({"within": "-PT1H"}, "within", "negative"),
        ({"quiet_hours": {"start": "21:00", "end": "21:00"}}, "quiet_hours", "the same"),
        ({"pace": {"holidays": "Germany"}}, "holidays", "pattern"),
        ({"enrichment": {"function": "other", "provides": ["x"]}}, "function", "pattern"),
        (
            {"route": "direct", "enrichment": {"function": "carillon-enrichment-x", "provides": ["x"]}},
            "enrichment",
            "guarded",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_fix(changes, where, says):
    """The error says which field and what would be right; nothing is silently dropped or mended."""
    with pytest.raises(ValidationError) as refused:
        spec(**changes)
    errors = refused.value.errors()
    assert any(where in map(str, e["loc"]) and says in e["msg"] for e in errors), errors


def test_a_window_may_last_until_midnight():
    """00:00 as an end is the end of the day, not its beginning."""
    assert spec(pace={"windows": [{"start": "20:00", "end": "00:00"}]}).pace.windows[0].start.hour == 20
