"""nsq_to_nsq from the user's point of view."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support import tool_process
from support.nsqd_process import Nsqd, free_port

Process = subprocess.Popen[str]
Pump = Callable[..., Process]


@pytest.fixture
def pump(plain: Nsqd) -> Iterator[Pump]:
    """Starts nsq_to_nsq for channel `c` of the daemon; the default destination is the same
    daemon."""
    with ExitStack() as stack:

        def start(*args: str, destination: str = "") -> Process:
            here = f"127.0.0.1:{plain.tcp_port}"
            words = [
                "--channel=c",
                f"--nsqd-tcp-address={here}",
                f"--destination-nsqd-tcp-address={destination or here}",
                *args,
            ]
            return stack.enter_context(tool_process.running("nsq_to_nsq", *words))

        yield start


def published(daemon: Nsqd, topic: str, count: int) -> list[bytes]:
    """Return the messages in a topic, once there are `count` of them."""
    daemon.web.await_counts(topic, message_count=count)
    conn = daemon.connect().sub(topic, "reader", rdy=count)
    messages = conn.messages(count)
    for message in messages:
        conn.fin(message)
    return [message.body for message in messages]


def end(process: Process) -> str:
    """Stop the tool gracefully; return its log."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, ""), err
    return tool_process.DATE.sub("", err)


@pytest.mark.case("NN-001")
@pytest.mark.parametrize("mode", ["hostpool", "epsilon-greedy", "round-robin"])
@pytest.mark.real_start
def test_messages_are_passed_on(mode: str, plain: Nsqd, topic: str, pump: Pump) -> None:
    bodies = [b"%d\n\xff" % number for number in range(1000)]
    plain.connect().mpub(topic, bodies)
    options = ["--consumer-opt=snappy", "--producer-opt=deflate"]
    process = pump(f"--topic={topic}", f"--destination-topic={topic}.x", f"--mode={mode}", *options)
    assert sorted(published(plain, f"{topic}.x", 1000)) == sorted(bodies)
    plain.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=0)
    client = plain.web.client(topic, "c")
    assert client["user_agent"].startswith("nsq_to_nsq/1.3.0 nsqcy/") and client["snappy"]
    lines = end(process).splitlines()
    assert [line.partition(" - ")[0] for line in lines] == ["[aggregate]: finished 250"] * 3


@pytest.mark.case("NN-002")
def test_a_required_value(plain: Nsqd, topic: str, pump: Pump) -> None:
    passed = [b'{"k":5}', b'{"k":"5"}', b'{"k": 5.0 }']
    plain.web.mpub(topic, [*passed, b'{"k":6}', b'{"k":true}'])
    process = pump(
        f"--topic={topic}",
        f"--destination-topic={topic}.x",
        "--require-json-field=k",
        "--require-json-value=5",
    )
    assert sorted(published(plain, f"{topic}.x", 3)) == sorted(passed)
    plain.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=0)
    plain.web.pub(topic, b"{}")
    plain.web.await_counts(topic, "c", depth=0, deferred_count=1, requeue_count=1)
    eventually(lambda: plain.web.client(topic, "c")["ready_count"] == 0)  # the tool is backing off
    assert end(process) == "ERROR: missing field to check required value\n"
    plain.web.await_counts(f"{topic}.x", message_count=3)


@pytest.mark.case("NN-003", "NN-004")
def test_a_whitelist(plain: Nsqd, topic: str, pump: Pump) -> None:
    large = b'{"a":12345678901234567890}'  # exceeds the precision of a double
    plain.web.mpub(topic, [b"notjson", b'{"k":5,"b":"<x>&","a":1.0,"c":2}', large])
    fields = ("--whitelist-json-field=a", "--whitelist-json-field=b")
    process = pump(f"--topic={topic}", f"--destination-topic={topic}.x", *fields)
    passed = rb'{"a":1,"b":"\u003cx\u003e\u0026"}'
    assert sorted(published(plain, f"{topic}.x", 2)) == [passed, large]
    plain.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=0)
    assert end(process) == "ERROR: Unable to decode json: notjson\n"


