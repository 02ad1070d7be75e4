"""nsq_stat from the user's point of view, with two nsqds and a nsqlookupd."""

import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.tools.common import parse
from nsqcy.tools.nsq_stat import NSQ_STAT, resolve
from support import tool_process
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd

HEADER = (
    "------rate------+----------------depth----------------"
    "+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |"
    "     req     t-o         msgs clients\n"
)
Result = subprocess.CompletedProcess[str]


class Cluster:
    """Two nsqds and their lookupd."""

    def __init__(self, one: Nsqd, two: Nsqd, lookupd: Lookupd) -> None:
        self.one, self.two, self.lookupd = one, two, lookupd

    def publish(self, topic: str, ones: int, twos: int) -> None:
        """Publish to channel `ch` of a topic, and wait until the lookupd lists the topic."""
        for daemon, count in ((self.one, ones), (self.two, twos)):
            daemon.web.create(topic, "ch")
            if count:
                daemon.web.mpub(topic, [b"x"] * count)
            daemon.web.await_counts(topic, "ch", depth=count)
        eventually(lambda: len(self.lookupd.producers(topic)) == 2)

    @property
    def by_lookupd(self) -> str:
        return f"--lookupd-http-address={self.lookupd.http_address}"

    @property
    def by_nsqd(self) -> list[str]:
        return [f"--nsqd-http-address=127.0.0.1:{each.http_port}" for each in (self.one, self.two)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lookupd() as lookupd:
        daemons = [
            Nsqd(
                tmp_path_factory.mktemp(name),
                workers=1,
                broadcast_address="127.0.0.1",
                lookupd_tcp_address=lookupd.tcp_address,
            )
            for name in ("one", "two")
        ]
        for daemon in daemons:
            daemon.launch()
        try:
            for daemon in daemons:
                daemon.await_ready()
            yield Cluster(*daemons, lookupd)
        finally:
            for daemon in daemons:
                daemon.destroy()


def stat(topic: str, *args: str) -> Result:
    return tool_process.run("nsq_stat", f"--topic={topic}", "--channel=ch", "--interval=1ms", *args)


def figures(line: str) -> list[int]:
    return [int(word) for word in line.replace("|", " ").split()]


def next_figures(process: "subprocess.Popen[str]") -> list[int]:
    """Return the figures of the next line that is not a header."""
    assert process.stdout is not None
    line = process.stdout.readline()
    while line and line in HEADER:
        line = process.stdout.readline()
    return figures(line)


@pytest.mark.case("STAT-001")
@pytest.mark.parametrize("source", ["lookupd", "nsqd"])
@pytest.mark.real_start
def test_sums(source: str, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 3, 1)
    sources = [cluster.by_lookupd] if source == "lookupd" else cluster.by_nsqd
    result = stat(topic, "--count=2", *sources)
    assert (result.returncode, result.stderr) == (0, "")
    line = "      0       0 |       4       4       0     0     0 |       0       0            4"
    assert result.stdout == HEADER + f"{line}       0\n" * 2


def test_every_column(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 4, 2)
    one = cluster.one.connect().sub(topic, "ch", rdy=3)
    messages = [one.message() for _ in range(3)]
    one.rdy(0)
    one.req(messages[0], 3_600_000)
    two = cluster.two.connect().sub(topic, "ch", rdy=1)
    message = two.message()
    two.rdy(0)
    two.fin(message)
    cluster.one.web.await_counts(topic, "ch", deferred_count=1, in_flight_count=2)
    cluster.two.web.await_counts(topic, "ch", depth=1, in_flight_count=0)
    result = stat(topic, "--count=1", cluster.by_lookupd)
    assert figures(result.stdout.splitlines()[-1]) == [0, 0, 2, 2, 0, 2, 1, 1, 0, 6, 2]
    cluster.one.hang_up()
    cluster.two.hang_up()


@pytest.mark.case("STAT-002")
def test_unknown_channel(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 0, 0)
    for source in ([cluster.by_lookupd], cluster.by_nsqd):
        result = stat(topic, "--channel=other", *source)
        assert (result.returncode, result.stdout) == (1, "")
        text = f"ERROR: failed to find channel(other) in stats metadata for topic({topic})\n"
        assert result.stderr.endswith(text)


def test_unknown_topic(cluster: Cluster, topic: str) -> None:
    result = stat(topic, cluster.by_lookupd)
    assert result.returncode == 1
    assert "ERROR: failed to get topic producers - " in result.stderr
    assert "TOPIC_NOT_FOUND" in result.stderr
    result = stat(topic, *cluster.by_nsqd)
    assert result.returncode == 1
    assert "ERROR: failed to find channel(ch)" in result.stderr


@pytest.mark.case("STAT-003")
def test_one_that_is_down(cluster: Cluster, nobody: str, topic: str) -> None:
    cluster.publish(topic, 1, 0)
    for source, down in (
        ([cluster.by_lookupd], f"--lookupd-http-address={nobody}"),
        (cluster.by_nsqd, f"--nsqd-http-address={nobody}"),
    ):
        result = stat(topic, "--count=1", *source, down)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.endswith(
            f"ERROR: failed to get topic producers - {nobody}: Connection refused\n"
        )


def test_a_producer_that_is_down(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 1, 0)
    conn = cluster.lookupd.connect()
    conn.identify("127.0.0.1", tcp_port=1, http_port=1)
    conn.register(topic, "ch")
    result = stat(topic, "--count=1", cluster.by_lookupd)
    cluster.lookupd.hang_up()
    assert (result.returncode, result.stdout) == (1, "")
    assert "ERROR: failed to get nsqd stats - 127.0.0.1:1: Connection refused" in result.stderr


@pytest.mark.case("STAT-004", "STAT-005")
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--lookupd-http-address=http://127.0.0.1:4161"],
            "--lookupd-http-address error - address should not contain scheme",
        ),
        (
            ["--nsqd-http-address=a:1", "--nsqd-http-address=https://127.0.0.1:4161"],
            "--nsqd-http-address error - address should not contain scheme",
        ),
        (["--nsqd-http-address=a"], "address 'a' has no port: write HOST:PORT"),
        (["--nsqd-http-address=a:1", "--count=0"], "--count should be positive"),
        (["--nsqd-http-address=a:1", "--interval=0s"], "--interval should be positive"),
        (
            ["--nsqd-http-address=a:1", "--http-client-connect-timeout=0"],
            "--http-client-connect-timeout should be positive",
        ),
        (
            ["--nsqd-http-address=a:1", "--http-client-request-timeout=-1s"],
            "--http-client-request-timeout should be positive",
        ),
        (["--nsqd-http-address=a:1", "--channel="], "--topic and --channel are required"),
        (["--nsqd-http-address=a:1", "--topic="], "--topic and --channel are required"),
    ],
)
def test_flags_that_are_refused(args: list[str], text: str) -> None:
    result = stat("t", *args)
    assert (result.returncode, result.stdout) == (1, "")
    found = re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (.*)\n", result.stderr)
    assert found is not None and found[1].endswith(text), result.stderr


