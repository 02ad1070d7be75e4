"""FIN, REQ, TOUCH and CLS."""

import time

import pytest

from conftest import one_worker
from nsqcy.testing.wire_client import UNKNOWN_ID, Silence
from support.concurrent_cases import lasted, together
from support.nsqd_process import Nsqd

SLACK = 2.0


@one_worker
@pytest.mark.case("C190")
@pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH", "CLS"])
@pytest.mark.parametrize("params", ["", " 0123456789abcdef", " 0123456789abcdef 0", " x y z"])
def test_needs_a_subscription(shared: Nsqd, command: str, params: str) -> None:
    conn = shared.connect()
    conn.command(command + params)
    conn.expect_error(f"E_INVALID cannot {command} in current state")


@one_worker
@pytest.mark.case("C191")
@pytest.mark.parametrize("line", ["FIN", "REQ", "REQ 0123456789abcdef", "TOUCH"])
def test_too_few_parameters(shared: Nsqd, topic: str, line: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command(line)
    conn.expect_error(f"E_INVALID {line.split()[0]} insufficient number of params")


@one_worker
@pytest.mark.case("C192")
@pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH"])
@pytest.mark.parametrize("ident", ["abc", "0123456789abcdef0", ""])
def test_id_of_another_length(shared: Nsqd, topic: str, command: str, ident: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command(command, ident, "0")
    conn.expect_error("E_INVALID invalid message ID")


@pytest.mark.case("C193", "C194")
@pytest.mark.parametrize("ident", [UNKNOWN_ID, b"zzzzzzzzzzzzzzzz", b"\0\r\xff\t............"])
def test_not_in_flight(shared: Nsqd, topic: str, ident: bytes) -> None:
    conn = shared.connect().sub(topic, "c")
    for command in ("FIN", "REQ", "TOUCH"):
        conn.command(command, ident, "0")
        text = f"E_{command}_FAILED {command} ".encode() + ident + b" failed ID not in flight"
        conn.expect_error(text, fatal=False)
    conn.usable()


@pytest.mark.case("C195")
def test_not_the_owner(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    owner = shared.connect().sub(topic, "c", rdy=1)
    message = owner.message()
    other = shared.connect().sub(topic, "c")
    for command in ("FIN", "REQ", "TOUCH"):
        other.command(command, message.id, "0")
        text = f"{command} {message.id.decode()} failed client does not own message"
        other.expect_error(f"E_{command}_FAILED {text}", fatal=False)
    owner.fin(message)
    owner.barrier()
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.case("C196")
def test_finish_twice(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    conn = shared.connect().sub(topic, "c", rdy=1)
    message = conn.message()
    conn.fin(message)
    conn.nothing()
    conn.fin(message)
    ident = message.id.decode()
    conn.expect_error(f"E_FIN_FAILED FIN {ident} failed ID not in flight", fatal=False)


@one_worker
@pytest.mark.case("C197")
@pytest.mark.parametrize("raw", ["x", "-1", "1.5", "+1"])
def test_delay_is_not_a_number(shared: Nsqd, topic: str, raw: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.req(UNKNOWN_ID, raw)
    conn.expect_error(f"E_INVALID REQ could not parse timeout {raw}")


@pytest.mark.case("C198")
def test_requeue_goes_to_the_tail(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2", b"3")
    conn = shared.connect().sub(topic, "c", rdy=1)
    first = conn.message()
    assert (first.body, first.attempts) == (b"1", 1)
    conn.req(first)
    second, third, again = conn.take(3)
    assert (second.body, third.body) == (b"2", b"3")
    assert (again.body, again.attempts) == (b"1", 2)
    assert (again.id, again.timestamp) == (first.id, first.timestamp)
    conn.barrier()
    shared.web.await_counts(topic, "c", requeue_count=1, timeout_count=0, depth=0)
    assert shared.web.client(topic, "c")["requeue_count"] == 1


@pytest.mark.case("C199")
def test_empty_delay_is_none(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    conn = shared.connect().sub(topic, "c", rdy=1)
    message = conn.message()
    conn.req(message, "")
    assert conn.message().attempts == 2


@pytest.mark.case("C200", "C202")
def test_delays_and_touches(shared: Nsqd, topic: str) -> None:
    def requeue_with_a_delay() -> None:
        name = topic + "a"
        shared.connect().pub(name, b"x")
        conn = shared.connect().sub(name, "c", rdy=1)
        message = conn.message()
        start = conn.clock()
        conn.req(message, 1000)
        shared.web.await_counts(name, "c", deferred_count=1, depth=0, in_flight_count=0)
        assert conn.message().attempts == 2
        lasted(start, 1.0, SLACK)

    def touch_keeps_it() -> None:
        name = topic + "b"
        shared.connect().pub(name, b"x")
        conn = shared.connect()
        conn.identify(msg_timeout=2000)
        conn.sub(name, "c", rdy=1)
        message = conn.message()
        for _ in range(3):
            conn.nothing(1.2)
            conn.touch(message)
        conn.nothing(1.2)
        conn.fin(message)
        conn.barrier()
        shared.web.await_counts(name, "c", in_flight_count=0, depth=0, timeout_count=0)

    together(requeue_with_a_delay, touch_keeps_it)


@pytest.mark.case("C201", "C203")
def test_upper_limits(tuned: Nsqd, topic: str) -> None:
    def a_long_delay_is_cut() -> None:
        name = topic + "a"
        tuned.connect().pub(name, b"x")
        conn = tuned.connect().sub(name, "c", rdy=1)
        message = conn.message()
        start = conn.clock()
        conn.req(message, 600000)
        assert conn.message().attempts == 2
        lasted(start, 3.0, SLACK)

    def touching_helps_no_longer() -> None:
        name = topic + "b"
        tuned.connect().pub(name, b"x")
        conn = tuned.connect()
        conn.identify(msg_timeout=1000)
        conn.sub(name, "c")
        start = conn.clock()
        conn.rdy(1)
        message = conn.message()
        again = None
        while again is None:
            conn.touch(message)
            try:
                again = conn.message(timeout=0.4)
            except Silence:
                assert time.monotonic() - start < 3.0 + SLACK
        assert again.attempts == 2
        lasted(start, 3.0, SLACK)

    together(a_long_delay_is_cut, touching_helps_no_longer)


@one_worker
@pytest.mark.case("F9")
@pytest.mark.ours
def test_huge_delays_do_not_wrap(shared: Nsqd, topic: str) -> None:
    for number, delay in enumerate([9223372036855, 2**63, 2**64, 2**64 + 1, 10**40]):
        name = f"{topic}-{number}"
        shared.connect().pub(name, b"x")
        conn = shared.connect().sub(name, "c", rdy=1)
        conn.req(conn.message(), delay)
        shared.web.await_counts(name, "c", deferred_count=1, depth=0, in_flight_count=0)
        conn.nothing(0.1)


@pytest.mark.case("C204")
def test_cls_stops_delivery(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2")
    conn = shared.connect().sub(topic, "c", rdy=1)
    message = conn.message()
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    conn.fin(message)
    conn.nothing()
    shared.web.await_counts(topic, "c", depth=1, in_flight_count=0)


@pytest.mark.case("C205")
def test_cls_twice(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    conn.cls()
    conn.expect_error("E_INVALID cannot CLS in current state")


@pytest.mark.case("C206")
def test_what_still_works_after_cls(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    conn = shared.connect().sub(topic, "c", rdy=1)
    message = conn.message()
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    conn.pub(topic + "other", b"y")
    conn.nop()
    conn.touch(message)
    conn.req(message)
    conn.nothing()
    shared.web.await_counts(topic, "c", depth=1, in_flight_count=0)


@pytest.mark.case("C207")
def test_stats_after_cls(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c", rdy=5)
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    client = shared.web.client(topic, "c")
    assert (client["state"], client["ready_count"]) == (4, 0)


@pytest.mark.case("C208")
def test_a_hundred_finishes_in_one_write(shared: Nsqd, topic: str) -> None:
    shared.connect().mpub(topic, [b"x"] * 100)
    conn = shared.connect().sub(topic, "c", rdy=100)
    held = conn.messages(100)
    conn.send(b"".join(b"FIN " + message.id + b"\n" for message in held))
    conn.barrier()
    shared.web.await_counts(topic, "c", in_flight_count=0, depth=0)
    client = shared.web.client(topic, "c")
    assert (client["finish_count"], client["in_flight_count"]) == (100, 0)
