"""Policies of topics and channels: how they are set in a file and over HTTP, shown, kept and
applied."""

import json
import os
import signal
import struct
from contextlib import closing
from http.client import HTTPConnection, RemoteDisconnected
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Answer, eventually
from nsqcy.testing.wire_client import batch
from support.fake_nsqlookupd import FakeLookupd
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours


def put(daemon: Nsqd, topic: str, channel: str = "", /, **values: Any) -> Answer:
    names = {"topic": topic} | ({"channel": channel} if channel else {})
    path = "/channel/config" if channel else "/topic/config"
    return daemon.web.put(path, json.dumps(values).encode(), **names)


def config(answer: Answer) -> dict[str, tuple[Any, str]]:
    """Return each key's value and its origin."""
    assert answer.status == 200, answer
    return {key: (each["value"], each["from"]) for key, each in answer.json()["config"].items()}


def shown(daemon: Nsqd, topic: str, channel: str = "") -> dict[str, tuple[Any, str]]:
    if channel:
        return config(daemon.web.get("/channel/config", topic=topic, channel=channel))
    return config(daemon.web.get("/topic/config", topic=topic))


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["message"]


def kill_all(daemon: Nsqd) -> None:
    os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.wait()
    daemon.hang_up()
    daemon.start()


def written(path: Path, text: str) -> Path:
    file = path / "nsqd.ini"
    file.write_text("[nsqd]\n" + text)
    return file


# --- setting and showing ----------------------------------------------------------------------


def test_what_holds_when_nothing_is_said(shared: Nsqd, topic: str) -> None:
    of_topic = shown(shared, topic)
    assert {source for _, source in of_topic.values()} == {"default"}
    assert {key: value for key, (value, _) in of_topic.items()} == {
        "durability": "memory",
        "copies": 1,
        "min_copies": 0,
        "retention_time": "0s",
        "retention_bytes": 0,
        "mem_queue_size": 10000,
        "min_msg_size": 0,
        "max_msg_size": 1048576,
        "max_defer_timeout": "1h",
        "msg_timeout": "1m",
        "ttl": "0s",
        "max_bytes": 0,
        "max_depth": 0,
        "on_full": "reject",
        "prune_after": "0s",
        "prune_messages": False,
        "dedup_window": "0s",
        "dedup_id": "header:dedup-id",
        "dedup_ids": 10_000_000,
        "key": "header:key",
        "priority": "header:priority",
    }
    assert {key: value for key, (value, _) in shown(shared, topic, "c").items()} == {
        "mem_queue_size": 10000,
        "msg_timeout": "1m",
        "max_attempts": 0,
        "dead_letter_topic": "",
        "rate": 0,
        "max_depth": 0,
        "on_full": "reject",
        "prune_after": "0s",
        "prune_messages": False,
        "order": "",
        "fair": False,
        "in_flight_per_key": 0,
        "key_rate": 0,
        "depth_per_key": 0,
        "urgent_first": False,
        "priority_share": 0.05,
        "requeue_on_disconnect": "auto",
    }
    assert shared.web.topic(topic) is None, "a query does not create the topic"


def test_what_was_set_is_shown_and_taken_back(shared: Nsqd, topic: str) -> None:
    answer = put(shared, topic, ttl="90s", max_depth=7, msg_timeout="2s")
    assert config(answer) == shown(shared, topic)
    found = shown(shared, topic)
    assert found["ttl"] == ("1m30s", "http") and found["max_depth"] == (7, "http")
    assert shown(shared, topic, "c")["msg_timeout"] == ("2s", "topic")
    put(shared, topic, "c", msg_timeout="3s", max_attempts=5)
    assert shown(shared, topic, "c")["msg_timeout"] == ("3s", "http")
    assert config(put(shared, topic, ttl=None, on_full="drop-oldest"))["ttl"] == ("0s", "default")
    assert shown(shared, topic)["max_depth"] == (7, "http")
    answer = shared.web.request("DELETE", "/topic/config", topic=topic)
    assert {source for _, source in config(answer).values()} == {"default"}
    assert shown(shared, topic, "c")["max_attempts"] == (5, "http"), "its own policy is kept"
    answer = shared.web.request("DELETE", "/channel/config", topic=topic, channel="c")
    assert {source for _, source in config(answer).values()} == {"default"}


