"""A consumer's decisions, on a simulated network: connections, lookups, answers, and closing.

NSQCY_RUNS=20 tries many more histories.
"""

import logging
import math
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqcy.client.codec import Message
from nsqcy.client.connection import Connection, State
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.errors import ConnectionFailed, NsqdError, Requeue
from nsqcy.client.options import Address
from support.fake_network import Net, Wire
from support.fake_nsqd import Peer, delivery
from support.runs import runs, steps

PROFILE = settings(max_examples=runs(40), stateful_step_count=steps(40), deadline=None)

BACKOFF: dict[str, Any] = {"max_backoff_duration": 128}
A, B, C = (Address(name, 4150) for name in "abc")


def consumer(
    nsqds: Any = (), lookupds: Any = (), *, net: Net | None = None, **options: Any
) -> tuple[Net, ConsumerCore]:
    net = net or Net()
    core = net.core = ConsumerCore(net, "t", "c", nsqds, lookupds, keywords=options, rng=Random(0))
    core.start(net.time)
    return net, core


def connected(*nsqds: str, net: Net | None = None, **options: Any) -> tuple[Net, ConsumerCore]:
    net, core = consumer(nsqds or "a", net=net, **options)
    for wire in net.pending():
        wire.accept()
    return net, core


# -- creation


@pytest.mark.parametrize("topic", ["", "a b", "x" * 65, "ä"])
def test_names_are_looked_at(topic: str) -> None:
    for names in ((topic, "c"), ("t", topic)):
        with pytest.raises(ValueError, match="is not a valid"):
            ConsumerCore(Net(), *names, "a", keywords={})


def test_without_an_address() -> None:
    with pytest.raises(ValueError, match="needs nsqd_tcp_addresses or lookupd"):
        ConsumerCore(Net(), "t", "c", keywords={})
    with pytest.raises(ValueError, match="has no port"):
        ConsumerCore(Net(), "t", "c", (), "lookupd", keywords={})


def test_before_it_starts_nothing_is_due() -> None:
    core = ConsumerCore(Net(), "t", "c", "a", "l:4161", keywords={})
    assert core.due == math.inf
    core.tick(1.0)


# -- connections


def test_it_subscribes_and_is_ready() -> None:
    net, core = connected(max_in_flight=5)
    (wire,) = net.wires
    assert wire.peer.lines == ["IDENTIFY", "SUB t c", "RDY 5"]
    assert core.connections == [wire.connection]


def retries(net: Net, address: Address, count: int) -> list[float]:
    """Return the seconds between attempts that fail immediately."""
    waits = []
    for _ in range(count):
        began = net.time
        attempts = len(net.wires)
        while len(net.wires) == attempts:
            net.tick(0.01)
            assert net.time - began < 100
        waits.append(net.time - began)
        net.wires[-1].lose()
    return waits


@pytest.mark.case("CL-053")
def test_a_fixed_nsqd_is_tried_for_ever_and_less_and_less() -> None:
    net, _ = consumer("a")
    net.wires[0].lose()
    waits = retries(net, A, 12)
    for number, wait in enumerate(waits):
        assert min(60, 2**number) * 0.5 - 0.02 < wait < min(60, 2**number) + 0.02, waits
    assert len({round(each, 3) for each in waits[6:]}) > 1  # jitter
    net.tick(60)
    net.wires[-1].accept()
    assert net.wires[-1].peer.said("SUB")
    net.tick(5)
    net.wires[-1].lose()
    assert retries(net, A, 1)[0] < 1.1


