"""nsq_tail from the user's point of view."""

import json
import re
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from support import tool_process
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd


def source(daemon: Nsqd) -> str:
    return f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}"


@pytest.mark.case("TAIL-001")
@pytest.mark.real_start
def test_so_many_messages(plain: Nsqd, topic: str) -> None:
    plain.web.mpub(topic, [f"line {number}".encode() for number in range(1, 6)])
    args = [f"--topic={topic}", "--channel=c", source(plain)]
    result = tool_process.run("nsq_tail", "-n", "2", "--print-topic", *args)
    assert (result.returncode, result.stdout) == (0, f"{topic} | line 1\n{topic} | line 2\n")
    assert f"Adding consumer for topic: {topic}\n" in result.stderr
    # Printed messages are finished; the rest remain for the next run.
    plain.web.await_counts(topic, "c", depth=3, in_flight_count=0, deferred_count=0)
    result = tool_process.run("nsq_tail", "-n", "3", *args)
    assert (result.returncode, result.stdout) == (0, "line 3\nline 4\nline 5\n")
    plain.web.await_counts(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.case("TAIL-002", "TAIL-006")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_channel_of_its_own(name: str, plain: Nsqd, topic: str) -> None:
    topics = (topic, f"{topic}-other")
    args = [f"--topic={each}" for each in topics]
    with tool_process.running("nsq_tail", *args, "--n=7", source(plain)) as process:
        assert process.stdout is not None

        def channels() -> list[str]:
            found = [plain.web.topic(each) for each in topics]
            return [ch["channel_name"] for each in found if each for ch in each["channels"]]

        eventually(lambda: len(channels()) == 2)
        channel, other = channels()
        assert channel == other and re.fullmatch(r"tail\d{6}#ephemeral", channel)
        eventually(lambda: plain.web.client(topic, channel)["ready_count"] == 7)
        assert plain.web.client(topic, channel)["user_agent"].startswith("nsq_tail/1.3.0 nsqcy/")
        plain.web.pub(topics[1], b"x")
        assert process.stdout.readline() == "x\n"
        process.send_signal(getattr(signal, name))
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    eventually(lambda: not channels())


@pytest.mark.case("TAIL-003", "TAIL-005", "TOOL-016", "TOOL-017", "TOOL-018")
@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--nsqd-tcp-address=a:1"], 1, "--topic required"),
        (["--nsqd-tcp-address=a:1", "--topic=b d"], 1, "invalid topic name"),
        (["--nsqd-tcp-address=a:1", "--topic=t", "--channel=b d"], 1, "invalid channel name"),
        (["--nsqd-tcp-address=a:x", "--topic=t"], 1, '"a:x" has no port from 1 to 65535'),
        (["--nsqd-tcp-address=a:1", "--topic=t", "--max-in-flight=-1"], 1, "max_in_flight must be"),
        (["--consumer-opt=bogus,1"], 2, "invalid option bogus; allowed: dial_timeout, "),
        (
            ["--nsqd-tcp-address=a:1", "--topic=t", "--consumer-opt=heartbeat_interval,90s"],
            1,
            "HeartbeatInterval 1m30s must be less than ReadTimeout 1m0s",
        ),
        (
            [
                *("--nsqd-tcp-address=a:1", "--topic=t"),
                *("--consumer-opt=deflate", "--consumer-opt=snappy"),
            ],
            1,
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
    ],
)
def test_flags_that_are_refused(
    args: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = tool_process.refusal("nsq_tail", *args, capfd=capfd)
    assert (found[0], text in found[1]) == (code, True), found


@pytest.mark.case("TAIL-004")
def test_any_bytes(plain: Nsqd, topic: str) -> None:
    bodies = [b"two\nlines\n", bytes(range(256)), b"\xff" * 70_000]
    plain.connect().mpub(topic, bodies)
    result = tool_process.feed(
        b"", "nsq_tail", f"--topic={topic}", "--channel=c", "-n=3", source(plain)
    )
    assert result.stdout == b"".join(body + b"\n" for body in bodies)


def test_fewer_than_no_messages_are_no_limit(server: socket.socket) -> None:
    with tool_process.running("nsq_tail", "-n=-2", *follow(server)) as process:
        conn, _ = server.accept()
        with conn:
            nsqd = ScriptedNsqd(conn)
            nsqd.subscribed(200)
            conn.sendall(message(1) + message(2) + message(3))
            nsqd.until(b"FIN 0000000000000003\n")
    assert process.returncode == -9  # nsq_tail was still running


def test_more_messages_than_fit_in_flight(plain: Nsqd, topic: str) -> None:
    bodies = [f"{number}".encode() for number in range(2000)]
    plain.connect().mpub(topic, bodies)
    args = [f"--topic={topic}", "--channel=c", "-n=2000", source(plain)]
    result = tool_process.run("nsq_tail", *args, "--consumer-opt=snappy")
    assert sorted(result.stdout.split(), key=int) == [body.decode() for body in bodies]
    plain.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=0)


def test_nsqds_that_a_lookupd_names(plain: Nsqd, topic: str) -> None:
    with Lookupd() as lookupd:
        conn = lookupd.connect()
        conn.identify("127.0.0.1", tcp_port=plain.tcp_port, http_port=plain.http_port)
        conn.register(topic)
        plain.web.pub(topic, b"x")
        args = [f"--topic={topic}", "--channel=c", f"--lookupd-http-address={lookupd.http_address}"]
        result = tool_process.run("nsq_tail", "-n=1", *args)
    assert (result.returncode, result.stdout) == (0, "x\n")


