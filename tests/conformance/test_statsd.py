"""statsd pushes, as a listener receives them."""

import re
import socket
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from conftest import Starter, one_worker

LINE = re.compile(r"(\S+?)([a-z_0-9]+):(-?\d+)\|([cg])")
TOPIC = ["message_count c", "message_bytes c", "depth g", "backend_depth g"]
CHANNEL = [
    *("message_count c", "depth g", "backend_depth g", "in_flight_count g", "deferred_count g"),
    *("requeue_count c", "timeout_count c", "clients g"),
]
MEMORY = [
    *("heap_objects g", "heap_idle_bytes g", "heap_in_use_bytes g", "heap_released_bytes g"),
    *("gc_pause_usec_100 g", "gc_pause_usec_99 g", "gc_pause_usec_95 g", "next_gc_bytes g"),
    "gc_runs c",
]


class Listener:
    """A statsd server."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(20)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def push(self, last: str) -> list[bytes]:
        """Receive datagrams until one has a line whose key ends with this word."""
        found = []
        while not found or f"{last}:" not in found[-1].decode():
            found.append(self._socket.recv(65536))
            assert found[-1].endswith(b"\n")
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def statsd() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def shape(lines: list[str], prefix: str) -> list[str]:
    """Return the type and the last word of each key with this prefix."""
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [f"{each[2]} {each[4]}" for each in found if each and each[1] == prefix]


def figures(datagrams: list[bytes], prefix: str) -> dict[str, str]:
    lines = b"".join(datagrams).decode().splitlines()
    assert all(line.startswith(prefix) for line in lines)
    return dict(line.removeprefix(prefix).split(":") for line in lines)


@pytest.mark.case("STATSD-01", "STATSD-02")
def test_keys_types_and_values(nsqd: Starter, statsd: Listener) -> None:
    daemon = nsqd(
        statsd_address=statsd.address,
        statsd_interval="2s",
        broadcast_address="host.x",
        broadcast_http_port=4151,
    )
    start = "nsq.host_x_4151."
    web = daemon.web
    web.create("tt", "cc")
    web.create("a")
    web.mpub("tt", [b"1", b"22"])
    pushed = {}
    while "2|g" not in pushed.values():  # the depth; a push before the mpub lacks it
        push = statsd.push("gc_runs")
        pushed = figures(push, start)
    lines = b"".join(push).decode().splitlines()
    assert shape(lines, f"{start}topic.a.") == TOPIC
    assert shape(lines, f"{start}topic.tt.") == TOPIC
    assert shape(lines, f"{start}topic.tt.channel.cc.") == CHANNEL
    assert shape(lines, f"{start}mem.") == MEMORY
    assert len(lines) == 2 * len(TOPIC) + len(CHANNEL) + len(MEMORY)
    assert lines[0].startswith(f"{start}topic.a.") and lines[-1].startswith(f"{start}mem.gc_runs")
    assert pushed["topic.tt.message_count"] == "2|c" and pushed["topic.tt.message_bytes"] == "3|c"
    assert pushed["topic.tt.channel.cc.message_count"] == "2|c"
    for one, other in pairwise(push):
        assert len(one) <= 508 < len(one) + len(other.splitlines(keepends=True)[0])

    web.pub("a", b"12345")
    while pushed["topic.a.message_count"] != "1|c":
        pushed = figures(statsd.push("gc_runs"), start)
    assert pushed["topic.tt.message_count"] == pushed["topic.tt.channel.cc.message_count"] == "0|c"
    assert pushed["topic.a.message_bytes"] == "5|c" and pushed["topic.a.depth"] == "1|g"
    assert pushed["topic.tt.depth"] == "0|g" and pushed["topic.tt.channel.cc.depth"] == "2|g"
    assert web.get("/config/statsd_prefix").body == start.encode()
    daemon.stop()
    log = daemon.log_text()
    assert log.count(f"INFO: STATSD: pushing stats to {statsd.address}\n") >= 2
    assert "INFO: STATSD: closing\n" in log


@one_worker
@pytest.mark.case("STATSD-03", "STATSD-04", "STATSD-05")
def test_what_is_left_out_and_small_packets(nsqd: Starter, statsd: Listener) -> None:
    daemon = nsqd(
        statsd_address=statsd.address,
        statsd_interval="1500ms",
        statsd_prefix="%s.a.%s",
        broadcast_address="h.x.y",
        statsd_udp_packet_size=60,
        statsd_exclude_ephemeral="true",
        statsd_mem_stats="false",
    )
    web = daemon.web
    web.create("t#ephemeral", "c")
    web.create("a")
    web.create("t", "c#ephemeral", "c")
    push = statsd.push("channel.c.clients")
    key = f"h_x_y_{daemon.http_port}"
    assert all(data.count(b"\n") == 1 for data in push)
    found = figures(push, f"{key}.a.{key}.")
    assert not any("#ephemeral" in stat or stat.startswith("mem.") for stat in found)
    lines = [f"{stat}:{value}" for stat, value in found.items()]
    assert shape(lines, "topic.t.") == TOPIC and shape(lines, "topic.t.channel.c.") == CHANNEL


@pytest.mark.case("STATSD-06")
@pytest.mark.ours
def test_percentiles(nsqd: Starter, statsd: Listener) -> None:
    daemon = nsqd(
        statsd_address=statsd.address,
        statsd_interval="1500ms",
        e2e_processing_latency_percentile="0.5,0.999,1.0",
    )
    latencies = [f"e2e_processing_latency_{percent} g" for percent in ("100", "99_9", "50")]
    daemon.web.create("t", "c")
    daemon.web.create("u")
    statsd.push("gc_runs")  # this push may have begun too early
    daemon.web.pub("t", b"x")
    daemon.connect().sub("t", "c", 1).take(1)
    daemon.web.await_counts("t", "c", in_flight_count=0, depth=0)
    statsd.push("gc_runs")
    lines = b"".join(statsd.push("gc_runs")).decode().splitlines()
    prefix = lines[0][: lines[0].index("topic.")]
    assert shape(lines, f"{prefix}topic.t.") == TOPIC + latencies
    assert shape(lines, f"{prefix}topic.t.channel.c.") == CHANNEL + latencies
    assert shape(lines, f"{prefix}topic.u.") == TOPIC  # this topic has no channels
    values = [int(line[line.index(":") + 1 : -2]) for line in lines if "_latency_" in line]
    assert len(values) == 6 and len(set(values)) == 1 and values[0] > 0


@one_worker
def test_a_statsd_that_cannot_be_found(nsqd: Starter) -> None:
    daemon = nsqd(statsd_address="no-such-host.invalid:8125", statsd_interval="1100ms")
    text = "ERROR: failed to create UDP socket to statsd(no-such-host.invalid:8125)\n"
    deadline = time.monotonic() + 20
    while text not in daemon.log_text():
        assert time.monotonic() < deadline, daemon.tail()
        assert daemon.web.get("/ping").body == b"OK"
        time.sleep(0.05)
    assert "pushing" not in daemon.log_text()
    daemon.stop()
