"""Daemons for these tests: four workers, unless a test requests a different number."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter
from support.nsqd_process import Nsqd

WORKERS = 4


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(WORKERS, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


@pytest.fixture
def four(starter: Starter) -> Nsqd:
    return starter()