def test_only_what_is_unusual_is_in_stats(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c")
    stats = shared.web.stats(topic=topic)["topics"][0]
    assert "policy" not in stats and "policy" not in stats["channels"][0]
    text = shared.web.get("/stats", topic=topic).body
    put(shared, topic, ttl="1h", max_depth=0)
    put(shared, topic, "c", rate=500)
    stats = shared.web.stats(topic=topic)["topics"][0]
    assert stats["policy"] == {"ttl": "1h"}
    assert stats["channels"][0]["policy"] == {"rate": 500}
    lines = [each.split(b"depth:")[0] for each in text.splitlines()[-4:]]
    again = shared.web.get("/stats", topic=topic).body
    assert lines == [each.split(b"depth:")[0] for each in again.splitlines()[-4:]]


@one_worker
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "[] is not an object (allowed: an object of keys and values)"),
        (b"null", "null is not an object"),
        (b"\xff", "not JSON"),
        (b"[" * 100_00, "nested too deeply"),
        (b'{"ttl": NaN}', "not JSON"),
        (b'{"ttl": "1s", "ttl": "2s"}', '"ttl" is set twice (allowed: each key once)'),
        (
            b'{"tl": "1s"}',
            'unknown key "tl"; did you mean ttl? (allowed: copies, dedup_id, dedup_ids,',
        ),
        (b'{"tl": null}', 'unknown key "tl"'),
        (b'{"rate": 5}', 'unknown key "rate"'),
        (
            b'{"ttl": 5}',
            "ttl: invalid value 5: invalid value type (allowed: a string: a number with",
        ),
        (b'{"ttl": "5"}', 'ttl: invalid value "5": missing unit (allowed: a string: a number with'),
        (b'{"ttl": "-5s"}', 'ttl: invalid value "-5s" (allowed: >= 0)'),
        (b'{"max_depth": "5"}', 'max_depth: invalid value "5": invalid value type (allowed: an'),
        (b'{"max_depth": 5.0}', "max_depth: invalid value 5.0: invalid value type"),
        (b'{"max_depth": true}', "max_depth: invalid value true: invalid value type"),
        (b'{"max_depth": 9223372036854775808}', "value out of range"),
        (b'{"on_full": "drop"}', 'invalid value "drop" (allowed: reject, drop-oldest or drop-new'),
        (b'{"durability": null, "max_msg_size": 5242881}', "(allowed: [1,5242880], as --max-body"),
        (b'{"min_msg_size": 2097152}', "(allowed: [0,1048576], as --max-msg-size is 1048576)"),
        (b'{"max_defer_timeout": "0s"}', "(allowed: [1ms,876000h])"),
        (b'{"max_defer_timeout": "876001h"}', "(allowed: [1ms,876000h])"),
        (b'{"msg_timeout": "1h"}', "(allowed: [1ms,15m], as --max-msg-timeout is 15m)"),
        (b'{"prune_messages": 1}', "invalid value type (allowed: true or false)"),
    ],
)
def test_bad_values_are_rejected_with_the_allowed_values(
    shared: Nsqd, topic: str, body: bytes, said: str
) -> None:
    status, message = refusal(shared.web.put("/topic/config", body, topic=topic))
    assert status == 400 and message.startswith("INVALID_CONFIG ") and said in message, message
    assert {source for _, source in shown(shared, topic).values()} == {"default"}


