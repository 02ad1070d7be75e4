"""Pausing, emptying and deleting topics and channels; ephemeral topics and channels."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Silence
from support.nsqd_process import Nsqd

SUFFIX = "#ephemeral"


@pytest.mark.case("C290")
def test_paused_topic(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    web.do("pause", topic)
    shared.connect().pub(topic, b"x")
    web.await_counts(topic, depth=1, paused=True)
    web.await_counts(topic, "c", depth=0)
    web.do("unpause", topic)
    web.await_counts(topic, depth=0, paused=False)
    web.await_counts(topic, "c", depth=1)


@pytest.mark.case("C291")
def test_paused_channel(shared: Nsqd, topic: str) -> None:
    web = shared.web
    held = shared.connect().sub(topic, "held", rdy=5)
    free = shared.connect().sub(topic, "free", rdy=5)
    web.do("pause", topic, "held")
    shared.connect().pub(topic, b"x")
    free.message()
    held.nothing()
    web.await_counts(topic, "held", depth=1, paused=True)
    web.do("unpause", topic, "held")
    assert held.message().body == b"x"


@pytest.mark.case("C292", "HTTP-055")
def test_emptied_channel(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.pub(topic, b"1", b"2", b"3")
    conn.dpub(topic, 100000, b"4")
    conn.sub(topic, "c", rdy=2)
    held = conn.messages(2)
    shared.web.do("empty", topic, "c")
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
    assert shared.web.client(topic, "c")["in_flight_count"] == 0
    for message in held:
        conn.fin(message)
        text = f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"
        conn.expect_error(text, fatal=False)
    shared.connect().pub(topic, b"5")
    assert conn.message().body == b"5"


@pytest.mark.case("C292")
def test_emptied_topic_leaves_its_channels_alone(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    producer = shared.connect()
    producer.pub(topic, b"1")
    web.await_counts(topic, "c", depth=1)
    web.do("pause", topic)
    producer.pub(topic, b"2", b"3")
    web.await_counts(topic, depth=2)
    web.do("empty", topic)
    web.await_counts(topic, depth=0)
    web.do("unpause", topic)
    web.await_counts(topic, "c", depth=1)


@pytest.mark.case("C293", "HTTP-057")
def test_deleted_channel(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c", rdy=1)
    other = shared.connect().sub(topic, "other", rdy=1)
    shared.web.do("delete", topic, "c")
    conn.eof()
    shared.connect().pub(topic, b"x")
    other.message()
    assert shared.web.channel(topic, "c") is None and shared.web.topic(topic) is not None


@pytest.mark.case("C294")
def test_deleted_topic(shared: Nsqd, topic: str) -> None:
    conns = [shared.connect().sub(topic, name, rdy=1) for name in ("c1", "c2")]
    shared.web.do("delete", topic)
    for conn in conns:
        conn.eof()
    assert shared.web.topic(topic) is None


@pytest.mark.case("C295")
def test_recreated_channel_is_empty(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c", "other")
    shared.connect().pub(topic, b"1", b"2")
    web.await_counts(topic, "c", depth=2)
    web.do("delete", topic, "c")
    web.create(topic, "c")
    web.await_counts(topic, "c", depth=0, message_count=0)
    web.await_counts(topic, "other", depth=2)


@pytest.mark.case("C296")
def test_a_topic_without_its_last_channel_accumulates(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    web.do("delete", topic, "c")
    shared.connect().pub(topic, b"x")
    web.await_counts(topic, depth=1)
    assert shared.connect().sub(topic, "c", rdy=1).message().body == b"x"


@pytest.mark.case("C297")
def test_ephemeral_channel_goes_with_its_last_client(shared: Nsqd, topic: str) -> None:
    conns = [shared.connect().sub(topic, "c" + SUFFIX) for _ in range(2)]
    conns[0].close()
    shared.web.await_counts(topic, "c" + SUFFIX, client_count=1)
    conns[1].close()
    eventually(lambda: shared.web.channel(topic, "c" + SUFFIX) is None)
    assert shared.web.topic(topic) is not None


@pytest.mark.case("C298")
def test_ephemeral_topic_goes_with_its_last_channel(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic + SUFFIX, "c" + SUFFIX)
    assert shared.web.topic(topic + SUFFIX) is not None
    conn.close()
    eventually(lambda: shared.web.topic(topic + SUFFIX) is None)


@pytest.mark.case("C299")
def test_durable_channel_keeps_an_ephemeral_topic(shared: Nsqd, topic: str) -> None:
    shared.connect().sub(topic + SUFFIX, "c").close()
    shared.web.await_counts(topic + SUFFIX, "c", client_count=0)
    assert shared.web.channel(topic + SUFFIX, "c") is not None


@pytest.mark.case("C300", "HTTP-058")
def test_ephemeral_topic_goes_with_a_deleted_channel(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic + SUFFIX, "c")
    shared.web.do("delete", topic + SUFFIX, "c")
    eventually(lambda: shared.web.topic(topic + SUFFIX) is None)


@pytest.mark.case("C301")
def test_ephemeral_channel_waits_for_its_first_client(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "e" + SUFFIX)
    with pytest.raises(AssertionError):
        eventually(lambda: shared.web.channel(topic, "e" + SUFFIX) is None, timeout=0.5)
    shared.connect().sub(topic, "e" + SUFFIX).close()
    eventually(lambda: shared.web.channel(topic, "e" + SUFFIX) is None)


@pytest.mark.case("F15")
@pytest.mark.ours
def test_joining_while_the_last_client_leaves(shared: Nsqd, topic: str) -> None:
    producer = shared.connect()
    conn = shared.connect().sub(topic, "c" + SUFFIX, rdy=1)
    for number in range(150):
        newcomer = shared.connect()
        conn.close()
        newcomer.sub(topic, "c" + SUFFIX, rdy=1)
        # A message sent to a client that has just disconnected waits for its timeout, as in NSQ.
        shared.web.await_counts(topic, "c" + SUFFIX, client_count=1)
        producer.pub(topic, b"%d" % number)
        body = b""
        while body != b"%d" % number:
            try:
                message = newcomer.message()
            except Silence:
                pytest.fail(f"round {number}: the newcomer gets nothing")
            newcomer.fin(message)
            body = message.body
        newcomer.barrier()
        conn = newcomer


@pytest.fixture(scope="module")
def small(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Daemon that keeps three messages per queue in memory."""
    path: Path = tmp_path_factory.mktemp("small")
    daemon = Nsqd(path, workers=workers, mem_queue_size=3).start()
    yield daemon
    daemon.destroy()