def test_a_host_whose_name_begins_as_a_scheme() -> None:
    settings = parse(NSQ_STAT, ["--topic=t", "--channel=c", "--nsqd-http-address=httpd:4151"])
    assert resolve(settings).nsqd_http_address == ("httpd:4151",)


@pytest.mark.case("STAT-006")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals(name: str, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 0, 0)
    args = [f"--topic={topic}", "--channel=ch", "--interval=1h", cluster.by_lookupd]
    with tool_process.running("nsq_stat", *args) as process:
        assert process.stdout is not None
        assert process.stdout.readline() + process.stdout.readline() == HEADER
        process.send_signal(getattr(signal, name))
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.case("STAT-007")
def test_rates(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 5, 0)
    args = [f"--topic={topic}", "--channel=ch", "--interval=125ms", *cluster.by_nsqd]
    with tool_process.running("nsq_stat", *args) as process:
        assert process.stdout is not None
        assert process.stdout.readline() + process.stdout.readline() == HEADER
        cluster.one.web.mpub(topic, [b"x"] * 10)
        rows = [[0] * 11]
        while rows[-1][9] < 15:
            rows.append(next_figures(process))
        assert sum(row[0] for row in rows) == 80  # 80 in total, in any samples
        assert sum(row[1] for row in rows) == 0
        conn = cluster.one.connect().sub(topic, "ch", rdy=1)
        for _ in range(3):
            conn.fin(conn.message())
        conn.rdy(0)
        while sum(row[1] for row in rows) < 24:
            rows.append(next_figures(process))
        assert sum(row[0] for row in rows) == 80
    cluster.one.hang_up()


@pytest.mark.case("STAT-008")
def test_the_header_comes_again(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 0, 0)
    result = stat(topic, "--count=26", cluster.by_lookupd)
    lines = result.stdout.splitlines(keepends=True)
    assert [at for at, line in enumerate(lines) if line.startswith("-")] == [0, 26]
    assert "".join(lines[26:28]) == HEADER
    assert len(lines) == 2 + 24 + 2 + 2


def test_without_a_reader(cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, 0, 0)
    args = [f"--topic={topic}", "--channel=ch", "--interval=1ms", cluster.by_lookupd]
    with tool_process.running("nsq_stat", *args) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read().endswith("write to stdout: Broken pipe\n")