@one_worker
def test_bad_requests(shared: Nsqd, topic: str) -> None:
    web = shared.web
    assert refusal(web.get("/topic/config")) == (400, "MISSING_ARG_TOPIC")
    assert refusal(web.get("/topic/config", topic="a*")) == (400, "INVALID_TOPIC")
    assert refusal(web.put("/topic/config", b"{}", topic="a*")) == (400, "INVALID_TOPIC")
    assert refusal(web.get("/channel/config", topic=topic)) == (400, "MISSING_ARG_CHANNEL")
    assert refusal(web.get("/channel/config", topic=topic, channel="*")) == (
        400,
        "INVALID_ARG_CHANNEL",
    )
    assert refusal(web.put("/topic/config", b" " * 70_000, topic=topic)) == (413, "BODY_TOO_BIG")
    own = put(shared, topic, "c", dead_letter_topic=topic)
    assert refusal(own)[1].endswith("(allowed: another topic)")


def test_a_file_says_it_by_pattern_and_http_beats_it(nsqd: Starter) -> None:
    text = """
        msg_timeout = 5s
        [topic logs.*]
        ttl = 1h
        max_depth = 5
        [topic *.eu]
        ttl = 2h
        [channel logs.*/c]
        rate = 7
    """
    daemon = nsqd(config=written(nsqd.path, text))
    found = shown(daemon, "logs.eu")
    assert found["ttl"] == ("2h", "[topic *.eu]")
    assert found["max_depth"] == (5, "[topic logs.*]")
    assert found["msg_timeout"] == ("5s", "default")
    assert shown(daemon, "logs.us", "c")["rate"] == (7, "[channel logs.*/c]")
    assert shown(daemon, "other", "c")["rate"] == (0, "default")
    assert config(put(daemon, "logs.eu", ttl="3h"))["ttl"] == ("3h", "http")
    assert config(put(daemon, "logs.eu", ttl=None))["ttl"] == ("2h", "[topic *.eu]")
    daemon.web.create("logs.eu", "c")
    stats = daemon.web.topic("logs.eu")
    assert stats is not None and stats["policy"] == {"ttl": "2h", "max_depth": 5}
    assert stats["channels"][0]["policy"] == {"rate": 7}


# --- kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_what_was_set_outlives_nsqd(nsqd: Starter, killed: bool) -> None:
    daemon = nsqd()
    for n in range(6):
        put(daemon, f"t{n}", max_depth=n + 1)
        put(daemon, f"t{n}", "c", rate=n + 1)
    daemon.web.create("t5", "c")
    daemon.web.do("pause", "t5")  # writes the topic's name to disk
    put(daemon, "t0", max_depth=None)
    if killed:
        kill_all(daemon)
    else:
        daemon.restart()
    for n in range(1, 6):
        assert shown(daemon, f"t{n}")["max_depth"] == (n + 1, "http")
        assert shown(daemon, f"t{n}", "c")["rate"] == (n + 1, "http")
    assert shown(daemon, "t0")["max_depth"] == (0, "default")
    stats = daemon.web.topic("t5")
    assert stats is not None and stats["policy"] == {"max_depth": 6}
    assert stats["channels"][0]["policy"] == {"rate": 6}


def test_a_worker_that_is_started_again_knows_it(nsqd: Starter) -> None:
    daemon = nsqd()
    for n in range(6):
        daemon.web.create(f"t{n}", "c")
        put(daemon, f"t{n}", max_msg_size=10)
    daemon.kill_worker(0)

    def refused() -> bool:
        try:
            answers = [daemon.web.post("/pub", b"x" * 11, topic=f"t{n}") for n in range(6)]
        except RemoteDisconnected:  # the dead worker had this connection
            return False
        return [each.status for each in answers] == [413] * 6

    eventually(refused)


