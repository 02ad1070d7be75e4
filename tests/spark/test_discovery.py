"""Discovery of nsqds through lookupds."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nsqcy.spark.discovery import Discovery, all_nsqds
from nsqcy.spark.errors import CopiedDisk, Refused, Unreachable
from nsqcy.spark.options import parse, parse_write
from nsqcy.spark.source import NsqDataSource
from nsqcy.testing.http_requests import eventually
from support.fake_log_nsqd import FakeTopic, LogBroker
from support.fake_lookup_http import LookupPages
from support.spark_engine import Checkpoint, Engine
from support.spark_sources import QUICK, batch, rows, stream

EARLIEST = {"startingOffsets": "earliest"}


class Pages(LookupPages):
    """Lookupd that knows where each topic is; older lookupds wrap their responses."""

    def __init__(self, topics: dict[str, list[str]], *, wrapped: bool = False) -> None:
        super().__init__()
        self.topics = topics
        self.wrapped = wrapped

    def page(self) -> bytes:
        url = urlsplit(self.asked[-1][0])
        self.status = 200
        if url.path == "/topics":
            found: dict[str, Any] = {"topics": list(self.topics)}
        else:
            (topic,) = parse_qs(url.query)["topic"]
            if topic not in self.topics:
                self.status = 404
                return b'{"message":"TOPIC_NOT_FOUND"}'
            nodes = [address.rsplit(":", 1) for address in self.topics[topic]]
            found = {
                "producers": [
                    {"broadcast_address": host.strip("[]"), "tcp_port": int(port)}
                    for host, port in nodes
                ]
            }
        return json.dumps({"data": found} if self.wrapped else found).encode()


def discovery(*lookupds: LookupPages, **options: str) -> Discovery:
    addresses = ",".join(each.address for each in lookupds)
    quick = {"discoveryInterval": "0ms", "fetchOffset.retryIntervalMs": "1"}
    subject = {} if "topicsPattern" in options else {"topic": "t"}
    return Discovery(parse(quick | subject | {"lookupdHttpAddresses": addresses} | options))


def test_all_lookupds_are_queried() -> None:
    with Pages({"t": ["a:1", "[::1]:2"]}) as one, Pages({"t": ["b:3"]}, wrapped=True) as two:
        found = discovery(one, two, nsqdTcpAddresses="c:4")
        found.refresh()
        assert found.nsqds("t") == ["[::1]:2", "a:1", "b:3", "c:4"]
        path, headers = one.asked[0]
        assert path == "/lookup?topic=t"
        assert headers["accept"] == "application/vnd.nsq; version=1.0"


def test_a_topic_that_one_of_them_does_not_know() -> None:
    with Pages({}) as one, Pages({"t": ["b:3"]}) as two:
        found = discovery(one, two)
        found.refresh()
        assert found.nsqds("t") == ["b:3"]


@contextlib.contextmanager
def answering(data: bytes) -> Iterator[str]:
    """Address of a server that sends this data to every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    conn, _ = listener.accept()
                except OSError:
                    return
                with conn:
                    conn.recv(65536)
                    conn.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"garbage\r\n\r\n", "'garbage' is not an HTTP response: use the HTTP port"),
        (b"\0\0\0\x12\0\0\0\1E_BAD_PROTOCOL", "'E_BAD_PROTOCOL' is not an HTTP response: use"),
        (
            b'HTTP/1.1 404 Not Found\r\nContent-Length: 23\r\n\r\n{"message":"NOT_FOUND"}',
            "another daemon answered: use the HTTP port",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "not a JSON object"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", "Expecting property name"),
        (b"HTTP/1.1 500 \x1b[31mred\x1b[0m\r\n\r\n", r"HTTP Error 500: \[31mred\[0m"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"producers": ["x"]}', "not a list of nsqds"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"producers": 1}', "not a list of nsqds"),
    ],
)
def test_a_server_that_is_no_lookupd(data: bytes, problem: str) -> None:
    with answering(data) as address, Pages({"t": ["a:1"]}) as real:
        with pytest.raises(Unreachable, match=problem):
            discovery(lookupdHttpAddresses=address).refresh()
        with pytest.raises(Unreachable, match=problem):
            quick = {"fetchOffset.retryIntervalMs": "1", "lookupdHttpAddresses": address}
            all_nsqds(parse_write({"topic": "t"} | quick))
        found = discovery(lookupdHttpAddresses=f"{address},{real.address}")
        found.refresh()
        assert found.nsqds("t") == ["a:1"]


