"""The daemon as the test suites of pynsq and gnsq use it: started by hand, killed, restarted."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import gnsq
import nsq
import psutil
import pytest

from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import RESPONSE
from support.nsqd_process import command, environment, free_port

LISTENING = re.compile(r"(TCP|HTTP|HTTPS): listening on (\d+\.\d+\.\d+\.\d+):(\d+)")
VERSION = re.compile(r"[a-z]+ v(\d+\.\d+\.\d+(?:-[a-z]+)?) \(built w/[a-z0-9.-]+\)")


class Bare:
    """A process started in a directory with only the given flags."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[str] | None = None

    def start(self, *flags: str) -> "subprocess.Popen[str]":
        self.process = subprocess.Popen(
            [*command(), *flags],
            cwd=self.home,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def destroy(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.communicate()
        for one in family:
            if one.is_running():
                one.kill()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    daemon = Bare(tmp_path)
    yield daemon
    daemon.destroy()


def await_ping(port: int) -> None:
    """pynsq's method of waiting: send /ping until the answer is OK."""

    def pings() -> bool:
        try:
            return Web(port).get("/ping").body == b"OK"
        except OSError:
            return False

    eventually(pings, timeout=20.0)


def announced(process: "subprocess.Popen[str]", wanted: set[str]) -> dict[str, int]:
    """gnsq's method of waiting: read lines until every address has been announced; each line must
    be parsable."""
    assert process.stderr is not None
    ports: dict[str, int] = {}
    while not wanted <= ports.keys():
        line = process.stderr.readline()
        assert line, "the log ended"
        if "listening on" in line:
            found = LISTENING.search(line)
            assert found, f"unexpected line: {line!r}"
            ports[found[1]] = int(found[3])
    return ports


def sync_conn(port: int) -> nsq.SyncConn:
    """Return pynsq's blocking connection after IDENTIFY."""
    conn = nsq.SyncConn(timeout=10.0)
    conn.connect("127.0.0.1", port)
    conn.send(nsq.identify({"short_id": "test", "long_id": "test.example"}))
    assert nsq.unpack_response(conn.read_response()) == (RESPONSE, b"OK")
    return conn


def test_version_as_gnsq_asks_for_it() -> None:
    out = subprocess.check_output([*command(), "--version"], env=environment(), text=True)
    found = VERSION.search(out)
    assert found and tuple(map(int, found[1].split("."))) >= (0, 3, 6)


def test_flags_of_pynsq(bare: Bare) -> None:
    tcp, http = free_port(), free_port()
    process = bare.start(
        "--verbose",
        "--snappy",
        f"--tcp-address=127.0.0.1:{tcp}",
        f"--http-address=127.0.0.1:{http}",
    )
    await_ping(http)
    assert process.poll() is None
    sync_conn(tcp)
    assert (bare.home / "nsqd.dat").exists()


def test_flags_of_nsqjs(bare: Bare) -> None:
    tcp, http = free_port(), free_port()
    bare.start(
        "-http-address", f"127.0.0.1:{http}", "-tcp-address", f"127.0.0.1:{tcp}",
        "-broadcast-address", "127.0.0.1", "-data-path", str(bare.home),
    )  # fmt: skip
    await_ping(http)
    info = Web(http).get("/info").json()
    assert (info["tcp_port"], info["http_port"]) == (tcp, http)
    assert info["broadcast_address"] == "127.0.0.1"


def test_lines_gnsq_waits_for(bare: Bare) -> None:
    process = bare.start(
        "--tcp-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
        "--data-path", str(bare.home), "--msg-timeout", "1s",
    )  # fmt: skip
    ports = announced(process, {"TCP", "HTTP"})
    client = gnsq.NsqdHTTPClient("127.0.0.1", ports["HTTP"])
    assert client.ping() == b"OK"
    assert "version" in client.info()
    sync_conn(ports["TCP"])


def test_http_client_of_gnsq(bare: Bare) -> None:
    process = bare.start("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    client = gnsq.NsqdHTTPClient("127.0.0.1", announced(process, {"TCP", "HTTP"})["HTTP"])
    client.create_topic("topic")
    client.create_channel("topic", "channel")
    client.publish("topic", b"sup")
    client.multipublish("topic", [b"a", b"b"])
    client.multipublish("topic", [b"line\nline", b"\0"], binary=True)
    client.publish("topic", b"later", defer=60_000)
    channel = client.stats()["topics"][0]["channels"][0]
    assert (channel["depth"], channel["deferred_count"]) == (5, 1)
    client.pause_channel("topic", "channel")
    assert client.stats(topic="topic")["topics"][0]["channels"][0]["paused"]
    client.unpause_channel("topic", "channel")
    client.empty_channel("topic", "channel")
    assert client.stats()["topics"][0]["channels"][0]["depth"] == 0
    client.delete_channel("topic", "channel")
    client.delete_topic("topic")
    assert not client.stats()["topics"]
    with pytest.raises(gnsq.errors.NSQHttpError):
        client.delete_topic("topic")


def test_low_level_clients_of_gnsq(bare: Bare) -> None:
    process = bare.start("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    port = announced(process, {"TCP", "HTTP"})["TCP"]
    conn = gnsq.NsqdTCPClient(address="127.0.0.1", port=port)
    conn.connect()
    assert conn.identify()["max_rdy_count"] == 2500
    assert conn.publish("topic", b"sup") is None
    assert conn.read_response() == (gnsq.protocol.FRAME_TYPE_RESPONSE, b"OK")
    conn.publish("topic", b"later", defer=-1000)
    frame, error = conn.read_response()
    assert frame == gnsq.protocol.FRAME_TYPE_ERROR
    assert isinstance(error, gnsq.errors.NSQInvalid)
    eventually(lambda: not conn.is_connected)

    conn = gnsq.NsqdTCPClient(address="127.0.0.1", port=port)
    conn.connect()
    conn.identify()
    conn.subscribe("topic", "channel")
    assert conn.read_response() == (gnsq.protocol.FRAME_TYPE_RESPONSE, b"OK")
    conn.ready(1)
    frame, message = conn.read_response()
    assert (frame, message.body) == (gnsq.protocol.FRAME_TYPE_MESSAGE, b"sup")
    message.touch()
    message.finish()
    conn.close()
    assert conn.read_response() == (gnsq.protocol.FRAME_TYPE_RESPONSE, b"CLOSE_WAIT")
    conn.close_stream()


def test_killed_and_started_again_in_the_same_folder(bare: Bare) -> None:
    """Ports, directory and left-over files stay the same; each round adds to the known topics."""
    tcp, http = free_port(), free_port()
    for number in range(4):
        process = bare.start(f"-tcp-address=127.0.0.1:{tcp}", f"-http-address=127.0.0.1:{http}")
        await_ping(http)
        conn = sync_conn(tcp)
        conn.send(nsq.pub(f"test{number}", b"sup"))
        assert nsq.unpack_response(conn.read_response()) == (RESPONSE, b"OK")
        eventually(lambda n=number: f'"test{n}"' in (bare.home / "nsqd.dat").read_text())
        assert {f"test{n}" for n in range(number + 1)} <= set(Web(http).topics())
        process.kill()
        process.communicate(timeout=20)


def time_to_stop(bare: Bare) -> float:
    """Return the duration, in seconds, of a clean exit with a message in flight, one queued, and a
    producer connected."""
    process = bare.start("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    port = announced(process, {"TCP", "HTTP"})["TCP"]
    producer, consumer = sync_conn(port), sync_conn(port)
    consumer.send(nsq.subscribe("test", "ch"))
    consumer.send(nsq.ready(1))
    assert nsq.unpack_response(consumer.read_response()) == (RESPONSE, b"OK")
    for _ in range(2):
        producer.send(nsq.pub("test", b"sup"))
        assert nsq.unpack_response(producer.read_response()) == (RESPONSE, b"OK")
    assert nsq.unpack_response(consumer.read_response())[0] == nsq.FRAME_TYPE_MESSAGE
    start = time.monotonic()
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return time.monotonic() - start


def test_stops_within_a_second(bare: Bare) -> None:
    """The time limit of these test suites. A busy machine may exceed it once or twice, but not
    three times."""
    assert any(time_to_stop(bare) < 1.0 for _ in range(3))


def test_stops_while_it_starts(bare: Bare) -> None:
    process = bare.start("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert process.stderr is not None
    process.stderr.readline()
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "Traceback" not in err
