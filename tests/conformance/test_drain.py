"""PUT /config/drain: an nsqd exits once its consumers have emptied it. NSQ has no such feature."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import Conn, sized
from support.client_interfaces import Blocking
from support.fake_nsqlookupd import OK, FakeLookupd
from support.nsqd_process import Nsqd, free_port
from support.nsqlookupd_process import Lookupd

pytestmark = pytest.mark.ours

DRAIN = "/config/drain"
TOPICS = [f"t{number}" for number in range(6)]  # every worker owns some of these topics
COMMANDS = [("PUB", sized(b"x")), ("MPUB", sized(b"\0\0\0\1" + sized(b"x")))]
COMMANDS += [("DPUB 0", sized(b"x"))]


def drain(daemon: Nsqd, **query: str) -> dict[str, Any]:
    answer = daemon.web.put(DRAIN, b"true", **query)
    assert answer.status == 200, answer
    state: dict[str, Any] = answer.json()
    assert state["draining"] is True
    return state


def left(web: Web) -> int | None:
    """Return the number of remaining messages, or None if a worker does not report it."""
    found = web.get(DRAIN).json()["left"]
    return None if found is None else int(found["messages"])


def refusal(daemon: Nsqd, topic: str, command: str = "PUB", body: bytes = sized(b"x")) -> None:
    verb, _, delay = command.partition(" ")
    conn = daemon.connect()
    conn.send(f"{verb} {topic} {delay}".rstrip().encode(), b"\n", body)
    conn.expect_error(f"E_{verb}_FAILED {verb} failed draining")


def refused(web: Web, path: str, topic: str) -> bool:
    answer = web.post(path, b"x", topic=topic)
    return (answer.status, answer.body) == (503, b'{"message":"DRAINING"}')


def ready(web: Web) -> tuple[int, str]:
    answer = web.get("/ready")
    return answer.status, answer.body.decode()


def test_publishes_are_refused_until_it_ends(nsqd: Starter) -> None:
    daemon = nsqd()
    web = daemon.web
    assert web.get(DRAIN).json()["draining"] is False
    for topic in TOPICS:
        web.create(topic, "c")
        web.pub(topic, b"kept")
    for _ in range(2):  # repeating the request changes nothing
        state = drain(daemon)
        assert state["left"]["messages"] == state["left"]["places"] == 6
        assert {each["topic_name"] for each in state["left"]["most"]} == set(TOPICS)
        for topic in TOPICS:
            assert refused(web, "/pub", topic) and refused(web, "/mpub", topic)
            for command, body in COMMANDS:
                refusal(daemon, topic, command, body)
    eventually(lambda: ready(web) == (503, "draining: 6 messages are left"))
    assert web.get("/ping").body == b"OK"
    stats = web.stats()
    assert (stats["health"], stats["draining"]) == ("OK", True)
    assert b"\nHealth: OK\nDraining: publishes are refused\n" in web.get("/stats").body

    assert web.put(DRAIN, b"false").json()["draining"] is False
    assert ready(web) == (200, "OK")
    assert "draining" not in web.stats() and b"Draining" not in web.get("/stats").body
    for topic in TOPICS:
        web.pub(topic, b"more")
        daemon.connect().pub(topic, b"and more")
    assert left(web) == 18
    daemon.stop()


@one_worker
def test_bad_requests(nsqd: Starter) -> None:
    daemon = nsqd()
    for body in (b"", b"1", b"yes", b"truetrue", b"null"):
        answer = daemon.web.put(DRAIN, body)
        assert (answer.status, answer.json()["message"]) == (
            400,
            "INVALID_VALUE (allowed: true, false)",
        )
    for timeout in ("", "0", "-1s", "5", "soon"):
        answer = daemon.web.put(DRAIN, b"true", timeout=timeout)
        assert answer.status == 400
        assert answer.json()["message"].startswith(
            "INVALID_TIMEOUT (allowed: more than 0; a number with a"
        )
    assert daemon.web.post(DRAIN, b"true").status == 405
    assert daemon.web.get(DRAIN).json()["draining"] is False
    daemon.web.pub("t", b"x")


def test_what_is_left_keeps_it(nsqd: Starter) -> None:
    file = nsqd.path / "nsqd.ini"
    file.write_text("[nsqd]\n[topic kept]\nretention_time = 1h\n")
    daemon = nsqd(args=(f"--config={file}",), max_req_timeout="1000h", mem_queue_size=100)
    web = daemon.web
    web.pub("bare", b"x")
    web.create("deferred", "c")
    web.pub("deferred", b"x", defer=720 * 3_600_000)
    web.create("paused", "c")
    web.do("pause", "paused", "c")
    web.pub("paused", b"x")
    # Neither ephemeral nor finished messages count as remaining.
    web.create("other", "d")
    other = daemon.connect().sub("other", "c#ephemeral", rdy=0)
    eager = daemon.connect().sub("other", "d", rdy=1)
    web.pub("other", b"x")
    web.pub("gone#ephemeral", b"x")
    eager.take(1)
    web.create("kept", "c")
    reader = daemon.connect().sub("kept", "c", rdy=1)
    web.pub("kept", b"x")
    held = reader.message()
    eventually(lambda: left(web) == 4)
    state = drain(daemon)["left"]
    assert state["most"] and sorted(
        (each["topic_name"], each["channel_name"], each["depth"]) for each in state["most"]
    ) == [("bare", "", 1), ("deferred", "c", 0), ("kept", "c", 0), ("paused", "c", 1)]
    assert (state["depth"], state["in_flight_count"], state["deferred_count"]) == (2, 1, 1)

    # A draining nsqd can be emptied in every way, including by new consumers and channels.
    reader.fin(held)
    eventually(lambda: left(web) == 3)
    web.do("empty", "deferred", "c")
    late = daemon.connect().sub("bare", "new", rdy=1)
    late.take(1)
    eventually(lambda: left(web) == 1)
    assert daemon.alive()
    web.do("delete", "paused")
    assert daemon.wait() == 0
    other.close()
    log = daemon.log_text()
    assert log.index("DRAIN: publishes are refused") < log.index("DRAIN: nothing is left")
    assert log.rstrip().endswith("NSQ: bye")


def test_its_time_is_over(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.web.create("t", "c")
    daemon.web.pub("t", b"kept")
    assert "seconds_left" not in drain(daemon)
    assert drain(daemon, timeout="1h")["seconds_left"] == 3600
    assert drain(daemon)["seconds_left"] in (3599, 3600)
    drain(daemon, timeout="300ms")
    assert daemon.wait() == 3
    text = "DRAIN: timed out; left on disk: 1 message in 1 place: t:c (1 waiting, 0 in"
    assert text in daemon.log_text()
    daemon.restart()
    assert daemon.web.get(DRAIN).json()["draining"] is False
    assert daemon.connect().sub("t", "c", rdy=1).message().body == b"kept"


def test_told_to_stop_meanwhile(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.web.create("t", "c")
    daemon.web.pub("t", b"kept")
    drain(daemon)
    daemon.stop()
    daemon.restart()
    assert daemon.connect().sub("t", "c", rdy=1).message().body == b"kept"


def test_a_worker_dies_meanwhile(nsqd: Starter) -> None:
    daemon = nsqd(durability="os")
    for topic in TOPICS:
        daemon.web.create(topic, "c")
        daemon.web.mpub(topic, [b"%d" % number for number in range(20)])
    drain(daemon)
    daemon.kill_worker(0)

    def is_back() -> bool:
        try:
            return left(daemon.web) == 120
        except OSError:  # the only worker is down
            return False

    eventually(is_back, 20)
    for topic in TOPICS:
        assert refused(daemon.web, "/pub", topic)
    bodies = [
        message.body
        for topic in TOPICS
        for message in daemon.connect().sub(topic, "c", rdy=20).take(20)
    ]
    assert len(bodies) == 120
    assert daemon.wait() == 0


@pytest.fixture
def scripted() -> Iterator[FakeLookupd]:
    lookupd = FakeLookupd()
    yield lookupd
    lookupd.close()


def test_lookupds_are_notified_first(nsqd: Starter, scripted: FakeLookupd) -> None:
    """A publish is accepted while nsqd unregisters from a lookupd."""
    daemon = nsqd(lookupd_tcp_address=scripted.address)
    names = {f"{topic} {channel}".rstrip() for topic in "tu" for channel in ("", "c", "d")}
    for topic in "tu":
        daemon.web.create(topic, "c", "d")
    eventually(lambda: len(scripted.told()) >= 6)
    seen: list[tuple[str, int]] = []

    def answer(command: str) -> bytes:
        if command.startswith("UNREGISTER"):
            seen.append((command, daemon.web.post("/pub", b"x", topic="t").status))
        return OK

    scripted.answers = answer
    drain(daemon)
    assert {command.removeprefix("UNREGISTER ") for command, _ in seen} == names
    assert {status for _, status in seen} == {200}
    for topic in "tu":  # the topic comes last, because unregistering it removes its channels
        assert [command for command, _ in seen if f" {topic}" in command][-1].endswith(topic)
    refusal(daemon, "t")

    # nsqd registers neither new channels nor, after a reconnect to a lookupd, existing ones.
    daemon.connect().sub("new", "c")
    scripted.link.close()
    eventually(lambda: len(scripted.links) == 2 and scripted.link.identity)
    daemon.web.put(DRAIN, b"false")
    eventually(lambda: len(scripted.told()) == 5)
    assert set(scripted.told()) == {
        f"REGISTER {name}" for name in ("t c", "t d", "u c", "u d", "new c")
    }


def test_a_hanging_lookupd_does_not_delay_a_drain(nsqd: Starter, scripted: FakeLookupd) -> None:
    daemon = nsqd(lookupd_tcp_address=scripted.address)
    daemon.web.create("t", "c")
    daemon.web.pub("t", b"x")
    eventually(lambda: "REGISTER t c" in scripted.told())
    scripted.answers = lambda command: b"\0silence" if "UNREGISTER" in command else OK
    drain(daemon)
    refusal(daemon, "t")


class Load:
    """Publishes messages one after another, to any of several nsqds, until it is stopped."""

    def __init__(self, face: Blocking, topic: str, *addresses: str) -> None:
        self.accepted: list[bytes] = []
        self._topic = topic
        self._producer = face.producer(list(addresses), retries=50)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            body = b"%s %d" % (self._topic.encode(), number)
            self._producer.publish(self._topic, body, timeout=20)
            self.accepted.append(body)
            time.sleep(0.002)

    def end(self) -> list[bytes]:
        self._ended.set()
        self._thread.join()
        return self.accepted


def test_under_load(nsqd: Starter) -> None:
    """One of two nsqds drains under load. Its consumers empty it, producers continue with the other
    nsqd, and nothing is lost."""
    face = Blocking()
    with Lookupd() as lookupd:
        ports = [free_port(), free_port()]
        going, staying = (
            nsqd(
                tcp_address=f"127.0.0.1:{port}",
                broadcast_address=f"127.0.0.{at + 2}",
                lookupd_tcp_address=lookupd.tcp_address,
            )
            for at, port in enumerate(ports)
        )
        addresses = [f"127.0.0.1:{port}" for port in ports]
        received: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        for topic in TOPICS:
            going.web.create(topic, "c")
            going.web.mpub(topic, [b"backlog %d" % number for number in range(2000)])
        loads = [Load(face, topic, *addresses) for topic in TOPICS[:3]]
        eventually(lambda: all(len(load.accepted) > 50 for load in loads))
        for topic in TOPICS:

            def take(message: Any, bodies: set[bytes] = received[topic]) -> None:
                if message.attempts == 1 and hash(message.body) % 10 == 0:
                    message.requeue(delay=0.05, backoff=False)
                    return
                bodies.add(message.body)
                message.finish()

            face.consumer(topic, "c", addresses, message_handler=take, max_in_flight=200)
        drain(going)
        assert [lookupd.producers(topic) for topic in TOPICS[:3]] == [["127.0.0.3"]] * 3
        refusal(going, TOPICS[0])
        before = [len(load.accepted) for load in loads]
        assert going.wait(60) == 0
        goals = [(load, count + 20) for load, count in zip(loads, before, strict=True)]
        eventually(lambda: all(len(load.accepted) > goal for load, goal in goals))
        for load, topic in zip(loads, TOPICS, strict=False):
            accepted = set(load.end())
            eventually(lambda a=accepted, t=topic: a <= received[t], 20)
        backlog = {b"backlog %d" % number for number in range(2000)}
        assert all(backlog <= bodies for bodies in received.values())
        face.end()
        staying.stop()
    again = going.restart(lookupd_tcp_address=None)
    assert left(again.web) == 0
    assert all(topic["depth"] == 0 for topic in again.web.topics().values())


def test_a_consumer_that_is_slow(nsqd: Starter) -> None:
    """Messages in flight, and those that time out, count as remaining."""
    daemon = nsqd(msg_timeout="500ms")
    daemon.web.create("t", "c")
    daemon.web.pub("t", b"x")
    conn: Conn = daemon.connect().sub("t", "c", rdy=1)
    conn.message()
    drain(daemon)
    assert conn.message().attempts == 2
    conn.req(conn.message(), 300)
    message = conn.message()
    assert message.attempts == 4 and daemon.alive()
    conn.fin(message)
    assert daemon.wait() == 0


def test_an_empty_one_exits_at_once(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.web.create("t", "c")
    drain(daemon)
    assert daemon.wait() == 0
