"""nsq_to_http from the user's point of view."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nsqcy.testing.http_requests import eventually
from support import tool_process
from support.fake_http_destination import Destination
from support.nsqd_process import Nsqd

# A failed message is redelivered immediately, and the consumer hardly backs off.
AT_ONCE = (
    "--consumer-opt=default_requeue_delay,0s",
    "--consumer-opt=backoff_multiplier,1ms",
    "--consumer-opt=max_attempts,0",
)
Process = subprocess.Popen[str]
Pump = Callable[..., Process]


@pytest.fixture
def destination() -> Iterator[Destination]:
    server = Destination()
    yield server
    server.close()


@pytest.fixture
def pump(plain: Nsqd, topic: str) -> Iterator[Pump]:
    """Starts nsq_to_http for channel `c` of the topic."""
    with ExitStack() as stack:

        def start(*args: str) -> Process:
            source = f"--nsqd-tcp-address=127.0.0.1:{plain.tcp_port}"
            words = [f"--topic={topic}", "--channel=c", source, *args]
            return stack.enter_context(tool_process.running("nsq_to_http", *words))

        yield start


def done(plain: Nsqd, topic: str, count: int) -> None:
    """Wait until all of the topic's messages are finished."""
    none = {"depth": 0, "in_flight_count": 0, "deferred_count": 0}
    plain.web.await_counts(topic, "c", message_count=count, **none)


