"""A producer with a scripted nsqd and with a real one."""

from collections.abc import Callable
from typing import Any

import pytest

from conftest import one_worker
from nsqcy.client.errors import (
    Closed,
    ConnectionFailed,
    NoConnection,
    NsqdError,
    ProtocolError,
    PublishTimeout,
)
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Face
from support.fake_nsqd import MockNsqd, Peer
from support.nsqd_process import Nsqd, free_port


def tcp(daemon: Nsqd) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


def depth(daemon: Nsqd, topic: str) -> int:
    answer = daemon.web.get(f"/stats?format=json&topic={topic}").json()
    return sum(each["depth"] for each in answer["topics"])


@pytest.mark.case("CL-054")
def test_a_publish(face: Face, shared: Nsqd, topic: str) -> None:
    producer = face.producer(tcp(shared))
    assert face.call(producer.publish, topic, b"x") == b"OK"
    assert depth(shared, topic) == 1
    for publish in (producer.pub, producer.publish):
        assert face.call(publish, topic, memoryview(b"x"), timeout=10) == b"OK"
    assert depth(shared, topic) == 3


@pytest.mark.case("CL-055")
def test_publishes_that_nobody_waits_for(face: Face, shared: Nsqd, topic: str) -> None:
    producer = face.producer(tcp(shared))
    waits = face.publish_nowait(producer, topic, [b"%d" % number for number in range(1000)])
    assert [wait() for wait in waits] == [b"OK"] * 1000
    assert depth(shared, topic) == 1000


