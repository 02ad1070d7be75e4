"""nsqlookupd's TCP protocol: framing, commands, errors, and the effects of a disconnect."""

import contextlib
import json
import random
import re
import socket
import struct
from collections.abc import Iterator

import pytest

from nsqcy.testing.http_requests import eventually
from support.nsqlookupd_process import ANNOUNCED, LookupConn, Lookupd


@pytest.fixture(scope="module")
def running() -> Iterator[Lookupd]:
    with Lookupd() as daemon:
        yield daemon


@pytest.fixture
def lookupd(running: Lookupd) -> Iterator[Lookupd]:
    """Shared by the tests in this module: use unique names."""
    yield running
    assert running.alive()
    running.hang_up()


@pytest.fixture
def conn(lookupd: Lookupd) -> LookupConn:
    return lookupd.connect()


@pytest.fixture
def nsqd(lookupd: Lookupd) -> LookupConn:
    """Return a connection that has identified itself."""
    conn = lookupd.connect()
    conn.identify("A")
    return conn


def refused(conn: LookupConn, answer: bytes, wanted: str) -> None:
    assert answer == wanted.encode()
    conn.expect_close()


def announced(**fields: object) -> bytes:
    body = {"broadcast_address": "A"} | ANNOUNCED | fields
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()


@pytest.mark.case("LKD-01")
@pytest.mark.parametrize("magic", [b"  V2", b"GET ", b"\0\xff\n\n"])
def test_another_magic(lookupd: Lookupd, magic: bytes) -> None:
    conn = lookupd.connect(magic=magic)
    refused(conn, conn.answer(), "E_BAD_PROTOCOL")


@pytest.mark.case("LKD-02")
def test_half_a_magic(lookupd: Lookupd) -> None:
    conn = lookupd.connect(magic=b"  ")
    conn.half_close()
    conn.expect_close()


@pytest.mark.case("LKD-03", "LKD-04")
@pytest.mark.parametrize("line", ["PING", "  PING  \r", "PING a b", "\tPING"])
def test_ping(conn: LookupConn, line: str) -> None:
    assert conn.command(line) == b"OK"
    conn.ping()


@pytest.mark.case("LKD-05", "LKD-06")
@pytest.mark.parametrize(
    "line", [b"ping", b"", b"SUB t c", b"\xff\xfe", b"NOPE " + b" x" * 100_000]
)
def test_unknown_commands(conn: LookupConn, line: bytes) -> None:
    answer = conn.command(line)
    assert answer == b"E_INVALID invalid command " + line.partition(b" ")[0]
    conn.expect_close()


@pytest.mark.case("LKD-07")
def test_a_pipeline(conn: LookupConn) -> None:
    conn.send(b"PING\n" * 3000)
    assert [conn.answer() for _ in range(3000)] == [b"OK"] * 3000


@pytest.mark.case("LKD-08")
@pytest.mark.parametrize("command", ["REGISTER t", "UNREGISTER t c", "REGISTER"])
def test_first_things_first(conn: LookupConn, command: str) -> None:
    refused(conn, conn.command(command), "E_INVALID client must IDENTIFY")


@pytest.mark.case("LKD-09")
def test_identify(lookupd: Lookupd, conn: LookupConn) -> None:
    text = conn.identify_raw(announced()).decode()
    answer = json.loads(text)
    assert list(answer) == ["broadcast_address", "hostname", "http_port", "tcp_port", "version"]
    assert answer == {
        "broadcast_address": "127.0.0.1",
        "hostname": socket.gethostname(),
        "http_port": lookupd.http_port,
        "tcp_port": lookupd.tcp_port,
        "version": "1.3.0",
    }
    assert " " not in text


@pytest.mark.case("LKD-10")
def test_identify_with_little_and_with_much(lookupd: Lookupd) -> None:
    for body in (
        announced(hostname=None),
        announced(unknown=[{}], topology_zone="z", topology_region="r"),
        announced().upper().replace(b"HOSTNAME", b"HostName"),
        b" \n" + announced() + b"\n ",
    ):
        assert json.loads(lookupd.connect().identify_raw(body))["version"] == "1.3.0"


