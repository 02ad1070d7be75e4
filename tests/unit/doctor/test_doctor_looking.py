"""How doctor collects facts: from files in /proc, from ports, and from nodes with arbitrary
answers."""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.config.loader import Settings
from nsqcy.doctor import (
    cluster,
    look_cluster,
    look_config,
    look_disk,
    look_host,
    look_ports,
    look_tcp,
    topics,
)
from nsqcy.doctor.checks import run
from nsqcy.doctor.facts import Attempted, Cluster, Nsqd, Wanted
from nsqcy.doctor.look_cluster import Addresses, look, offset
from nsqcy.errors import RequestError
from nsqcy.nsqd.options import NSQD
from support.fake_nsqd import MockNsqd
from support.nsqd_process import free_port
from support.runs import runs

TERMS = Terms(connect_timeout=5.0, request_timeout=5.0)
IMPATIENT = Terms(connect_timeout=0.5, request_timeout=0.5)

# -- a host


def test_the_disk_is_left_as_it_was(tmp_path: Path) -> None:
    found = look_disk.disk(str(tmp_path))
    assert not found.error and not found.write_error
    assert len(found.syncs) == look_disk.SYNCS and found.bytes_all >= found.bytes_free > 0
    assert os.listdir(tmp_path) == []


def test_a_data_path_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "no such file" in look_disk.disk(str(tmp_path / "none")).error
    assert "not a directory" in look_disk.disk(str(tmp_path / "file")).error
    assert look_disk.timed_syncs(str(tmp_path / "none")) == ([], "no such file or directory")


def test_a_root_without_anything(tmp_path: Path) -> None:
    """If nothing can be read, the facts are unknown, and nothing fails."""
    values = {"tcp_address": "127.0.0.1:0", "http_address": "", "data_path": str(tmp_path)}
    found = look_host.look(Wanted("nsqd"), Settings(NSQD, values), None, str(tmp_path))
    assert (found.somaxconn, found.files_on_machine, found.clock.stepped) == (None, None, None)
    assert found.disk is not None and found.disk.kind == ""
    assert found.broken_modules == [] and found.missing_calls == []


