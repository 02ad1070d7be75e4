"""Rules for the messages of a key, as clients without headers see them. NSQ has no such feature."""

import json
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import Conn, Message, Silence
from support.nsqd_process import Nsqd, run

pytestmark = pytest.mark.ours

SOURCES = {"key": "json:/k", "priority": "json:/p"}


def put(web: Web, path: str, **query: Any) -> None:
    values = query.pop("values")
    answer = web.put(f"/{path}/config", json.dumps(values).encode(), **query)
    assert answer.status == 200, answer


def prepare(daemon: Nsqd, topic: str, **rules: Any) -> None:
    """Create the channel c with these rules."""
    put(daemon.web, "topic", topic=topic, values=SOURCES)
    put(daemon.web, "channel", topic=topic, channel="c", values=rules)
    daemon.web.create(topic, "c")


def body(key: str | None, number: int, priority: int = 0) -> bytes:
    return json.dumps({"k": key, "p": priority, "n": number}).encode()


def publish(daemon: Nsqd, topic: str, keys: str) -> None:
    """Publish a message for each letter; the messages are numbered from 0. A dot stands for no
    key."""
    with daemon.connect() as producer:
        for number, key in enumerate(keys):
            producer.pub(topic, body(None if key == "." else key, number))


def named(message: Message) -> str:
    found = json.loads(message.body)
    return f"{found['k'] or '.'}{found['n']}"


def names(conn: Conn, count: int) -> list[str]:
    return [named(each) for each in conn.take(count)]


