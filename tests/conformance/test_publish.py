"""PUB, MPUB and DPUB."""

import time

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import batch, sized
from support.concurrent_cases import lasted, together
from support.nsqd_process import Nsqd

SLACK = 2.0


def i32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


@one_worker
@pytest.mark.case("C220")
@pytest.mark.parametrize("line", ["PUB", "MPUB", "DPUB", "DPUB t"])
def test_too_few_parameters(shared: Nsqd, line: str) -> None:
    conn = shared.connect()
    conn.command(line)
    conn.expect_error(f"E_INVALID {line.split()[0]} insufficient number of parameters")


@one_worker
@pytest.mark.case("C221", "C222", "C238")
@pytest.mark.parametrize("line", ["PUB {}", "DPUB {} 10"])
@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "invalid message body size 0"),
        (-5, "invalid message body size -5"),
        (1048577, "message too big 1048577 > 1048576"),
        (2**31 - 1, "message too big 2147483647 > 1048576"),
    ],
)
def test_length_out_of_bounds(shared: Nsqd, topic: str, line: str, length: int, text: str) -> None:
    conn = shared.connect()
    conn.send(line.format(topic).encode(), b"\n", i32(length))
    conn.expect_error(f"E_BAD_MESSAGE {line.split()[0]} {text}")
    assert shared.web.topic(topic) is None


@pytest.mark.case("C223")
def test_largest_message(shared: Nsqd, topic: str) -> None:
    body = bytes(range(256)) * 4096
    shared.connect().pub(topic, body)
    assert shared.connect().sub(topic, "c", rdy=1).message().body == body


@one_worker
@pytest.mark.case("C224", "C225")
@pytest.mark.parametrize("line", ["PUB t", "DPUB t 10"])
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"\0\0", "failed to read message body size"),
        (i32(100) + b"xyz", "failed to read message body"),
        (i32(100), "failed to read message body"),
    ],
)
def test_cut_short(shared: Nsqd, line: str, sent: bytes, text: str) -> None:
    conn = shared.connect()
    conn.send(line.encode(), b"\n", sent)
    conn.half_close()
    conn.expect_error(f"E_BAD_MESSAGE {line.split()[0]} {text}")


@one_worker
@pytest.mark.case("C226")
def test_max_body_size_does_not_limit_pub(tuned: Nsqd, topic: str) -> None:
    conn = tuned.connect()
    conn.pub(topic, b"x" * 1500)
    conn.send(f"PUB {topic}\n".encode(), i32(2001))
    conn.expect_error("E_BAD_MESSAGE PUB message too big 2001 > 2000")


@one_worker
@pytest.mark.case("C227")
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("MPUB a$", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$" is not valid'),
        ("PUB a$", 'E_BAD_TOPIC PUB topic name "a$" is not valid'),
        ("DPUB a$ x", 'E_BAD_TOPIC DPUB topic name "a$" is not valid'),
    ],
)
def test_bad_name(shared: Nsqd, line: str, text: str) -> None:
    conn = shared.connect()
    conn.command(line)
    conn.expect_error(text)


@pytest.mark.case("C228")
def test_mpub(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.mpub(topic, [b"1", b"22", b"333"])
    shared.web.await_counts(topic, depth=3, message_count=3, message_bytes=6)
    conn.sub(topic, "c", rdy=3)
    assert [message.body for message in conn.messages(3)] == [b"1", b"22", b"333"]


@one_worker
@pytest.mark.case("C229", "C230", "C232", "C233")
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (i32(0), "E_BAD_BODY MPUB invalid body size 0"),
        (i32(-1), "E_BAD_BODY MPUB invalid body size -1"),
        (i32(5242881), "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
        (i32(4) + i32(0), "E_BAD_BODY MPUB invalid message count 0"),
        (i32(4) + i32(-3), "E_BAD_BODY MPUB invalid message count -3"),
        (i32(5242880) + i32(1048576), "E_BAD_BODY MPUB invalid message count 1048576"),
        (batch([b"a", b"b", b""]), "E_BAD_MESSAGE MPUB invalid message(2) body size 0"),
        (
            i32(1048585) + i32(1) + i32(1048577),
            "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576",
        ),
    ],
)
def test_bad_mpub(shared: Nsqd, topic: str, sent: bytes, text: str) -> None:
    shared.web.create(topic)
    conn = shared.connect()
    conn.send(f"MPUB {topic}\n".encode(), sent)
    conn.expect_error(text)
    assert shared.web.counts(topic)["message_count"] == 0


@one_worker
@pytest.mark.case("C231")
def test_count_limit_follows_max_body_size(tuned: Nsqd, topic: str) -> None:
    conn = tuned.connect()
    conn.send(f"MPUB {topic}\n".encode(), i32(1000), i32(200))
    conn.expect_error("E_BAD_BODY MPUB invalid message count 200")
    conn = tuned.connect()
    conn.send(f"MPUB {topic}\n".encode(), i32(999), i32(199))
    conn.half_close()
    conn.expect_error("E_BAD_MESSAGE MPUB failed to read message(0) body size")


