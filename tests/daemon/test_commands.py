"""`nsqcy` commands that work on a cluster, run as programs: on one nsqd, and on three nsqds that an
nsqlookupd lists."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conftest import one_worker
from nsqcy import Consumer
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, environment
from support.nsqlookupd_process import Lookupd

TIMEOUT = 60


class Commands:
    """Runs commands on a cluster of nsqds."""

    def __init__(self, nsqds: list[Nsqd], where: str) -> None:
        self.nsqds = nsqds
        self._where = where

    def run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "nsqcy", *words, self._where],
            input=stdin,
            capture_output=True,
            env=environment(),
            timeout=TIMEOUT,
        )

    def ok(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command that succeeds without a warning; return its output."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def fails(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command that fails; return its last line on stderr."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 1, done
        return done.stderr.decode().splitlines()[-1]


NUMBERS = [pytest.param(1, id="one"), pytest.param(3, id="three")]
# For commands that do not depend on how nsqds are found, or on their number.
three_nsqds = pytest.mark.parametrize("commands", NUMBERS[1:], indirect=True)


@pytest.fixture(params=NUMBERS)
def commands(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Commands]:
    count: int = request.param
    with ExitStack() as stack:
        options: dict[str, Any] = {"workers": 1, "broadcast_address": "127.0.0.1"}
        where = ""
        if count > 1:
            lookupd = stack.enter_context(Lookupd())
            options["lookupd_tcp_address"] = lookupd.tcp_address
            where = f"--lookupd-http-address=127.0.0.1:{lookupd.http_port}"
        nsqds = []
        for number in range(count):
            data = tmp_path / str(number)
            data.mkdir()
            nsqd = Nsqd(data, node_id=number, **options)
            stack.callback(nsqd.destroy)
            nsqds.append(nsqd.start())
        if count > 1:
            eventually(lambda: lookupd.web.get("/nodes").body.count(b"tcp_port") == count)
        yield Commands(nsqds, where or f"--nsqd-http-address=127.0.0.1:{nsqds[0].http_port}")


def nsqds_of(commands: Commands) -> str:
    return "1 nsqd" if len(commands.nsqds) == 1 else f"{len(commands.nsqds)} nsqds"


def test_a_topic_from_creation_to_deletion(commands: Commands) -> None:
    assert commands.ok("topic", "list") == "no topics; create one: nsqcy pub greetings hello\n"
    assert commands.ok("topic", "create", "orders").endswith(f" on {nsqds_of(commands)}\n")
    created = commands.ok("channel", "create", "orders", "billing")
    assert created == f"created channel orders/billing on {nsqds_of(commands)}\n"
    assert re.fullmatch(
        r"published 2 messages to orders on 127\.0\.0\.1:\d+\n",
        commands.ok("pub", "orders", "one", "two"),
    )
    lines = commands.ok("pub", "orders", "--lines", stdin=b"three\n\nfour\n")
    assert lines.startswith("published 2 messages")
    (topic,) = commands.json("topic", "list")
    assert (topic["topic"], topic["messages"]) == ("orders", 4)
    assert topic["channels"]["billing"]["depth"] == 4
    shown = commands.json("channel", "show", "orders", "billing")
    assert shown["depth"] == 4 and len(shown["nsqds"]) == len(commands.nsqds)
    for action, paused in (("pause", True), ("unpause", False)):
        commands.ok("channel", action, "orders", "billing")
        commands.ok("topic", action, "orders")
        topic = commands.json("topic", "show", "orders")
        assert topic["paused"] is paused
        assert topic["channels"]["billing"]["paused"] is paused
    commands.ok("channel", "empty", "orders", "billing", "--yes")
    assert commands.json("channel", "list", "orders")[0]["depth"] == 0
    commands.ok("channel", "delete", "orders", "billing", "--yes")
    assert commands.json("channel", "list", "orders") == []
    commands.ok("topic", "delete", "orders", "--yes")
    assert commands.json("topic", "list") == []
    assert commands.fails("topic", "show", "orders") == "nsqcy: no nsqd has topic orders"
    assert commands.fails("channel", "pause", "a", "b") == "nsqcy: no nsqd has channel a/b"


@three_nsqds
def test_deleting_asks_first(commands: Commands) -> None:
    commands.ok("pub", "orders", "one")
    done = commands.run("topic", "delete", "orders", stdin=b"n\n")
    assert done.returncode == 130 and b"Delete topic orders" in done.stderr
    assert len(commands.json("topic", "list")) == 1
    assert commands.run("topic", "delete", "orders", stdin=b"y\n").returncode == 0
    assert commands.json("topic", "list") == []


@three_nsqds
def test_messages_are_peeked_and_consumed(commands: Commands) -> None:
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    for body in ("first", "second", "third"):
        commands.ok("pub", "t", body, "--header", "trace=7")
    peeked = commands.json("peek", "t", "c")
    assert [each["body"] for each in peeked] == ["first", "second", "third"]
    assert {each["headers"]["trace"] for each in peeked} == {"7"}
    assert "second" in commands.ok("peek", "t", "c")
    assert commands.ok("peek", "t", "c", "--full", "--count=1") == "first\n"
    consumed = commands.ok("sub", "t", "c", "--count=3", "--json").splitlines()
    assert {json.loads(each)["body"] for each in consumed} == {"first", "second", "third"}
    assert commands.ok("peek", "t", "c") == "channel t/c has no queued messages\n"
    (body,) = commands.ok("pub", "t", stdin=b"\xff\n").splitlines()
    assert body.startswith("published 1 message ")
    assert commands.json("peek", "t", "c")[0]["body_base64"] == "/wo="


def test_sub_takes_no_more_than_it_prints(commands: Commands) -> None:
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    commands.ok("pub", "t", *map(str, range(10)))
    assert commands.ok("sub", "t", "c", "--count=3").split() == ["0", "1", "2"]
    left = [(each["body"], each["attempts"]) for each in commands.json("peek", "t", "c")]
    assert left == [(str(number), 0) for number in range(3, 10)]


@three_nsqds
def test_sub_without_a_channel_gets_copies(commands: Commands) -> None:
    commands.ok("topic", "create", "t")
    words = [sys.executable, "-m", "nsqcy", "sub", "t", commands._where]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    try:
        eventually(
            lambda: all(
                "#ephemeral" in each.web.get("/stats", format="json", topic="t").body.decode()
                for each in commands.nsqds
            )
        )
        commands.ok("pub", "t", "hello")
        assert process.stdout is not None
        assert process.stdout.readline() == b"hello\n"
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (130, b"\n")  # click ends the line after ^C


@three_nsqds
def test_deferred_messages_are_listed_and_cancelled(commands: Commands) -> None:
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    for minutes in (30, 10, 20):
        commands.ok("pub", "t", f"in {minutes}", f"--defer={minutes}m")
    listed = commands.json("deferred", "list", "t", "c")
    assert [each["size"] for each in listed] == [5, 5, 5]
    assert [each["due"] for each in listed] == sorted(each["due"] for each in listed)
    cancelled = commands.ok("deferred", "cancel", "t", "c", listed[0]["id"])
    assert cancelled == "cancelled 1 of 1 messages\n"
    left = commands.json("peek", "t", "c", "--state=deferred")
    assert sorted(each["body"] for each in left) == ["in 20", "in 30"]
    again = commands.fails("deferred", "cancel", "t", "c", listed[0]["id"])
    assert again == f"nsqcy: not a deferred message of t/c: {listed[0]['id']}"


@three_nsqds
def test_policies(commands: Commands) -> None:
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    for policy in commands.json("topic", "config", "t", "max_depth=1000").values():
        assert policy["max_depth"] == {"value": 1000, "from": "http"}
    assert "dead_letter_topic  failed" in commands.ok(
        "channel", "config", "t", "c", "dead_letter_topic=failed"
    )
    existing = commands.run("channel", "config", "t", "c", "max_attempts=3")
    misspelled = commands.run("channel", "config", "t", "d", "max_attempts=3")
    assert (existing.returncode, existing.stderr) == (0, b"")
    assert misspelled.returncode == 0
    assert misspelled.stderr.decode() == (
        "note: channel t/d does not exist yet; its policy applies once it does\n"
    )
    for policy in commands.json("topic", "config", "t", "--reset").values():
        assert policy["max_depth"]["from"] == "default"
    assert "INVALID" in commands.run("topic", "config", "t", "max_depth=x").stderr.decode()
    assert "missing unit" in commands.run("topic", "config", "t", "ttl=10").stderr.decode()


def test_a_channel_is_moved_back(commands: Commands) -> None:
    commands.ok("topic", "config", "t", "retention_time=1h")
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    commands.ok("pub", "t", "kept")
    commands.ok("sub", "t", "c", "--count=1")
    commands.ok("channel", "seek", "t", "c", "--to=-30m", "--yes")
    assert [each["body"] for each in commands.json("peek", "t", "c")] == ["kept"]
    assert [each["body"] for each in commands.json("peek", "t", "--from=-30m")] == ["kept"]
    assert "number" in commands.ok("peek", "t", "--from=earliest").splitlines()[0]
    assert (
        commands.ok("peek", "t", "--from=latest")
        == "topic t has no messages at or after that position\n"
    )
    both = commands.run("peek", "t", "c", "--from=1").stderr.decode()
    assert "--from shows TOPIC's log: omit CHANNEL" in both
    commands.ok("topic", "seek", "t", "--to=latest", "--yes")
    assert commands.json("peek", "t", "c") == []
    by_number = commands.run("channel", "seek", "t", "c", "--to=1", "--yes")
    assert by_number.returncode == (0 if len(commands.nsqds) == 1 else 2)


@three_nsqds
def test_dead_letters_are_redriven(commands: Commands) -> None:
    commands.ok("topic", "create", "failed")
    commands.ok("channel", "create", "failed", "look")
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    commands.ok("channel", "config", "t", "c", "dead_letter_topic=failed", "max_attempts=1")
    commands.ok("pub", "t", "bad")
    with Consumer("t", "c", [f"127.0.0.1:{each.tcp_port}" for each in commands.nsqds]) as consumer:
        next(iter(consumer)).requeue(0)
    eventually(lambda: commands.json("peek", "failed", "look"))
    assert commands.json("redrive", "failed", "look")["redriven"] == 1


@three_nsqds
def test_sub_leaves_messages_that_no_channel_keeps(commands: Commands) -> None:
    commands.ok("topic", "create", "old")
    commands.ok("pub", "old", "first")
    error = commands.fails("sub", "old", "--count=1")
    assert error.startswith("nsqcy: 1 message is waiting in topic old, which has no channel: ")
    assert commands.ok("sub", "old", "readers", "--count=1") == "first\n"


@three_nsqds
def test_cancel_by_key(commands: Commands) -> None:
    commands.ok("topic", "create", "later")
    commands.ok("channel", "create", "later", "mail")
    for key in ("a", "a", "b"):
        commands.ok("pub", "later", "hello", "--defer=1h", "-H", f"cancel-key={key}")
    head, *rows = commands.ok("peek", "later", "mail", "--state=deferred").splitlines()
    assert head.split() == ["time", "due", "id", "attempts", "size", "nsqd", "key", "message"]
    assert sorted(each.split()[-2] for each in rows) == ["a", "a", "b"]
    done = commands.ok("deferred", "cancel", "later", "mail", "--key=a")
    assert done == "cancelled 2 messages with key a\n"
    assert len(commands.json("deferred", "list", "later", "mail")) == 1
    again = commands.fails("deferred", "cancel", "later", "mail", "--key=a")
    assert again == "nsqcy: no deferred message of later/mail has key a"
    assert commands.run("deferred", "cancel", "later", "mail").returncode == 2


@three_nsqds
def test_redrive_one(commands: Commands) -> None:
    """peek shows the message's id, and why the message failed."""
    commands.ok("topic", "create", "failed")
    commands.ok("channel", "create", "failed", "look")
    commands.ok("topic", "create", "t")
    commands.ok("channel", "create", "t", "c")
    commands.ok("channel", "config", "t", "c", "dead_letter_topic=failed", "max_attempts=1")
    commands.ok("pub", "t", "one", "two")
    with Consumer("t", "c", [f"127.0.0.1:{each.tcp_port}" for each in commands.nsqds]) as consumer:
        for _ in range(2):
            next(iter(consumer)).requeue(0, backoff=False)
    eventually(lambda: len(commands.json("peek", "failed", "look")) == 2)
    assert "attempts in t/c: 1" in commands.ok("peek", "failed", "look")
    assert {each["attempts"] for each in commands.json("peek", "failed", "look")} == {1}
    found = {each["body"]: each["id"] for each in commands.json("peek", "failed", "look")}
    assert commands.json("redrive", "failed", "look", "--id", found["one"])["redriven"] == 1
    assert [each["body"] for each in commands.json("peek", "failed", "look")] == ["two"]


