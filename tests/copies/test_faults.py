"""Three nsqds with copies lose no acknowledged message, no matter which machine, process, disk
or connection fails.

NSQCY_FAULTS_SEED changes the victims, and NSQCY_FAULTS sets the number of faults in the soak test.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.copied_nsqds import CopiedNsqds
from support.copies_faults import KINDS, Faults
from support.copies_load import CopiesLoad
from support.etcd_process import needs_etcd
from support.private_network import needs_namespaces

SEED = int(os.environ.get("NSQCY_FAULTS_SEED", "1"))
SOAK_FAULTS = int(os.environ.get("NSQCY_FAULTS", "200"))
SOAK_LIMIT = 3 * 3600  # seconds
DISK_SIZE = "96m"  # large enough for the load, but quick to fill

pytestmark = [pytest.mark.ours, needs_etcd, needs_namespaces]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CopiedNsqds]:
    with CopiedNsqds(tmp_path, disk_size=DISK_SIZE) as cluster:
        yield cluster


def survives(cluster: CopiedNsqds, kinds: list[str], rng: random.Random) -> None:
    with CopiesLoad(cluster) as load:
        faults = Faults(cluster, load, rng)
        faults.apply(kinds)
        print(f"{len(kinds)} faults, {load.verify()}")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(["kill_worker", "kill_for_long", "restart"], id="ends"),
        pytest.param(["pause_briefly", "pause_for_long", "kill_everything"], id="stops"),
        pytest.param(["separate_one_way", "separate_pair", "isolate_completely"], id="partitions"),
        pytest.param(["lose_disk", "fill_disk", "kill_briefly"], id="disks"),
        pytest.param(["pause_etcd_briefly", "kill_etcd_for_long", "separate_from_etcd"], id="etcd"),
    ],
)
def test_no_fault_loses_messages(cluster: CopiedNsqds, kinds: list[str]) -> None:
    survives(cluster, kinds, random.Random(SEED))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT)
def test_many_faults_lose_no_messages(cluster: CopiedNsqds) -> None:
    rng = random.Random(SEED)
    # Every kind occurs once before any kind is repeated.
    rounds = (kind for _ in range(SOAK_FAULTS) for kind in rng.sample(KINDS, len(KINDS)))
    survives(cluster, [next(rounds) for _ in range(SOAK_FAULTS)], rng)
