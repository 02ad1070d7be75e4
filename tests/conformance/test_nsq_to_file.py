"""nsq_to_file from the user's point of view, with an nsqd and a nsqlookupd."""

import contextlib
import gzip
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.tools.nsq_to_file import main
from support import delimited_messages, tool_process
from support.nsq_to_file_process import ToFile
from support.nsqd_process import Nsqd, environment, free_port
from support.nsqlookupd_process import Lookupd

CHANNEL = "nsq_to_file"
DATE = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d "
BRIEF = "--consumer-opt=msg_timeout,1s"  # redeliver messages soon after a kill
Make = Callable[..., ToFile]


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Lookupd]:
    with Lookupd() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Lookupd) -> Iterator[Nsqd]:
    daemon = Nsqd(
        tmp_path_factory.mktemp("nsqd"),
        workers=1,
        broadcast_address="127.0.0.1",
        lookupd_tcp_address=lookupd.tcp_address,
    )
    yield daemon.start()
    daemon.destroy()


@pytest.fixture
def to_file(tmp_path: Path, nsqd: Nsqd, topic: str) -> Iterator[Make]:
    """Factory of processes for the test's topic; the test starts them. Their files are named after
    the topic alone."""
    made: list[ToFile] = []

    def make(
        *args: str, work: bool = False, name: str = "<TOPIC><REV>", source: str = ""
    ) -> ToFile:
        source = source or f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp_port}"
        words = [source, f"--filename-format={name}", *args]
        if not any(each.startswith("--topic") for each in args):
            words.append(f"--topic={topic}")
        made.append(ToFile(tmp_path, *words, work=work))
        return made[-1]

    yield make
    for each in made:
        each.destroy()


# --- content and timing ------------------------------------------------------------------------


@pytest.mark.case("FILE-001", "FILE-002")
@pytest.mark.real_start
def test_messages_are_finished_when_they_are_safe(
    to_file: Make, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.web.mpub(topic, [b"one", b"two"])
    short = socket.gethostname().partition(".")[0]
    before = time.strftime("%Y-%m-%d_%H")
    running = to_file("--sync-interval=100ms", name="<TOPIC>.<HOST><REV>.<DATETIME>.log").start()
    running.await_lines(b"one", b"two")
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=0)
    names = {f"{topic}.{short}.{hour}.log" for hour in (before, time.strftime("%Y-%m-%d_%H"))}
    assert running.files().keys() <= names
    running.stop()
    assert running.lines() == [b"one", b"two"]
    assert f"[{topic}/nsq_to_file] opening {running.out}/{topic}.{short}" in running.log_text()
    assert re.search(rf"^\[nsq_to_file\] {DATE[:-1]}\.\d{{6}} INFO: \[", running.log_text(), re.M)