def test_what_was_known_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    with Pages({"t": ["a:1"]}) as one:
        found = discovery(one)
        found.refresh()
        one.topics = {}
        found.refresh()
        assert found.nsqds("t") == ["a:1"]
    found.refresh()
    assert found.nsqds("t") == ["a:1"]
    assert caplog.messages[-1].startswith(
        f"nsq: no nsqlookupd answered: {one.address}: "
    ) and caplog.messages[-1].endswith("; continuing with the nsqds known so far")


def test_no_lookupd_answers_at_first() -> None:
    with Pages({}) as one:
        pass
    with pytest.raises(Unreachable) as caught:
        discovery(one).refresh(tries=2)
    assert str(caught.value).startswith(f"nsq: no nsqlookupd answered: {one.address}: ")


def test_lookupds_are_queried_three_more_times() -> None:
    with LookupPages(status=500) as one, LookupPages(status=500) as two:
        given = {"lookupdHttpAddresses": f"{one.address},{two.address}", "topic": "t"}
        with pytest.raises(Unreachable) as caught:
            NsqDataSource(given | {"fetchOffset.retryIntervalMs": "1"}).schema()
        assert str(caught.value) == (
            f"nsq: no nsqlookupd answered: {one.address}: HTTP Error 500: Internal Server "
            f"Error; {two.address}: HTTP Error 500: Internal Server Error"
        )
        assert len(one.asked) == len(two.asked) == 4


def test_they_are_not_queried_all_the_time() -> None:
    with Pages({"t": ["a:1"]}) as one:
        found = discovery(one, discoveryInterval="1h")
        found.refresh()
        found.refresh()
        assert len(one.asked) == 1


@pytest.fixture
def brokers() -> Iterator[list[LogBroker]]:
    found = [LogBroker() for _ in range(2)]
    for number, broker in enumerate(found):
        broker.topics["t"] = FakeTopic(f"{number}" * 32, 3)
    yield found
    for broker in found:
        broker.close()


def test_topics_by_pattern(brokers: list[LogBroker]) -> None:
    brokers[0].topics["tt"] = FakeTopic("f" * 32, 2)
    there = {"t": [each.address for each in brokers], "tt": [brokers[0].address], "u": ["a:1"]}
    with Pages({**there, "tt#ephemeral": ["a:1"]}) as one:
        options = {"lookupdHttpAddresses": one.address, "topicsPattern": "t+"}
        found = rows(batch(options, "topic", "log_id", "seq"))
    assert sorted((row["topic"], row["log_id"][0], row["seq"]) for row in found) == [
        *(("t", number, seq) for number in "01" for seq in (1, 2, 3)),
        *(("tt", "f", seq) for seq in (1, 2)),
    ]


def test_a_topic_that_begins_to_match_between_two_batches(brokers: list[LogBroker]) -> None:
    """The new topic is read from its beginning. Topics that are deleted, recreated or unlisted for
    a while do not affect the others."""
    first, second = brokers
    with Pages({"t": [first.address]}) as one:
        options = {
            "lookupdHttpAddresses": one.address,
            "topicsPattern": "t+",
            "discoveryInterval": "0ms",
            "failOnDataLoss": "false",
        }
        engine = Engine(lambda: stream(options | EARLIEST, "topic", "seq"), Checkpoint())
        engine.run()
        second.topics = {"tt": FakeTopic("f" * 32, 2), "other": FakeTopic("e" * 32, 2)}
        one.topics |= {"tt": [second.address], "other": [second.address]}
        engine.run()
        del one.topics["tt"]  # the topic's nsqd is not registered for a while
        first.topics["t"].publish(1)
        engine.run()
        one.topics["tt"] = [second.address]
        second.topics["tt"].publish(1)
        engine.run()
        second.topics["tt"] = FakeTopic("d" * 32, 1)
        engine.run()
        engine.close()
        again = Engine(lambda: stream(options, "topic", "seq"), engine.checkpoint)
        first.topics["t"].publish(1)
        again.run()
        again.close()
    assert [(row["topic"], row["seq"]) for row in engine.checkpoint.rows] == [
        *(("t", seq) for seq in (1, 2, 3)),
        *(("tt", seq) for seq in (1, 2)),
        *(("t", 4), ("tt", 3), ("tt", 1), ("t", 5)),
    ]


def test_a_topic_that_no_nsqd_has(brokers: list[LogBroker]) -> None:
    with Pages({}) as one:
        options = {"lookupdHttpAddresses": one.address, "topic": "t"}
        with pytest.raises(Refused) as caught:
            rows(batch(options))
        text = f"nsq: topic 't' not found on 0 nsqds (nsqlookupd {one.address}); publish"
        assert str(caught.value).startswith(text)


