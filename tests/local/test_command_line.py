"""The local cloud's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.__main__ import arguments


@pytest.mark.parametrize("command", [["down"], ["clock", "advance", "60"], ["environment"], ["up", "--port", "0"]])
def test_the_directory_may_stand_on_either_side_of_the_command(command: list[str]) -> None:
    """And is .local where it stands on neither."""
    assert arguments(["--directory", "here", *command]).directory == Path("here")
    assert arguments([*command, "--directory", "here"]).directory == Path("here")
    assert arguments(command).directory == Path(".local")