def test_who_deletes_a_topic_deletes_what_was_set_for_it(nsqd: Starter) -> None:
    daemon = nsqd()
    for topic in ("a", "ab"):
        daemon.web.create(topic, "c", "d")
        put(daemon, topic, max_depth=5)
        put(daemon, topic, "c", rate=5)
        put(daemon, topic, "d", rate=5)
    daemon.web.do("delete", "a", "c")
    assert shown(daemon, "a", "c")["rate"] == (0, "default")
    assert shown(daemon, "a", "d")["rate"] == (5, "http")
    daemon.web.do("delete", "a")
    daemon.restart()
    assert shown(daemon, "a")["max_depth"] == (0, "default")
    assert shown(daemon, "a", "d")["rate"] == (0, "default")
    assert shown(daemon, "ab")["max_depth"] == (5, "http")
    assert shown(daemon, "ab", "c")["rate"] == (5, "http")


@one_worker
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "set": {"a b": {}}}', b"\xff" * 99],
)
def test_a_damaged_file_is_set_aside_and_named(nsqd: Starter, content: bytes) -> None:
    daemon = nsqd.prepare()
    file = daemon.data / "policies.json"
    file.with_name("policies.json.damaged").write_bytes(b"older")
    file.write_bytes(content)
    daemon.start()
    aside = daemon.data / "policies.json.damaged-2"
    assert aside.read_bytes() == content
    assert f"ERROR: {file} is damaged" in daemon.log_text()
    assert f"it was moved to {aside}" in daemon.log_text()
    put(daemon, "t", ttl="1s")
    daemon.restart()
    assert shown(daemon, "t")["ttl"] == ("1s", "http")
    assert aside.read_bytes() == content


@one_worker
def test_what_is_no_longer_allowed_stays_in_the_file(nsqd: Starter) -> None:
    daemon = nsqd()
    put(daemon, "t", msg_timeout="10m", ttl="1h")
    daemon.restart(max_msg_timeout="5m")
    assert "policies.json: t: msg_timeout: invalid value" in daemon.log_text()
    assert shown(daemon, "t")["msg_timeout"] == ("1m", "default")
    assert shown(daemon, "t")["ttl"] == ("1h", "http")
    put(daemon, "t", max_depth=5)
    daemon.restart(max_msg_timeout="15m")
    assert shown(daemon, "t")["msg_timeout"] == ("10m", "http")


@one_worker
def test_a_file_of_a_later_nsqcy_is_left_alone(nsqd: Starter) -> None:
    daemon = nsqd.prepare()
    file = daemon.data / "policies.json"
    file.write_bytes(b'{"version": 2}')
    daemon.launch()
    assert daemon.wait() == 1
    assert "format version 2 is newer than this nsqcy supports (1)" in daemon.log_text()
    assert file.read_bytes() == b'{"version": 2}'


# --- effects ----------------------------------------------------------------------------------


def test_sizes_of_messages(shared: Nsqd, topic: str) -> None:
    put(shared, topic, min_msg_size=3, max_msg_size=5)
    shared.web.create(topic, "c")
    with shared.connect() as conn:
        conn.pub(topic, b"123", b"12345")
        conn.mpub(topic, [b"123", b"1234"])
        conn.dpub(topic, 1, b"12345")
    for body, said in ((b"12", b"message too small 2 < 3"), (b"123456", b"message too big 6 > 5")):
        with shared.connect() as conn:
            conn.command("PUB", topic, body=body)
            conn.expect_error(b"E_BAD_MESSAGE PUB " + said)
        with shared.connect() as conn:
            conn.command("DPUB", topic, 5, body=body)
            conn.expect_error(b"E_BAD_MESSAGE DPUB " + said)
        with shared.connect() as conn:
            conn.send(b"MPUB %s\n" % topic.encode(), batch([b"1234", body, b"1"]))
            conn.expect_error(b"E_BAD_MESSAGE MPUB " + said)
    post = shared.web.post
    assert refusal(post("/pub", b"123456", topic=topic)) == (413, "MSG_TOO_BIG 6 > 5")
    assert refusal(post("/pub", b"12", topic=topic)) == (400, "MSG_TOO_SMALL 2 < 3")
    assert refusal(post("/pub", b"12", topic=topic, defer=5)) == (400, "MSG_TOO_SMALL 2 < 3")
    assert refusal(post("/mpub", b"1234\n12", topic=topic)) == (400, "MSG_TOO_SMALL 2 < 3")
    assert refusal(post("/mpub", b"1234\n123456", topic=topic)) == (413, "MSG_TOO_BIG 6 > 5")
    shared.web.pub(topic, b"12345")
    assert shared.web.counts(topic)["message_count"] == 6
    put(shared, topic, max_msg_size=None, min_msg_size=None)
    shared.web.pub(topic, b"1234567")