def test_a_channel_of_a_topic_that_does_not_exist(commands: Commands) -> None:
    count = nsqds_of(commands)
    assert commands.ok("channel", "create", "new", "c").splitlines() == [
        "created topic new",
        f"created channel new/c on {count}",
    ]
    assert commands.ok("channel", "create", "new", "d") == f"created channel new/d on {count}\n"


def test_ready_and_drain(commands: Commands) -> None:
    names = sorted(f"127.0.0.1:{each.http_port}" for each in commands.nsqds)
    assert commands.ok("ready").splitlines() == [f"{name} is ready" for name in names]
    assert commands.json("ready") == {name: [] for name in names}
    commands.ok("channel", "create", "t", "c")
    commands.ok("pub", "t", "hello")
    if len(names) > 1:
        for words in (("drain", "--yes"), ("drain", "--status"), ("reload",)):
            error = commands.fails(*words)
            assert error.endswith(f"set --nsqd-http-address to one of {', '.join(names)}")
        return
    (name,) = names
    left = "  t/c: 1 queued, 0 in flight, 0 deferred"
    status = commands.ok("drain", "--status").splitlines()
    assert status == [f"{name} is not draining, 1 message left", left]
    drained = commands.ok("drain", "--yes", "--within=1h").splitlines()
    assert drained == [f"{name} is draining, 1 message left", left]
    assert 3000 < commands.json("drain", "--status")["seconds_left"] <= 3600
    assert "not all nsqds are ready" in commands.fails("ready")
    assert commands.run("ready").stdout.decode().startswith(f"{name} is not ready: draining")
    assert commands.ok("drain", "--stop").startswith(f"{name} is not draining")
    commands.ok("pub", "t", "hello")
    done = commands.run("drain", "--stop", "--status")
    assert done.returncode == 2 and b"cannot be combined" in done.stderr
    commands.ok("channel", "empty", "t", "c", "--yes")
    commands.ok("drain", "--yes")
    assert commands.nsqds[0].wait() == 0