def test_a_clock_that_was_set(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    record = look_host.UTMP.pack(
        look_host.BOOT_TIME, 0, b"~", b"~~", b"reboot", b"6.1", 0, 0, 0, 1_000_000_000, *[0] * 5
    )
    (tmp_path / "run" / "utmp").write_bytes(bytes(look_host.UTMP.size) + record + b"cut")
    since = look_host.stepped(str(tmp_path))
    assert since is not None and since > 10 * 365 * 86_400  # the machine did not boot in 2001


def listening(port: int) -> str:
    return f"127.0.0.1:{port}"


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        found = look_ports.look_at("tcp-address", listening(number))
    assert found.busy and found.process is not None
    assert found.process.pid == os.getpid() and found.process.max_files >= found.process.files
    again = look_ports.look_at("tcp-address", listening(number))
    assert (again.busy, again.error) == (False, "")


@pytest.mark.parametrize("text", ["192.0.2.1:4150", "host:port", ":99999", "a\0b:1"])
def test_addresses_that_cannot_be_bound(text: str) -> None:
    found = look_ports.look_at("tcp-address", text)
    assert found.error and not found.busy


def test_unix_sockets(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert look_ports.look_at("tcp-address", path) == look_ports.Port("tcp-address", path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        assert look_ports.look_at("tcp-address", path).busy
    assert look_ports.look_at("tcp-address", path) == look_ports.Port("tcp-address", path)
    (tmp_path / "file").touch()
    assert "not a socket" in look_ports.look_at("tcp-address", str(tmp_path / "file")).error
    assert "does not exist" in look_ports.look_at("tcp-address", f"{path}/no/s").error


def test_only_ports_that_are_opened_are_looked_at() -> None:
    plain = look_ports.ports(Settings(NSQD, {"tcp_address": ":0", "http_address": ""}))
    assert [each.flag for each in plain] == ["tcp-address"]
    secure = {"tcp_address": ":0", "http_address": ":0", "https_address": ":0", "tls_cert": "x"}
    assert len(look_ports.ports(Settings(NSQD, secure))) == 3


# -- configuration


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.ini"
    path.write_text("[nsqd]\nworkers = 3\nmin_free_disk = 5\n[topic a*]\ndurability = fsync\n")
    found, file = look_config.read(str(path), "")
    assert file is not None and (file.daemon, file.options_set, file.error) == ("nsqd", 3, "")
    wanted = look_config.wanted(found)
    assert (wanted.workers, wanted.min_free_disk, wanted.durable) == (3, 5, True)
    assert not look_config.wanted(look_config.read("", "nsqd")[0]).durable


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.ini"
    path.write_text("[nsqd]\nworkerz = 3\n")
    found, file = look_config.read(str(path), "")
    assert file is not None and "line 2" in file.error and "workers" in file.error
    assert found.values["http_address"] == "0.0.0.0:4151"
    _, missing = look_config.read(str(tmp_path / "none"), "nsqadmin")
    assert missing is not None and missing.daemon == "nsqadmin" and missing.error


def test_where_the_cluster_is() -> None:
    def of(daemon: str, text: str, tmp: Path) -> Addresses:
        return look_config.addresses(look_config.read(str(tmp), daemon)[0], given=True)

    nsqd = Settings(NSQD, {"lookupd_tcp_address": ("a:4160",), "http_address": ":5151"})
    found = look_config.addresses(nsqd, given=True)
    assert found == Addresses(["a:4161"], ["127.0.0.1:5151"], assumed=True)
    admin = look_config.read("", "nsqadmin")[0]
    admin.values["lookupd_http_address"] = ("a:1",)
    assert look_config.addresses(admin, given=True) == Addresses(["a:1"], [])
    lookupd = look_config.read("", "nsqlookupd")[0]
    assert look_config.addresses(lookupd, given=True).lookupds == ["127.0.0.1:4161"]
    assert look_config.addresses(nsqd, given=False).assumed


# -- nodes


class Node:
    """HTTP server that answers each path from `answers`."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Callable[[], bytes]] = {}
        self.statuses: dict[str, int] = {}
        self.default = b""
        self.date: str | None = None
        self.released = threading.Event()
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path not in node.answers and not node.default:
                    self.send_error(404)
                    return
                body = node.answers.get(path, node.default)
                data = body() if callable(body) else body
                self.send_response_only(node.statuses.get(path, 200))
                if node.date is not None:
                    self.send_header("Date", node.date)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(OSError):  # the client has disconnected
                    self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.address = listening(self.port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def hang(self) -> bytes:
        self.released.wait(60)
        return b""

    def tell(self, **answers: Any) -> None:
        self.answers = {f"/{name}": json.dumps(value).encode() for name, value in answers.items()}

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def other() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


def judged(facts: Cluster) -> dict[str, list[str]]:
    """Return the levels of each check's findings."""
    found: dict[str, list[str]] = {}
    for check, finding in run((*cluster.CHECKS, *topics.CHECKS), facts):
        found.setdefault(check, []).append(finding.level)
    return found


def see(terms: Terms = TERMS, **addresses: list[str]) -> Cluster:
    return look(Addresses(**addresses), WebClient(terms))


INFO = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": "h"}


def test_an_nsqd_of_go(node: Node) -> None:
    """The answers lack the fields that only nsqcy's nsqd has."""
    node.tell(
        info=INFO | {"tcp_port": 0, "http_port": node.port, "start_time": 1},
        stats={"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [], "producers": []},
    )
    facts = see(nsqds=[node.address])
    (found,) = facts.nsqds
    assert (found.error, found.unready, found.health) == ("", "", "OK")
    assert set(chain(*judged(facts).values())) == {"ok"}


def test_one_that_hangs_and_one_that_is_not_there(node: Node, other: Node) -> None:
    node.answers["/info"] = node.hang
    nobody = listening(free_port())
    facts = see(IMPATIENT, lookupds=[node.address, nobody], nsqds=[node.address])
    assert [each.error for each in facts.lookupds] == ["timed out", "Connection refused"]
    assert judged(facts) == {"lookupds": ["error", "error"], "nsqds": ["error"]}


def test_an_nsqd_whose_workers_hang(node: Node, other: Node) -> None:
    """Its master still answers /ready."""
    for each in (node, other):
        each.answers["/info"] = each.hang
    node.answers["/ready"] = b"worker 0 does not answer"
    node.statuses["/ready"] = 503
    other.answers["/ready"] = other.hang
    facts = see(IMPATIENT, nsqds=[node.address, other.address])
    assert [each.hangs for each in facts.nsqds] == [
        "worker 0 does not answer",
        "connections are accepted, but requests are not answered",
    ]


def test_nsqds_that_were_registered_until_recently(node: Node, other: Node) -> None:
    port, alive = free_port(), INFO | {"tcp_port": 0, "http_port": other.port}
    lost = INFO | {"tcp_port": port, "http_port": port, "last_seen": int((time.time() - 60) * 1e9)}
    node.tell(
        **{
            "info": {"version": "1.3.0"},
            "topics": {"topics": ["t"]},
            "nodes": {"producers": []},
            "nodes/lost": {"producers": [lost, alive | {"last_seen": 1}]},
        }
    )
    other.tell(info=alive, stats={"topics": []})
    facts = see(lookupds=[node.address])
    found, gone = facts.nsqds
    assert (found.error, found.topics) == ("", [])
    told = next(each.text for each in cluster.nsqds(facts))
    expected = f"nsqd {gone.name} is lost: it was registered with nsqlookupd {node.address} until "
    assert told.startswith(expected) and told.endswith("does not answer: Connection refused")
    assert "do not delete" in next(iter(topics.ghost_topics(facts))).advice
    # The lost nsqd was also given to doctor.
    assert len(see(lookupds=[node.address], nsqds=[listening(port)]).nsqds) == 2


@pytest.mark.parametrize("page", ["nodes", "nodes/lost"])
def test_a_default_address_that_nsqlookupd_knows_is_not_a_guess(node: Node, page: str) -> None:
    """A silent nsqd at its usual address is an error if an nsqlookupd lists it."""
    port = free_port()
    known = INFO | {"tcp_port": port, "http_port": port, "last_seen": int(time.time() * 1e9)}
    answers: dict[str, Any] = {"info": {"version": "1.3.0"}, "topics": {"topics": []}}
    answers |= {"nodes": {"producers": []}}
    answers[page] = {"producers": [known | {"topics": ["t"], "tombstones": [False]}]}
    node.tell(**answers)
    web = WebClient(TERMS)
    usual = Addresses([node.address], [listening(port)], assumed=True)
    facts = look(usual, web)
    assert [each.level for each in cluster.nsqds(facts)] == ["error"]
    unknown = Addresses([node.address], [listening(free_port())], assumed=True)
    assert "note" in [each.level for each in cluster.nsqds(look(unknown, web))]


def test_an_unreachable_broadcast_address(node: Node, other: Node) -> None:
    port = free_port()
    announced = INFO | {"tcp_port": port, "http_port": port, "topics": ["t"], "tombstones": [False]}
    node.tell(info={"version": "1.3.0"}, topics={"topics": ["t"]}, nodes={"producers": [announced]})
    other.tell(info=INFO | {"tcp_port": port, "http_port": port}, stats={"topics": []})
    facts = see(lookupds=[node.address], nsqds=[other.address])
    silent = [each for each in facts.nsqds if each.error]
    assert [each.address for each in silent] == [listening(port)]
    (told,) = [each for each in cluster.nsqds(facts) if "announced" in each.text]
    assert f"an nsqd on the same host answers at {other.address}" in told.text


def test_one_that_is_named_and_announced_is_one(node: Node, other: Node) -> None:
    mine = INFO | {"tcp_port": 0, "http_port": other.port}
    node.tell(
        info={"version": "1.3.0"},
        topics={"topics": []},
        nodes={"producers": [mine | {"topics": [], "tombstones": []}]},
    )
    other.tell(info=mine, stats={"topics": []})
    (found,) = see(lookupds=[node.address], nsqds=[f"localhost:{other.port}"]).nsqds
    assert found.lookupds == [node.address]


def test_policies_and_growth(node: Node) -> None:
    channel = {"channel_name": "c", "depth": 1, "policy": {"dead_letter_topic": "d", "rate": 0.5}}
    topic = {"topic_name": "t", "depth": 1, "policy": {"max_depth": 9}, "channels": [channel]}
    node.tell(info=INFO | {"http_port": node.port}, stats={"topics": [topic], "draining": True})
    facts = look(Addresses((), [node.address]), WebClient(TERMS), watch=0.01)
    (found,) = facts.nsqds
    assert found.draining and found.later is not None and facts.watched == 0.01
    assert found.policies["t", ""].max_depth == 9
    assert found.policies["t", "c"].dead_letter_topic == "d"


@pytest.mark.parametrize(
    ("disk", "free"),
    [({"size": 200, "free": 50}, 0.25), ({"size": 0, "free": 0}, None), (None, None)],
)
def test_free_disk_space(node: Node, disk: Any, free: float | None) -> None:
    node.tell(info=INFO | {"http_port": node.port}, stats={"topics": []}, node={"disk": disk})
    (found,) = see(nsqds=[node.address]).nsqds
    assert not found.error and found.disk_free == free


def failing(name: str, failures: int, depth: int = 1) -> dict[str, Any]:
    return {"channel_name": name, "depth": depth, "requeue_count": failures}


def test_messages_with_many_attempts(node: Node) -> None:
    """doctor peeks only at channels with failed attempts and remaining messages."""
    channels = [failing("c", 5), failing("empty", 5, depth=0), failing("well", 0)]
    messages = [{"id": "1", "attempts": 3}, {"id": "2", "attempts": 12}, {"id": "3"}]
    stats = {"topics": [{"topic_name": "t", "channels": channels}]}
    node.tell(
        info=INFO | {"http_port": node.port},
        stats=stats,
        **{"channel/peek": {"messages": messages}},
    )
    (found,) = see(nsqds=[node.address]).nsqds
    assert found.attempted == [Attempted("t", "c", "2", 12)]


def test_an_nsqd_that_does_not_let_us_peek(node: Node) -> None:
    stats = {"topics": [{"topic_name": "t", "channels": [failing("c", 5)]}]}
    node.tell(info=INFO | {"http_port": node.port}, stats=stats)
    (found,) = see(nsqds=[node.address]).nsqds
    assert not found.error and not found.attempted


def test_an_nsqd_that_does_not_report_its_disk(node: Node) -> None:
    node.tell(info=INFO | {"http_port": node.port}, stats={"topics": []})
    (found,) = see(nsqds=[node.address]).nsqds
    assert not found.error and found.disk_free is None


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", 0.5),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10.5),
        ("", None),
        ("yesterday", None),
        ("Thu, 01 Jan 99999999 00:16:40 GMT", None),
    ],
)
def test_dates(date: str, seconds: float | None) -> None:
    found = offset(date, 999.0, 1001.0)
    assert (found and found.seconds) == seconds
    assert found is None or found.within == 1.5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3)
    ),
    max_leaves=8,
)
NAMES = ["version", "topics", "producers", "broadcast_address", "http_port", "tcp_port", "health"]
NAMES += ["channels", "topic_name", "channel_name", "depth", "policy", "clients", "tombstones"]
SHAPED = st.recursive(
    JSON,
    lambda each: st.dictionaries(st.sampled_from(NAMES), each | st.lists(each, max_size=2)),
    max_leaves=12,
)
ANSWERS = st.binary(max_size=40) | SHAPED.map(lambda value: json.dumps(value).encode())