@pytest.mark.case("FILE-003")
def test_hosts_and_processes(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    nsqd.web.pub(topic, b"one")
    running = to_file(
        "--host-identifier=x-<SHORT_HOST>-<HOSTNAME>", name="<HOST>.<TOPIC>.<PID>"
    ).start()
    running.await_lines(b"one")
    host = socket.gethostname()
    name = f"x-{host.partition('.')[0]}-{host}.{topic}.{running.process.pid}"
    assert list(running.files()) == [name]


@pytest.mark.case("FILE-004")
def test_a_file_without_a_message(to_file: Make, topic: str) -> None:
    running = to_file("--sync-interval=50ms").start()
    eventually(lambda: running.files() == {topic: b""})
    running.stop()


@pytest.mark.case("FILE-005")
def test_no_file_without_a_message(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    nsqd.web.create(topic, CHANNEL)
    running = to_file("--sync-interval=1ms", "--skip-empty-files").start()
    nsqd.web.await_counts(topic, CHANNEL, client_count=1)
    running.stop()
    assert running.files() == {}


@pytest.mark.case("FILE-022")
def test_starvation_is_a_reason_to_sync(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--max-in-flight=10", "--sync-interval=60s").start()
    for number in range(10):
        nsqd.web.pub(topic, b"%d" % number)
        running.await_lines(*(b"%d" % each for each in range(number + 1)))
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=1)


@pytest.mark.case("FILE-021")
def test_what_was_not_synced_comes_again(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--sync-interval=30s", BRIEF).start()
    for body in (b"opens the file", b"is not synced"):
        nsqd.web.pub(topic, body)
        running.await_log("opening")
        eventually(lambda body=body: body in running.lines())
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=1)
    running.kill()
    running.start("--sync-interval=100ms")
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=0)
    assert running.lines() == [b"opens the file", b"is not synced"]
    assert "a crash left 14 bytes that were never acknowledged" in running.log_text()


@pytest.mark.case("FILE-023")
def test_a_disk_that_is_full(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    bodies = [delimited_messages.record(number, b"x" * 500) for number in range(40)]
    running = to_file(BRIEF).start(limit="-f 8")  # blocks of 512 or 1024 bytes
    nsqd.web.mpub(topic, bodies)
    assert running.wait() == 1
    last = running.log_text().splitlines()[-1]
    assert f"FATAL: [{topic}/nsq_to_file] ERROR:" in last and "File too large" in last
    running.start("--sync-interval=50ms")
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=0)
    running.stop()
    assert set(delimited_messages.stored(running.files())) == set(range(40))


def test_a_message_is_never_given_up(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    nsqd.web.create(topic, CHANNEL)
    nsqd.web.pub(topic, b"one")
    with nsqd.connect().sub(topic, CHANNEL, rdy=1) as consumer:
        for left in reversed(range(6)):
            message = consumer.message()
            consumer.rdy(min(left, 1))
            consumer.req(message)
    to_file().start().await_lines(b"one")


def test_what_waits_for_a_sync_is_synced_in_the_end(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--sync-interval=60s").start()
    for number in range(20):
        nsqd.web.pub(topic, b"%d" % number)
    running.await_lines(*(b"%d" % number for number in range(20)))
    running.stop()
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=0)


def test_an_option_that_the_client_does_not_have(to_file: Make) -> None:
    running = to_file("--consumer-opt=bogus,1").start()
    assert running.wait() == 2  # NSQ ignores unknown options
    assert "invalid option bogus" in running.log_text()


# --- rotation and compression -------------------------------------------------------------------


@pytest.mark.case("FILE-006", "FILE-007")
def test_rotation_by_size(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--rotate-size=10").start()
    for number in range(5):
        nsqd.web.pub(topic, b"message%d" % number)
        running.await_lines(*(b"message%d" % each for each in range(number + 1)))
    running.stop()
    sizes = {name: len(data) for name, data in running.files().items()}
    assert sizes == {f"{topic}-000000": 18, f"{topic}-000001": 18, f"{topic}-000002": 9}
    running.start()
    nsqd.web.pub(topic, b"more")
    eventually(lambda: running.files()[f"{topic}-000002"] == b"message4\nmore\n")
    assert len(running.files()) == 3


@pytest.mark.case("FILE-008")
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_rotation_by_time(to_file: Make, nsqd: Nsqd, topic: str, codec: str) -> None:
    running = to_file(f"--{codec}", "--rotate-interval=50ms", "--sync-interval=20ms").start()
    for number in range(6):
        nsqd.web.pub(topic, delimited_messages.record(number))
        nsqd.web.await_counts(topic, CHANNEL, message_count=number + 1, depth=0, in_flight_count=0)
        running.await_log("since last open, rotating...", number + 1)
    running.stop()
    files = running.files()
    suffix = {"gzip": "gz", "zstd": "zst"}[codec]
    assert len(files) > 3 and f"{topic}-000001.{suffix}" in files
    assert sorted(delimited_messages.stored(files)) == list(range(6))


@pytest.mark.case("FILE-009", "FILE-010")
def test_gzip_members_and_restarts(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--gzip", "--sync-interval=10ms").start()
    for number in range(3):
        nsqd.web.pub(topic, b"%d" % number)
        nsqd.web.await_counts(topic, CHANNEL, message_count=number + 1, depth=0, in_flight_count=0)
    running.stop()
    first = running.files()[f"{topic}-000000.gz"]
    assert first.count(b"\x1f\x8b\x08\0\0\0\0\0\0\xff") == 3
    assert gzip.decompress(first) == b"0\n1\n2\n"
    running.start()
    running.await_log("working file already exists")
    running.stop()
    assert running.files()[f"{topic}-000000.gz"] == first
    assert f"{topic}-000001.gz" in running.files()


@pytest.mark.case("FILE-016")
def test_gzip_without_a_revision(to_file: Make) -> None:
    running = to_file("--gzip", name="<TOPIC>").start()
    assert running.wait() == 1
    assert running.files() == {}
    assert (
        "missing <REV> in --filename-format when gzip, rotation, or work dir" in running.log_text()
    )


@pytest.mark.case("FILE-020")
def test_a_new_time_is_a_new_name(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--datetime-format=%H%M%S", "--rotate-size=1", name="<DATETIME><REV>").start()
    nsqd.web.mpub(topic, [b"a", b"b"])
    running.await_lines(b"a", b"b")
    then = next(name for name, data in running.files().items() if data == b"b\n")[:6]
    eventually(lambda: time.strftime("%H%M%S") != then)
    nsqd.web.pub(topic, b"c")
    running.await_lines(b"a", b"b", b"c")
    [last] = [name for name, data in running.files().items() if data == b"c\n"]
    assert last[:6] != then and last.endswith("-000000")


# --- a work directory, and signals --------------------------------------------------------------


@pytest.mark.case("FILE-011", "FILE-012", "FILE-013")
def test_finished_files_are_moved(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file(work=True)
    running.out.mkdir()
    (running.out / f"{topic}-000000").write_bytes(b"theirs")
    running.start()
    nsqd.web.pub(topic, b"one")
    eventually(lambda: running.files(running.work) == {f"{topic}-000001": b"one\n"})
    (running.out / f"{topic}-000001").write_bytes(b"theirs too")
    running.stop()
    assert running.files(running.work) == {}
    assert running.files() == {
        f"{topic}-000000": b"theirs",
        f"{topic}-000001": b"theirs too",
        f"{topic}-000002": b"one\n",
    }
    assert (
        f"moving finished file {running.work}/{topic}-000001 to {running.out}" in running.log_text()
    )


@pytest.mark.ours
@pytest.mark.skipif(
    os.stat("/dev/shm").st_dev == os.stat(tempfile.gettempdir()).st_dev,
    reason="needs a second file system",
)
def test_a_work_folder_on_another_file_system(to_file: Make) -> None:
    running = to_file("--work-dir=/dev/shm/nsq_to_file/no-such", name="<TOPIC><REV>").start()
    assert running.wait() == 1
    assert "are on different file systems" in running.log_text()
    assert not running.out.exists() and not os.path.exists("/dev/shm/nsq_to_file")


@pytest.mark.ours
def test_a_removed_output_folder(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file().start()
    nsqd.web.mpub(topic, [b"one", b"two"])
    running.await_lines(b"one", b"two")
    shutil.rmtree(running.out)
    nsqd.web.pub(topic, b"three")
    running.await_log("was removed: opening a new file")
    running.stop()
    assert running.files()[topic].endswith(b"three\n")
    nsqd.web.await_counts(topic, CHANNEL, depth=0, in_flight_count=0)


@pytest.mark.case("FILE-014")
def test_a_hangup_of_a_plain_file(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file().start()
    nsqd.web.pub(topic, b"one")
    running.await_lines(b"one")
    running.process.send_signal(signal.SIGHUP)
    nsqd.web.pub(topic, b"two")
    running.await_lines(b"one", b"two")
    assert running.files() == {topic: b"one\ntwo\n"}
    running.stop()


@pytest.mark.case("FILE-015")
def test_a_hangup_with_a_work_folder(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file(work=True).start()
    nsqd.web.pub(topic, b"one")
    running.await_log("opening")
    running.process.send_signal(signal.SIGHUP)
    running.await_lines(b"one")
    nsqd.web.pub(topic, b"two")
    eventually(lambda: running.files(running.work) == {f"{topic}-000001": b"two\n"})
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 0
    assert running.files() == {f"{topic}-000000": b"one\n", f"{topic}-000001": b"two\n"}


def test_two_of_them_share_a_work_folder(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    one, two = to_file(work=True).start(), to_file(work=True)
    nsqd.web.pub(topic, delimited_messages.record(0))
    one.await_log("opening")
    two.start()
    nsqd.web.await_counts(topic, CHANNEL, client_count=2)
    nsqd.web.mpub(topic, [delimited_messages.record(number) for number in range(1, 1000)])
    nsqd.web.await_counts(topic, CHANNEL, depth=0)
    one.stop()
    two.stop()
    assert one.files(one.work) == {}
    assert sorted(delimited_messages.stored(one.files())) == list(range(1000))


# --- topics and nsqds ---------------------------------------------------------------------------


@pytest.mark.case("FILE-017")
def test_topics_are_discovered(to_file: Make, nsqd: Nsqd, lookupd: Lookupd, topic: str) -> None:
    def publish(name: str) -> None:
        nsqd.web.pub(name, name.encode())
        eventually(lambda: lookupd.producers(name))

    for name in (f"log{topic}A", f"{topic}other"):
        publish(name)
    running = to_file(
        f"--topic-pattern=^log{topic}",
        "--topic-refresh=50ms",
        source=f"--lookupd-http-address={lookupd.http_address}",
    ).start()
    running.await_lines(f"log{topic}A".encode())
    publish(f"log{topic}B")
    running.await_lines(f"log{topic}A".encode(), f"log{topic}B".encode())
    running.stop()
    assert running.files().keys() == {f"log{topic}A", f"log{topic}B"}
    assert running.log_text().count(f"WARNING: skipping topic {topic}other (doesn't match") == 1


def test_a_lookupd_that_is_gone_hides_nothing(
    to_file: Make, nsqd: Nsqd, lookupd: Lookupd, topic: str
) -> None:
    nsqd.web.pub(f"{topic}x", b"one")
    eventually(lambda: lookupd.producers(f"{topic}x"))
    running = to_file(
        f"--topic-pattern=^{topic}",
        f"--lookupd-http-address=127.0.0.1:{free_port()}",
        source=f"--lookupd-http-address={lookupd.http_address}",
    ).start()
    running.await_lines(b"one")
    assert "could not retrieve topic list" in running.log_text()


@pytest.mark.case("FILE-018")
def test_a_topic_that_does_not_match(to_file: Make) -> None:
    running = to_file("--topic=other", "--topic-pattern=^log").start()
    running.await_log("WARNING: skipping topic other (doesn't match pattern ^log)")
    running.stop()
    assert running.files() == {}


def test_a_topic_that_cannot_be(to_file: Make) -> None:
    running = to_file("--topic=b d").start()
    assert running.wait() == 1
    assert "couldn't create logger for new topic b d: invalid topic name" in running.log_text()


def test_an_nsqd_that_comes_later(to_file: Make, tmp_path: Path, topic: str) -> None:
    port = free_port()
    running = to_file(source=f"--nsqd-tcp-address=127.0.0.1:{port}").start()
    running.await_log("refused")
    (tmp_path / "later").mkdir()
    daemon = Nsqd(tmp_path / "later", workers=1, tcp_address=f"127.0.0.1:{port}")
    try:
        daemon.start().web.pub(topic, b"one")
        running.await_lines(b"one")
        running.stop()
    finally:
        daemon.destroy()


# --- the command line ---------------------------------------------------------------------------

SOURCE = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUP = "--lookupd-http-address=127.0.0.1:1"


@pytest.mark.case("FILE-019")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "b"], "unknown arguments: [a b]"),
        (["--log-level=loud", "--version"], "--log-level is invalid"),
        (["--channel="], "--channel is required"),
        (["--http-client-connect-timeout=0s"], "--http-client-connect-timeout should be positive"),
        (["--http-client-request-timeout=0"], "--http-client-request-timeout should be positive"),
        ([], "--nsqd-tcp-address or --lookupd-http-address required"),
        ([SOURCE, LOOKUP], "use --nsqd-tcp-address or --lookupd-http-address not both"),
        ([SOURCE, "--gzip-level=0"], "invalid --gzip-level value (0), should be 1-9"),
        ([SOURCE, "--zstd-level=23"], "invalid --zstd-level value (23), should be 1-22"),
        ([SOURCE, "--gzip", "--zstd"], "use --gzip or --zstd not both"),
        ([SOURCE], "--topic or --topic-pattern required"),
        (
            [SOURCE, "--topic-pattern=x"],
            "--lookupd-http-address must be specified when no --topic specified",
        ),
        ([SOURCE, "--topic=t", "--sync-interval=0"], "--sync-interval should be positive"),
        ([SOURCE, "--topic=t", "--topic-refresh=0"], "--topic-refresh should be positive"),
        ([SOURCE, "--topic=t", "--max-in-flight=0"], "--max-in-flight should be positive"),
        ([LOOKUP, "--topic-pattern=("], "--topic-pattern is invalid: missing ): ("),
        (["--lookupd-http-address=nowhere", "--topic-pattern=x"], "address 'nowhere' has no port"),
        ([SOURCE, "--topic=t", "--filename-format=../x"], "must stay in its directory"),
    ],
)
def test_flags_that_cannot_be(
    words: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    out, err = capfd.readouterr()
    assert out == "" and text in err
    assert re.fullmatch(DATE + ".*\n", err), err


def test_progress_on_a_terminal(to_file: Make, nsqd: Nsqd, topic: str) -> None:
    running = to_file("--log-level=error")
    nsqd.web.mpub(topic, [b"x"] * 50)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    process = subprocess.Popen(
        [*tool_process.command("nsq_to_file"), *running.args],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        eventually(lambda: len(running.lines()) == 50)
        process.send_signal(signal.SIGTERM)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                shown += part
        assert process.wait(30) == 0
        assert b"50 messages" in shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# --- every message in a complete file -----------------------------------------------------------

MODES = {
    "plain": (["--rotate-size=100000"], False),
    "appended": ([], False),
    "moved": ([], True),
    "gzip": (["--gzip"], True),
    "zstd": (["--zstd", "--rotate-size=100000"], False),
}


def publish(nsqd: Nsqd, topic: str, bodies: list[bytes]) -> None:
    """Publish bodies with arbitrary bytes."""
    parts = [struct.pack(">i", len(bodies))]
    for body in bodies:
        parts += [struct.pack(">i", len(body)), body]
    answer = nsqd.web.post("/mpub", b"".join(parts), topic=topic, binary="true")
    assert answer.status == 200, answer


def left(nsqd: Nsqd, topic: str) -> int:
    counts = nsqd.web.counts(topic, CHANNEL)
    return counts["depth"] + counts["in_flight_count"]


def pour(running: ToFile, nsqd: Nsqd, topic: str, chunks: int, size: int, kills: int) -> None:
    """Publish chunks while the tool writes. Sometimes send it SIGHUP; kill it `kills` times."""
    running.args += [BRIEF, "--max-in-flight=2500"]  # a large amount is written but not yet synced
    killed = {chunks * (each + 1) // (kills + 1) for each in range(kills)}
    running.start("--sync-interval=50ms")
    for chunk in range(chunks):
        bodies = range(chunk * size, (chunk + 1) * size)
        publish(
            nsqd,
            topic,
            [delimited_messages.record(each, b"line\n" * (each % 3)) for each in bodies],
        )
        if chunk in killed:
            running.kill()
            running.start("--sync-interval=50ms")
        elif chunk % 5 == 3:
            running.await_log("[nsq_to_file]")
            opened = running.log_text().count("opening")
            nsqd.web.await_counts(topic, CHANNEL, client_count=1)
            running.process.send_signal(signal.SIGHUP)
            running.await_log("opening", opened + 1)
    eventually(lambda: left(nsqd, topic) == 0, timeout=300)
    running.stop()
    found = delimited_messages.stored(running.files())
    assert set(found) == set(range(chunks * size))
    again = nsqd.web.counts(topic, CHANNEL)["timeout_count"]
    assert len(found) - chunks * size <= again
    assert running.files(running.work) == {}


@pytest.mark.parametrize("mode", ["plain", "gzip", "zstd"])
def test_every_message_is_in_a_complete_file(
    to_file: Make, nsqd: Nsqd, topic: str, mode: str
) -> None:
    args, work = MODES[mode]
    pour(to_file(*args, work=work), nsqd, topic, chunks=10, size=2_000, kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_a_million_messages(to_file: Make, nsqd: Nsqd, topic: str, mode: str) -> None:
    args, work = MODES[mode]
    pour(to_file(*args, work=work), nsqd, topic, chunks=200, size=5_000, kills=5)