@three_nsqds
def test_pub_names_the_limit_of_a_delay(commands: Commands) -> None:
    error = commands.fails("pub", "later", "hello", "--defer=2h")
    assert "INVALID_DEFER" in error and "--max-defer-timeout" in error
    commands.ok("topic", "config", "later", "max_defer_timeout=7d")
    commands.ok("pub", "later", "hello", "--defer=3d")
    error = commands.fails("pub", "later", "hello", "--defer=7d1s")
    assert "max_defer_timeout in the topic's policy" in error


@three_nsqds
def test_pub_names_the_limit_of_a_message(commands: Commands) -> None:
    large = b"x" * (5 << 20)
    error = commands.fails("pub", "large", stdin=large)
    assert "MSG_TOO_BIG" in error and "--max-msg-size" in error
    commands.ok("topic", "config", "large", f"max_msg_size={len(large)}")
    commands.ok("pub", "large", stdin=large)
    error = commands.fails("pub", "large", stdin=large + b"x")
    assert "max_msg_size in the topic's policy" in error


def test_top_shows_the_worst_first(commands: Commands) -> None:
    for topic, count in (("calm", 1), ("long", 3)):
        commands.ok("topic", "create", topic)
        commands.ok("channel", "create", topic, "c")
        commands.ok("pub", topic, *map(str, range(count)))
    commands.ok("channel", "pause", "calm", "c")
    screen = commands.ok("top", "--interval=100ms")
    assert f"  {nsqds_of(commands)}  " in screen
    assert "channel calm/c is paused, has no consumer, and 1 message is waiting" in screen
    found = commands.json("top", "--interval=100ms")
    assert {each["kind"] for each in found["problems"]} == {"no-consumer", "paused"}
    assert [each["topic"] for each in found["channels"]] == ["long", "calm"]