@one_worker
@pytest.mark.case("C234")
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"", "E_BAD_BODY MPUB failed to read body size"),
        (b"\0\0", "E_BAD_BODY MPUB failed to read body size"),
        (i32(100), "E_BAD_BODY MPUB failed to read message count"),
        (i32(100) + b"\0\0", "E_BAD_BODY MPUB failed to read message count"),
        (i32(100) + i32(2), "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (i32(100) + i32(2) + b"\0", "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (i32(100) + i32(2) + i32(50), "E_BAD_MESSAGE MPUB failed to read message body"),
        (i32(100) + i32(2) + i32(50) + b"x", "E_BAD_MESSAGE MPUB failed to read message body"),
        (
            i32(100) + i32(2) + sized(b"x"),
            "E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
    ],
)
def test_mpub_cut_short(shared: Nsqd, topic: str, sent: bytes, text: str) -> None:
    shared.web.create(topic)
    conn = shared.connect()
    conn.send(f"MPUB {topic}\n".encode(), sent)
    conn.half_close()
    conn.expect_error(text)
    assert shared.web.counts(topic)["message_count"] == 0


@one_worker
@pytest.mark.case("C235")
@pytest.mark.ours
def test_a_malformed_mpub_creates_no_topic(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.send(f"MPUB {topic}\n".encode(), batch([b"a", b""]))
    conn.expect_error("E_BAD_MESSAGE MPUB invalid message(1) body size 0")
    assert shared.web.topic(topic) is None


@one_worker
@pytest.mark.case("F3")
@pytest.mark.parametrize("announced", [1, 4, 6, 10, 14, 15, 1000, 5242880])
def test_mpub_is_read_by_count_and_sizes(shared: Nsqd, topic: str, announced: int) -> None:
    """The body has 18 bytes: four for the count, and two messages of seven bytes each."""
    conn = shared.connect()
    body = i32(2) + sized(b"one") + sized(b"two")
    conn.send(f"MPUB {topic}\n".encode(), i32(announced), body)
    conn.expect_ok()
    conn.pub(topic, b"next")
    conn.sub(topic, "c", rdy=3)
    assert [message.body for message in conn.messages(3)] == [b"one", b"two", b"next"]


@pytest.mark.case("F3")
def test_what_follows_the_last_message_is_the_next_command(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.send(f"MPUB {topic}\n".encode(), i32(16), i32(1), sized(b"hello"), b"zzz\n")
    conn.expect_ok()
    conn.expect_error("E_INVALID invalid command zzz")
    shared.web.await_counts(topic, message_count=1)


@one_worker
@pytest.mark.case("F3")
@pytest.mark.ours
def test_the_messages_of_an_mpub_may_not_exceed_max_body_size(tuned: Nsqd, topic: str) -> None:
    """The limit applies to any declared size, and to everything except the count."""
    tuned.web.create(topic)
    for last, announced in ((188, 1000), (188, 1), (189, 1000), (189, 1)):
        conn = tuned.connect()
        messages = b"".join(map(sized, [b"x" * 400, b"y" * 400, b"z" * last]))
        conn.send(f"MPUB {topic}\n".encode(), i32(announced), i32(3), messages)
        if last == 188:
            conn.expect_ok()
        else:
            conn.expect_error("E_BAD_BODY MPUB body too big 1005 > 1000", reset=True)
    assert tuned.web.counts(topic)["message_count"] == 6


@one_worker
@pytest.mark.case("C236")
@pytest.mark.parametrize("raw", ["x", "-1", "1.5", "+1"])
def test_delay_is_not_a_number(shared: Nsqd, topic: str, raw: str) -> None:
    conn = shared.connect()
    conn.command("DPUB", topic, raw)
    conn.expect_error(f"E_INVALID DPUB could not parse timeout {raw}")


@one_worker
@pytest.mark.case("C237")
def test_delay_out_of_range(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.dpub(topic, 3600000, b"x")
    conn.command("DPUB", topic, 3600001)
    conn.expect_error("E_INVALID DPUB timeout 3600001 out of range 0-3600000")


@one_worker
@pytest.mark.case("F9")
@pytest.mark.ours
@pytest.mark.parametrize("delay", [18446744073710, 2**63, 2**64, 2**64 + 5, 10**40])
def test_huge_delays_do_not_wrap(shared: Nsqd, topic: str, delay: int) -> None:
    conn = shared.connect()
    conn.command("DPUB", topic, delay)
    conn.expect_error("E_INVALID DPUB ", prefix=True)


@pytest.mark.case("C239", "C240")
def test_each_channel_defers_its_own_copy(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c1", "c2")
    shared.connect().dpub(topic, 100000, b"x")
    for channel in ("c1", "c2"):
        shared.web.await_counts(topic, channel, deferred_count=1, depth=0, message_count=1)


@pytest.mark.case("C241", "C242")
def test_when_deferred_messages_arrive(shared: Nsqd, topic: str) -> None:
    def a_short_delay() -> None:
        name = topic + "a"
        conn = shared.connect().sub(name, "c", rdy=1)
        start = conn.clock()
        shared.connect().dpub(name, 200, b"x")
        assert conn.message().attempts == 1
        lasted(start, 0.2, SLACK)

    def the_clock_starts_at_the_channel() -> None:
        name = topic + "b"
        producer = shared.connect()
        producer.dpub(name, 1500, b"x")
        producer.nothing(2.5)
        start = time.monotonic()
        producer.pub(name, b"now")  # earlier turns of the topic's worker have ended
        conn = shared.connect().sub(name, "c", rdy=2)
        assert [message.body for message in conn.messages(2)] == [b"now", b"x"]
        lasted(start, 1.5, SLACK)

    together(a_short_delay, the_clock_starts_at_the_channel)


@pytest.mark.case("C243")
@pytest.mark.parametrize("raw", ["0", ""])
def test_no_delay_is_an_ordinary_publish(shared: Nsqd, topic: str, raw: str) -> None:
    conn = shared.connect()
    conn.command("DPUB", topic, raw, body=b"x")
    conn.expect_ok()
    shared.web.await_counts(topic, depth=1)
    conn.sub(topic, "c", rdy=1)
    conn.message()


@pytest.mark.case("C244")
def test_a_disk_that_refuses(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=0)
    verbs = {"PUB": sized(b"x"), "MPUB": batch([b"x", b"y"]), "DPUB": sized(b"x")}
    blocks = []
    for verb in verbs:
        file = daemon.data / f"{verb}.topic"
        file.write_bytes(b"in the way")
        folder = daemon.data / f"{verb}.diskqueue.000000.dat"
        folder.mkdir()
        blocks += [file, folder]

    def refused(verb: str) -> bool:
        conn = daemon.connect()
        delay = " 100000" if verb == "DPUB" else ""
        conn.send(f"{verb} {verb}{delay}\n".encode(), verbs[verb])
        frame = conn.frame()
        if frame == (0, b"OK"):
            return False
        assert frame.kind == 1 and frame.data.startswith(f"E_{verb}_FAILED {verb} failed ".encode())
        conn.eof()
        return True

    for verb in ("PUB", "MPUB"):
        eventually(lambda verb=verb: refused(verb))
        answer = daemon.web.get("/ping")
        assert answer.status == 500 and answer.body.startswith(b"NOK - "), answer
    eventually(lambda: refused("DPUB"))
    daemon.connect().pub("good", b"x")
    eventually(lambda: daemon.web.get("/ping").body == b"OK")


@pytest.mark.case("C245")
def test_header_of_a_message(shared: Nsqd, topic: str) -> None:
    before = time.time_ns()
    shared.connect().pub(topic, b"x")
    message = shared.connect().sub(topic, "c", rdy=1).message()
    assert message.attempts == 1 and message.body == b"x"
    assert set(message.id) <= set(b"0123456789abcdef")
    assert before - 10**9 <= message.timestamp <= time.time_ns() + 10**9


@pytest.mark.case("C246")
def test_ids_carry_the_node_and_grow(tuned: Nsqd, topic: str) -> None:
    tuned.connect().pub(topic, *[b"x"] * 200)
    messages = tuned.connect().sub(topic, "c", rdy=50).take(200)
    ids = [int(message.id, 16) for message in messages]
    assert {(ident >> 12) & 1023 for ident in ids} == {5}
    assert ids == sorted(set(ids))


@pytest.mark.case("K11")
@pytest.mark.ours
def test_ids_are_unique_over_the_node(shared: Nsqd, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(6)]
    conns = [shared.connect() for _ in names]
    for _ in range(5):
        for conn, name in zip(conns, names, strict=True):
            conn.send(f"MPUB {name}\n".encode(), batch([b"x"] * 1000))
        for conn in conns:
            conn.expect_ok()
    ids = set()
    for conn, name in zip(conns, names, strict=True):
        conn.sub(name, "c", rdy=2500)
        ids |= {message.id for message in conn.take(5000)}
    assert len(ids) == 30000


def test_http_publishes_without_messages_are_answered(shared: Nsqd, topic: str) -> None:
    """Whichever worker serves the request creates the topic and answers."""
    web = shared.web
    for number in range(12):
        name = f"{topic}_{number}"
        kind = number % 3
        if kind == 0:
            answer = web.post("/pub", b"x", topic=name, defer="99999999999999999999")
            assert (answer.status, answer.json()["message"]) == (400, "INVALID_DEFER")
        elif kind == 1:
            answer = web.post("/mpub", b"a\nb\nc", topic=name, binary="true")
            assert answer.status == 413
        else:
            assert web.post("/mpub", b"\n\n", topic=name).body == b"OK"
        assert web.counts(name)["message_count"] == 0
        assert web.topic(name) is not None