TOPIC = "--topic=t"
SOURCE = "--nsqd-tcp-address=a:1"
VALID = (TOPIC, SOURCE, "--destination-nsqd-tcp-address=b:1")


@pytest.mark.case("NN-005", "TOOL-016", "TOOL-017", "TOOL-018", "TOOL-021")
@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ([], 1, "--topic and --channel are required"),
        ([TOPIC, "--channel="], 1, "--topic and --channel are required"),
        ([TOPIC, "--topic=b d"], 1, "--topic is invalid"),
        ([TOPIC, "--destination-topic=b d", "--channel=b d"], 1, "--destination-topic is invalid"),
        ([TOPIC, "--channel=b d"], 1, "--channel is invalid"),
        ([TOPIC], 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            [TOPIC, SOURCE, "--lookupd-http-address=b:2"],
            1,
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        ([TOPIC, SOURCE], 1, "--destination-nsqd-tcp-address required"),
        ([*VALID, "--mode=multicast"], 1, "--mode must be one of hostpool, epsilon-greedy, round"),
        ([*VALID, "--destination-nsqd-tcp-address=b:x"], 1, '"b:x" has no port from 1 to 65535'),
        ([*VALID, "--consumer-opt=bogus,1"], 2, "invalid option bogus; allowed: dial_timeout, "),
        ([*VALID, "--producer-opt=bogus,1"], 2, "invalid option bogus; allowed: dial_timeout, "),
        (
            [*VALID, "--consumer-opt=heartbeat_interval,90s"],
            1,
            "HeartbeatInterval 1m30s must be less than ReadTimeout 1m0s",
        ),
        (
            [*VALID, "--consumer-opt=deflate", "--consumer-opt=snappy"],
            1,
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
        (
            [*VALID, "--producer-opt=deflate", "--producer-opt=snappy"],
            1,
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
        ),
    ],
)
def test_flags_that_are_refused(
    args: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = tool_process.refusal("nsq_to_nsq", *args, capfd=capfd)
    assert (found[0], text in found[1]) == (code, True), found


@pytest.mark.case("NN-006")
def test_a_destination_that_is_down(plain: Nsqd, nobody: str, topic: str, pump: Pump) -> None:
    plain.web.pub(topic, b"x")
    process = pump(f"--topic={topic}", destination=nobody)
    plain.web.await_counts(topic, "c", requeue_count=1, deferred_count=1, in_flight_count=0)
    said = end(process)
    assert "ERROR: failed to publish msg " in said
    assert f" - {nobody}: connection refused\n" in said


@pytest.mark.case("NN-006")
def test_a_destination_that_comes_back(plain: Nsqd, topic: str, pump: Pump, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    plain.web.mpub(topic, [b"1", b"2", b"3"])
    soon = ("--consumer-opt=default_requeue_delay,50ms", "--consumer-opt=backoff_multiplier,10ms")
    process = pump(f"--topic={topic}", *soon, "--consumer-opt=max_attempts,0", destination=address)
    eventually(lambda: plain.web.counts(topic, "c")["requeue_count"])
    destination = Nsqd(tmp_path, workers=1, tcp_address=address)
    try:
        destination.start()
        assert sorted(published(destination, topic, 3)) == [b"1", b"2", b"3"]
        plain.web.await_counts(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
        end(process)
    finally:
        destination.destroy()


@pytest.mark.case("NN-007")
def test_two_topics_into_one(plain: Nsqd, topic: str, pump: Pump) -> None:
    other = f"{topic}-other"
    process = pump(f"--topic={topic}", f"--topic={other}", f"--destination-topic={topic}.x")
    plain.web.pub(topic, b"1")
    plain.web.pub(other, b"2")
    assert sorted(published(plain, f"{topic}.x", 2)) == [b"1", b"2"]
    assert end(process) == ""
