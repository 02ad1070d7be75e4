"""Daemons for these tests, with four workers unless a test requests a different number. Also an
etcd, and machines that use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter
from support.copies_cluster import Machine, running
from support.etcd_process import Etcd
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


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def machines(etcd: Etcd, tmp_path: Path) -> Iterator[list[Machine]]:
    """Three machines with the default settings."""
    with running(etcd, tmp_path) as machines:
        yield machines