def chunked(daemon: Nsqd, path: str, body: bytes) -> tuple[int, bytes]:
    """Send a body without announcing its length."""
    conn = HTTPConnection("127.0.0.1", daemon.http_port, timeout=20)
    with closing(conn):
        conn.request("POST", path, iter([body[:1000], body[1000:]]), encode_chunked=True)
        answer = conn.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_policy_may_allow_larger_messages_and_longer_delays(nsqd: Starter, workers: int) -> None:
    daemon = nsqd(workers=workers, max_msg_size=1000, max_body_size=9000, max_req_timeout="2s")
    web, large, day = daemon.web, b"x" * 6000, 24 * 3600 * 1000
    for n in range(4):  # on all workers
        topic = f"t{n}"
        put(daemon, topic, max_msg_size=6000, max_defer_timeout="24h")
        web.create(topic, "c")
        for headers in (False, True):
            sent = b"\0\0" * headers + large
            with daemon.connect() as conn:
                conn.negotiate(headers=headers)
                conn.pub(topic, sent)
                conn.mpub(topic, [sent])
                conn.dpub(topic, day, sent)
            refused = {
                "PUB": (("PUB", topic), sent + b"x"),
                "DPUB": (("DPUB", topic, 5), sent + b"x"),
                "MPUB": (("MPUB", topic), struct.pack(">ii", 1, len(sent) + 1) + sent + b"x"),
            }
            for verb, (words, body) in refused.items():
                with daemon.connect() as conn:
                    conn.negotiate(headers=headers)
                    conn.command(*words, body=body)
                    conn.expect_error(
                        b"E_BAD_MESSAGE %s message too big 6001 > 6000" % verb.encode()
                    )
            with daemon.connect() as conn:
                conn.command("DPUB", topic, day + 1, body=b"x")
                conn.expect_error(b"E_INVALID DPUB timeout %d out of range 0-%d" % (day + 1, day))
        assert web.post("/pub", large, topic=topic).status == 200
        assert web.post("/pub", large, topic=topic, defer=day).status == 200
        assert chunked(daemon, f"/pub?topic={topic}", large)[0] == 200
        assert web.post("/mpub", large + b"\nx", topic=topic).status == 200
        packed = struct.pack(">ii", 1, 6000) + large
        assert web.post("/mpub", packed, topic=topic, binary="true").status == 200
        assert refusal(web.post("/pub", large + b"x", topic=topic)) == (413, "MSG_TOO_BIG")
        assert refusal(web.post("/mpub", large + b"x", topic=topic)) == (413, "MSG_TOO_BIG")
        answer = web.post("/pub", b"x", topic=topic, defer=day + 1)
        assert refusal(answer) == (400, "INVALID_DEFER")
        assert chunked(daemon, f"/pub?topic={topic}", large + b"x")[0] == 413
        assert web.counts(topic)["message_count"] == 6 + 6
    with daemon.connect() as conn:
        conn.command("PUB", "other", body=b"x" * 1001)
        conn.expect_error(b"E_BAD_MESSAGE PUB message too big 1001 > 1000")
    with daemon.connect() as conn:
        conn.command("DPUB", "other", 2001, body=b"x")
        conn.expect_error(b"E_INVALID DPUB timeout 2001 out of range 0-2000")
    assert refusal(web.post("/pub", b"x" * 1001, topic="other")) == (413, "MSG_TOO_BIG")


