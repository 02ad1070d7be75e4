"""SUB and the naming rules."""

import pytest

from conftest import one_worker
from support.nsqd_process import Nsqd

SUFFIX = "#ephemeral"


@pytest.mark.case("C150")
def test_creates_topic_and_channel(shared: Nsqd, topic: str) -> None:
    shared.connect().sub(topic, "c")
    channel = shared.web.channel(topic, "c")
    assert channel is not None and channel["client_count"] == 1


@one_worker
@pytest.mark.case("C151")
@pytest.mark.parametrize("line", ["SUB", "SUB a"])
def test_too_few_parameters(shared: Nsqd, line: str) -> None:
    conn = shared.connect()
    conn.command(line)
    conn.expect_error("E_INVALID SUB insufficient number of parameters")


@one_worker
@pytest.mark.case("C152")
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("SUB a:b c", 'E_BAD_TOPIC SUB topic name "a:b" is not valid'),
        ("SUB a:b c:d", 'E_BAD_TOPIC SUB topic name "a:b" is not valid'),
        ("SUB a c:d", 'E_BAD_CHANNEL SUB channel name "c:d" is not valid'),
    ],
)
def test_bad_names(shared: Nsqd, line: str, text: str) -> None:
    conn = shared.connect()
    conn.command(line)
    conn.expect_error(text)


@one_worker
@pytest.mark.case("C153")
def test_only_once(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command("SUB", topic, "c")
    conn.expect_error("E_INVALID cannot SUB in current state")


@one_worker
@pytest.mark.case("C153")
def test_not_after_cls(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    conn.command("SUB", topic, "c")
    conn.expect_error("E_INVALID cannot SUB in current state")


@pytest.mark.case("C154")
def test_limit_of_consumers(tuned: Nsqd, topic: str) -> None:
    tuned.connect().sub(topic, "c")
    conn = tuned.connect()
    conn.command("SUB", topic, "c")
    conn.expect_error(f"E_SUB_FAILED SUB failed consumers for {topic}:c exceeds limit of 1")


@pytest.mark.case("C155")
def test_limit_of_consumers_is_per_channel_and_freed(tuned: Nsqd, topic: str) -> None:
    first = tuned.connect().sub(topic, "c")
    tuned.connect().sub(topic, "c2")
    first.close()
    tuned.web.await_counts(topic, "c", client_count=0)
    tuned.connect().sub(topic, "c")


@pytest.mark.case("C156")
def test_nothing_before_rdy(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2")
    conn = shared.connect().sub(topic, "c")
    conn.nothing(0.5)
    conn.rdy(1)
    assert conn.message().body == b"1"
    conn.nothing()


@pytest.mark.case("C157")
def test_a_producer_may_subscribe_and_go_on_publishing(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.pub(topic, b"1")
    conn.sub(topic, "c")
    conn.pub(topic, b"2")
    conn.rdy(2)
    assert [message.body for message in conn.messages(2)] == [b"1", b"2"]


@one_worker
@pytest.mark.case("C158")
@pytest.mark.parametrize(
    "name", [".", "..", "_", "-", "a.b-c_D9", "n" * 64, "n" * 54 + SUFFIX], ids=str
)
def test_good_names(shared: Nsqd, name: str) -> None:
    conn = shared.connect()
    conn.pub(name, b"x")
    conn.sub(name, name, rdy=1)
    assert conn.take(1)[0].body == b"x"


@one_worker
@pytest.mark.case("C159", "C160")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"#ephemeral", b"#ephemeral"),
        (b"a#ephemeral#ephemeral", b"a#ephemeral#ephemeral"),
        (b"a#Ephemeral", b"a#Ephemeral"),
        (b"n" * 65, b"n" * 65),
        (b"n" * 55 + b"#ephemeral", b"n" * 55 + b"#ephemeral"),
        (b"\xc3\xa9", b"\xc3\xa9"),
        (b"a$", b"a$"),
        (b"", b""),
        (b'a"\x01\xffb\xc3\xa9', b'a\\"\\x01\\xffb\xc3\xa9'),
        (b"\\\a\b\f\r\t\v\x7f", b"\\\\\\a\\b\\f\\r\\t\\v\\x7f"),
        (b"\xe2\x80\x8b", b"\\u200b"),
    ],
    ids=repr,
)
def test_bad_topic_names(shared: Nsqd, name: bytes, shown: bytes) -> None:
    conn = shared.connect()
    conn.send(b"PUB ", name, b"\n")
    conn.expect_error(b'E_BAD_TOPIC PUB topic name "' + shown + b'" is not valid')
