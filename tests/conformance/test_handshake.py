"""Handshake, framing and the parsing of lines."""

from pathlib import Path

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.wire_client import sized
from support.nsqd_process import Nsqd


@one_worker
@pytest.mark.case("C001", "C002")
@pytest.mark.parametrize("magic", [b"  V1", b"GET "])
def test_wrong_magic(shared: Nsqd, magic: bytes) -> None:
    conn = shared.connect(magic=magic)
    conn.expect_error("E_BAD_PROTOCOL")


@one_worker
@pytest.mark.case("C003")
def test_end_inside_the_magic_is_silent(shared: Nsqd) -> None:
    conn = shared.connect(magic=b"  ")
    conn.half_close()
    conn.eof()


@one_worker
@pytest.mark.case("C004")
def test_magic_byte_by_byte(shared: Nsqd) -> None:
    conn = shared.connect(magic=b"")
    for byte in b"  V2":
        conn.send(bytes([byte]))
    conn.command("FOO")
    conn.expect_error("E_INVALID invalid command FOO")


@one_worker
@pytest.mark.case("C005")
def test_nop_with_each_line_end(shared: Nsqd) -> None:
    conn = shared.connect()
    for line in [b"NOP\n", b"NOP\r\n", b"NOP \n"]:
        conn.send(line)
        conn.nothing(0.3)
    conn.usable()


@one_worker
@pytest.mark.case("C006", "C007", "C008", "C009", "C010")
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\n", b""),
        (b"\r\n", b""),
        (b"nop\n", b"nop"),
        (b" NOP\n", b""),
        (b"FOO bar\n", b"FOO"),
        (b"NOP\r\r\n", b"NOP\r"),
        (b"\xff\xfe\n", b"\xff\xfe"),
    ],
)
def test_unknown_command(shared: Nsqd, line: bytes, shown: bytes) -> None:
    conn = shared.connect()
    conn.send(line)
    conn.expect_error(b"E_INVALID invalid command " + shown)


@one_worker
@pytest.mark.case("C011")
def test_longest_line(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.send(b"NOP" + b" " * 16380 + b"\n", b"FOO\n")
    conn.expect_error("E_INVALID invalid command FOO")


@one_worker
@pytest.mark.case("C012", "C013")
@pytest.mark.parametrize("line", [b"NOP" + b" " * 16381 + b"\n", b"N" * 16384])
def test_line_too_long_closes_without_a_word(shared: Nsqd, line: bytes) -> None:
    conn = shared.connect()
    conn.send(line)
    conn.eof(reset=True)


@pytest.mark.case("C014")
def test_half_close_after_commands_answers_them_first(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    publish = b"PUB " + topic.encode() + b"\n" + sized(b"x")
    conn.send(publish, publish)
    conn.half_close()
    conn.expect_ok()
    conn.expect_ok()
    conn.eof()


@one_worker
@pytest.mark.case("C015")
def test_nothing_is_executed_after_a_fatal_error(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    publish = b"PUB " + topic.encode() + b"\n" + sized(b"x")
    conn.send(publish, b"BAD\n", publish)
    conn.expect_ok()
    conn.expect_error("E_INVALID invalid command BAD", reset=True)
    shared.web.await_counts(topic, message_count=1)


@one_worker
@pytest.mark.case("C016")
def test_parameters_of_identify_are_ignored(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.command("IDENTIFY x y", body=b"{}")
    conn.expect_ok()


@one_worker
@pytest.mark.case("C017")
def test_extra_parameters_of_pub_are_ignored(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.command("PUB", topic, "extra params", body=b"x")
    conn.expect_ok()


@one_worker
@pytest.mark.case("C018")
def test_two_spaces_make_an_empty_parameter(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.send(b"SUB a  c\n")
    conn.expect_error('E_BAD_CHANNEL SUB channel name "" is not valid')


@pytest.mark.case("C019")
def test_a_hundred_pipelined_publishes(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.send((b"PUB " + topic.encode() + b"\n" + sized(b"x")) * 100)
    for _ in range(100):
        conn.expect_ok()
    shared.web.await_counts(topic, depth=100)


@pytest.mark.case("C020")
def test_shutdown_ends_every_connection_without_a_frame(nsqd: Starter) -> None:
    daemon = nsqd()
    producer, subscriber = daemon.connect(), daemon.connect()
    producer.pub("t", b"x")
    subscriber.sub("t", "c", rdy=0)
    daemon.stop()
    producer.eof()
    subscriber.eof()


@pytest.mark.case("F1")
@pytest.mark.ours
def test_shutdown_does_not_wait_for_silent_peers(nsqd: Starter) -> None:
    daemon = nsqd()
    silent = [daemon.connect(magic=magic) for magic in (b"", b" ", b"  V")]
    daemon.connect().usable()
    daemon.stop(timeout=10)
    for conn in silent:
        conn.eof()


@one_worker
@pytest.mark.case("C021")
def test_unix_socket(nsqd: Starter, short_path: Path) -> None:
    path = short_path / "n.sock"
    daemon = nsqd(tcp_address=path)
    conn = daemon.connect()
    conn.usable()
    conn.command("FOO")
    conn.expect_error("E_INVALID invalid command FOO")
    assert path.exists()
    daemon.stop()
    assert not path.exists()


@pytest.mark.ours
def test_unix_sockets_that_a_kill_left(nsqd: Starter, short_path: Path) -> None:
    tcp, http = short_path / "tcp", short_path / "http"
    daemon = nsqd(tcp_address=tcp, http_address=http)
    daemon.kill()
    assert tcp.is_socket() and http.is_socket()
    daemon.restart()
    daemon.connect().usable()
    daemon.stop()
    assert not list(short_path.iterdir())


@pytest.mark.case("C022")
def test_every_byte_value_survives(shared: Nsqd, topic: str) -> None:
    body = bytes(range(256)) * 4
    shared.connect().pub(topic, body)
    consumer = shared.connect().sub(topic, "c", rdy=1)
    assert consumer.message().body == body