@one_worker
def test_an_answer_over_http_names_the_limit_and_its_option(nsqd: Starter) -> None:
    """The limit is in a header, because NSQ's message format has no field for it."""
    daemon = nsqd(max_msg_size=1000, max_body_size=5000, max_req_timeout="2s")
    put(daemon, "small", max_msg_size=5, max_defer_timeout="1s")
    put(daemon, "large", max_msg_size=3000)

    def limit(path: str, size: int, topic: str, **params: Any) -> str | None:
        answer = daemon.web.post(path, b"x" * size, topic=topic, **params)
        assert answer.status in (400, 413)
        return answer.headers.get("x-nsq-limit")

    of_policy = "max_msg_size of the topic's policy"
    for path in ("/pub", "/mpub"):
        assert limit(path, 1001, "t") == "1000 (--max-msg-size)"
        assert limit(path, 3001, "large") == f"3000 ({of_policy})"
        assert limit(path, 6, "small") == f"5 ({of_policy})"
    assert limit("/mpub", 5001, "t") == "5000 (--max-body-size)"
    options = "--max-defer-timeout or --max-req-timeout"
    assert limit("/pub", 1, "t", defer=2001) == f"2000 ms ({options})"
    options = "max_defer_timeout of the topic's policy"
    assert limit("/pub", 1, "small", defer=1001) == f"1000 ms ({options})"


def test_a_client_asks_for_the_limits_of_a_topic(nsqd: Starter) -> None:
    daemon = nsqd(workers=3, max_msg_size=10, max_body_size=100, max_req_timeout="2s")
    usual = {"max_msg_size": 10, "max_body_size": 100, "max_defer_timeout": 2000}
    with daemon.connect() as conn:
        assert conn.negotiate(limits=True)["limits"].items() >= usual.items()
        for topic in ("t0", "t1", "t2"):
            put(daemon, topic, max_msg_size=20, max_defer_timeout="1h")
            conn.command("LIMITS", topic)
            raised = {"max_msg_size": 20, "max_body_size": 100, "max_defer_timeout": 3_600_000}
            assert conn.expect_json() == raised
            put(daemon, topic, max_msg_size=None, max_defer_timeout=None)
            conn.command("LIMITS", topic)
            assert conn.expect_json() == usual
            assert daemon.web.topic(topic) is None, "the question does not create the topic"
    for words, said in (
        (("LIMITS",), b"E_INVALID LIMITS insufficient number of parameters"),
        (("LIMITS", "a*"), b'E_BAD_TOPIC LIMITS topic name "a*" is not valid'),
    ):
        with daemon.connect() as conn:
            conn.negotiate(limits=True)
            conn.command(*words)
            conn.expect_error(said)
    with daemon.connect() as conn:
        conn.negotiate()
        conn.command("LIMITS", "t0")
        conn.expect_error(b"E_INVALID invalid command LIMITS")


def test_one_publisher_over_http_does_not_fail_for_another(nsqd: Starter) -> None:
    """A worker sends all its publishes to another worker through one stream."""
    daemon = nsqd()
    for n in range(6):
        daemon.web.create(f"t{n}", "c")
    put(daemon, "t0", max_msg_size=5)
    for n in range(30):
        assert daemon.web.post("/pub", b"123456", topic="t0").status == 413
        daemon.web.pub(f"t{n % 6}", b"12345")


def test_a_message_timeout_changes_for_those_who_are_there(shared: Nsqd, topic: str) -> None:
    with shared.connect() as conn:
        conn.sub(topic, "c", rdy=1)
        put(shared, topic, "c", msg_timeout="100ms")
        shared.web.pub(topic, b"x")
        first = conn.message()
        assert conn.message().id == first.id
        put(shared, topic, "c", msg_timeout=None)
        # The message in flight keeps its deadline, and may time out again before the answer
        # arrives.
        late = list(islice(conn.drain(), 50))
        assert [message.id for message in late] == [first.id] * len(late)
        assert 0 < len(late) < 50


