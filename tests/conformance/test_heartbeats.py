"""Heartbeats and timeouts. Cases that only wait run in one test."""

import time

import pytest

from conftest import Idler, one_worker
from nsqcy.testing.wire_client import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    RESPONSE,
    UNKNOWN_ID,
    Conn,
    Frame,
    Hangup,
    batch,
)
from support.concurrent_cases import lasted, together
from support.nsqd_process import Nsqd

BEAT = Frame(RESPONSE, HEARTBEAT)
SLACK = 1.5


def identified(daemon: Nsqd, interval: int = 1000) -> tuple[Conn, float]:
    """Return a connection with this heartbeat interval, and a time just before its IDENTIFY."""
    conn = daemon.connect(pong=False)
    conn.usable()  # the turn that accepted the connection is over
    start = time.monotonic()
    conn.identify(heartbeat_interval=interval)
    return conn, start


def until_end(conn: Conn) -> list[Frame]:
    """Return the remaining frames."""
    frames = []
    try:
        while True:
            frames.append(conn.frame())
    except Hangup:
        return frames


@one_worker
@pytest.mark.case("C030", "C031", "C032", "C033", "C034", "C035", "C038", "C039", "F4")
def test_heartbeats(shared: Nsqd, topic: str) -> None:
    def silent_client_is_dropped_after_two_intervals() -> None:
        conn, start = identified(shared)
        assert conn.frame() == BEAT
        lasted(start, 1.0, SLACK)
        assert until_end(conn) in ([], [BEAT])
        lasted(start, 2.0, SLACK)

    def nop_keeps_it() -> None:
        conn, start = identified(shared)
        while time.monotonic() - start < 5.0:
            assert conn.frame() == BEAT
            conn.nop()
        conn.usable()

    def a_failing_fin_keeps_it() -> None:
        conn, start = identified(shared)
        conn.sub(topic, "c")
        while time.monotonic() - start < 5.0:
            assert conn.frame() == BEAT
            conn.barrier()

    def bytes_without_a_line_do_not_keep_it() -> None:
        conn, start = identified(shared)
        frames: list[Frame] = []
        ended = False
        while not ended and time.monotonic() - start < 2.0 + SLACK:
            try:
                conn.send(b"N")
                frames.append(conn.frame(timeout=0.3))
            except (Hangup, ConnectionError):
                ended = True
            except Exception as silence:
                assert type(silence).__name__ == "Silence", silence
        assert ended and set(frames) <= {BEAT}
        lasted(start, 2.0, SLACK)

    def a_body_must_arrive_in_time() -> None:
        conn, start = identified(shared)
        conn.send(f"PUB {topic}\n".encode(), b"\0\0\0\x0ax")
        frames = until_end(conn)
        lasted(start, 2.0, SLACK)
        assert frames[-1] == (ERROR, b"E_BAD_MESSAGE PUB failed to read message body")
        assert set(frames[:-1]) <= {BEAT}

    def none_if_switched_off() -> None:
        conn, _ = identified(shared, -1)
        conn.nothing(4.0)
        conn.usable()

    def producers_get_them() -> None:
        conn, start = identified(shared)
        conn.pub(topic + "p", b"x")
        assert conn.frame() == BEAT
        lasted(start, 1.0, SLACK)

    def they_go_on_after_cls() -> None:
        conn, _ = identified(shared)
        conn.sub(topic, "closing")
        conn.cls()
        conn.expect_response(b"CLOSE_WAIT")
        for _ in range(3):
            assert conn.frame() == BEAT
            conn.nop()

    def a_second_identify_restarts_them() -> None:
        conn, _ = identified(shared, 30000)
        start = time.monotonic()
        conn.identify(heartbeat_interval=1000)
        assert conn.frame() == BEAT
        lasted(start, 1.0, SLACK)

    together(
        silent_client_is_dropped_after_two_intervals,
        nop_keeps_it,
        a_failing_fin_keeps_it,
        bytes_without_a_line_do_not_keep_it,
        a_body_must_arrive_in_time,
        none_if_switched_off,
        producers_get_them,
        they_go_on_after_cls,
        a_second_identify_restarts_them,
    )


@one_worker
@pytest.mark.case("C036")
def test_no_subscription_without_heartbeats(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.identify(heartbeat_interval=-1)
    conn.command("SUB a")
    conn.expect_error("E_INVALID cannot SUB with heartbeats disabled")


@one_worker
@pytest.mark.case("C037")
@pytest.mark.early
def test_defaults_without_identify(idler: Idler) -> None:
    idler.wait()
    assert idler.events, "no heartbeat"
    when, frame = idler.events[0]
    assert frame == BEAT and 30.0 <= when < 33.0
    assert {frame for _, frame in idler.events} == {BEAT}
    assert 60.0 <= idler.ended < 63.0


@pytest.mark.case("C040", "F2")
def test_a_consumer_that_never_reads_is_dropped(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    producer = shared.connect()
    body = batch([b"x" * 4000] * 1000)
    for _ in range(6):
        producer.send(f"MPUB {topic}\n".encode(), body)
        producer.expect_ok()
    conn = shared.connect(pong=False, receive_buffer=4096)
    conn.identify(heartbeat_interval=1000)
    conn.sub(topic, "c", rdy=2500)
    web.await_counts(topic, "c", client_count=1)
    web.await_counts(topic, "c", client_count=0)


@pytest.mark.case("F2")
def test_talking_without_reading_does_not_keep_a_stuck_consumer(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    producer = shared.connect()
    body = batch([b"x" * 4000] * 1000)
    for _ in range(6):
        producer.send(f"MPUB {topic}\n".encode(), body)
        producer.expect_ok()
    conn = shared.connect(pong=False, receive_buffer=4096)
    conn.identify(heartbeat_interval=1000)
    conn.sub(topic, "c", rdy=2500)
    assert conn.frame().kind == MESSAGE
    deadline = time.monotonic() + 10
    with pytest.raises(ConnectionError):
        while time.monotonic() < deadline:
            conn.nop()
            time.sleep(0.1)
    web.await_counts(topic, "c", client_count=0)


@one_worker
@pytest.mark.case("C032")
def test_an_unknown_id_is_not_fatal(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.fin(UNKNOWN_ID)
    conn.expect_error(b"E_FIN_FAILED FIN " + UNKNOWN_ID + b" failed ID not in flight", fatal=False)
    conn.usable()