def test_nsqds_that_come_and_move(brokers: list[LogBroker]) -> None:
    """A new nsqd is read from its beginning; after an nsqd has moved, reading continues at its
    position."""
    first, second = brokers
    with Pages({"t": [first.address]}) as one:
        options = {
            "lookupdHttpAddresses": one.address,
            "topic": "t",
            "startingOffsets": "latest",
            "discoveryInterval": "0ms",
        }
        engine = Engine(lambda: stream(options, "log_id", "seq"), Checkpoint())
        engine.run()
        one.topics["t"].append(second.address)
        engine.run()
        assert [row["log_id"][0] for row in engine.checkpoint.rows] == ["1"] * 3
        moved = LogBroker()
        moved.topics = first.topics
        first.close()
        one.topics["t"] = [second.address, moved.address]
        moved.topics["t"].publish(2)
        engine.run()
        assert [row["seq"] for row in engine.checkpoint.rows] == [1, 2, 3, 4, 5]
        view = engine.reader._look()
        assert sorted(view.asked) == sorted([second.address, moved.address])
        assert not any(view.away.values())
        engine.close()
        moved.close()


def test_an_nsqd_on_a_copy_of_a_disk(brokers: list[LogBroker]) -> None:
    """Two nsqds with the same log have different rows under the same seqs: neither is skipped."""
    first, copy = brokers
    copy.topics["t"] = FakeTopic("0" * 32, 5)
    one, other = sorted([first.address, copy.address])
    text = f"nsqd {one} and nsqd {other} both have log {'0' * 32} of topic 't': one of them runs"
    both = {"nsqdTcpAddresses": f"{first.address},{copy.address}", "topic": "t"}
    with pytest.raises(CopiedDisk, match=text):
        rows(batch(both))
    with pytest.raises(CopiedDisk, match=text):
        NsqDataSource(QUICK | both).schema()
    with Pages({"t": [first.address]}) as lookupd:
        options = {
            "lookupdHttpAddresses": lookupd.address,
            "topic": "t",
            "startingOffsets": "earliest",
            "discoveryInterval": "0ms",
            "failOnDataLoss": "false",
        }
        engine = Engine(lambda: stream(options, "seq"), Checkpoint())
        engine.run()
        lookupd.topics["t"].append(copy.address)
        with pytest.raises(CopiedDisk, match=text):
            engine.trigger()
        # the remedy
        copy.close()
        first.topics["t"].publish(1)
        engine.run()
        assert [row["seq"] for row in engine.checkpoint.rows] == [1, 2, 3, 4]
        engine.close()


def test_an_nsqd_that_moves_without_a_word(brokers: list[LogBroker]) -> None:
    """The last connection stays open, as after a network failure. The log at the new address is not
    mistaken for a copied disk."""
    first, moved = brokers
    with Pages({"t": [first.address]}) as one:
        options = {
            "lookupdHttpAddresses": one.address,
            "topic": "t",
            "startingOffsets": "earliest",
            "discoveryInterval": "0ms",
            "pollTimeoutMs": "100",
        }
        engine = Engine(lambda: stream(options, "seq"), Checkpoint())
        engine.run()
        eventually(lambda: first.is_asked)
        first.refuse = lambda _line: "E_LOG_FAILED hung"
        moved.topics = {"t": FakeTopic("0" * 32, 5)}
        one.topics["t"] = [moved.address]
        engine.run()
        assert [row["seq"] for row in engine.checkpoint.rows] == [1, 2, 3, 4, 5]
        engine.close()


def test_an_nsqd_on_a_copy_of_a_disk_with_a_log_of_its_own(brokers: list[LogBroker]) -> None:
    """Both nsqds had been killed, so each began a new log after the rows that both have."""
    for number, broker in enumerate(brokers):
        broker.topics["t"] = FakeTopic("a" * 32, 3)
        broker.topics["t"].begin(f"{number}" * 32)
        broker.topics["t"].publish(2)
    options = {"nsqdTcpAddresses": ",".join(each.address for each in brokers), "topic": "t"}
    engine = Engine(lambda: stream(options | EARLIEST, "log_id", "seq"), Checkpoint())
    engine.run()
    engine.close()
    for found in (rows(batch(options, "log_id", "seq")), engine.checkpoint.rows):
        assert sorted((row["log_id"][0], row["seq"]) for row in found) == [
            *(("0", seq) for seq in (4, 5)),
            *(("1", seq) for seq in (4, 5)),
            *(("a", seq) for seq in (1, 2, 3)),
        ]
