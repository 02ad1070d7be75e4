"""Three nsqds with copies lose no acknowledged message when etcd loses its data, is restored from a
snapshot, or has another cluster's data. Afterwards, a machine is lost, or all are restarted.

NSQCY_MOMENTS_SEED selects the moments, and NSQCY_MOMENTS sets their number in the soak test.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.copied_nsqds import CopiedNsqds
from support.copies_load import CopiesLoad
from support.etcd_process import needs_etcd
from support.private_network import needs_namespaces
from support.registry_damages import Damages

SEED = int(os.environ.get("NSQCY_MOMENTS_SEED", "1"))
SOAK_MOMENTS = int(os.environ.get("NSQCY_MOMENTS", "50"))
SOAK_LIMIT = 3 * 3600  # seconds

pytestmark = [pytest.mark.ours, needs_etcd, needs_namespaces]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CopiedNsqds]:
    with CopiedNsqds(tmp_path) as cluster:
        yield cluster


def survives(cluster: CopiedNsqds, moments: int, *choices: list[str]) -> None:
    with CopiesLoad(cluster) as load:
        damages = Damages(cluster, load, random.Random(SEED))
        damages.apply(moments, *choices)
        counts = dict(sorted(damages.counts.items()))
        print(f"{moments} moments, {damages.repairs} repairs, {counts}, {load.verify()}")


def test_a_lost_registry_loses_no_messages(cluster: CopiedNsqds) -> None:
    survives(cluster, 1, ["lose_unnoticed"], ["restart_all"])


def test_a_restored_registry_loses_no_messages(cluster: CopiedNsqds) -> None:
    survives(cluster, 1, ["restore_unnoticed"], ["lose_a_machine"])


def test_a_replaced_registry_loses_no_messages(cluster: CopiedNsqds) -> None:
    survives(cluster, 1, ["replace"], ["stop_a_machine"])


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT)
def test_many_damages_lose_no_messages(cluster: CopiedNsqds) -> None:
    survives(cluster, SOAK_MOMENTS)
