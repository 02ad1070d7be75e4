"""Sessions that continue in another process, in every state: what their clients can see does not
change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.taken_over import RawClient, Workers, through_json
from support.worker_core import (
    ERROR,
    MILLISECOND,
    RESPONSE,
    SECOND,
    Client,
    Delivery,
    mpub,
)

OK = (RESPONSE, b"OK")
HOUR = 3600 * SECOND


class Made:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.made: list[Workers] = []

    def __call__(self, count: int = 1, **settings: Any) -> Workers:
        self.made.append(Workers(self.base / str(len(self.made)), count, **settings))
        self.made[-1].place(b"t", count - 1)
        return self.made[-1]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path)
    yield made
    for each in made.made:
        each.close()


def replace_all(workers: Workers) -> None:
    for index in range(len(workers.cores)):
        workers.replace(index)
    workers.settle()


def client_of(workers: Workers, **identity: Any) -> Client:
    return workers.cores[0].client(**identity)


def ask(workers: Workers, client: Client, *parts: bytes) -> tuple[int, bytes] | None:
    client.send(*parts)
    workers.settle()
    return client.answer()


def publish(workers: Workers, client: Client, *bodies: bytes) -> None:
    assert ask(workers, client, mpub("t", list(bodies))) == OK


def consumer(workers: Workers, ready: int, **identity: Any) -> Client:
    client = client_of(workers, **identity)
    assert ask(workers, client, b"SUB t c\n") == OK
    client.ready(ready)
    workers.settle()
    return client


def advance(workers: Workers, ns: int) -> None:
    for core in workers.cores:
        core.advance(ns)
    workers.settle()


def counters(workers: Workers) -> dict[str, Any]:
    return workers.cores[-1].counters("t", "c")


counts = pytest.mark.parametrize("count", [1, 2])


@counts
def test_what_stats_show_of_a_client_stays(workers: Made, count: int) -> None:
    pair = workers(count)
    client = consumer(pair, 3, client_id="c", hostname="h", user_agent="a/1", sample_rate=0)
    publish(pair, client, *[b"%d" % number for number in range(9)])
    first, second, third = client.messages()
    client.finish(first.id)
    client.requeue(second.id, 1000)
    pair.settle()
    shown = client.session.counters()
    far = [each.counters() for each in pair.cores[-1].manager.clients()]
    assert shown["message_count"] == 5 and shown["pub_counts"] == {"t": 9}
    replace_all(pair)
    assert client.session.counters() == shown
    assert [each.counters() for each in pair.cores[-1].manager.clients()] == far
    found = counters(pair)
    assert (found["in_flight_count"], found["client_count"]) == (3, 1)
    assert (found["depth"], found["deferred_count"]) == (4, 1)
    assert third.id in {each.id for each in client.messages()} | {third.id}


@counts
def test_messages_in_flight_stay_with_their_clients(workers: Made, count: int) -> None:
    pair = workers(count)
    clients = [consumer(pair, 2, msg_timeout=10_000) for _ in range(3)]
    publish(pair, clients[0], *[b"%d" % number for number in range(7)])
    got = [client.messages() for client in clients]
    assert [len(each) for each in got] == [2, 2, 2]
    replace_all(pair)
    assert [client.messages() for client in clients] == [[], [], []]
    clients[1].finish(got[0][0].id)
    pair.settle()
    assert clients[1].answer() == (
        ERROR,
        b"E_FIN_FAILED FIN %s failed client does not own message" % got[0][0].id,
    )
    for client, messages in zip(clients, got, strict=True):
        client.finish(messages[0].id)
    pair.settle()
    assert [client.answer() for client in clients] == [None] * 3
    assert counters(pair)["in_flight_count"] == 4
    assert [each.body for client in clients for each in client.messages()] == [b"6"]


@counts
def test_a_deadline_stays(workers: Made, count: int) -> None:
    pair = workers(count, max_msg_timeout=25 * SECOND)
    client = consumer(pair, 1, msg_timeout=10_000)
    publish(pair, client, b"x")
    [message] = client.messages()
    advance(pair, 9 * SECOND)
    replace_all(pair)
    client.touch(message.id)
    pair.settle()
    advance(pair, 9 * SECOND)
    replace_all(pair)
    client.touch(message.id)  # 18 s of 25 s
    pair.settle()
    advance(pair, 7 * SECOND - MILLISECOND)
    assert client.messages() == []
    replace_all(pair)
    advance(pair, MILLISECOND)
    [again] = client.messages()
    assert (again.id, again.attempts) == (message.id, 2)
    assert counters(pair)["timeout_count"] == 1


def test_messages_of_a_client_that_has_left_wait_for_their_deadline(workers: Made) -> None:
    one = workers()
    client = consumer(one, 5, msg_timeout=10_000)
    publish(one, client, b"x", b"y")
    client.messages()
    client.transport.end()
    one.settle()
    following = consumer(one, 5)
    replace_all(one)
    advance(one, 10 * SECOND - MILLISECOND)
    assert following.messages() == []
    assert counters(one)["in_flight_count"] == 2
    advance(one, MILLISECOND)
    assert [(each.body, each.attempts) for each in following.messages()] == [(b"x", 2), (b"y", 2)]


def test_a_message_that_is_not_there_stays_out(workers: Made) -> None:
    one = workers()
    client = consumer(one, 5)
    publish(one, client, b"x", b"y")
    first, second = client.messages()
    one.cores[0].manager.stop_reading()
    state, unread, unsent = client.session.pack_whole()
    one.cores[0].manager.resume_reading()
    assert [each[0].encode() for each in state["in_flight"]] == [first.id, second.id]
    other = client_of(one)
    state["in_flight"].insert(1, ["00000000000000ff", 1])
    other.session.unpack_whole(through_json(state), unread, unsent)
    assert counters(one)["client_count"] == 2
    assert other.session.counters()["in_flight_count"] == 0
    lines = one.cores[0].log.lines
    assert any("3 messages that were in flight to 127.0.0.1:2" in line for line in lines), lines


@counts
def test_a_key_in_flight_stays_held(workers: Made, count: int) -> None:
    policies = Policies(TopicPolicy(key="json:/k"))
    policies.set("t/c", {"order": "key"})
    pair = workers(count, policies=policies)
    client = consumer(pair, 5)
    publish(pair, client, b'{"k":"a","n":1}', b'{"k":"a","n":2}', b'{"k":"b","n":3}')
    held = client.messages()
    assert [each.body[-2:-1] for each in held] == [b"1", b"3"]
    replace_all(pair)
    assert client.messages() == []
    client.requeue(held[0].id)
    pair.settle()
    [again] = client.messages()
    assert (again.id, again.attempts) == (held[0].id, 2)
    replace_all(pair)
    client.finish(again.id)
    pair.settle()
    [last] = client.messages()
    assert last.body == b'{"k":"a","n":2}'


@counts
def test_the_order_of_what_waits_stays(workers: Made, count: int) -> None:
    pair = workers(count)
    client = consumer(pair, 1)
    publish(pair, client, b"a", b"b", b"c")
    [message] = client.messages()
    client.ready(0)
    client.requeue(message.id)
    pair.settle()
    publish(pair, client, b"d")
    replace_all(pair)
    client.ready(9)
    pair.settle()
    assert [each.body for each in client.messages()] == [b"b", b"c", b"a", b"d"]


@counts
def test_a_consumer_that_closes_stays_closing(workers: Made, count: int) -> None:
    pair = workers(count)
    client = consumer(pair, 5)
    publish(pair, client, b"x")
    [message] = client.messages()
    assert ask(pair, client, b"CLS\n") == (RESPONSE, b"CLOSE_WAIT")
    publish(pair, client, b"y")
    replace_all(pair)
    client.ready(5)
    client.requeue(message.id)
    pair.settle()
    assert client.messages() == []
    assert client.answer() is None
    assert ask(pair, client, b"CLS\n") == (ERROR, b"E_INVALID cannot CLS in current state")


@counts
@pytest.mark.parametrize("at", [1, 7, 30, 70_000, 2_500_000])
def test_half_a_command_continues(workers: Made, count: int, at: int) -> None:
    pair = workers(count)
    client = client_of(pair)
    command = mpub("t", [b"%d" % number + bytes(99_990) for number in range(30)])
    client.send(command[:at])
    replace_all(pair)
    assert client.answer() is None
    assert ask(pair, client, command[at:]) == OK
    assert pair.cores[-1].counters("t")["message_count"] == 30


@counts
def test_commands_that_came_too_late_are_executed_by_the_next_process(
    workers: Made, count: int
) -> None:
    pair = workers(count)
    client = client_of(pair)
    pair.cores[0].manager.stop_reading()
    client.send(b"NOP\nPUB t\n\0\0\0\1xPUB t\n\0\0")
    pair.settle()
    assert client.answer() is None
    replace_all(pair)
    assert client.answer() == OK
    assert ask(pair, client, b"\0\1y") == OK


@counts
@pytest.mark.parametrize("size", [10, 20_000, 300_000])
def test_unsent_output_of_any_size_is_sent(workers: Made, count: int, size: int) -> None:
    """With two workers, half a message has crossed the ring."""
    pair = workers(count)
    publish(pair, client_of(pair), *[b"%d " % number + bytes(size) for number in range(9)])
    client = RawClient(pair.cores[0])
    client.transport.feed(b"  V2SUB t c\n")
    pair.settle()
    client.transport.full = 5
    client.transport.feed(b"RDY 100\n")
    for room in (0, 70, 31_000, 500_000, None):
        pair.settle()
        replace_all(pair)
        client.transport.full = room
        pair.settle()
    answer, *messages = client.frames()
    assert answer == OK
    bodies = [Delivery(data).body for _, data in messages]
    assert [int(each.split()[0]) for each in bodies] == list(range(9))
    assert {len(each) for each in bodies} == {size + 2}


def test_many_pieces_of_output(workers: Made) -> None:
    one = workers()
    client = consumer(one, 0)
    for _ in range(10):
        publish(one, client, *[bytes(17_000)] * 20)
    client.transport.full = 0
    for _ in range(10):
        client.ready(2500)
        one.settle()
        client.transport.full = 500_000
        one.settle()
        client.transport.full = 0
        replace_all(one)
    client.transport.full = None
    one.settle()
    assert len(client.messages()) == 200


def heartbeats(client: Client) -> int:
    return client.transport.sent().count(b"_heartbeat_")


def test_heartbeats_keep_their_times(workers: Made) -> None:
    one = workers()
    client = client_of(one, heartbeat_interval=10_000)
    heartbeats(client)
    advance(one, 9 * SECOND)
    replace_all(one)
    assert heartbeats(client) == 0
    advance(one, SECOND)
    assert heartbeats(client) == 1
    replace_all(one)
    advance(one, 10 * SECOND - MILLISECOND)
    assert heartbeats(client) == 0 and not client.transport.closed
    replace_all(one)
    advance(one, MILLISECOND)
    assert client.transport.closed


def test_a_client_that_reads_nothing_is_closed_in_time(workers: Made) -> None:
    one = workers()
    client = consumer(one, 0, heartbeat_interval=10_000)
    client.transport.full = 0
    publish(one, client_of(one), b"x")
    client.ready(1)
    one.settle()
    advance(one, 9 * SECOND)
    replace_all(one)
    advance(one, SECOND - MILLISECOND)
    client.send(b"NOP\n")
    assert not client.transport.closed
    advance(one, MILLISECOND)
    assert client.transport.closed


def test_an_error_that_ends_a_session_is_still_sent(workers: Made) -> None:
    one = workers()
    client = client_of(one)
    client.transport.full = 3
    client.send(b"WRONG\n")
    one.settle()
    replace_all(one)
    assert not client.transport.closed
    client.transport.full = None
    one.settle()
    assert client.transport.closed
    assert client.answer() == (ERROR, b"E_INVALID invalid command WRONG")


LOGS = Policies(TopicPolicy(retention_time=HOUR))


@counts
def test_a_query_of_a_log_is_repeated(workers: Made, count: int) -> None:
    pair = workers(count, policies=LOGS)
    client, other = client_of(pair, topic_log=True), client_of(pair)
    publish(pair, other, b"x")
    client.send(b"LOG_META t 30000 5\nPUB t\n\0\0\0\1y")
    pair.settle()
    assert client.answer() is None
    for _ in range(2):
        replace_all(pair)
        advance(pair, 10 * SECOND)
    assert client.answer() is None
    publish(pair, other, *[b"z"] * 5)
    kind, answer = client.answer() or (ERROR, b"")
    assert kind == RESPONSE and b'"log_id"' in answer
    assert client.answer() == OK


@counts
def test_the_wait_of_a_query_ends_in_time(workers: Made, count: int) -> None:
    pair = workers(count, policies=LOGS)
    client = client_of(pair, topic_log=True)
    publish(pair, client, b"x")
    client.send(b"LOG_META t 30000 5\n")
    pair.settle()
    advance(pair, 20 * SECOND)
    replace_all(pair)
    advance(pair, 10 * SECOND - MILLISECOND)
    assert client.answer() is None
    advance(pair, MILLISECOND)
    kind, _ = client.answer() or (ERROR, b"")
    assert kind == RESPONSE


def test_a_worker_is_at_rest_when_its_publishes_are_answered(workers: Made) -> None:
    one = workers(policies=Policies(TopicPolicy(durability="os")))
    core = one.cores[0]
    client = client_of(one)
    publish(one, client, b"x")
    client.send(b"PUB t\n\0\0\0\1y")
    manager = core.manager
    manager.stop_reading()
    client.send(b"PUB t\n\0\0\0\1z")
    assert not manager.is_at_rest
    manager.run_turn(core.now, core.wall)
    assert not manager.is_at_rest
    one.settle()
    assert manager.is_at_rest
    assert client.answer() == OK
    assert client.answer() is None
    manager.resume_reading()
    one.settle()
    assert client.answer() == OK
    assert not manager.is_at_rest


def test_answers_of_another_worker_are_relayed_by_the_next_process(workers: Made) -> None:
    pair = workers(2, policies=Policies(TopicPolicy(durability="os")))
    home, owner = pair.cores
    client = client_of(pair)
    publish(pair, client, b"x")
    client.send(b"PUB t\n\0\0\0\1y" * 3 + b"NOP\n")
    home.settle()
    owner.manager.run_turn(owner.now, owner.wall)
    pair.replace(0)
    pair.settle()
    assert [client.answer() for _ in range(4)] == [OK, OK, OK, None]


def test_a_consumer_whose_owner_has_restarted_ends(workers: Made) -> None:
    pair = workers(2)
    home = pair.cores[0]
    client = consumer(pair, 1)
    idle = client_of(pair)
    publish(pair, idle, b"x")
    client.messages()
    home.manager.stop_reading()
    pair.settle()
    packed = [(each, each.session.pack_whole()) for each in (client, idle)]
    for each, (state, unread, unsent) in packed:
        state["streams"][0]["number"] += 1000
        each.session.leave()
        each.continue_on(home, (through_json(state), unread, unsent))
    home.manager.resume_reading()
    pair.settle()
    assert client.transport.closed
    assert not idle.transport.closed
    publish(pair, idle, b"y")
