"""What a preparation puts on the campaign's record stays small, whatever the template is like."""

from __future__ import annotations

from carillon.content.typesetting import FOOTING
from carillon.launch.roster import LONGEST_WARNING, MOST_WARNINGS
from carillon.timing.pace import Pace

from .conftest import World
from .test_preparation import LIST


def test_a_template_of_a_thousand_doubtful_links_warns_of_some_of_them(world: World) -> None:
    """All of them would not fit a DynamoDB item of 400 KB, nor a state of 256 KiB (contract sheet, sections 2, 6)."""
    links = "".join(f"<a href='https://shop.example/{n:04d}{'x' * 300}?to={{{{ name }}}}'>go</a>" for n in range(1000))
    world.campaign()
    world.upload(LIST)
    world.upload(f"<p>Dear {{{{ name }}}}{links}</p>{FOOTING}", "templates/news.html")
    world.set_pace(Pace(rate_per_second=100, daily_cap=100_000))
    warnings = world.prepare().template_warnings
    assert len(warnings) == MOST_WARNINGS + 1
    assert max(map(len, warnings)) <= LONGEST_WARNING + 1
    assert warnings[-1].endswith("more warnings")
