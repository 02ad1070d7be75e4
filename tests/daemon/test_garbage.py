"""Workers leave no cyclic garbage: survivors of a full collection are never collected again."""

import re
from collections.abc import Callable

import pytest

from conftest import Starter
from support.nsqd_process import Nsqd

_COLLECTED = re.compile(r"generation \d collected: (\d+)")


def collected(daemon: Nsqd) -> int:
    """Return the objects that garbage collections have freed in the workers."""
    assert daemon.web.post("/debug/freememory").status == 200
    text = daemon.web.get("/debug/pprof/heap").body.decode()
    workers = re.split(r"(?m)^== ", text)[2:]
    return sum(int(each) for part in workers for each in _COLLECTED.findall(part))


def consume(daemon: Nsqd) -> None:
    daemon.web.pub("t", b"x")
    with daemon.connect() as conn:
        conn.negotiate(msg_timeout=60_000)
        conn.sub("t", "c")
        conn.rdy(1)
        conn.frame()


def fail(daemon: Nsqd) -> None:
    with daemon.connect() as conn:
        conn.send(b"NOTHING\n")
        conn.frame()


def compressed(daemon: Nsqd) -> None:
    for feature in ({"deflate": True}, {"snappy": True}):
        with daemon.connect() as conn:
            conn.negotiate(**feature)


def large(daemon: Nsqd) -> None:
    assert daemon.web.post("/mpub?topic=large", b"x\n" * 10_000).status == 200


def pages(daemon: Nsqd) -> None:
    for path in ("/stats", "/stats?format=json", "/metrics", "/ping", "/nothing", "/pub"):
        daemon.web.get(path)


def topics(daemon: Nsqd) -> None:
    daemon.web.create("gone", "c")
    daemon.web.do("delete", "gone", "c")
    daemon.web.do("delete", "gone")


@pytest.mark.ours
@pytest.mark.parametrize("use", [consume, fail, compressed, large, pages, topics])
def test_clients_leave_no_cycles(nsqd: Starter, use: Callable[[Nsqd], None]) -> None:
    daemon = nsqd()
    use(daemon)  # imports what is needed
    collected(daemon)  # so does this
    before = collected(daemon)
    for _ in range(20):
        use(daemon)
    assert collected(daemon) - before < 20