@pytest.mark.case("LKD-11", "LKD-13")
@pytest.mark.parametrize(
    "body",
    [
        announced(broadcast_address=None),
        announced(broadcast_address=""),
        announced(tcp_port=0),
        announced(http_port=None),
        announced(version=""),
        b"null",
        b"{}",
    ],
)
def test_missing_fields(conn: LookupConn, body: bytes) -> None:
    refused(conn, conn.identify_raw(body), "E_BAD_BODY IDENTIFY missing fields")


@pytest.mark.case("LKD-12")
@pytest.mark.parametrize(
    "body",
    [
        announced(tcp_port="4150"),
        announced(tcp_port=1.5),
        announced(hostname=1),
        announced(remote_address=5),
        announced(http_port=1 << 63),
        b"{",
        b"[]",
        b'"x"',
        b"",
        announced() + b"x",
        b"[" * 60_000,
    ],
)
def test_bodies_that_are_none(conn: LookupConn, body: bytes) -> None:
    refused(conn, conn.identify_raw(body), "E_BAD_BODY IDENTIFY failed to decode JSON body")


@pytest.mark.case("LKD-14")
@pytest.mark.parametrize(
    ("cut", "what"),
    [
        (b"IDENTIFY\n", "body size"),
        (b"IDENTIFY\n\0\0\0", "body size"),
        (b"IDENTIFY\n\0\0\0\5", "body"),
        (b"IDENTIFY\n\0\0\0\5abcd", "body"),
    ],
)
def test_a_body_that_ends_early(conn: LookupConn, cut: bytes, what: str) -> None:
    conn.send(cut)
    conn.half_close()
    refused(conn, conn.answer(), f"E_BAD_BODY IDENTIFY failed to read {what}")


@pytest.mark.case("LKD-15")
def test_a_peer_does_not_choose_its_address(lookupd: Lookupd, conn: LookupConn) -> None:
    conn.identify("spoofer", remote_address="spoof")
    (node,) = [each for each in lookupd.nodes() if each["broadcast_address"] == "spoofer"]
    assert node["remote_address"] == conn.name


@pytest.mark.case("LKD-16")
def test_identify_twice(nsqd: LookupConn) -> None:
    refused(nsqd, nsqd.command("IDENTIFY"), "E_INVALID cannot IDENTIFY again")


@pytest.mark.case("LKD-17")
@pytest.mark.parametrize("command", ["REGISTER", "UNREGISTER"])
@pytest.mark.parametrize(
    ("names", "answer"),
    [
        ("", "E_INVALID {} insufficient number of params"),
        (" bad$", "E_BAD_TOPIC {} topic name 'bad$' is not valid"),
        ("  t", "E_BAD_TOPIC {} topic name '' is not valid"),
        (" " + "x" * 65, "E_BAD_TOPIC {} topic name '" + "x" * 65 + "' is not valid"),
        (" t bad$", "E_BAD_CHANNEL {} channel name 'bad$' is not valid"),
        (" t \xe9", "E_BAD_CHANNEL {} channel name '\xe9' is not valid"),
    ],
)
def test_names(nsqd: LookupConn, command: str, names: str, answer: str) -> None:
    refused(nsqd, nsqd.command(command + names), answer.format(command))


@pytest.mark.case("LKD-18")
def test_an_empty_channel_is_none(lookupd: Lookupd, nsqd: LookupConn, topic: str) -> None:
    nsqd.register(topic, "", "c")
    nsqd.register(topic, "c", "ignored")
    assert lookupd.channels(topic) == ["c"]
    nsqd.register(topic + "x", "", "c")
    assert lookupd.channels(topic + "x") == []
    assert lookupd.producers(topic + "x") == ["A"]


@pytest.mark.case("LKD-19")
def test_unregister_what_never_was(nsqd: LookupConn) -> None:
    nsqd.unregister("nope", "nochan")
    nsqd.unregister("nope")
    nsqd.unregister("nope#ephemeral", "nochan#ephemeral")
    nsqd.unregister("nope#ephemeral")


@pytest.mark.case("LKD-20")
@pytest.mark.parametrize("size", [-1, -(1 << 31), (1 << 20) + 1, (1 << 31) - 1])
def test_a_length_that_cannot_be(conn: LookupConn, size: int) -> None:
    conn.send(b"IDENTIFY\n" + struct.pack(">i", size) + b"x" * 500_000)
    refused(conn, conn.answer(), "E_BAD_BODY IDENTIFY failed to read body size")