def test_top_shows_an_nsqd_that_is_down(commands: Commands) -> None:
    where = [f"--nsqd-http-address=127.0.0.1:{each.http_port}" for each in commands.nsqds]
    commands.nsqds[0].kill()
    done = commands.run("top", "--interval=100ms", "--json", *where)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    problem = found["problems"][0]
    assert (problem["kind"], problem["severity"]) == ("node-unreachable", "error")
    assert problem["node"] == f"127.0.0.1:{commands.nsqds[0].http_port}"


def test_bench(commands: Commands) -> None:
    found = commands.json("bench", "--duration=300ms", "--batch=10")
    assert found["published"] == found["consumed"] > 0
    assert found["publish_errors"] == 0
    assert 0 < found["latency_ns"]["p50"] <= found["latency_ns"]["p99"]
    assert commands.ok("bench", "--duration=100ms", "--rate=100").startswith("published")


@one_worker
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_completes_names(nsqd: Any, shell: str) -> None:
    daemon = nsqd()
    daemon.web.create("orders", "billing")
    script = subprocess.run(
        [sys.executable, "-m", "nsqcy", "completion", shell],
        capture_output=True,
        env=environment(),
        text=True,
        timeout=TIMEOUT,
    )
    assert script.returncode == 0 and "_NSQCY_COMPLETE" in script.stdout
    completed = subprocess.run(
        [sys.executable, "-m", "nsqcy"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment()
        | {
            "_NSQCY_COMPLETE": "bash_complete",
            "NSQCY_NSQD_HTTP_ADDRESS": f"127.0.0.1:{daemon.http_port}",
            "COMP_WORDS": "nsqcy channel show orders b",
            "COMP_CWORD": "4",
        },
    )
    assert completed.stdout == "plain,billing\n"


def test_no_daemon_is_an_error_of_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsqcy", "topic", "list", "--nsqd-http-address=127.0.0.1:1"],
        capture_output=True,
        env=environment() | {"LC_ALL": os.environ.get("LC_ALL", "C.UTF-8")},
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "warning: nsqd 127.0.0.1:1: Connection refused\n"
        "nsqcy: no nsqd found through 127.0.0.1:1: check the address\n"
    )


def test_reload(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.ini"
    file.write_text("[nsqd]\nlog_level = info\n")
    nsqd = Nsqd(tmp_path, config=file, workers=1)
    nsqd.start()
    try:
        commands = Commands([nsqd], f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}")
        file.write_text("[nsqd]\nlog_level = debug\n")
        assert commands.ok("reload") == f"reloaded 127.0.0.1:{nsqd.http_port}\n"
        assert nsqd.web.get("/config/log_level").body == b"1"
        file.write_text("[nsqd]\nlog_level = nonsense\n")
        assert "INVALID_CONFIGURATION (see nsqd's log)" in commands.fails("reload")
        assert nsqd.web.get("/config/log_level").body == b"1"
        assert "the configuration stays unchanged" in nsqd.log_text()
    finally:
        nsqd.destroy()
