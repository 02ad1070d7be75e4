"""Publishes that take many turns: each is visible and answered as a whole, regardless of other
events in the meantime. The tests count the work of a turn and never time it."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.broker.core import Topic
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.server.core import Publisher, split_binary, split_text
from support.two_workers import Near
from support.worker_core import ERROR, RESPONSE, Client, Core, log_pub, mpub

A_TURN = 4096  # messages appended
COUNT = 3 * A_TURN + 1
OK = (RESPONSE, b"OK")
STORES = ["memory", "disk", "os", "fsync"]

Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    cores: list[Core] = []

    def new(store: str = "disk", **settings: Any) -> Core:
        durability = "memory" if store in ("memory", "disk") else store
        policy = TopicPolicy(durability=durability, **settings.pop("policy", {}))
        path = None
        if store != "memory":
            path = tmp_path / str(len(cores))
            path.mkdir()
        cores.append(Core(path, policies=Policies(policy), **settings))
        return cores[-1]

    yield new
    for core in cores:
        core.close()


def bodies(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def turn(core: Core) -> None:
    core.manager.run_turn(core.now, core.wall)
    if core.io is not None and core.io.outstanding:
        core.io.drain_now()


def begun(core: Core, command: bytes, **identity: Any) -> Client:
    """Return a client whose batch has been partially appended."""
    client = core.client(**identity)
    client.send(command)
    turn(core)
    assert 0 < topic(core).message_count < COUNT
    return client


def topic(core: Core) -> Topic:
    found = core.topic("t")
    assert found is not None
    return found


def delivered(core: Core, consumer: Client) -> list[bytes]:
    """Consume all messages."""
    consumer.ready(2500)
    found: list[bytes] = []
    core.settle()
    while messages := consumer.messages():
        for message in messages:
            found.append(message.body)
            consumer.finish(message.id)
        core.settle()
    return found


@pytest.mark.parametrize("store", STORES)
def test_a_batch_is_appended_a_slice_per_turn(make: Make, store: str) -> None:
    core = make(store)
    consumer = core.client().subscribe("t", "c")
    client = core.client()
    client.send(mpub("t", bodies()))
    counts = [0]
    while (answer := client.answer()) is None:
        counts.append(topic(core).message_count)
        assert counts[-1] - counts[-2] <= A_TURN
        if counts[-1] < COUNT:
            assert core.counters("t", "c")["depth"] == 0
        turn(core)
    assert answer == OK and len(counts) > COUNT // A_TURN
    assert delivered(core, consumer) == bodies()


@pytest.mark.parametrize("store", STORES)
def test_publishes_beside_a_batch_wait_for_it(make: Make, store: str) -> None:
    core = make(store)
    consumer = core.client().subscribe("t", "c")
    client = begun(core, mpub("t", bodies()))
    other = core.client()
    other.send(mpub("t", [b"beside"]))
    turn(core)
    assert other.answer() is None and core.counters("t", "c")["depth"] == 0
    core.settle()
    assert (client.answer(), other.answer()) == (OK, OK)
    found = delivered(core, consumer)
    assert found.index(b"beside") < COUNT  # in the middle of the batch
    found.remove(b"beside")
    assert found == bodies()


def test_a_session_executes_nothing_before_its_batch_is_answered(make: Make) -> None:
    core = make()
    consumer = core.client().subscribe("t", "c")
    client = core.client()
    client.send(mpub("t", bodies()), mpub("t", [b"next"]), b"NONSENSE\n")
    core.settle()
    assert (client.answer(), client.answer()) == (OK, OK)
    assert client.answer() == (ERROR, b"E_INVALID invalid command NONSENSE")
    assert delivered(core, consumer) == [*bodies(), b"next"]


def test_batches_of_several_clients_take_turns(make: Make) -> None:
    core = make("memory")
    clients = []
    for name in ("t", "u", "t"):
        clients.append(core.client())
        clients[-1].send(mpub(name, bodies()))
    before = 0
    for _ in range(8):
        turn(core)
        counts = [core.counters(name)["message_count"] for name in ("t", "u")]
        assert 0 < sum(counts) - before <= A_TURN
        before = sum(counts)
    core.settle()
    assert [client.answer() for client in clients] == [OK] * 3
    assert core.counters("t")["message_count"] == 2 * COUNT


def test_a_client_that_leaves_has_published(make: Make) -> None:
    """nsqd had received the complete batch when the client disconnected."""
    core = make()
    consumer = core.client().subscribe("t", "c")
    client = begun(core, mpub("t", bodies()))
    core.manager.report(client.session, OSError())
    core.settle()
    assert client.closed and core.manager.input_bytes == 0
    assert delivered(core, consumer) == bodies()


@pytest.mark.parametrize("store", STORES)
def test_a_topic_deleted_meanwhile_rejects_the_batch(make: Make, store: str) -> None:
    core = make(store)
    client = begun(core, mpub("t", bodies()))
    waiting = core.client()
    waiting.send(mpub("t", bodies()))
    core.shard.delete_topic(b"t")
    core.settle()
    for each in (client, waiting):
        assert each.answer() == (ERROR, b"E_MPUB_FAILED MPUB failed exiting")
    assert core.topic("t") is None and core.manager.input_bytes == 0


def test_a_malformed_batch_publishes_nothing(make: Make) -> None:
    core = make()
    client = core.client()
    command = mpub("t", bodies())
    client.send(command[:-6], b"\0\0\0\0\0\0")
    core.settle()
    answer = client.answer()
    assert answer is not None and answer[0] == ERROR and core.topic("t") is None


def test_a_failed_write_undoes_the_batch(make: Make) -> None:
    """Earlier messages of the topic were waiting for the log when the batch began."""
    core = make("os")
    assert core.io is not None
    consumer = core.client().subscribe("t", "c")
    core.settle()
    core.io.fault("pwrite", 1, errno.ENOSPC)
    first, second = core.client(), core.client()
    first.send(mpub("t", [b"first"]))
    core.manager.run_turn(core.now, core.wall)
    second.send(mpub("t", bodies()))
    core.settle()
    for client in (first, second):
        answer = client.answer()
        assert answer is not None and answer[1].startswith(b"E_MPUB_FAILED MPUB failed ")
    assert core.client().ask(mpub("t", [b"again"])) == OK
    assert delivered(core, consumer) == [b"again"]


def test_a_clean_exit_completes_batches(make: Make, tmp_path: Path) -> None:
    core = make()
    begun(core, mpub("t", bodies()))
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    found = Core(core.path)
    found.load_all()
    assert delivered(found, found.client().subscribe("t", "c")) == bodies()
    found.close()


def test_a_batch_counts_as_unfinished_input(make: Make) -> None:
    core = make()
    client = begun(core, mpub("t", bodies()))
    assert core.manager.input_bytes >= sum(4 + len(body) for body in bodies())
    core.settle()
    assert client.answer() == OK and core.manager.input_bytes == 0


def test_a_full_topic_counts_messages_to_come(make: Make) -> None:
    core = make("memory", policy={"max_depth": COUNT + 1, "on_full": "reject"})
    client = begun(core, mpub("t", bodies()))
    refused = core.client().ask(mpub("t", [b"a", b"b"]))
    assert refused is not None and b"is full" in refused[1]
    core.settle()
    assert client.answer() == OK
    assert core.client().ask(mpub("t", [b"a"])) == OK


# Producers' chunks


@pytest.mark.parametrize("store", ["disk", "os", "fsync"])
def test_a_large_chunk_is_published_once(make: Make, store: str) -> None:
    core = make(store)
    consumer = core.client().subscribe("t", "c")
    command = log_pub("t", 1, bodies())
    clients = [begun(core, command, topic_log=True)]
    core.client().send(mpub("t", [b"beside"]))
    for _ in range(2):
        turn(core)
        clients.append(core.client(topic_log=True))
        clients[-1].send(command)
    core.settle()
    assert [client.answer() for client in clients] == [OK] * 3
    assert core.client(topic_log=True).ask(command) == OK
    found = delivered(core, consumer)
    found.remove(b"beside")
    assert found == bodies()


def test_a_large_chunk_is_completed_after_a_failure(make: Make) -> None:
    core = make("os")
    assert core.io is not None
    consumer = core.client().subscribe("t", "c")
    assert core.client().ask(mpub("t", [b"first"])) == OK
    core.io.fault("pwrite", 1, errno.ENOSPC)
    client = core.client(topic_log=True)
    answer = client.ask(log_pub("t", 1, bodies()))
    assert answer is not None and answer[1].startswith(b"E_LOG_PUB_FAILED LOG_PUB failed ")
    assert core.client(topic_log=True).ask(log_pub("t", 1, bodies())) == OK
    assert delivered(core, consumer) == [b"first", *bodies()]


# Publishes from within the worker, for HTTP


@pytest.mark.parametrize("headers", [b"", b"\1a\0\1b"])
@pytest.mark.parametrize("binary", [False, True])
def test_batches_of_http_requests(make: Make, headers: bytes, binary: bool) -> None:
    core = make()
    consumer = core.client().subscribe("t", "c")
    _, command = mpub("t", bodies()).split(b"\n", 1)
    batch = (
        split_binary(command[4:], 100, 5 << 20) if binary else split_text(b"\n".join(bodies()), 100)
    )
    outcomes: list[str | None] = []
    Publisher(core.manager).publish(b"t", batch, 0, "memory", outcomes.append, headers)
    turn(core)
    assert not outcomes and core.counters("t")["message_count"] == A_TURN
    core.settle()
    assert outcomes == [None] and delivered(core, consumer) == bodies()


@pytest.mark.parametrize("headers", [b"", b"\1a\0\1b"])
def test_batches_of_http_requests_for_another_worker(headers: bytes) -> None:
    near = Near()
    assert near.owner is not None
    consumer = near.owner.client().subscribe("t", "c")
    near.settle()
    large = [b"%060d" % number for number in range(40_000)]  # several commands
    outcomes: list[str | None] = []
    batch = split_text(b"\n\n".join(large), 100)
    Publisher(near.manager).publish(b"t", batch, 0, "memory", outcomes.append, headers)
    while not outcomes:
        near.settle()
    assert outcomes == [None] and delivered(near.owner, consumer) == large
    near.close()
