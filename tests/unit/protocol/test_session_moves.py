"""Sessions whose topic belongs to another worker: when they migrate there, and how they use
streams. Producers whose topic is local: when they migrate away."""

import json

import pytest

from nsqcy.formats import FormatError
from nsqcy.server.core import accept_stream
from support import two_workers
from support.two_workers import HOME, OWNER, Near, Streams
from support.worker_core import ERROR, MILLISECOND, RESPONSE, SECOND, Client, mpub

OK = (RESPONSE, b"OK")
SMALL, BATCH = b"x" * 200, mpub("t", [b"x" * 1000] * 100)
MANY = 256  # publishes that justify a migration if they take long enough
LONG = 2 * SECOND
BATCHES = 11  # batches that exceed a mebibyte
AT_ONCE = 16  # maximum sessions that leave a worker per second
BUSY = 600


@pytest.fixture
def near():
    made = Near()
    yield made
    made.close()


def publish(client: Client, times: int) -> None:
    for _ in range(times):
        assert client.publish("t", SMALL) == OK


def publish_batches(client: Client) -> None:
    for _ in range(BATCHES):
        assert client.ask(BATCH) == OK


def one_more(near: Near, client: Client) -> bool:
    """Return whether the next publish moves the client to the owner."""
    before = len(near.moved)
    assert client.publish("t", SMALL) in (OK, None)
    return near.moved[before:] == [client.session]


def test_a_consumer_moves_when_it_subscribes(near):
    client = near.client()
    near.busy(BUSY - 1)
    assert client.ask(b"SUB t c\n") is None
    assert near.moved == [client.session]


def test_a_consumer_of_a_busy_owner_stays(near):
    client = near.client()
    near.busy(BUSY)
    assert client.ask(b"SUB t c\n") == OK
    assert near.moved == []


def served(near: Near) -> tuple[int, int]:
    return near.shared.served(HOME), near.shared.served(OWNER)


def subscribes(near: Near) -> bool:
    """Return whether a new consumer migrates to the owner of its topic."""
    client = near.client()
    answer = client.ask(b"SUB t c\n")
    assert answer == (None if client.session in near.moved else OK)
    return client.session in near.moved


@pytest.mark.parametrize(
    ("ours", "theirs", "moves"),
    [(0, 1, True), (0, 2, False), (7, 8, True), (7, 9, False), (8, 10, True), (80, 92, False)],
)
def test_a_consumer_moves_if_the_owner_serves_hardly_more(near, ours, theirs, moves):
    for core, topic, count in ((near, "h", ours), (near.owner, "t", theirs)):
        for _ in range(count):
            core.client().subscribe(topic, "c")
    assert served(near) == (ours, theirs)
    assert subscribes(near) == moves


def test_a_consumer_counts_at_its_worker_and_at_the_owner(near):
    near.busy(BUSY)
    far = [near.client() for _ in range(3)]
    assert [client.ask(b"SUB t c\n") for client in far] == [OK] * 3
    assert served(near) == (3, 3)
    far[0].transport.end()
    near.settle()
    assert served(near) == (2, 2)
    near.owner.shard.delete_topic(b"t")
    near.settle()
    assert served(near) == (0, 0)


def test_consumers_that_are_on_their_way_count_as_arrived(near):
    near.client().subscribe("h", "c")
    near.client().subscribe("h", "c")
    assert [subscribes(near) for _ in range(5)] == [True, True, True, True, False]
    near.moved[0].stay()  # it subscribes from here
    near.moved[1].leave()
    near.settle()
    assert served(near) == (4, 2)
    assert [subscribes(near) for _ in range(3)] == [True, True, False]


def test_a_producer_is_no_consumer(near):
    publish(near.client(), 1)
    assert served(near) == (0, 0)


def test_other_workers_are_woken_before_the_sockets_are_served(near, monkeypatch):
    here, far = near.owner.client(), near.client()
    publish(far, 1)
    near.settle()
    here.look()
    seen = []
    monkeypatch.setattr(Streams, "wake", lambda *_: seen.append(here.transport.sent()) or 0)
    for client in (here, far):
        client.send(pub("t", SMALL))
    near.manager.run_turn(near.now, near.wall)
    assert near.manager.mesh.prepare_sleep()
    seen.clear()
    near.owner.manager.run_turn(near.now, near.wall)
    assert seen == [b""]
    assert here.answer() == OK
    near.settle()
    assert far.answer() == OK