def test_there_are_no_more_topics_than_allowed(nsqd: Starter) -> None:
    daemon = nsqd(max_topics=6)
    for n in range(6):
        daemon.web.create(f"t{n}", "c")
    web = daemon.web
    assert refusal(web.post("/topic/create", topic="more")) == (400, "TOO_MANY_TOPICS")
    assert refusal(web.post("/pub", b"x", topic="more")) == (400, "TOO_MANY_TOPICS")
    assert refusal(web.post("/mpub", b"\n", topic="more")) == (400, "TOO_MANY_TOPICS")
    assert refusal(web.post("/mpub", b"x\ny", topic="more")) == (400, "TOO_MANY_TOPICS")
    for command in (b"PUB more\n\0\0\0\1x", b"MPUB more\n\0\0\0\x09\0\0\0\1\0\0\0\1x"):
        with daemon.connect() as conn:
            conn.send(command)
            name = command.partition(b" ")[0]
            conn.expect_error(
                b'E_BAD_TOPIC %s topic "more" exceeds limit of 6 topics' % name, prefix=True
            )
    with daemon.connect() as conn:
        conn.command("SUB", "more", "c")
        conn.expect_error(b'E_BAD_TOPIC SUB topic "more" exceeds limit of 6 topics', prefix=True)
    with daemon.connect() as conn:
        conn.pub("t5", b"x")
    web.do("delete", "t3")
    web.create("more")
    assert refusal(web.post("/topic/create", topic="t3")) == (400, "TOO_MANY_TOPICS")
    eventually(lambda: b'"more"' in (daemon.data / "nsqd.dat").read_bytes())
    daemon.restart(max_topics=2)
    assert len(daemon.web.topics()) == 6, "existing topics are loaded"
    assert refusal(daemon.web.post("/topic/create", topic="t3")) == (400, "TOO_MANY_TOPICS")


def test_what_nobody_uses_is_pruned(nsqd: Starter) -> None:
    lookupd = FakeLookupd()
    daemon = nsqd(lookupd_tcp_address=[lookupd.address])
    try:
        daemon.web.create("a", "idle", "used", "full", "dropped", "kept")
        daemon.web.create("b", "idle")
        daemon.web.create("c")
        daemon.web.create("other", "idle")
        conn = daemon.connect().sub("a", "used", rdy=1)
        daemon.web.pub("a", b"x")
        daemon.web.pub("c", b"x")
        daemon.web.do("empty", "a", "idle")
        for topic in ("a", "b", "c"):
            put(daemon, topic, prune_after="1s")
            for channel in ("idle", "used", "full"):
                put(daemon, topic, channel, prune_after="1s")
            put(daemon, topic, "dropped", prune_after="1s", prune_messages=True)
        eventually(lambda: channels(daemon, "a") == {"used", "full", "kept"})
        eventually(lambda: set(daemon.web.topics()) == {"a", "c", "other"})
        assert channels(daemon, "a") == {"used", "full", "kept"}
        assert daemon.web.counts("c")["depth"] == 1
        assert "TOPIC(b): pruning, unused for 1s" in daemon.log_text()
        assert "TOPIC(a): pruning channel(dropped), unused for" in daemon.log_text()
        gone = {"UNREGISTER a idle", "UNREGISTER a dropped", "UNREGISTER b idle", "UNREGISTER b"}
        eventually(lambda: gone <= {each.strip() for each in lookupd.told()})
        daemon.web.do("empty", "a", "full")
        put(daemon, "c", prune_messages=True)
        eventually(lambda: channels(daemon, "a") == {"used", "kept"})
        eventually(lambda: set(daemon.web.topics()) == {"a", "other"})
        assert conn.message().body == b"x"
        assert shown(daemon, "b")["prune_after"] == ("1s", "http"), "pruning keeps policies"
    finally:
        lookupd.close()


def channels(daemon: Nsqd, topic: str) -> set[str]:
    found = daemon.web.topic(topic)
    return {each["channel_name"] for each in found["channels"]} if found else set()