@pytest.mark.parametrize("lookups", [False, True], ids=["fixed", "found"])
@pytest.mark.parametrize("beats", [0, 3])
def test_one_that_subscribes_and_hangs_up_is_tried_less_and_less(
    beats: int, lookups: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The response of each lookupd lists a different nsqd."""
    net, core = consumer(() if lookups else "a", "l:4161" if lookups else ())
    answers = 0
    for _ in range(12000):
        if net.lookups > answers:
            answers += 1
            core.found([Address(f"n{answers}", 4150)], [], net.time)
        for wire in net.pending():
            wire.accept()
            for _ in range(beats):
                wire.peer.beat()
            wire.run()
            wire.lose()
        net.tick(0.01)
    assert len(net.wires) <= (60 if lookups else 10)
    assert answers <= 12
    assert len(caplog.messages) <= 60


def test_a_connection_ends_if_there_is_no_memory_for_its_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def feed(data: bytes, now: float) -> None:
        raise MemoryError

    net, core = connected()
    monkeypatch.setattr(net.wires[0].connection, "feed", feed)
    errors: list[Any] = []
    core.on_error = errors.append
    net.wires[0].peer.beat()
    net.wires[0].run()
    assert net.wires[0].closed and core.running
    assert [str(each) for each in errors] == ["a:4150: not enough memory for its data"]
    net.tick(1)
    assert len(net.wires) == 2


def test_one_that_delivers_a_message_works() -> None:
    net, _ = consumer("a")
    net.wires[0].lose()
    retries(net, A, 6)
    net.tick(60)
    net.wires[-1].accept()
    net.wires[-1].deliver(b"m")
    net.wires[-1].lose()
    assert retries(net, A, 1)[0] < 1.1


def test_one_that_refuses_sub_is_tried_less_and_less() -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("SUB"):
            peer.error("E_BAD_CHANNEL SUB no")
        return line.startswith("SUB")

    net, core = consumer("a", net=Net(script=script))
    errors: list[Any] = []
    core.on_error = errors.append
    gaps = []
    for _ in range(6):
        net.wires[-1].accept()
        began, attempts = net.time, len(net.wires)
        while len(net.wires) == attempts:
            net.tick(0.1)
        gaps.append(net.time - began)
    assert gaps[-1] > 15
    assert [str(each) for each in errors] == ["E_BAD_CHANNEL SUB no"] * 6
    assert all(isinstance(each, NsqdError) for each in errors)


def test_a_lost_connection_is_made_again() -> None:
    net, _ = connected(max_in_flight=2)
    net.wires[0].deliver(b"m")
    net.wires[0].lose()
    net.tick(1.0)
    net.wires[1].accept()
    assert net.wires[1].peer.lines == ["IDENTIFY", "SUB t c", "RDY 2"]
    net.delivered[0].finish()  # dropped
    net.wires[1].run()
    assert net.wires[1].peer.said("FIN") == []


@pytest.mark.parametrize("state", ["connecting", "handshake"])
def test_one_that_was_never_ready_is_lost(state: str) -> None:
    net, core = connected("a", max_in_flight=4)
    core.add_nsqd(B, net.time)
    wire = net.wires[1]
    if state == "handshake":
        core.connected(wire.connection, net.time)
        wire.open = True
    wire.lose()
    assert core.flow.total_ready == 4
    assert len(core.connections) == 1


def test_a_socket_that_comes_too_late() -> None:
    net, core = connected()
    core.stop(net.time, graceful=False)
    core.connected(net.wires[0].connection, net.time)
    core.received(net.wires[0].connection, b"garbage", net.time)
    core.lost(net.wires[0].connection, ConnectionFailed("x"), net.time)
    assert net.wires[0].connection.state is State.CLOSED


@pytest.mark.case("CL-034")
def test_silence_is_an_end() -> None:
    net, core = connected(heartbeat_interval=10)
    errors: list[Any] = []
    core.on_error = errors.append
    net.tick(19.9)
    assert not net.wires[0].closed
    net.tick(0.2)
    assert net.wires[0].closed
    assert "sent nothing" in str(errors[0])
    net.tick(1)
    net.wires[1].accept()


def test_a_handshake_that_takes_too_long() -> None:
    net, core = consumer("a")
    core.connected(net.wires[0].connection, net.time)
    net.wires[0].open = True
    net.tick(11)
    assert net.wires[0].closed and len(net.wires) == 2


def test_garbage_ends_one_connection() -> None:
    net, core = connected("a", "b", max_in_flight=2)
    core.received(net.wires[0].connection, b"HTTP/1.1", net.time)
    assert [each.closed for each in net.wires] == [True, False]
    net.wires[1].run()
    assert core.flow.total_ready == 2
    assert net.wires[1].peer.lines[-1] == "RDY 2"


@pytest.mark.case("CL-009")
def test_less_than_max_in_flight_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    net, _ = connected(net=Net(settings={"max_rdy_count": 3}), max_in_flight=10)
    assert net.wires[0].peer.said("RDY") == ["RDY 3"]
    assert "allows at most RDY 3, but max_in_flight is 10" in caplog.text


@pytest.mark.case("CL-035")
def test_errors_that_are_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected()
    errors: list[Any] = []
    core.on_error = errors.append
    net.wires[0].peer.error("E_FIN_FAILED FIN 1 failed", close=False)
    net.wires[0].run()
    assert not net.wires[0].closed
    assert [str(each) for each in errors] == ["E_FIN_FAILED FIN 1 failed"]
    assert "E_FIN_FAILED" in caplog.text


@pytest.mark.case("CL-036")
def test_a_fatal_error_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected()
    errors: list[Any] = []
    core.on_error = errors.append
    net.wires[0].peer.error("E_INVALID bad", close=False)
    net.wires[0].hear()
    assert net.wires[0].closed
    assert [str(each) for each in errors] == ["E_INVALID bad"]
    net.tick(1)
    assert len(net.wires) == 2


def test_callbacks_that_fail_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected()

    def bad(*about: object) -> None:
        raise RuntimeError("bad callback")

    core.on_error = core.on_heartbeat = bad
    net.wires[0].peer.beat()
    net.wires[0].run()
    net.wires[0].lose()
    assert caplog.text.count("RuntimeError: bad callback") == 2
    net.tick(1)
    assert len(net.wires) == 2


def test_heartbeats_are_reported() -> None:
    net, core = connected()
    beats: list[Connection] = []
    core.on_heartbeat = beats.append
    net.wires[0].peer.beat()
    net.wires[0].run()
    assert beats == [net.wires[0].connection]
    assert net.wires[0].peer.lines[-1] == "NOP"


# -- lookupds


def test_lookupds_are_queried_at_once_and_again() -> None:
    net, core = consumer((), "l:4161")
    assert net.lookups == 1
    net.tick(1000)
    assert net.lookups == 1  # one lookup at a time
    core.found([A], [], net.time)
    assert [each.connection.address for each in net.wires] == [A]
    net.wires[0].accept()
    assert net.lookups == 2
    core.found([A, B], [], net.time)
    assert [each.connection.address for each in net.wires] == [A, B]


def second_poll(seed: int) -> float:
    net = Net()
    core = net.core = ConsumerCore(net, "t", "c", (), "l:1", keywords={}, rng=Random(seed))
    core.start(net.time)
    core.found([A], [], net.time)
    began = net.time
    while net.lookups == 1:
        net.tick(1)
    return net.time - began


@pytest.mark.case("CL-042")
def test_consumers_that_start_together_do_not_ask_together() -> None:
    polls = [second_poll(seed) for seed in range(100)]
    assert all(60 <= each <= 79 for each in polls)
    assert max(polls) - min(polls) > 15
    assert len(set(polls)) > 15


@pytest.mark.parametrize("address", [(), "a"])
@pytest.mark.parametrize("error", [[], ["no answer"]])
def test_an_unknown_topic_is_looked_for_soon_and_then_less_often(
    address: Any, error: list[str]
) -> None:
    """The lookups are the same if an nsqd is configured as well."""
    net, core = consumer(address, "l:4161")
    queries = []
    began = net.time
    while net.time < began + 400:
        if len(queries) < net.lookups:
            queries.append(net.time)
            core.found([], error, net.time)
        net.tick(0.125)
    pauses = [later - sooner for sooner, later in pairwise(queries)]
    for pause, most in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60], strict=False):
        assert most / 2 <= pause <= most + 0.5
    core.found([A], [], net.time)
    net.tick(50)
    found = net.lookups
    core.found([], [], net.time)
    net.tick(1.5)
    assert net.lookups == found + 1


def test_asking_out_of_turn() -> None:
    net, core = consumer((), "l:4161")
    core.ask_now(net.time)
    core.found([], [], net.time)
    net.tick()
    assert net.lookups == 2


def test_lookupds_are_queried_soon_after_a_loss() -> None:
    net, core = consumer("a", "l:4161")
    core.found([B], [], net.time)
    net.wires[1].accept()
    net.wires[0].lose()
    net.tick(5)
    assert net.lookups == 1  # the client was never connected to this nsqd
    net.wires[-1].accept()
    net.wires[-1].lose()
    net.tick(0.3)
    assert net.lookups == 2


def test_who_is_no_longer_listed_is_left_when_it_goes() -> None:
    net, core = consumer((), "l:4161")
    core.found([A, B], [], net.time)
    for wire in net.pending():
        wire.accept()
    core.found([B], [], net.time)
    assert len(net.live()) == 2
    net.wires[0].lose()
    assert A not in core.nsqds
    net.wires[1].lose()
    net.tick(5)
    assert {each.connection.address for each in net.pending()} == {B}


def test_a_lookupd_that_fails_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    net, core = consumer("c", "l:4161")
    core.found([A, B], [], net.time)
    core.found([A], ["l2:4161: timed out"], net.time)
    assert set(core.nsqds) == {A, B, C}
    assert "lookupd: l2:4161: timed out" in caplog.text
    for wire in net.pending():
        wire.lose()
    assert set(core.nsqds) == {A, B, C}
    core.found([], [], net.time)
    assert set(core.nsqds) == {C}


def test_one_that_is_fixed_and_listed_stays() -> None:
    net, core = consumer("a", "l:4161")
    core.found([A], [], net.time)
    core.found([], [], net.time)
    net.wires[0].lose()
    net.tick(1)
    assert [each.connection.address for each in net.pending()] == [A]


def test_one_more_nsqd() -> None:
    net, core = connected("a", max_in_flight=4)
    for _ in range(2):
        core.add_nsqd(B, net.time)
    net.pending()[0].accept()
    net.wires[0].run()
    assert len(net.wires) == 2
    assert [each.peer.lines[-1] for each in net.wires] == ["RDY 2", "RDY 2"]


# -- secrets


@pytest.mark.parametrize(
    ("proved", "options", "sent"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"trust_lookupd": True}, True),
    ],
)
def test_a_listed_nsqd_gets_the_secret_once_it_has_proved_itself(
    proved: bool, options: dict[str, Any], sent: bool
) -> None:
    net = Net(settings={"auth_required": True})
    errors: list[str] = []
    net, core = consumer((), "l:4161", net=net, auth_secret="s3cret", **options)
    core.on_error = lambda error: errors.append(str(error))
    core.found([Address("a", 4150, proved)], [], net.time)
    (wire,) = net.pending()
    wire.accept()
    assert (wire.peer.bodies[1:] == [b"s3cret"]) == sent
    assert len(errors) == (not sent)
    assert all("a:4150 requires AUTH, but token withheld" in each for each in errors)


def test_an_nsqd_that_is_also_named_gets_the_secret() -> None:
    net, core = consumer("a", "l:4161", net=Net(settings={"auth_required": True}), auth_secret="s")
    core.found([A], [], net.time)
    (wire,) = net.pending()
    wire.accept()
    assert wire.peer.bodies[1:] == [b"s"]


def test_a_proof_that_is_gone_counts_no_longer() -> None:
    net, core = consumer((), "l:4161", net=Net(settings={"auth_required": True}), auth_secret="s")
    core.found([Address("a", 4150, True), A], [], net.time)  # one of two nsqlookupds is enough
    assert core.nsqds[A].proved
    core.found([A], [], net.time)
    assert not core.nsqds[A].proved


# -- messages


@pytest.mark.case("CL-029")
def test_giving_up(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected(max_tries=5)
    given_up: list[bytes] = []
    core.on_giving_up = lambda message: given_up.append(message.body)
    net.wires[0].deliver(b"five", attempts=5)
    net.wires[0].deliver(b"six", attempts=6)
    assert [each.body for each in net.delivered] == [b"five"]
    assert given_up == [b"six"]
    assert len(net.wires[0].peer.said("FIN")) == 1
    assert "attempted 6 times, giving up" in caplog.text


def test_the_hook_of_giving_up_may_answer() -> None:
    net, core = connected()
    core.on_giving_up = lambda message: message.requeue(7)
    net.wires[0].deliver(b"six", attempts=6)
    assert net.wires[0].peer.said("FIN") == []
    assert [each.split()[2] for each in net.wires[0].peer.said("REQ")] == ["7000"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("x"), ["RDY 0", "REQ 32000"]),
        (Requeue(2, backoff=False), ["REQ 2000"]),
    ],
)
def test_a_hook_of_giving_up_that_fails(error: Exception, said: list[str]) -> None:
    """The message is not lost: it is redelivered."""

    def hook(message: Message) -> None:
        raise error

    net, core = connected(max_backoff_duration=2)
    told: list[BaseException] = []
    core.on_giving_up = hook
    core.on_exception = lambda message, error: told.append(error)
    (wire,) = net.wires
    before = len(wire.peer.lines)
    wire.deliver(b"six", attempts=6)
    lines = [each.replace(f" {0:016x}", "") for each in wire.peer.lines[before:]]
    assert lines == said
    assert told == ([] if isinstance(error, Requeue) else [error])


@pytest.mark.case("CL-030", "CL-031")
@pytest.mark.parametrize("options", [{}, {"max_tries": 0}])
def test_without_a_limit(options: dict[str, Any]) -> None:
    """Without a limit, the consumer finishes no message by itself, even after many attempts."""
    net, _ = connected(**options)
    net.wires[0].deliver(b"m", attempts=65535)
    assert len(net.delivered) == 1


def test_where_messages_are_kept_it_gives_up_after_five_attempts() -> None:
    net, core = connected()
    kept: list[bytes] = []
    core.on_giving_up = lambda message: kept.append(message.body)
    net.wires[0].deliver(b"five", attempts=5)
    net.wires[0].deliver(b"six", attempts=6)
    assert [each.body for each in net.delivered] == [b"five"]
    assert kept == [b"six"]


def handled(core: ConsumerCore, message: Message, how: Any) -> None:
    if isinstance(how, BaseException):
        core.raised(message, how)
    else:
        core.handled(message, how)


@pytest.mark.parametrize(
    ("how", "options", "said"),
    [
        (None, {}, ["FIN"]),
        (True, {}, ["FIN"]),
        (0, {}, ["FIN"]),
        (False, {}, ["REQ 1000"]),
        (False, BACKOFF, ["RDY 0", "REQ 1000"]),
        (False, BACKOFF | {"backoff_on_requeue": False}, ["REQ 1000"]),
        (RuntimeError("x"), {}, ["REQ 1000"]),
        (RuntimeError("x"), BACKOFF, ["RDY 0", "REQ 1000"]),
        (RuntimeError("x"), BACKOFF | {"backoff_on_requeue": False}, ["RDY 0", "REQ 1000"]),
        (RuntimeError("x"), {"max_backoff_duration": 0}, ["REQ 1000"]),
        (RuntimeError("x"), {"requeue_delay": 90}, ["REQ 90000"]),
        (Requeue(), BACKOFF, ["RDY 0", "REQ 1000"]),
        (Requeue(2), {}, ["REQ 2000"]),
        (Requeue(2), BACKOFF, ["RDY 0", "REQ 2000"]),
        (Requeue(0, backoff=False), BACKOFF, ["REQ 0"]),
        (Requeue(0), BACKOFF | {"backoff_on_requeue": False}, ["REQ 0"]),
        (Requeue(0, backoff=True), BACKOFF | {"backoff_on_requeue": False}, ["RDY 0", "REQ 0"]),
    ],
)
def test_what_handlers_say(how: Any, options: Any, said: list[str]) -> None:
    net, core = connected(**options)
    net.wires[0].deliver(b"m")
    handled(core, net.delivered[0], how)
    net.wires[0].run()
    lines = [line.replace(" 0000000000000000", "") for line in net.wires[0].peer.lines]
    assert lines[3:] == said


@pytest.mark.parametrize("how", [None, False, RuntimeError("x"), Requeue(1)])
def test_an_answered_message_is_not_answered_again(how: Any) -> None:
    net, core = connected()
    net.wires[0].deliver(b"m")
    net.delivered[0].finish()
    handled(core, net.delivered[0], how)
    net.wires[0].run()
    assert len(net.wires[0].peer.said("FIN")) == 1
    assert net.wires[0].peer.said("REQ") == []


def test_manual_messages_are_left_alone() -> None:
    net, core = connected()
    net.wires[0].deliver(b"m")
    net.delivered[0].enable_async()
    core.handled(net.delivered[0], False)
    assert not net.delivered[0].has_responded()


def test_an_exception_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected()
    told: list[Any] = []
    core.on_exception = lambda message, error: told.append((message, error))
    net.wires[0].deliver(b"m")
    error = RuntimeError("my handler")
    core.raised(net.delivered[0], error)
    assert told == [(net.delivered[0], error)]
    assert "RuntimeError: my handler" in caplog.text


# -- the end


def test_a_graceful_end_waits_for_answers() -> None:
    net, core = connected("a", "b", max_in_flight=10)
    net.wires[0].deliver(b"1", b"2", b"3")
    core.stop(net.time)
    for wire in net.wires:
        wire.run()
    assert [each.peer.lines[-1] for each in net.wires] == ["CLS", "CLS"]
    assert [each.closed for each in net.wires] == [False, True]
    for message in net.delivered:
        assert net.ends == 0
        message.finish()
        net.wires[0].flush()
    assert net.wires[0].closed and net.ends == 1
    assert len(net.wires[0].peer.said("FIN")) == 3
    assert net.wires[0].peer.said("RDY")[-1] == "RDY 5"  # nothing after CLS


def test_a_graceful_end_that_takes_too_long(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected(close_timeout=5, max_in_flight=2)
    net.wires[0].deliver(b"1")
    core.stop(net.time)
    net.wires[0].run()
    net.tick(4.9)
    assert net.ends == 0
    net.tick(0.2)
    assert net.ends == 1 and net.wires[0].closed
    assert "closed after 5 s; messages in flight: 1" in caplog.text
    net.delivered[0].finish()


@pytest.mark.parametrize("graceful", [True, False])
def test_the_end_while_it_connects(graceful: bool) -> None:
    net, core = consumer(["a", "b", "c"], "l:4161")
    net.wires[1].lose()
    core.connected(net.wires[2].connection, net.time)
    net.wires[2].open = True
    core.stop(net.time, graceful=graceful)
    assert net.ends == 1 and all(each.closed for each in net.wires)


@pytest.mark.case("CL-052")
def test_after_the_end_nothing_happens() -> None:
    net, core = connected("a", max_in_flight=3, **BACKOFF)
    net.wires[0].deliver(b"m")
    core.raised(net.delivered[0], RuntimeError())  # a backoff begins
    net.wires[0].run()
    core.stop(net.time)
    net.wires[0].run()
    assert net.ends == 1
    for graceful in (True, False):
        core.stop(net.time, graceful=graceful)
    core.found([B], [], net.time)
    core.ask_now(net.time)
    core.add_nsqd(B, net.time)
    core.flow.set_max_in_flight(1, net.time)
    assert core.due == math.inf
    net.tick(100)
    assert (net.ends, net.lookups, len(net.wires)) == (1, 0, 1)
    assert core.flow.total_ready == 0


def test_a_lost_connection_is_not_waited_for() -> None:
    net, core = connected(max_in_flight=2)
    net.wires[0].deliver(b"1")
    core.stop(net.time)
    assert net.ends == 0
    net.wires[0].lose()
    assert net.ends == 1


def test_a_second_end_may_be_quick() -> None:
    net, core = connected(max_in_flight=2)
    net.wires[0].deliver(b"1")
    core.stop(net.time)
    core.stop(net.time)
    assert net.ends == 0
    core.stop(net.time, graceful=False)
    assert net.ends == 1


def test_a_graceful_end_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    net, core = connected(max_in_flight=5)
    net.wires[0].deliver(b"1", b"2")
    core.stop(net.time)
    net.wires[0].run()
    net.tick(0.9)
    assert caplog.messages == []
    net.tick(20)
    assert caplog.messages == [
        "[t:c] close() waits at most 29 s more for a:4150 (unanswered messages: 2)"
    ]


@pytest.mark.parametrize(
    ("asked", "limits", "known"),
    [
        (2, {}, True),
        (2, {"limits": {}}, True),
        (None, {}, True),  # NSQ's nsqd
        (None, {"limits": {"longest_msg_timeout": 2000}}, True),
        (None, {"limits": {"longest_msg_timeout": 3000}}, False),  # some channel has this timeout
        (None, {"limits": {}}, False),
        (None, {"limits": {"longest_msg_timeout": "x"}}, False),
        (None, {"limits": None}, False),
    ],
)
@pytest.mark.parametrize("touch", [False, True])
def test_a_graceful_end_does_not_wait_for_a_superseded_delivery(
    asked: int | None, limits: dict[str, Any], known: bool, touch: bool
) -> None:
    """The consumer waits only if a channel may have a longer timeout, or if the program has touched
    the message."""
    net = Net(settings={"msg_timeout": 2000} | limits)
    net, core = connected(net=net, max_in_flight=5, msg_timeout=asked)
    net.wires[0].deliver(b"1")
    if touch:
        net.delivered[0].touch()
    core.stop(net.time)
    net.wires[0].run()
    net.tick(1.9)
    assert core.running
    net.tick(0.2)
    assert core.running is (touch or not known)
    assert net.ends == (not core.running)


# -- random histories


class Histories(RuleBasedStateMachine):
    """Nsqds that start and exit, lookupds that list some of them, and all kinds of handlers,
    compared with the data that the peers have received."""

    @initialize(
        fixed=st.sets(st.sampled_from("ab")),
        in_flight=st.integers(0, 6),
        seed=st.integers(0, 3),
    )
    def begin(self, fixed: set[str], in_flight: int, seed: int) -> None:
        logging.getLogger("nsqcy.client").disabled = True
        self.net = Net()
        self.fixed = {Address(name, 4150) for name in fixed}
        self.core = self.net.core = ConsumerCore(
            self.net,
            "t",
            "c",
            sorted(fixed),
            "l:4161",
            keywords={"max_in_flight": in_flight, "heartbeat_interval": 1000, **BACKOFF},
            rng=Random(seed),
        )
        self.core.start(self.net.time)
        self.answers = 0  # number of answered lookups
        self.listed: set[Address] = set()  # in the latest answers; errors do not remove any
        self.bodies = 0
        self.sent: dict[bytes, Wire] = {}  # every message, by body
        self.held: list[Message] = []
        self.stopped = False
        self.wires_at_end = 0

    def teardown(self) -> None:
        logging.getLogger("nsqcy.client").disabled = False

    def collect(self) -> None:
        self.held += self.net.delivered
        self.net.delivered = []

    def some(self, wires: list[Wire], index: int) -> Wire | None:
        return wires[index % len(wires)] if wires else None

    @rule(index=st.integers(0, 9))
    def accept(self, index: int) -> None:
        if wire := self.some(self.net.pending(), index):
            wire.accept()

    @rule(index=st.integers(0, 9))
    def refuse(self, index: int) -> None:
        if wire := self.some(self.net.pending(), index):
            wire.lose()

    @rule(index=st.integers(0, 9))
    def lose(self, index: int) -> None:
        if wire := self.some(self.net.live(), index):
            wire.lose()

    @rule(index=st.integers(0, 9), count=st.integers(1, 3), attempts=st.sampled_from([1, 2, 6]))
    def deliver(self, index: int, count: int, attempts: int) -> None:
        if wire := self.some(self.net.live(), index):
            wire.run()
            if wire.closed or "CLS" in wire.peer.lines:
                return
            bodies = [b"%d" % (self.bodies + number) for number in range(count)]
            self.bodies += count
            self.sent |= dict.fromkeys(bodies, wire)
            for body in bodies:
                wire.peer.send(delivery(body, b"%016d" % int(body), attempts))
            wire.run()
            self.collect()

    @rule(index=st.integers(0, 9), how=st.sampled_from(["ok", "bad", "raise", "req", "touch"]))
    def answer(self, index: int, how: str) -> None:
        if not self.held:
            return
        message = self.held[index % len(self.held)]
        if how == "touch":
            message.touch()
            return
        self.held.remove(message)
        if how == "raise":
            self.core.raised(message, RuntimeError())
        elif how == "req":
            self.core.raised(message, Requeue(0, backoff=False))
        else:
            self.core.handled(message, how == "ok")
        assert message.has_responded()

    @rule()
    def flush(self) -> None:
        for wire in self.net.live():
            wire.run()

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.net.tick(seconds)

    @precondition(lambda self: self.net.lookups > self.answers)
    @rule(names=st.sets(st.sampled_from("abc")), errors=st.booleans())
    def lookups_answer(self, names: set[str], errors: bool) -> None:
        self.answers += 1
        found = {Address(name, 4150) for name in names}
        self.listed = found | self.listed if errors else found
        self.core.found(found, ["l: down"] if errors else [], self.net.time)

    @rule(count=st.integers(0, 6))
    def change_max_in_flight(self, count: int) -> None:
        self.core.flow.set_max_in_flight(count, self.net.time)

    @rule(graceful=st.booleans(), sure=st.integers(0, 4))
    def stop(self, graceful: bool, sure: int) -> None:
        if sure:
            return
        self.core.stop(self.net.time, graceful=graceful)
        if not self.stopped:
            self.stopped = True
            self.wires_at_end = len(self.net.wires)

    @invariant()
    def one_connection_to_each(self) -> None:
        if not hasattr(self, "net"):
            return
        addresses = [each.connection.address for each in self.net.wires if not each.closed]
        assert len(addresses) == len(set(addresses))

    @invariant()
    def nobody_is_tried_whom_nobody_names(self) -> None:
        if hasattr(self, "net") and not self.stopped:
            wanted = self.fixed | self.listed
            assert wanted <= set(self.core.nsqds)
            for address, nsqd in self.core.nsqds.items():
                assert address in wanted or nsqd.connection is not None

    @invariant()
    def ready_is_never_above_the_budget(self) -> None:
        if hasattr(self, "net"):
            assert self.core.flow.total_ready <= self.core.flow.max_in_flight or self.stopped

    @invariant()
    def after_the_end_nobody_is_called(self) -> None:
        if hasattr(self, "net") and self.stopped:
            assert len(self.net.wires) == self.wires_at_end
            assert not self.net.pending()
            if self.net.ends:
                assert not self.net.live()
                assert self.core.due == math.inf

    @invariant()
    def each_message_is_answered_once_where_it_came_from(self) -> None:
        if not hasattr(self, "net"):
            return
        for wire in self.net.live():
            wire.run()
        held = {message.body for message in self.held}
        seen: dict[bytes, int] = {}
        for wire in self.net.wires:
            for line in wire.peer.lines:
                verb, *words = line.split()
                if verb in ("FIN", "REQ"):
                    body = b"%d" % int(words[0])
                    assert self.sent[body] is wire
                    seen[body] = seen.get(body, 0) + 1
        for body, wire in self.sent.items():
            assert seen.get(body, 0) <= 1
            if wire.open:
                assert (body in held) != (body in seen)
            assert wire.connection.in_flight == sum(
                message.body in held
                for message in self.held
                if wire.open and self.sent[message.body] is wire
            )

    @invariant()
    def it_ends(self) -> None:
        """After a stop, the consumer ends once all messages are answered or lost, or the timeout
        has expired."""
        if hasattr(self, "net") and self.stopped:
            for wire in self.net.live():
                wire.run()
            if not [each for each in self.held if self.sent[each.body].open]:
                assert self.net.ends == 1


Histories.TestCase.settings = PROFILE
TestHistories = pytest.mark.slow(Histories.TestCase)