def test_three_consumers_get_each_key_in_order(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key")
    publish(shared, topic, "abcde" * 20)
    lock = threading.Lock()
    held: set[str] = set()
    found: dict[str, list[int]] = {key: [] for key in "abcde"}
    twice = []

    def work(conn: Conn) -> None:
        while sum(map(len, found.values())) < 100:
            try:
                message = conn.message(0.2)
            except Silence:
                continue
            key, number = named(message)[0], int(named(message)[1:])
            with lock:
                if key in held:
                    twice.append(key)
                held.add(key)
                found[key].append(number)
            with lock:
                held.discard(key)
            conn.fin(message)

    conns = [shared.connect().sub(topic, "c", rdy=4) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(conn,)) for conn in conns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert twice == []
    assert all(each == sorted(each) and len(each) == 20 for each in found.values())


def test_a_requeued_message_stays_the_first_of_its_key(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key")
    publish(shared, topic, "aab")
    conn = shared.connect().sub(topic, "c", rdy=10)
    first, other = conn.messages(2)
    assert (named(first), named(other)) == ("a0", "b2")
    conn.req(first)
    again = conn.message()
    assert (named(again), again.attempts) == ("a0", 2)
    conn.req(again, 300)
    conn.fin(other)
    publish(shared, topic, "b")
    assert names(conn, 1) == ["b0"]  # another key does not wait
    assert names(conn, 2) == ["a0", "a1"]


def test_a_message_that_times_out_stays_the_first_of_its_key(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key", msg_timeout="1s")
    publish(shared, topic, "aa")
    slow = shared.connect().sub(topic, "c", rdy=1)
    assert named(slow.message()) == "a0"
    other = shared.connect().sub(topic, "c", rdy=1)
    again = other.message()
    assert (named(again), again.attempts) == ("a0", 2)
    other.fin(again)
    assert names(other, 1) == ["a1"]


def test_a_message_returns_when_its_connection_ends(shared: Nsqd, topic: str) -> None:
    """The message timeout is a minute."""
    prepare(shared, topic, order="key")
    publish(shared, topic, "aa")
    lost = shared.connect().sub(topic, "c", rdy=1)
    assert named(lost.message()) == "a0"
    other = shared.connect().sub(topic, "c", rdy=1)
    lost.close()
    again = other.message()
    assert (named(again), again.attempts) == ("a0", 2)
    other.fin(again)
    assert names(other, 1) == ["a1"]


def test_without_requeue_on_disconnect_it_waits_for_its_timeout(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key", requeue_on_disconnect="no")
    publish(shared, topic, "aab")
    lost = shared.connect().sub(topic, "c", rdy=1)
    assert named(lost.message()) == "a0"
    lost.close()
    other = shared.connect().sub(topic, "c", rdy=1)
    assert names(other, 1) == ["b2"]
    other.nothing()


def test_requeue_on_disconnect_needs_no_order(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, requeue_on_disconnect="yes")
    publish(shared, topic, "a")
    lost = shared.connect().sub(topic, "c", rdy=1)
    assert named(lost.message()) == "a0"
    other = shared.connect().sub(topic, "c", rdy=1)
    lost.close()
    assert names(other, 1) == ["a0"]


def test_a_dead_letter_releases_its_key(shared: Nsqd, topic: str) -> None:
    dead = f"{topic}-dead"
    shared.web.create(dead, "c")
    prepare(shared, topic, order="key", max_attempts=2, dead_letter_topic=dead)
    publish(shared, topic, "aa")
    conn = shared.connect().sub(topic, "c", rdy=5)
    for _ in range(2):
        conn.req(conn.message())
    assert names(conn, 1) == ["a1"]
    assert names(shared.connect().sub(dead, "c", rdy=1), 1) == ["a0"]


def test_a_redriven_message_is_the_last_of_its_key(shared: Nsqd, topic: str) -> None:
    dead = f"{topic}-dead"
    shared.web.create(dead, "c")
    prepare(shared, topic, order="key", max_attempts=1, dead_letter_topic=dead)
    publish(shared, topic, "aaa")
    conn = shared.connect().sub(topic, "c", rdy=5)
    conn.req(conn.message())
    second = conn.message()
    eventually(lambda: (shared.web.channel(dead, "c") or {})["depth"] == 1)
    assert shared.web.post("/channel/redrive", topic=dead, channel="c").status == 200
    eventually(lambda: (shared.web.channel(topic, "c") or {})["depth"] == 2)
    conn.fin(second)
    assert (named(second), names(conn, 2)) == ("a1", ["a2", "a0"])


def test_a_deferred_message_takes_its_place_when_it_is_due(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key")
    with shared.connect() as producer:
        producer.dpub(topic, 300, body("a", 0))
        producer.pub(topic, body("a", 1))
    conn = shared.connect().sub(topic, "c", rdy=5)
    assert names(conn, 2) == ["a1", "a0"]


def test_messages_without_a_key_are_not_ordered(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key")
    publish(shared, topic, "...")
    with shared.connect() as producer:
        producer.pub(topic, b"no JSON", b'{"k": {}}')
    conn = shared.connect().sub(topic, "c", rdy=10)
    assert len({message.id for message in conn.messages(5)}) == 5


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_order_holds_after_a_crash(nsqd: Starter, durability: str) -> None:
    """What was finished may be delivered again, but before the later messages of its key."""
    daemon = nsqd(durability=durability)
    prepare(daemon, "t", order="key")
    publish(daemon, "t", "ab" * 30)
    conn = daemon.connect().sub("t", "c", rdy=10)
    done = names(conn, 20)
    os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
    daemon.restart()
    rest: list[str] = []
    conn = daemon.connect().sub("t", "c", rdy=10)
    while not {"a58", "b59"} <= set(rest):
        rest += names(conn, 1)
    for key in "ab":
        numbers = [int(name[1:]) for name in rest if name[0] == key]
        assert numbers == sorted(set(numbers))
        assert {*numbers, *(int(name[1:]) for name in done if name[0] == key)} == set(
            range("ab".index(key), 60, 2)
        )


def test_the_order_holds_after_a_restart(nsqd: Starter) -> None:
    daemon = nsqd()
    prepare(daemon, "t", order="key")
    publish(daemon, "t", "aabab")
    conn = daemon.connect().sub("t", "c", rdy=10)
    first, second = conn.messages(2)
    assert (named(first), named(second)) == ("a0", "b2")
    conn.fin(second)
    assert named(conn.message()) == "b4"
    daemon.restart()
    conn = daemon.connect().sub("t", "c", rdy=1)
    assert names(conn, 4) == ["a0", "a1", "a3", "b4"]


def test_keys_take_turns(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, fair=True)
    publish(shared, topic, "aaaaab..c")
    conn = shared.connect().sub(topic, "c", rdy=1)
    assert names(conn, 9) == ["a0", "b5", ".6", "c8", "a1", ".7", "a2", "a3", "a4"]


def test_a_new_key_waits_for_one_turn_of_each_other_key(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, fair=True)
    publish(shared, topic, "a" * 50 + "b" * 50)
    conn = shared.connect().sub(topic, "c", rdy=1)
    names(conn, 10)
    message = conn.message()
    publish(shared, topic, "c")
    conn.fin(message)
    assert "c0" in names(conn, 3)


def test_without_order_a_delay_does_not_block_the_key(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, fair=True)
    publish(shared, topic, "aab")
    conn = shared.connect().sub(topic, "c", rdy=1)
    conn.req(conn.message(), 500)
    assert names(conn, 3) == ["b2", "a1", "a0"]


def test_order_and_turns_and_limits(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key", fair=True, in_flight_per_key=3, key_rate=1000)
    publish(shared, topic, "aaab")
    assert names(shared.connect().sub(topic, "c", rdy=1), 4) == ["a0", "b3", "a1", "a2"]


def test_a_limit_blocks_only_its_key(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, fair=True, in_flight_per_key=2)
    publish(shared, topic, "aaaab..")
    first = shared.connect().sub(topic, "c", rdy=10)
    messages = first.messages(5)
    assert sorted(map(named, messages)) == [".5", ".6", "a0", "a1", "b4"]
    second = shared.connect().sub(topic, "c", rdy=10)
    second.nothing(0.2)
    first.fin(next(each for each in messages if named(each) == "a0"))
    found = []
    while not found:
        for conn in (first, second):
            with suppress(Silence):
                found.append(named(conn.message(0.1)))
    assert found == ["a2"]


@pytest.mark.parametrize("on_full", ["reject", "drop-oldest"])
def test_a_tenant_who_floods_is_limited_alone(shared: Nsqd, topic: str, on_full: str) -> None:
    prepare(shared, topic, fair=True, depth_per_key=2, on_full=on_full)
    for number in range(4):
        answer = shared.web.post("/pub", body("a", number), topic=topic)
        assert answer.status == (503 if on_full == "reject" and number >= 2 else 200)
    publish(shared, topic, "b")
    left = ["a0", "b0", "a1"] if on_full == "reject" else ["a2", "b0", "a3"]
    eventually(lambda: (shared.web.channel(topic, "c") or {})["depth"] == 3)
    assert names(shared.connect().sub(topic, "c", rdy=1), 3) == left


def test_a_rate_blocks_only_its_key(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, key_rate=0.001)
    publish(shared, topic, "aaab.")
    conn = shared.connect().sub(topic, "c", rdy=10)
    assert sorted(map(named, conn.messages(3))) == [".4", "a0", "b3"]
    conn.nothing(0.2)
    put(shared.web, "channel", topic=topic, channel="c", values={"key_rate": 0})
    assert list(map(named, conn.messages(2))) == ["a1", "a2"]


def test_the_highest_priority_comes_first(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, urgent_first=True, priority_share=0)
    with shared.connect() as producer:
        for number, priority in enumerate([0, 5, 9, 5, 10, 9]):
            producer.pub(topic, body("a", number, priority))
        producer.pub(topic, b"{}")
    conn = shared.connect().sub(topic, "c", rdy=1)
    found = [json.loads(each.body).get("n") for each in conn.take(7)]
    assert found == [2, 5, 1, 3, 0, 4, None]  # 10 is not a priority and counts as 0


@pytest.mark.parametrize(("share", "until"), [(0, 100), (0.1, 10)])
def test_a_lower_priority_gets_its_share(
    shared: Nsqd, topic: str, share: float, until: int
) -> None:
    prepare(shared, topic, urgent_first=True, priority_share=share)
    with shared.connect() as producer:
        producer.pub(topic, body("a", 0))
        producer.mpub(topic, [body("a", number, 9) for number in range(1, 101)])
    conn = shared.connect().sub(topic, "c", rdy=1)
    assert names(conn, until + 1).index("a0") in (until - 1, until)


def test_every_lower_priority_gets_its_share(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, urgent_first=True, priority_share=0.1)
    with shared.connect() as producer:
        for priority in range(10):
            producer.mpub(topic, [body("a", priority, priority)] * 20)
    conn = shared.connect().sub(topic, "c", rdy=1)
    found = [json.loads(each.body)["p"] for each in conn.take(100)]
    assert all(found.count(priority) >= 9 for priority in range(10))


def test_a_requeued_message_keeps_its_priority(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, urgent_first=True)
    with shared.connect() as producer:
        for number, priority in enumerate([0, 5, 5, 9]):
            producer.pub(topic, body("a", number, priority))
    conn = shared.connect().sub(topic, "c", rdy=1)
    assert names(conn, 1) == ["a3"]
    conn.req(conn.message())
    assert names(conn, 3) == ["a2", "a1", "a0"]  # behind those that waited


def test_a_limit_does_not_delay_lower_priorities(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, urgent_first=True, in_flight_per_key=1)
    with shared.connect() as producer:
        producer.pub(topic, body("a", 0, 9), body("a", 1, 9), body("b", 2, 0))
    conn = shared.connect().sub(topic, "c", rdy=5)
    assert list(map(named, conn.messages(2))) == ["a0", "b2"]
    conn.nothing(0.2)


def test_what_counts_as_a_priority(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, urgent_first=True, priority_share=0)
    values: list[Any] = [None, -1, "high", 10, True, 3, "8"]
    with shared.connect() as producer:
        for value in values:
            producer.pub(topic, json.dumps({"p": value}).encode())
    conn = shared.connect().sub(topic, "c", rdy=1)
    found = [json.loads(each.body)["p"] for each in conn.take(7)]
    assert found == ["8", 3, *values[:5]]


def test_headers_over_http(shared: Nsqd, topic: str) -> None:
    put(shared.web, "channel", topic=topic, channel="c", values={"urgent_first": True})
    shared.web.create(topic, "c")
    for priority in "159":
        headers = {"X-Nsq-Priority": priority, "X-Nsq-Key": "customer-7"}
        answer = shared.web.request(
            "POST", f"/pub?topic={topic}", priority.encode(), headers=headers
        )
        assert answer.status == 200
    conn = shared.connect().sub(topic, "c", rdy=1)
    assert [each.body for each in conn.take(3)] == [b"9", b"5", b"1"]


def test_the_source_at_the_publish_decides(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic, order="key")
    publish(shared, topic, "aa")
    put(shared.web, "topic", topic=topic, values={"key": "json:/other"})
    publish(shared, topic, "aa")
    conn = shared.connect().sub(topic, "c", rdy=10)
    assert sorted(map(named, conn.messages(3))) == ["a0", "a0", "a1"]
    conn.nothing(0.2)  # a1 with a key waits; the messages without one do not


def test_rules_apply_to_messages_that_wait(shared: Nsqd, topic: str) -> None:
    prepare(shared, topic)
    publish(shared, topic, "aaab")
    put(shared.web, "channel", topic=topic, channel="c", values={"fair": True})
    assert names(shared.connect().sub(topic, "c", rdy=1), 4) == ["a0", "b3", "a1", "a2"]


@one_worker
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"order": "keys"}, 'order: invalid value "keys" (allowed: key, or an empty value)'),
        ({"fair": "yes"}, "(allowed: true or false)"),
        ({"in_flight_per_key": -1}, "in_flight_per_key: invalid value -1 (allowed: [0,1000000])"),
        ({"depth_per_key": -1}, "depth_per_key: invalid value -1 (allowed: [0,1000000000])"),
        ({"key_rate": -1}, "key_rate: invalid value -1 (allowed: 0 or [0.001,1000000000])"),
        ({"priority_share": 0.5}, "priority_share: invalid value 0.5 (allowed: [0,0.1])"),
        ({"requeue_on_disconnect": "maybe"}, "(allowed: yes, no or auto)"),
        ({"on_full": "drop-newest"}, "(allowed: reject or drop-oldest)"),
        (
            {"order": "key", "urgent_first": True},
            "urgent_first: invalid value true (allowed: false, because order is set)",
        ),
        ({"key": "json:/a"}, 'unknown key "key" (allowed: '),
    ],
    ids=str,
)
def test_bad_rules_are_refused(shared: Nsqd, topic: str, values: dict[str, Any], said: str) -> None:
    answer = shared.web.put(
        "/channel/config", json.dumps(values).encode(), topic=topic, channel="c"
    )
    assert answer.status == 400
    message = answer.json()["message"]
    assert message.startswith("INVALID_CONFIG ") and said in message


@one_worker
@pytest.mark.parametrize("source", ["customer", "json:customer", "header:Customer Id", 5])
def test_a_bad_source_is_refused(shared: Nsqd, topic: str, source: Any) -> None:
    for name in ("key", "priority", "dedup_id"):
        answer = shared.web.put("/topic/config", json.dumps({name: source}).encode(), topic=topic)
        assert answer.status == 400
        assert answer.json()["message"].startswith(f"INVALID_CONFIG {name}: invalid value ")


def test_nsqd_does_not_start_with_a_bad_rule(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.ini"
    path.write_text("[channel orders/billing]\norder = keys\n")
    done = run(f"--config={path}", f"--data-path={tmp_path}")
    assert done.returncode != 0
    assert "allowed: key, or an empty value" in done.stdout + done.stderr
