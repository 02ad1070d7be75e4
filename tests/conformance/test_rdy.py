"""RDY and the number of messages in flight."""

import pytest

from conftest import one_worker
from support.nsqd_process import Nsqd


@one_worker
@pytest.mark.case("C170")
def test_needs_a_subscription(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.rdy(1)
    conn.expect_error("E_INVALID cannot RDY in current state")


@one_worker
@pytest.mark.case("C171")
@pytest.mark.parametrize("raw", ["-1", "+1", "1.0", "abc", "0x1"])
def test_not_a_number(shared: Nsqd, topic: str, raw: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command("RDY", raw)
    conn.expect_error(f"E_INVALID RDY could not parse count {raw}")


@one_worker
@pytest.mark.case("C172")
def test_out_of_range(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.rdy(2501)
    conn.expect_error("E_INVALID RDY count 2501 out of range 0-2500")


@one_worker
@pytest.mark.case("C179")
def test_out_of_a_smaller_range(tuned: Nsqd, topic: str) -> None:
    conn = tuned.connect().sub(topic, "c", rdy=50)
    conn.barrier()
    conn.rdy(51)
    conn.expect_error("E_INVALID RDY count 51 out of range 0-50")


@one_worker
@pytest.mark.case("F9")
@pytest.mark.ours
@pytest.mark.parametrize("count", [2**63, 2**64, 2**64 + 1, 10**40])
def test_huge_counts_do_not_wrap(shared: Nsqd, topic: str, count: int) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.rdy(count)
    conn.expect_error("E_INVALID RDY ", prefix=True)


@pytest.mark.case("C173")
def test_accepted_counts(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    for line, count in [
        (b"RDY 2500\n", 2500),
        (b"RDY 0\n", 0),
        (b"RDY 007\n", 7),
        (b"RDY\n", 1),
        (b"RDY \n", 0),
        (b"RDY 1 2\n", 1),
    ]:
        conn.send(line)
        conn.barrier()
        assert shared.web.client(topic, "c")["ready_count"] == count, line


@pytest.mark.case("C174")
def test_a_finish_makes_room_without_another_rdy(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2", b"3", b"4")
    conn = shared.connect().sub(topic, "c", rdy=1)
    assert [message.body for message in conn.take(4)] == [b"1", b"2", b"3", b"4"]
    conn.barrier()
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.case("C175")
def test_a_ceiling_on_messages_in_flight(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2", b"3")
    conn = shared.connect().sub(topic, "c", rdy=1)
    conn.message()
    conn.nothing()
    conn.rdy(3)
    conn.messages(2)


@pytest.mark.case("C176")
def test_lowering_it(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2", b"3", b"4", b"5")
    conn = shared.connect().sub(topic, "c", rdy=3)
    held = conn.messages(3)
    conn.rdy(1)
    conn.fin(held[0])
    conn.nothing()
    conn.fin(held[1])
    conn.nothing()
    conn.fin(held[2])
    conn.message()
    conn.nothing()


@pytest.mark.case("C177")
def test_zero(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c", rdy=0)
    shared.connect().pub(topic, b"x")
    conn.nothing()


@pytest.mark.case("C178")
def test_ignored_after_cls(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    conn = shared.connect().sub(topic, "c")
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    conn.send(b"RDY 5\n", b"RDY abc\n")
    conn.nothing()
    conn.usable()
