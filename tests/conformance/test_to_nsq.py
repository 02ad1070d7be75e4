"""to_nsq from the user's point of view."""

import os
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support import tool_process
from support.nsqd_process import Nsqd, environment


def here(daemon: Nsqd) -> str:
    return f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}"


def published(daemon: Nsqd, topic: str, count: int) -> list[bytes]:
    """Return the messages in a topic, once there are `count` of them."""
    daemon.web.await_counts(topic, message_count=count)
    conn = daemon.connect().sub(topic, "reader", rdy=count)
    messages = conn.messages(count)
    for message in messages:
        conn.fin(message)
    return [message.body for message in messages]


@pytest.mark.case("TO-001", "TO-002")
@pytest.mark.parametrize(
    ("text", "args", "bodies"),
    [
        (b"one,two,three\n", ["--delimiter=,"], [b"one", b"two", b"three"]),
        (b"abc\n\ndef", [], [b"abc", b"def"]),
        (b"abc\ndef\n", [], [b"abc", b"def"]),
        (b"a\n\xffb\xffc\n\n", [b"--delimiter=\xff"], [b"a\n", b"b", b"c\n"]),
    ],
)
@pytest.mark.real_start
def test_pieces(text: bytes, args: list[str], bodies: list[bytes], plain: Nsqd, topic: str) -> None:
    flags = [each.decode("utf-8", "surrogateescape") for each in map(os.fsencode, args)]
    result = tool_process.feed(text, "to_nsq", f"--topic={topic}", here(plain), *flags)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert published(plain, topic, len(bodies)) == bodies


@pytest.mark.case("TO-003")
def test_each_nsqd_gets_all(plain: Nsqd, topic: str) -> None:
    """to_nsq treats two addresses of the same nsqd as two nsqds."""
    addresses = [here(plain), here(plain).replace("127.0.0.1", "localhost")]
    result = tool_process.feed(b"x\n", "to_nsq", f"--topic={topic}", *addresses)
    assert (result.returncode, result.stderr) == (0, b"")
    assert published(plain, topic, 2) == [b"x", b"x"]


def test_much_input(plain: Nsqd, topic: str) -> None:
    lines = [b"%d" % number for number in range(20_000)]
    flags = [f"--topic={topic}", here(plain), "--producer-opt=snappy"]
    result = tool_process.feed(b"\n".join(lines), "to_nsq", *flags)
    assert (result.returncode, result.stderr) == (0, b"")
    plain.web.await_counts(topic, message_count=20_000)
    conn = plain.connect().sub(topic, "reader", rdy=1000)
    found = []
    while len(found) < 20_000:
        message = conn.message()
        conn.fin(message)
        found.append(message.body)
    assert sorted(found, key=int) == lines


@pytest.mark.case("TO-004")
def test_an_nsqd_that_is_down(plain: Nsqd, nobody: str, topic: str) -> None:
    addresses = [f"--nsqd-tcp-address={nobody}", here(plain)]
    result = tool_process.feed(b"x\n", "to_nsq", f"--topic={topic}", *addresses)
    assert (result.returncode, result.stdout) == (1, b"")
    said = tool_process.DATE.sub("", result.stderr.decode())
    assert said.endswith(f"{nobody}: connection refused\n"), said


def test_a_message_that_nsqd_refuses(plain: Nsqd, topic: str) -> None:
    text = b"first\n" + bytes([65]) * (1 << 21) + b"\nlast\n"
    result = tool_process.feed(text, "to_nsq", f"--topic={topic}", here(plain))
    assert result.returncode == 1
    assert b"E_BAD_MESSAGE PUB message too big 2097152 > 1048576" in result.stderr
    assert published(plain, topic, 1) == [b"first"]


@pytest.mark.case("TO-005")
@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ([], 1, "--topic required"),
        (["--topic=b d"], 1, "--topic is invalid"),
        (["--topic=t", "--delimiter=\\n"], 1, "--delimiter must be a single byte"),
        (["--topic=t", "--delimiter="], 1, "--delimiter must be a single byte"),
        (["--topic=t", "--delimiter=é"], 1, "--delimiter must be a single byte"),
        (["--topic=t"], 1, "--nsqd-tcp-address required"),
        (["--topic=t", "--nsqd-tcp-address=a:x"], 1, '"a:x" has no port from 1 to 65535'),
        (
            ["--rate=fast"],
            2,
            'invalid value "fast" for flag -rate: parse error (allowed: an integer',
        ),
        (["--producer-opt=bogus,1"], 2, "invalid option bogus; allowed: dial_timeout, "),
        (
            ["--topic=t", "--nsqd-tcp-address=a:1", "--producer-opt=deflate,x"],
            2,
            "failed to coerce option deflate (x) - parse error",
        ),
    ],
)
def test_flags_that_are_refused(
    args: list[str], code: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = tool_process.refusal("to_nsq", *args, capfd=capfd)
    assert (found[0], text in found[1]) == (code, True), found


@pytest.mark.case("TO-006")
def test_a_rate(plain: Nsqd, topic: str) -> None:
    """test_tool_parts.py checks the duration with a simulated clock."""
    result = tool_process.feed(
        b"x\n" * 20, "to_nsq", f"--topic={topic}", here(plain), "--rate=1000"
    )
    assert result.returncode == 0
    said = tool_process.DATE.sub("", result.stderr.decode())
    assert said == "Throttling messages rate to max:1000/second\n"
    assert published(plain, topic, 20) == [b"x"] * 20


@pytest.mark.case("TO-007")
def test_no_input(nobody: str) -> None:
    """to_nsq does not connect, because there is nothing to publish."""
    result = tool_process.feed(b"\n\n", "to_nsq", "--topic=t", f"--nsqd-tcp-address={nobody}")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


@pytest.mark.case("TO-008")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("rate", ["--rate=0", "--rate=1"])
def test_signals(name: str, rate: str, plain: Nsqd, topic: str) -> None:
    with subprocess.Popen(
        [*tool_process.command("to_nsq"), f"--topic={topic}", here(plain), rate],
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"1\n2\n" + b"x" * 1000)
            process.stdin.flush()
            plain.web.await_counts(topic, message_count=1 if rate == "--rate=1" else 2)
            process.send_signal(getattr(signal, name))
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert plain.web.counts(topic)["message_count"] == (1 if rate == "--rate=1" else 2)


def test_an_nsqd_that_goes_while_the_input_is_silent(plain: Nsqd, nobody: str) -> None:
    """to_nsq reports the lost nsqd without waiting for more input."""
    with subprocess.Popen(
        [*tool_process.command("to_nsq"), "--topic=t", f"--nsqd-tcp-address={nobody}"],
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"1\n")
            process.stdin.flush()
            assert process.wait(20) == 1
        finally:
            process.kill()


def test_progress_at_a_terminal(plain: Nsqd, topic: str, tmp_path: Path) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    file = tmp_path / "lines"
    file.write_bytes(b"line\n" * 1000)
    terminal, stderr = os.openpty()
    termios.tcsetwinsize(terminal, (25, 80))
    with file.open("rb") as stdin, os.fdopen(terminal, "rb", buffering=0) as output:
        process = subprocess.Popen(
            [*tool_process.command("to_nsq"), f"--topic={topic}", here(plain)],
            env=environment(),
            stdin=stdin,
            stderr=stderr,
        )
        os.close(stderr)
        shown = b""
        try:
            while b"1000 messages" not in shown:
                shown += output.read(1000)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()
    assert b"100%" in shown and b"4.88k/4.88k" in shown
    eventually(lambda: plain.web.counts(topic)["message_count"] == 1000)