def test_small_publishes_are_worth_a_move_when_they_go_on(near):
    client = near.client()
    publish(client, MANY)
    assert not one_more(near, client)
    near.advance(LONG - MILLISECOND)
    assert not one_more(near, client)
    near.advance(MILLISECOND)
    assert one_more(near, client)


def test_few_publishes_are_not_worth_a_move(near):
    client = near.client()
    publish(client, MANY - 1)
    near.advance(10 * LONG)
    publish(client, 1)
    assert near.moved == []
    assert one_more(near, client)


def test_many_bytes_are_worth_a_move_at_once(near):
    client = near.client()
    publish_batches(client)
    assert near.moved == []
    assert one_more(near, client)


def test_a_producer_of_a_busy_owner_waits_until_it_has_room(near):
    client = near.client()
    near.busy(BUSY)
    publish_batches(client)
    assert not one_more(near, client)
    near.busy(BUSY - 1)
    assert one_more(near, client)


def test_producers_do_not_move_in_a_herd(near):
    clients = [near.client() for _ in range(AT_ONCE + 2)]
    for client in clients:
        publish_batches(client)
    assert [one_more(near, client) for client in clients] == [True] * AT_ONCE + [False] * 2
    near.advance(SECOND - MILLISECOND)
    assert not one_more(near, clients[-1])
    near.advance(MILLISECOND)
    assert [one_more(near, client) for client in clients[-2:]] == [True] * 2


def test_consumers_move_before_producers(near):
    producer = near.client()
    for _ in range(AT_ONCE):
        near.client().subscribe("h", "c")
    publish_batches(producer)
    for _ in range(AT_ONCE + 1):
        near.client().ask(b"SUB t c\n")
    assert len(near.moved) == AT_ONCE + 1
    assert not one_more(near, producer)


# -- producers of a busy owner

HEAVY = 850


def overload(near: Near, ran: int = HEAVY, other: int = 679) -> None:
    near.load(HOME, 1000, ran)
    near.load(OWNER, 1000, other)
    near.advance(SECOND)


def leaves(near: Near, client: Client, *commands: bytes) -> bool:
    """Return whether these commands, which arrive together, make the client migrate."""
    before = len(near.moved)
    client.send(b"".join(commands))
    near.settle()
    return near.moved[before:] == [client.session]


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + len(body).to_bytes(4, "big") + body


ONE = pub("h", SMALL)


def test_a_busy_owner_gives_producers_away(near):
    client = near.client()
    assert not leaves(near, client, ONE)
    overload(near)
    assert leaves(near, client, ONE)
    assert near.counters("h")["message_count"] == 2


@pytest.mark.parametrize(
    "loads",
    [{"ran": HEAVY - 1, "other": 0}, {"other": 680}],
    ids=["waits for a CPU", "alike"],
)
def test_an_owner_keeps_producers_that_others_have_no_time_for(near, loads):
    client = near.client()
    overload(near, **loads)
    assert not leaves(near, client, ONE)


def test_loads_are_compared_once_a_second(near):
    first, second, third = (near.client() for _ in range(3))
    overload(near)
    assert leaves(near, first, ONE)
    near.load(OWNER, 1000, 1000)
    near.advance(SECOND - MILLISECOND)
    assert leaves(near, second, ONE)
    near.advance(MILLISECOND)
    assert not leaves(near, third, ONE)


def test_only_clients_that_publish_one_by_one_are_given_away(near):
    clients = [near.client() for _ in range(4)]
    clients[3].subscribe("h", "c")
    overload(near)
    assert not leaves(near, clients[0], ONE, ONE)
    assert not leaves(near, clients[1], pub("h", b"x" * 4096))
    assert not leaves(near, clients[2], pub("t", SMALL))
    assert not leaves(near, clients[3], b"NOP\n")
    assert leaves(near, clients[0], ONE)


def test_only_so_many_are_given_away_in_a_second(near):
    clients = [near.client() for _ in range(AT_ONCE + 1)]
    overload(near)
    assert [leaves(near, client, ONE) for client in clients] == [True] * AT_ONCE + [False]


