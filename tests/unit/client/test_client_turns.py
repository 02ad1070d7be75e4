"""When a consumer or producer requests its next turn, and the effects on waiting callers.

If a due time had no effect, the loop would never sleep.
"""

import math
from typing import Any

import pytest

from nsqcy.client.codec import Publish
from nsqcy.client.connection import Connection
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.errors import ConnectionFailed, NsqdError
from nsqcy.client.producer import ProducerCore


class Net:
    """Records the calls that it receives."""

    def __init__(self) -> None:
        self.time = 100.0
        self.opened: list[Connection] = []
        self.asked = 0
        self.delivered: list[Any] = []
        self.has_stopped = False

    def now(self) -> float:
        return self.time

    def connect(self, connection: Connection) -> None:
        self.opened.append(connection)

    def disconnect(self, connection: Connection) -> None: ...

    def look_up(self) -> None:
        self.asked += 1

    def deliver(self, messages: list[Any]) -> None:
        self.delivered += messages

    def stopped(self) -> None:
        self.has_stopped = True


@pytest.fixture
def net() -> Net:
    return Net()


def consumer(net: Net, *addresses: str, lookupd: str = "", **options: Any) -> ConsumerCore:
    core = ConsumerCore(net, "t", "c", addresses, lookupd or (), keywords=options)
    core.start(net.time)
    return core


def shaken(core: ConsumerCore | ProducerCore, connection: Connection, now: float) -> None:
    core.connected(connection, now)
    core.received(connection, b"\0\0\0\6\0\0\0\0OK", now)


def message_frame() -> bytes:
    return (31).to_bytes(4, "big") + b"\0\0\0\2" + bytes(8) + b"\0\1" + b"0" * 16 + b"x"


def refused() -> ConnectionFailed:
    return ConnectionFailed("refused")


def test_a_connection_that_cannot_be_made_is_tried_again(net: Net) -> None:
    core = consumer(net, "a")
    core.lost(net.opened[0], refused(), net.time)
    assert net.time < core.due <= net.time + 1.0
    core.tick(core.due)
    assert len(net.opened) == 2


def test_while_closing_nothing_else_is_due(net: Net) -> None:
    """One nsqd has messages in flight, another has exited, and a backoff is in progress."""
    core = consumer(net, "a", "b", close_timeout=30.0)
    for connection in net.opened:
        shaken(core, connection, net.time)
    core.flow.failure(net.time)
    core.stop(net.time)
    core.lost(net.opened[1], refused(), net.time)
    assert not net.has_stopped
    watch = net.opened[0].due
    assert core.due == min(watch, net.time + 1.0)  # to log which answers are awaited
    core.tick(net.time + 30.0)
    assert net.has_stopped


def test_a_closing_consumer_does_not_wait_for_an_nsqd_that_hangs(net: Net) -> None:
    """nsqd does not confirm CLS: `timeout` seconds after its last byte, nothing is in transit."""
    core = consumer(net, "a", timeout=2.0, close_timeout=300.0)
    shaken(core, net.opened[0], net.time)
    core.stop(net.time)
    core.received(net.opened[0], b"\0\0\0\6\0\0\0\0OK", net.time + 1.5)
    core.tick(net.time + 3.4)
    assert not net.has_stopped
    assert core.due == net.time + 3.5
    core.tick(core.due)
    assert net.has_stopped


def test_a_closing_consumer_waits_for_messages_of_an_nsqd_that_hangs(net: Net) -> None:
    core = consumer(net, "a", timeout=2.0, close_timeout=300.0)
    shaken(core, net.opened[0], net.time)
    core.received(net.opened[0], message_frame(), net.time)
    core.stop(net.time)
    core.tick(net.time + 2.0)
    assert not net.has_stopped
    net.delivered[0].finish()
    core.answered(net.time + 9.0)
    assert net.has_stopped


def test_a_closing_producer_waits_only_for_callers(net: Net) -> None:
    """One publish is answered; the caller of the other is interrupted."""
    core = ProducerCore(net, "a", keywords={"close_timeout": 300.0})
    core.start(net.time)
    shaken(core, net.opened[0], net.time)
    first, second = (Publish("t", b"PUB t\n", b"x", None) for _ in range(2))
    core.publish(first)
    core.publish(second)
    core.stop(net.time)
    core.received(net.opened[0], b"\0\0\0\6\0\0\0\0OK", net.time)
    assert not net.has_stopped
    second.is_abandoned = True
    core.withdraw(second, net.time)
    assert net.has_stopped


def test_an_interrupted_publish_keeps_its_place(net: Net) -> None:
    core = ProducerCore(net, "a", keywords={})
    core.start(net.time)
    shaken(core, net.opened[0], net.time)
    ends: list[tuple[str, object]] = []

    class Noted(Publish):
        def done(self, error: object) -> None:
            ends.append((self.waiter, error))

    interrupted = Noted("t", b"PUB t\n", b"x", "interrupted")
    core.publish(interrupted)
    core.publish(Noted("t", b"PUB t\n", b"x", "next"))
    interrupted.is_abandoned = True
    core.withdraw(interrupted, net.time)
    core.received(net.opened[0], b"\0\0\0\6\0\0\0\0OK", net.time)
    core.received(net.opened[0], error_frame(b"E_BAD_MESSAGE"), net.time)
    assert [who for who, _ in ends] == ["interrupted", "next"]
    assert isinstance(ends[1][1], NsqdError)


@pytest.mark.parametrize("lost", [False, True], ids=["wanted", "lost"])
def test_lookupds_are_not_queried_again_during_a_query(net: Net, lost: bool) -> None:
    core = consumer(net, "a", lookupd="l:1")
    shaken(core, net.opened[0], net.time)
    if lost:
        core.lost(net.opened[0], refused(), net.time)
    else:
        core.ask_now(net.time)
    core.tick(net.time + 0.2)
    assert net.asked == 1
    assert core.due > net.time + 0.2
    core.found([], [], net.time + 0.2)
    assert net.asked == 2


def test_a_producer_waits_for_the_answer_of_lookupds(net: Net) -> None:
    core = ProducerCore(net, (), "l:1", keywords={"lookupd_poll_interval": 0.1})
    core.start(net.time)
    assert core.due == math.inf
    core.found([], [], net.time)
    assert net.time < core.due <= net.time + 0.2


def error_frame(text: bytes) -> bytes:
    return (4 + len(text)).to_bytes(4, "big") + b"\0\0\0\1" + text


def test_a_publish_does_not_fail_for_another(net: Net) -> None:
    """nsqd refuses a publish and closes the connection; later publishes wait for the next one."""
    core = ProducerCore(net, "a", keywords={})
    core.start(net.time)
    core.connected(net.opened[0], net.time)
    core.received(net.opened[0], b"\0\0\0\6\0\0\0\0OK", net.time)
    ends: list[tuple[str, object]] = []

    class Noted(Publish):
        def done(self, error: object) -> None:
            ends.append((self.waiter, error))

    core.publish(Noted("t", b"PUB t\n", b"x", "refused"))
    core.received(net.opened[0], error_frame(b"E_BAD_MESSAGE"), net.time)
    core.publish(Noted("t", b"PUB t\n", b"x", "waits"))
    core.connected(net.opened[1], net.time)
    core.received(net.opened[1], b"\0\0\0\6\0\0\0\0OK" * 2, net.time)
    assert [who for who, _ in ends] == ["refused", "waits"]
    assert ends[1][1] is None
