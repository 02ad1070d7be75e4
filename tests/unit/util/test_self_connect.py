"""TCP self-connections: a free port in the ephemeral range may be both ends of a connection."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import gevent.socket
import pytest
from urllib3.util import parse_url

from nsqcy.client import aio
from nsqcy.client.threads_or_greenlets import GeventRuntime, ThreadRuntime
from nsqcy.cluster.web_client import RequestError, Terms, WebClient
from nsqcy.doctor.look_tcp import knock
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.lookup.registration import Lookup
from nsqcy.util.self_connect import reaches_itself, refuse_itself
from support.gevent_hub import Lines, wait_until
from support.nsqd_process import free_port

log_client: Any = pytest.importorskip("nsqcy.spark.log_client")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Port without a listener; each socket that connects to it connects to itself."""
    for kind in (socket.socket, gevent.socket.socket):

        def connect(self, where, genuine=kind.connect):
            if self.type == socket.SOCK_STREAM:
                self.bind(where)
            genuine(self, where)

        monkeypatch.setattr(kind, "connect", connect, raising=False)
    return free_port()


@pytest.fixture
def itself() -> Iterator[socket.socket]:
    """A socket that is connected to itself."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        yield sock


def test_it_is_found_and_closed(itself: socket.socket) -> None:
    itself.sendall(b"hello")
    assert itself.recv(5) == b"hello"
    assert reaches_itself(itself)
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        refuse_itself(itself)
    assert itself.fileno() == -1


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_any_other_connection_stays(family: socket.AddressFamily) -> None:
    one, other = socket.socketpair(family) if family == socket.AF_UNIX else tcp_pair()
    with one, other:
        refuse_itself(one)
        refuse_itself(other)
        one.sendall(b"hello")
        assert other.recv(5) == b"hello"


def test_one_that_has_been_reset_is_for_its_reader_to_notice() -> None:
    with socket.socket() as unconnected:
        assert not reaches_itself(unconnected)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def test_nsqd_and_its_nsqlookupd(port: int) -> None:
    log = Lines()
    log.debug = log.info
    lookup = Lookup(KnownTopics(), {}, 1000, log)
    lookup.set_addresses([f"127.0.0.1:{port}"])
    try:
        wait_until(lambda: any(" - " in line for line in log.all))
    finally:
        lookup.close()
    (failure,) = [line for line in log.all if " - " in line]
    assert failure == f"LOOKUPD(127.0.0.1:{port}): connecting - connection refused"


@pytest.mark.parametrize("runtime", [ThreadRuntime, GeventRuntime])
def test_the_blocking_client(port: int, runtime: type[ThreadRuntime] | type[GeventRuntime]) -> None:
    with pytest.raises(ConnectionRefusedError):
        runtime().connect("127.0.0.1", port, 5.0, None)


def test_the_client_on_asyncio(port: int) -> None:
    async def first_error() -> Exception:
        errors: asyncio.Queue[Exception] = asyncio.Queue()
        async with aio.Producer(f"127.0.0.1:{port}", on_error=errors.put_nowait):
            return await errors.get()

    error = asyncio.run(first_error())
    assert str(error) == f"127.0.0.1:{port}: connection refused"


def test_http(port: int) -> None:
    web = WebClient(Terms())
    with pytest.raises(RequestError, match="Connection refused"):
        web.ask(parse_url(f"http://127.0.0.1:{port}/stats"), maximum=100)


def test_spark(port: int) -> None:
    with pytest.raises(log_client.Unreachable, match=f"nsqd 127.0.0.1:{port} .*Connection refused"):
        log_client.Connection(f"127.0.0.1:{port}", log_client.Access())


def test_the_doctor(port: int) -> None:
    assert knock("127.0.0.1", port, Terms()).error == "Connection refused"