@settings(max_examples=runs(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=ANSWERS.filter(bool), date=st.none() | st.text("aGMT, 019:", max_size=30))
def test_garbage_is_reported(node: Node, answer: bytes, date: str | None) -> None:
    """Regardless of a node's response, no exception is raised. No other node is queried, because
    an invented address may be real."""
    node.default, node.date = answer, date
    web = WebClient(TERMS)
    lookupds = look_cluster.ask_lookupds([node.address], web)
    nsqd = Nsqd(node.address, Producer("", 0, 0))
    with suppress(RequestError):
        nsqd = look_cluster.of_http(nsqd, web)
    judged(Cluster(0.0, lookupds, [nsqd]))


# -- ports


def test_a_door() -> None:
    mock = MockNsqd()
    try:
        found = look_tcp.knock("127.0.0.1", mock.port, TERMS)
        assert (found.error, found.tls) == ("", False)
    finally:
        mock.close()


def answer(data: bytes) -> tuple[socket.socket, int]:
    """Server that sends these bytes to its first client, and closes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as sock:
            sock.recv(4096)
            sock.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return server, server.getsockname()[1]


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (frame(0, b"OK"), ""),
        (frame(0, b"[1"), ""),
        (frame(0, b'{"tls_v1": false}'), ""),
        (frame(1, b"E_INVALID no"), "unexpected response 'E_INVALID no'"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server is not an nsqd"),
        (frame(0, b"x" * 10)[:-5], "connection closed after IDENTIFY"),
        (b"", "connection closed after IDENTIFY"),
    ],
)
def test_doors_of_others(data: bytes, error: str) -> None:
    _, port = answer(data)
    assert look_tcp.knock("127.0.0.1", port, TERMS).error == error


def test_doors_that_are_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert look_tcp.knock("127.0.0.1", port, IMPATIENT).error == "timed out"
    assert look_tcp.knock("127.0.0.1", port, IMPATIENT).error == "Connection refused"
    assert look_tcp.knock("a\0b", 1, IMPATIENT).error
    assert look_tcp.knock("x" * 300, 1, IMPATIENT).error


def test_a_handshake_that_fails() -> None:
    _, port = answer(frame(0, b'{"tls_v1": true}') + b"this is no handshake")
    found = look_tcp.knock("127.0.0.1", port, TERMS)
    assert found.tls and found.tls_error and found.expires is None