def test_tls(topic: str, tmp_path: Path) -> None:
    authority = make("authority", authority=True)
    roots = tmp_path / "roots.pem"
    roots.write_text(authority.certificate)
    files = make("server", by=authority).save(tmp_path)
    daemon = Nsqd(tmp_path, workers=1, tls_required="true", **files.options)
    args = [f"--topic={topic}", "--channel=c", "-n=1", "--consumer-opt=tls_v1"]
    try:
        daemon.start()
        here = source(daemon).replace("127.0.0.1", "localhost")
        told = tool_process.feed(
            b"x\n",
            "to_nsq",
            f"--topic={topic}",
            here,
            "--producer-opt=tls_v1,true",
            f"--producer-opt=tls_root_ca_file,{roots}",
        )
        assert (told.returncode, told.stderr) == (0, b"")
        result = tool_process.run(
            "nsq_tail", *args, here, f"--consumer-opt=tls-root-ca-file,{roots}"
        )
        assert (result.returncode, result.stdout) == (0, "x\n")
        result = tool_process.run("nsq_tail", *args, here)
        assert (result.returncode, result.stdout) == (1, "")
        assert "certificate not accepted" in result.stderr.splitlines()[-1]
    finally:
        daemon.destroy()


@pytest.mark.case("TOOL-020")
def test_a_lookupd_that_is_down(nobody: str) -> None:
    args = ["--topic=t", f"--lookupd-http-address={nobody}"]
    often = "--consumer-opt=lookupd_poll_interval,10ms"
    with tool_process.running("nsq_tail", *args, often) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(4)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0
    line = rf"WRN    1 \[t/tail\d{{6}}#ephemeral\] .*{nobody}: .*onnection refused\n"
    for each in lines[1:]:
        assert re.fullmatch(line, tool_process.DATE.sub("", each)), each


def test_without_a_reader(plain: Nsqd, topic: str) -> None:
    with tool_process.running(
        "nsq_tail", f"--topic={topic}", "--channel=c", source(plain)
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        plain.web.pub(topic, b"x")
        assert process.wait(20) == 1
        assert process.stderr.read().endswith("write to stdout: Broken pipe\n")
    plain.web.await_counts(topic, "c", depth=1, in_flight_count=0)


def frame(type_: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, type_) + data


def message(number: int) -> bytes:
    return frame(2, struct.pack(">qH", 0, 1) + b"%016d" % number + b"body")


class ScriptedNsqd:
    """An nsqd controlled by the test, which can inspect the received data."""

    def __init__(self, conn: socket.socket) -> None:
        self.conn = conn
        self._received = b""

    def subscribed(self, ready: int) -> None:
        """Complete the handshake with a consumer of the channel `c` in the topic `t`."""
        self.until(b'"feature_negotiation"')
        self.conn.sendall(frame(0, json.dumps({"max_rdy_count": 2500}).encode()))
        self.until(b"SUB t c\n")
        self.conn.sendall(frame(0, b"OK"))
        self.until(b"RDY %d\n" % ready)

    def until(self, text: bytes) -> bytes:
        """Wait until this text is received; return everything before it."""
        while text not in self._received:
            data = self.conn.recv(65536)
            assert data, self._received
            self._received += data
        before, _, self._received = self._received.partition(text)
        return before


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        yield server


def follow(server: socket.socket) -> list[str]:
    address = f"127.0.0.1:{server.getsockname()[1]}"
    return ["--topic=t", "--channel=c", f"--nsqd-tcp-address={address}"]


@pytest.mark.case("TAIL-006")
def test_it_takes_leave(server: socket.socket) -> None:
    """nsq_tail sends CLS, requeues a message that was already in transit, and only then exits."""
    with tool_process.running("nsq_tail", *follow(server)) as process:
        conn, _ = server.accept()
        with conn:
            nsqd = ScriptedNsqd(conn)
            nsqd.subscribed(200)
            process.send_signal(signal.SIGINT)
            nsqd.until(b"CLS\n")
            conn.sendall(message(7))
            nsqd.until(b"REQ 0000000000000007 0\n")
            assert process.poll() is None
            conn.sendall(frame(0, b"CLOSE_WAIT"))
            assert conn.recv(1) == b""
        assert process.communicate(timeout=20)[0] == ""
        assert process.returncode == 0


@pytest.mark.case("TAIL-001")
def test_what_is_too_much_goes_back(server: socket.socket) -> None:
    """The surplus message is requeued, and no more are requested before the last one is
    finished."""
    with tool_process.running("nsq_tail", "-n=2", *follow(server)) as process:
        conn, _ = server.accept()
        with conn:
            nsqd = ScriptedNsqd(conn)
            nsqd.subscribed(2)
            conn.sendall(message(1) + message(2) + message(3))
            answers = nsqd.until(b"CLS\n").split(b"\n")
            assert answers[:-1] == [
                b"REQ 0000000000000003 0",
                b"RDY 0",
                b"FIN 0000000000000001",
                b"FIN 0000000000000002",
            ]
            conn.sendall(frame(0, b"CLOSE_WAIT"))
            assert conn.recv(1) == b""
        assert process.communicate(timeout=20)[0] == "body\nbody\n"
        assert process.returncode == 0
