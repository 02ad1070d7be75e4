"""Real text, line by line, through real clients: every channel gets every line exactly once."""

import itertools
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.client_libraries import LIBRARIES, Consumer, need_all
from support.concurrent_cases import together
from support.nsqd_process import Nsqd

LINES = 6_000
ENOUGH = 20_000  # for the limit of small-memory
MANY = 200_000
BATCH = 500
MAX_BYTES = 1 << 20

STORES: dict[str, dict[str, Any]] = {
    "memory": {},
    "overflow": {"mem_queue_size": 100},
    "small-memory": {"mem_queue_size": 100, "memory_bytes": 1 << 20},
}


def library_lines() -> Iterator[bytes]:
    """Yield the non-empty lines of the standard library's sources, in path order."""
    home = Path(sysconfig.get_path("stdlib"))
    for path in sorted(home.rglob("*.py")):
        if "site-packages" not in path.parts and "dist-packages" not in path.parts:
            for line in path.read_bytes().split(b"\n"):
                if line and len(line) <= MAX_BYTES:
                    yield line


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    found = list(itertools.islice(library_lines(), MANY))
    assert len(found) == MANY
    return found


def publish_all(daemon: Nsqd, lines: list[bytes]) -> None:
    """Publish every other batch over HTTP and the others over TCP, at the same time."""
    batches = [lines[start : start + BATCH] for start in range(0, len(lines), BATCH)]

    def by_http() -> None:
        for batch in batches[0::2]:
            daemon.web.mpub("lines", batch)

    def by_tcp() -> None:
        conn = daemon.connect()
        for batch in batches[1::2]:
            conn.mpub("lines", batch)

    together(by_http, by_tcp)


@pytest.mark.parametrize(
    ("store", "workers", "count"),
    [
        ("memory", 4, LINES),
        ("overflow", 1, LINES),
        ("small-memory", 4, ENOUGH),
        *(
            pytest.param(store, workers, MANY, marks=pytest.mark.soak)
            for store in STORES
            for workers in (1, 4)
        ),
    ],
)
def test_every_line_reaches_every_channel(
    store: str, count: int, nsqd: Starter, lines: list[bytes], consume: Callable[..., Consumer]
) -> None:
    """`memory`: consumers run during publishing. Otherwise, they start afterwards."""
    need_all()
    lines = lines[:count]
    daemon = nsqd(msg_timeout="10m", **STORES[store])
    daemon.web.create("lines", *LIBRARIES)

    def start() -> dict[str, Consumer]:
        return {name: consume(name, daemon, "lines", name, rdy=2000) for name in LIBRARIES}

    if store == "memory":
        consumers = start()
        publish_all(daemon, lines)
    else:
        publish_all(daemon, lines)
        for name in LIBRARIES:
            daemon.web.await_counts("lines", name, depth=count, backend_depth=count - 100)
        if store == "small-memory":
            eventually(lambda: daemon.web.counts("lines")["memory_bytes"] < 4 << 20)
        consumers = start()

    wanted = Counter(lines)
    for name, consumer in consumers.items():
        consumer.await_that(lambda each=consumer: len(each.raw) >= count, timeout=120.0)
        daemon.web.await_counts(
            "lines", name, depth=0, in_flight_count=0, timeout_count=0, requeue_count=0
        )
        assert Counter(consumer.bodies()) == wanted, name
