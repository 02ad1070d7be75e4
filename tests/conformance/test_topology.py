"""Topology-aware delivery."""

import select
from collections.abc import Iterator

import pytest

from conftest import one_worker
from nsqcy.testing.wire_client import Conn
from support.nsqd_process import Nsqd

EXPERIMENT = "topology-aware-consumption"


@pytest.fixture(scope="module")
def aware(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Daemon in zone z of region r, with the experiment enabled."""
    daemon = Nsqd(
        tmp_path_factory.mktemp("aware"),
        workers=workers,
        enable_experiment=EXPERIMENT,
        topology_zone="z",
        topology_region="r",
    ).start()
    yield daemon
    daemon.destroy()


@pytest.fixture(scope="module")
def nowhere(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Daemon without a zone or region, with the experiment enabled."""
    path = tmp_path_factory.mktemp("nowhere")
    daemon = Nsqd(path, workers=workers, enable_experiment=EXPERIMENT).start()
    yield daemon
    daemon.destroy()


@pytest.fixture(scope="module")
def unaware(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Daemon in zone z of region r, with the experiment disabled."""
    path = tmp_path_factory.mktemp("unaware")
    daemon = Nsqd(path, workers=workers, topology_zone="z", topology_region="r").start()
    yield daemon
    daemon.destroy()


def consumers(daemon: Nsqd, topic: str, rdy: int, *places: tuple[str, str]) -> list[Conn]:
    conns = []
    for zone, region in places:
        conn = daemon.connect()
        conn.identify(topology_zone=zone, topology_region=region)
        conn.sub(topic, "c", rdy=rdy)
        conn.barrier()
        conns.append(conn)
    return conns


def spread(daemon: Nsqd, topic: str, conns: list[Conn], count: int) -> list[int]:
    """Publish messages, each after the previous one was received. Return the number of messages
    that each consumer received."""
    producer = daemon.connect()
    taken = [0] * len(conns)
    for _ in range(count):
        producer.pub(topic, b"x")
        ready, _, _ = select.select([conn.socket for conn in conns], [], [], 10.0)
        assert len(ready) == 1, ready
        number = [conn.socket for conn in conns].index(ready[0])
        conns[number].message()
        taken[number] += 1
    return taken


PLACES = (("z", "r"), ("z2", "r"), ("z3", "r3"))


@pytest.mark.case("C340")
def test_zone_first_then_region_then_the_rest(aware: Nsqd, topic: str) -> None:
    conns = consumers(aware, topic, 5, *PLACES)
    assert spread(aware, topic, conns, 12) == [5, 5, 2]
    aware.web.await_counts(
        topic, "c", zone_local_msg_count=5, region_local_msg_count=5, global_msg_count=2
    )


@one_worker
@pytest.mark.case("C341")
def test_without_the_experiment(unaware: Nsqd, topic: str) -> None:
    conns = consumers(unaware, topic, 5, *PLACES)
    assert spread(unaware, topic, conns, 12) == [4, 4, 4]
    unaware.web.await_counts(
        topic, "c", zone_local_msg_count=0, region_local_msg_count=0, global_msg_count=12
    )


@pytest.mark.case("C342")
def test_the_zone_until_it_is_full(aware: Nsqd, topic: str) -> None:
    places = (("z", "r"), ("z2", "r2"), ("z", "r"), ("z3", "r3"))
    conns = consumers(aware, topic, 10, *places)
    taken = spread(aware, topic, conns, 21)
    assert (taken[0], taken[2], taken[1] + taken[3]) == (10, 10, 1)


@one_worker
@pytest.mark.case("C343")
def test_without_a_place_of_the_daemon(nowhere: Nsqd, topic: str) -> None:
    conns = consumers(nowhere, topic, 5, *PLACES)
    assert spread(nowhere, topic, conns, 12) == [4, 4, 4]
