"""One local cloud for the tests of a process, started when the first of them needs it."""

from collections.abc import Iterator

import pytest

from local.cloud import Cloud


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A started local cloud. Tests share it: give resources names of their own, and move its clock forward only."""
    running = Cloud(tmp_path_factory.mktemp("cloud"))
    yield running
    running.stop()
