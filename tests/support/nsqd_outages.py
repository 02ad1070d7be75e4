"""Nsqds registered with an nsqlookupd; one of them hangs or is down for a while."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, free_port
from support.nsqlookupd_process import Lookupd


@contextmanager
def three_nsqds(folder: Path) -> Iterator[tuple[Lookupd, list[Nsqd]]]:
    """Nsqds on their own ports; their topic is `orders`."""
    daemons: list[Nsqd] = []
    with Lookupd() as lookupd:
        try:
            for number in range(3):
                path = folder / f"nsqd{number}"
                path.mkdir()
                daemon = Nsqd(
                    path,
                    workers=1,
                    retention_time="1h",
                    durability="os",
                    tcp_address=f"127.0.0.1:{free_port()}",
                    broadcast_address="127.0.0.1",
                    lookupd_tcp_address=lookupd.tcp_address,
                ).start()
                daemons.append(daemon)
                daemon.web.create("orders")
            eventually(lambda: len(lookupd.producers("orders")) == 3)
            yield lookupd, daemons
        finally:
            for daemon in daemons:
                daemon.destroy()


@contextmanager
def hanging(daemon: Nsqd) -> Iterator[None]:
    """Suspend all processes of an nsqd: connections are accepted, but nothing is answered."""
    master = psutil.Process(daemon.process.pid)
    family = [master, *master.children(recursive=True)]
    for process in family:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(family):
            process.send_signal(signal.SIGCONT)


@contextmanager
def gone(daemon: Nsqd) -> Iterator[None]:
    """Stop nsqd during the block, then start it again with its data."""
    daemon.hang_up()
    daemon.stop()
    yield
    daemon.start()