def end(process: Process) -> str:
    """Stop the tool gracefully; return its log."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, ""), err
    return err


@pytest.mark.case("HTTP-T01")
@pytest.mark.real_start
def test_post(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.pub(topic, b"hello w&rld")
    process = pump(f"--post={destination.url('/204/x?y=%20z')}")
    done(plain, topic, 1)
    (got,) = destination.requests
    assert (got.method, got.path, got.body) == ("POST", "/204/x?y=%20z", b"hello w&rld")
    assert got.headers["user-agent"] == "nsq_to_http v1.3.0"
    assert got.headers["content-type"] == "application/octet-stream"
    assert plain.web.client(topic, "c")["user_agent"].startswith("nsq_to_http/1.3.0 nsqcy/")
    assert end(process) == ""


def test_fewer_in_flight_than_requests_at_a_time(
    plain: Nsqd, topic: str, destination: Destination, pump: Pump
) -> None:
    """Like NSQ's tool, nsq_to_http logs nothing if it permits more requests than messages in
    flight."""
    plain.web.mpub(topic, [b"x"] * 3)
    process = pump("--max-in-flight=1", f"--post={destination.url()}")
    done(plain, topic, 3)
    assert end(process) == ""


@pytest.mark.case("HTTP-T02")
def test_headers(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.pub(topic, b"x")
    headers = ("content-type:x/y", "X-A: b", "X-A: c: d", "Content-Length: 99")
    url = destination.url().replace("http://", "http://me:pass%20word@")
    pump(f"--post={url}", "--content-type=a/b", *(f"--header={each}" for each in headers))
    done(plain, topic, 1)
    (got,) = destination.requests
    assert (got.headers["content-type"], got.headers["x-a"]) == ("x/y", "c: d")
    assert got.headers["authorization"] == "Basic bWU6cGFzcyB3b3Jk"
    assert got.body == b"x"


@pytest.mark.case("HTTP-T03")
def test_get(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.pub(topic, b"a b/c&d=1\xff%2B")
    pump(f"--get={destination.url('/200/x?d=%s&e=%2B')}")
    done(plain, topic, 1)
    (got,) = destination.requests
    assert got.method == "GET"
    assert got.path == "/200/x?d=a+b%2Fc%26d%3D1%FF%252B&e=%2B"
    assert "content-type" not in got.headers


@pytest.mark.case("HTTP-T04", "HTTP-T05")
@pytest.mark.parametrize("destination_flag", ["--get={}?d=%s /202", "--post={} /500"])
def test_failures(
    destination_flag: str, plain: Nsqd, topic: str, destination: Destination, pump: Pump
) -> None:
    flag, path = destination_flag.split()
    plain.web.pub(topic, b"x")
    process = pump(flag.format(destination.url(path)))
    plain.web.await_counts(
        topic, "c", requeue_count=1, deferred_count=1, in_flight_count=0, depth=0
    )
    assert plain.web.client(topic, "c")["ready_count"] == 0  # nsq_to_http is backing off
    assert len(destination.requests) == 1
    said = end(process)
    assert f"ERR    1 [{topic}/c] got status code {path[1:]} from " in said
    assert len(destination.requests) == 1


@pytest.mark.case("HTTP-T06")
def test_multicast(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.pub(topic, b"x")
    urls = [f"--post={destination.url(path)}" for path in ("/200/a", "/200/b")]
    pump("--mode=multicast", *urls)
    done(plain, topic, 1)
    assert [got.path for got in destination.requests] == ["/200/a", "/200/b"]


def test_multicast_stops_at_the_first_failure(
    plain: Nsqd, topic: str, destination: Destination, pump: Pump
) -> None:
    plain.web.pub(topic, b"x")
    urls = [f"--post={destination.url(path)}" for path in ("/200/a", "/500", "/200/b")]
    pump("--mode=multicast", *urls)
    plain.web.await_counts(topic, "c", requeue_count=1, deferred_count=1)
    assert [got.path for got in destination.requests] == ["/200/a", "/500"]


@pytest.mark.case("HTTP-T07")
def test_round_robin(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.mpub(topic, [b"1", b"2", b"3"])
    urls = [f"--post={destination.url(path)}" for path in ("/200/a", "/200/b")]
    pump("--mode=round-robin", "--n=1", *urls)
    done(plain, topic, 3)
    assert [got.path for got in destination.requests] == ["/200/a", "/200/b", "/200/a"]
    # Sequential requests use a single connection.
    assert len({got.port for got in destination.requests}) == 1


@pytest.mark.case("HTTP-T08")
def test_no_sample(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.mpub(topic, [b"x"] * 10)
    pump("--sample=0", f"--post={destination.url()}")
    done(plain, topic, 10)
    assert destination.requests == []


SOURCE = "--nsqd-tcp-address=a:1"
POST = "--post=http://a/"
VALID = ("--topic=t", SOURCE, POST)


@pytest.mark.case("HTTP-T09", "TOOL-016", "TOOL-017", "TOOL-018", "TOOL-021")
@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--header=a=b"], 1, "--header value format should be 'Name: value'"),
        (["--header=: b"], 1, "--header value format should be 'Name: value'"),
        (["--header=a: "], 1, "--header value format should be 'Name: value'"),
        (["--header=a: b\nc"], 1, "--header value format should be 'Name: value'"),
        (["--content-type=x"], 1, "--topic and --channel are required"),
        (["--topic=t", "--channel="], 1, "--topic and --channel are required"),
        (["--topic=t", "--content-type=x"], 1, "--content-type only used with --post"),
        (
            ["--topic=t", "--content-type=", POST],
            1,
            "--content-type requires a value when used",
        ),
        (["--topic=t"], 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ["--topic=t", SOURCE, "--lookupd-http-address=b:2"],
            1,
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (["--topic=t", SOURCE], 1, "--get or --post required"),
        ([*VALID, "--get=http://a/%s"], 1, "use --get or --post not both"),
        (["--topic=t", SOURCE, "--get=http://a/"], 1, "invalid GET address - must be a printf"),
        (["--topic=t", SOURCE, "--get=http://%s/%s"], 1, "invalid GET address - must be a printf"),
        (["--topic=t", SOURCE, "--post=127.0.0.1:80"], 1, "invalid address 127.0.0.1:80 - must be"),
        ([*VALID, "--sample=1.1"], 1, "ERROR: --sample must be between 0.0 and 1.0"),
        ([*VALID, "--sample=-0.1"], 1, "ERROR: --sample must be between 0.0 and 1.0"),
        ([*VALID, "--sample=half"], 2, 'invalid value "half" for flag -sample: '),
        ([*VALID, "--mode=fastest"], 1, "--mode must be one of hostpool, epsilon-greedy, round"),
        ([*VALID, "--n=0"], 1, "--n must be 1 or more"),
        ([*VALID, "--topic=b d"], 1, "invalid topic name"),
        ([*VALID, "--consumer-opt=bogus,1"], 2, "invalid option bogus; allowed: dial_timeout, "),
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
    ],
)
def test_flags_that_are_refused(
    args: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = tool_process.refusal("nsq_to_http", *args, capfd=capfd)
    assert (found[0], text in found[1]) == (code, True), found


@pytest.mark.case("HTTP-T10")
def test_status_lines(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.mpub(topic, [b"x"] * 5)
    url = destination.url().replace("http://", "http://me:secret@")
    process = pump("--status-every=2", "--n=1", "--mode=round-robin", f"--post={url}")
    done(plain, topic, 5)
    said = tool_process.DATE.sub("", end(process))
    warning, *lines = said.splitlines()
    assert warning.startswith("Warning: use more than 100 status values for accurate percentiles")
    assert [line.partition(" - 99th: ")[0] for line in lines] == ["[aggregate]: finished 2"] * 2


def test_status_lines_of_each(
    plain: Nsqd, topic: str, destination: Destination, pump: Pump
) -> None:
    plain.web.mpub(topic, [b"x"] * 4)
    urls = [destination.url(path).replace("//", "//me:secret@") for path in ("/200/a", "/200/b")]
    posts = [f"--post={url}" for url in urls]
    process = pump("--status-every=1", "--n=1", "--mode=round-robin", *posts)
    done(plain, topic, 4)
    said = end(process)
    for path in ("/200/a", "/200/b"):
        assert said.count(f"[{destination.url(path)}]: finished 1 - 99th: ") == 1
    assert said.count("[aggregate]: finished 1") == 3
    assert "secret" not in said


@pytest.mark.case("HTTP-T11")
def test_hostpool(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.mpub(topic, [b"%d" % number for number in range(20)])
    urls = [f"--post={destination.url(path)}" for path in ("/500", "/200")]
    pump("--n=1", *urls, *AT_ONCE)
    done(plain, topic, 20)
    assert len(destination.bodies("/500")) == 1
    assert sorted(destination.bodies(), key=int) == [b"%d" % number for number in range(20)]


def test_epsilon_greedy(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.mpub(topic, [b"%d" % number for number in range(20)])
    urls = [f"--post={destination.url(path)}" for path in ("/200", "/200")]
    pump("--mode=epsilon-greedy", *urls)
    done(plain, topic, 20)
    assert sorted(destination.bodies(), key=int) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("/301/200", "GET", b""),
        ("/303/302/200", "GET", b""),
        ("/307/200", "POST", b"x"),
        ("/308/307/200", "POST", b"x"),
        ("/307/303/200", "GET", b""),
    ],
)
def test_redirects(
    path: str,
    method: str,
    body: bytes,
    plain: Nsqd,
    topic: str,
    destination: Destination,
    pump: Pump,
) -> None:
    plain.web.pub(topic, b"x")
    pump(f"--post={destination.url(path)}")
    done(plain, topic, 1)
    last = destination.requests[-1]
    assert (last.path, last.method, last.body) == ("/200", method, body)
    assert ("content-type" in last.headers) == (method == "POST")


def test_endless_redirects(plain: Nsqd, topic: str, destination: Destination, pump: Pump) -> None:
    plain.web.pub(topic, b"x")
    path = "/302" * 11 + "/200"
    process = pump(f"--post={destination.url(path)}")
    plain.web.await_counts(topic, "c", requeue_count=1)
    assert len(destination.requests) == 11
    assert "stopped after 10 redirects from" in end(process)


def test_proxies_of_the_environment_are_ignored(
    plain: Nsqd,
    topic: str,
    destination: Destination,
    nobody: str,
    pump: Pump,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{nobody}")
    plain.web.pub(topic, b"x")
    pump(f"--post={destination.url()}")
    done(plain, topic, 1)
    assert destination.bodies() == [b"x"]


def test_requests_have_a_deadline(
    plain: Nsqd, topic: str, destination: Destination, pump: Pump
) -> None:
    plain.web.pub(topic, b"x")
    process = pump(f"--post={destination.url('/hold')}", "--http-client-request-timeout=50ms")
    plain.web.await_counts(topic, "c", requeue_count=1)
    assert f"timed out from {destination.url('/hold')}" in end(process)


def test_a_graceful_end_waits_for_requests(
    plain: Nsqd, topic: str, destination: Destination, pump: Pump
) -> None:
    plain.web.mpub(topic, [b"x"] * 5)
    process = pump(f"--post={destination.url('/hold')}", "--n=3", "--max-in-flight=4")
    eventually(lambda: len(destination.requests) == 3)
    process.send_signal(signal.SIGINT)
    # The message that is in flight but not yet sent is requeued immediately.
    plain.web.await_counts(topic, "c", in_flight_count=3, depth=2)
    destination.hold.set()
    assert process.wait(20) == 0
    plain.web.await_counts(topic, "c", in_flight_count=0, depth=2)
    assert len(destination.requests) == 3