@pytest.mark.case("C302", "HTTP-059")
def test_ephemeral_topic_drops_what_overflows(small: Nsqd, topic: str) -> None:
    small.connect().pub(topic + SUFFIX, *[b"%d" % number for number in range(10)])
    small.web.await_counts(topic + SUFFIX, depth=3, message_count=10, backend_depth=0)
    conn = small.connect().sub(topic + SUFFIX, "c", rdy=10)
    assert [message.body for message in conn.messages(3)] == [b"0", b"1", b"2"]


@pytest.mark.case("C303")
def test_an_ephemeral_channel_drops_its_overflow(small: Nsqd, topic: str) -> None:
    small.web.create(topic, "c" + SUFFIX, "d")
    small.connect().pub(topic, *[b"%d" % number for number in range(10)])
    small.web.await_counts(topic, "c" + SUFFIX, depth=3, backend_depth=0, message_count=10)
    small.web.await_counts(topic, "d", depth=10, backend_depth=7, message_count=10)


@pytest.mark.case("C316")
def test_depth_and_backend_depth(small: Nsqd, topic: str) -> None:
    small.connect().pub(topic, *[b"x"] * 5)
    small.web.await_counts(topic, depth=5, backend_depth=2)


@pytest.mark.case("C330", "HTTP-026")
@pytest.mark.ours
def test_overflow_keeps_the_delay(small: Nsqd, topic: str) -> None:
    producer = small.connect()
    for number in range(3):
        producer.dpub(topic, 600000, b"%d" % number)
        small.web.pub(topic, b"http %d" % number, defer=600000)
    small.web.await_counts(topic, depth=6, backend_depth=3)
    conn = small.connect().sub(topic, "c", rdy=10)
    small.web.await_counts(topic, "c", deferred_count=6, depth=0)
    conn.nothing()