def test_what_was_not_sent_goes_along_or_is_sent_after_all(near):
    client = near.client()
    overload(near)
    client.transport.sent()
    assert leaves(near, client, ONE)
    assert client.transport.sent() == b""
    assert client.session.pack()[2].endswith(b"OK")
    client.session.stay()
    near.settle()
    assert client.transport.sent().endswith(b"OK")
    client.send(ONE)
    near.settle()
    assert client.transport.sent().endswith(b"OK")


# -- data that passes through streams in pieces


def consumer(near: Near, messages: int, size: int = 300) -> Client:
    """Return a client that receives its messages through a stream."""
    near.busy(BUSY)
    client = near.client().subscribe("t", "c")
    for number in range(messages):
        assert client.publish("t", b"%d " % number + b"x" * size) == OK
    client.ready(messages)
    near.settle()
    return client


def test_many_messages_arrive_whole_and_are_finished_at_once(near):
    client = consumer(near, 400)
    found = client.messages()
    assert [int(each.body.split()[0]) for each in found] == list(range(400))
    assert client.session.counters()["message_count"] == 400
    client.send(*[b"FIN %s\n" % each.id for each in found])
    near.settle()
    counters = near.owner.counters("t", "c")
    assert (counters["in_flight_count"], counters["depth"]) == (0, 0)
    assert client.answer() is None


def test_a_command_sent_during_a_turn_runs_in_the_next_one(near):
    """By then, the owner has read its clock again, so a delay begins after the command was sent."""
    client = consumer(near, 1)
    [message] = client.messages()
    owner = near.owner

    def requeue() -> None:
        client.requeue(message.id, 1000)
        near.manager.run_turn(near.now, near.wall)

    near.during_a_turn = requeue
    owner.manager.placed(b"u", near.manager.index)
    owner.client().send(b"SUB u c\n")
    owner.manager.run_turn(near.now, near.wall)
    assert owner.counters("t", "c")["deferred_count"] == 0
    owner.manager.run_turn(near.now, near.wall)
    assert owner.counters("t", "c")["deferred_count"] == 1


def test_a_fin_that_fails_among_others_is_the_only_one(near):
    client = consumer(near, 3)
    ids = [each.id for each in client.messages()]
    client.send(*[b"FIN %s\n" % each for each in (ids[0], b"0" * 16, b"not-hexadecimal!", ids[1])])
    client.send(b"FIN ", ids[2][:5])
    near.settle()
    for id in (b"0" * 16, b"not-hexadecimal!"):
        assert client.answer() == (ERROR, b"E_FIN_FAILED FIN %s failed ID not in flight" % id)
    assert near.owner.counters("t", "c")["in_flight_count"] == 1
    client.send(ids[2][5:], b"\n")
    near.settle()
    assert near.owner.counters("t", "c")["in_flight_count"] == 0
    assert client.answer() is None


def test_what_is_no_fin_ends_the_session_behind_those_before_it(near):
    client = consumer(near, 2)
    ids = [each.id for each in client.messages()]
    client.send(b"FIN %s\nFIN short\nFIN %s\n" % tuple(ids))
    near.settle()
    assert client.answer() == (ERROR, b"E_INVALID invalid message ID")
    assert client.closed
    assert near.owner.counters("t", "c")["in_flight_count"] == 1


def test_pipelined_publishes_are_answered_one_by_one(near):
    client = near.client()
    near.busy(BUSY)
    client.send((b"PUB t\n\0\0\0\1x") * 500)
    near.settle()
    assert [client.answer() for _ in range(501)] == [OK] * 500 + [None]


def test_a_stream_in_another_format_is_refused(near, monkeypatch):
    def accept(manager, stream, hello):
        newer = json.dumps(json.loads(hello) | {"format": 2}).encode()
        with pytest.raises(FormatError, match="mesh format version 2 is newer than this nsqcy"):
            accept_stream(manager, stream, newer)
        refused.append(newer)
        return accept_stream(manager, stream, hello)

    refused = []
    monkeypatch.setattr(two_workers, "accept_stream", accept)
    publish(near.client(), 1)
    assert len(refused) == 1