@pytest.mark.parametrize("size", [65537, 1 << 20])
def test_a_body_that_is_too_big(conn: LookupConn, size: int) -> None:
    conn.send(b"IDENTIFY\n" + struct.pack(">i", size))
    refused(conn, conn.answer(), f"E_BAD_BODY IDENTIFY body too big {size} > 65536")


def test_what_was_announced_is_not_allocated(lookupd: Lookupd) -> None:
    before = memory(lookupd)
    for _ in range(50):
        lookupd.connect().send(b"IDENTIFY\n" + struct.pack(">i", 1 << 16) + b"{")
    lookupd.connect().ping()
    assert memory(lookupd) - before < 20 << 20


def memory(lookupd: Lookupd) -> int:
    with open(f"/proc/{lookupd.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_half_sent_commands_are_bounded() -> None:
    with Lookupd(max_input_bytes=4 << 20) as lookupd:
        patient = lookupd.connect()
        patient.identify("patient")
        hogs = [lookupd.connect() for _ in range(70)]
        for hog in hogs:
            try:
                hog.send(b"IDENTIFY\n" + struct.pack(">i", 1 << 16) + b"x" * ((1 << 16) - 1))
            except OSError:
                pass
        eventually(
            lambda: "partially received commands exceed --max-input-bytes" in lookupd.log_text()
        )
        patient.ping()
        lookupd.stop()


def test_garbage_beside_those_who_speak(lookupd: Lookupd, topic: str) -> None:
    steady = lookupd.connect()
    steady.identify("steady")
    dice = random.Random(4160)
    words = [b"IDENTIFY\n", b"REGISTER", b" t", b"\n", b"\0\0\0\2", b"{}", b"\xff" * 4]
    for _ in range(100):
        other = lookupd.connect(magic=dice.choice([b"  V1", b"  V1", b"  V", b"GET / "]))
        for _ in range(3):
            with contextlib.suppress(OSError):  # nsqlookupd may have closed the connection already
                other.send(b"".join(dice.choices(words, k=dice.randint(1, 6))))
        steady.register(topic, f"c{dice.randint(1, 9)}")
        if dice.random() < 0.5:
            other.close()
    assert lookupd.producers(topic) == ["steady"]
    assert "Traceback" not in lookupd.log_text()


def test_a_line_without_an_end(conn: LookupConn) -> None:
    conn.send(b"x" * ((256 << 10) + 1))
    refused(conn, conn.answer(), "E_INVALID command is longer than 262144 bytes")


@pytest.mark.case("CFG-41")
def test_it_ends_while_connections_are_in_the_middle() -> None:
    with Lookupd() as lookupd:
        for start in (b"", b"IDENTIFY\n\0\0", b"PI"):
            lookupd.connect().send(start)
        lookupd.connect(magic=b" ")
        nsqd = lookupd.connect()
        nsqd.identify()
        lookupd.stop()
        nsqd.expect_close()


def test_what_is_logged(lookupd: Lookupd, topic: str) -> None:
    conn = lookupd.connect()
    who = conn.name
    conn.identify("logged")
    conn.register(topic, "c")
    conn.register(topic, "c")
    conn.unregister(topic)
    conn.ping()
    conn.close()
    end = f"DB: client({who}) UNREGISTER category:client key: subkey:"
    eventually(lambda: end in lookupd.log_text())
    lines = [line.split(" ", 3)[3] for line in lookupd.log_text().splitlines() if who in line]
    lines = [re.sub(r"last ping [^)]+", "last ping", line) for line in lines]
    assert lines == [
        f"INFO: TCP: new client({who})",
        f"INFO: CLIENT({who}): desired protocol magic '  V1'",
        f"INFO: CLIENT({who}): IDENTIFY Address:logged TCP:1 HTTP:11 Version:1.3.0",
        f"INFO: DB: client({who}) REGISTER category:client key: subkey:",
        f"INFO: DB: client({who}) REGISTER category:channel key:{topic} subkey:c",
        f"INFO: DB: client({who}) REGISTER category:topic key:{topic} subkey:",
        f"WARNING: client({who}) unexpected UNREGISTER category:channel key:{topic} subkey:c",
        f"INFO: DB: client({who}) UNREGISTER category:topic key:{topic} subkey:",
        f"INFO: CLIENT({who}): pinged (last ping)",
        f"INFO: PROTOCOL(V1): [{who}] exiting ioloop",
        f"INFO: {end}",
    ]