@pytest.mark.case("CL-055")
def test_answers_belong_to_publishes_in_order(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock(script=lambda peer, line, body: line.startswith("PUB"))
    producer = face.producer(nsqd.address)
    waits = face.publish_nowait(producer, "t", [b"%d" % number for number in range(5)])
    link = nsqd.link()
    eventually(lambda: len(link.bodies) == 6)
    with link:
        link.answer()
        link.answer()
        link.error("E_PUB_FAILED no")
    assert [wait() for wait in waits[:2]] == [b"OK"] * 2
    with pytest.raises(NsqdError, match="E_PUB_FAILED"):
        waits[2]()
    other = nsqd.link(1)  # commands that were not executed are sent again
    eventually(lambda: other.bodies[1:] == [b"3", b"4"])


@one_worker
@pytest.mark.case("CL-056")
def test_what_nsqd_refuses(face: Face, shared: Nsqd, topic: str) -> None:
    producer = face.producer(tcp(shared))
    for publish in (
        lambda: producer.publish(topic, b"x", defer=-1000),
        lambda: producer.dpub(topic, -1000, b"x"),
    ):
        with pytest.raises(NsqdError, match="E_INVALID") as caught:
            face.call(publish)
        assert caught.value.code == "E_INVALID"
    assert face.call(producer.publish, topic, b"x", defer=1000) == b"OK"


def test_no_answer_in_time(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock(script=lambda peer, line, body: line.startswith("PUB"))
    producer = face.producer(nsqd.address, max_pending=3)
    face.call(producer.start)
    eventually(lambda: producer.is_connected)
    with pytest.raises(PublishTimeout, match="no OK from 127"):
        face.call(producer.publish, "t", b"xxx", timeout=0.05)
    assert producer.is_full
    with pytest.raises(PublishTimeout):
        face.call(producer.publish, "t", b"x", timeout=0.05)
    with nsqd.link() as link:
        link.answer()
    eventually(lambda: not producer.is_full)


@pytest.mark.case("CL-059")
@pytest.mark.parametrize(
    ("topic", "data", "error"),
    [
        ("b d", b"x", ValueError),
        ("", b"x", ValueError),
        ("t" * 65, b"x", ValueError),
        ("t", b"", ValueError),
        ("t", "text", TypeError),
        ("t", None, TypeError),
    ],
)
def test_what_is_never_sent(
    face: Face, mock: Callable[..., MockNsqd], topic: str, data: Any, error: Any
) -> None:
    nsqd = mock()
    producer = face.producer(nsqd.address)
    for publish in (
        lambda: producer.publish(topic, data),
        lambda: producer.publish(topic, data, defer=1),
        lambda: producer.multipublish(topic, [b"x", data]),
        lambda: producer.publish_nowait(topic, data),
    ):
        with pytest.raises(error):
            face.call(publish)
    with pytest.raises(ValueError, match="no messages to publish"):
        face.call(producer.multipublish, "t", [])
    face.call(producer.publish, "t", b"fine")
    nsqd.link().expect("IDENTIFY", "PUB t")


@pytest.mark.case("CL-060")
def test_many_as_one(face: Face, shared: Nsqd, mock: Callable[..., MockNsqd], topic: str) -> None:
    producer = face.producer(tcp(shared))
    assert face.call(producer.multipublish, topic, [b"1", b"2", b"3"]) == b"OK"
    assert depth(shared, topic) == 3
    nsqd = mock()
    producer = face.producer(nsqd.address)
    face.call(producer.mpub, "t", (each for each in [b"1", b"22"]))
    nsqd.link().expect("IDENTIFY", "MPUB t")
    assert nsqd.link().bodies[1] == b"\0\0\0\2\0\0\0\1" + b"1" + b"\0\0\0\2" + b"22"


@one_worker
def test_any_number_of_messages(face: Face, shared: Nsqd, topic: str) -> None:
    producer = face.producer(tcp(shared))
    bodies = (b"%d" % number for number in range(2500))
    assert face.call(producer.publish_all, topic, bodies, batch_bytes=2000) == 2500
    assert depth(shared, topic) == 2500


@one_worker
@pytest.mark.case("CL-061")
def test_an_http_port(face: Face, shared: Nsqd) -> None:
    errors: list[Any] = []
    producer = face.producer(f"127.0.0.1:{shared.http_port}", on_error=errors.append)
    with pytest.raises(ProtocolError, match="a nsqd TCP endpoint is required"):
        face.call(producer.publish, "t", b"x")
    eventually(lambda: errors)


@one_worker
@pytest.mark.case("CL-062")
def test_what_nsqd_does_not_accept_of_a_connection(face: Face, shared: Nsqd) -> None:
    producer = face.producer(tcp(shared), heartbeat_interval=0.1)
    with pytest.raises(NsqdError) as caught:
        face.call(producer.publish, "t", b"x")
    assert str(caught.value) == "E_BAD_BODY IDENTIFY heartbeat interval (100) is invalid"


# -- its lifecycle


def test_a_close_waits_for_answers(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock(script=lambda peer, line, body: line.startswith("PUB"))
    producer = face.producer(nsqd.address)
    (wait,) = face.publish_nowait(producer, "t", [b"x"])
    eventually(lambda: len(nsqd.link().bodies) == 2)
    closing = face.begin(producer.close)
    with pytest.raises(Closed):
        eventually(lambda: face.call(producer.publish, "t", b"x", timeout=0.01) and None)
    with nsqd.link() as link:
        link.answer()
    closing.result(10)
    assert wait() == b"OK"
    assert link.ended.wait(10)


def test_a_close_has_an_end(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock(script=lambda peer, line, body: line.startswith("PUB"))
    producer = face.producer(nsqd.address, close_timeout=0.05)
    (wait,) = face.publish_nowait(producer, "t", [b"x"])
    face.call(producer.close)
    with pytest.raises(Closed):
        wait()
    with pytest.raises(Closed):
        face.call(producer.publish, "t", b"x")
    face.call(producer.close)


def test_closed_before_it_began(face: Face, mock: Callable[..., MockNsqd]) -> None:
    producer = face.producer(mock().address)
    face.call(producer.close)
    with pytest.raises(Closed):
        face.call(producer.publish, "t", b"x")
    assert not producer.is_running


def test_publish_all_does_not_say_that_nothing_was_published(
    face: Face, mock: Callable[..., MockNsqd]
) -> None:
    """nsqd answers the first batch, exits before it executes the second one, and does not
    restart."""

    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("MPUB") and b"second" in body:
            nsqd.stop_listening()
            peer.answer(b"_goodbye_")
            peer.hung_up = True
            return True
        return False

    nsqd = mock(script=script)
    producer = face.producer(nsqd.address, retries=0)
    with pytest.raises(ConnectionFailed, match="some of the messages may have been published") as e:
        face.call(producer.publish_all, "t", [b"first", b"second"], batch_messages=1)
    assert not isinstance(e.value, NoConnection)
    assert isinstance(e.value.__cause__, NoConnection)


def test_publish_all_without_an_nsqd(face: Face) -> None:
    producer = face.producer(f"127.0.0.1:{free_port()}", retries=0)
    with pytest.raises(NoConnection):
        face.call(producer.publish_all, "t", [b"first", b"second"], batch_messages=1)
