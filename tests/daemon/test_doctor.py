"""`nsqcy doctor` with a real cluster: its findings, as text and as JSON, and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy.cli.main import main
from nsqcy.doctor import look_config, report, speed
from nsqcy.doctor import main as command
from nsqcy.doctor.main import look_and_judge
from nsqcy.testing import certificates
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import environment
from support.nsqlookupd_process import Lookupd


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsqcy", "doctor", *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], Any]:
    """Return the findings by check and level, with at most one for each pair, except the free space
    of the disk on which the tests run."""
    assert not done.stderr
    told = json.loads(done.stdout)
    assert told["exit_code"] == done.returncode
    shown = [each for each in told["findings"] if each["check"] != "disks"]
    return {(each["check"], each["level"]): each for each in shown}


def test_a_cluster_with_something_of_everything(starter: Starter, tmp_path: Path) -> None:
    old = certificates.make("old", expired=True).save(tmp_path)
    with Lookupd() as lookupd, Lookupd() as lacking:
        where = {"broadcast_address": "127.0.0.1", "lookupd_tcp_address": lookupd.addresses["TCP"]}
        nsqd = starter(workers=1, **where, **old.options)
        for topic in ("t", "dead"):
            nsqd.web.do("create", topic)
            nsqd.web.post("/pub", b"body", topic=topic)
        nsqd.web.do("create", "t", "c")
        nsqd.web.put("/channel/config", b'{"dead_letter_topic": "dead"}', topic="t", channel="c")
        nsqd.web.put("/topic/config", b'{"max_depth": 1}', topic="t")
        eventually(lambda: set(lookupd.web.get("/topics").json()["topics"]) == {"t", "dead"})
        lookupd.web.do("create", "ghost")

        at = [f"--lookupd-http-address={each.http_address}" for each in (lookupd, lacking)]
        done = doctor(*at, "--host=false", "--sample=10ms", "--json", "--quiet")
        assert done.returncode == 1
        told = findings(done)
        assert told.keys() == {
            ("agreement", "error"),
            ("agreement", "warning"),
            ("certificates", "error"),
            ("ghost-topics", "warning"),
            ("idle-channels", "warning"),
            ("dead-letters", "warning"),
            ("limits", "error"),
        }
        assert all(each["advice"] for each in told.values())
        assert (
            f"nsqd 127.0.0.1:{nsqd.http_port}, at 127.0.0.1:{nsqd.tcp_port}, expired 1 day ago"
            in told["certificates", "error"]["text"]
        )
        assert "ghost" in told["ghost-topics", "warning"]["text"]

        lacking.kill()
        done = doctor(*at, "--host=false", "--sample=0", "--json", "--quiet")
        assert "Connection refused" in findings(done)["lookupds", "error"]["text"]


def test_a_lost_nsqd(starter: Starter) -> None:
    """The lost nsqd's topics may be on its disk, so doctor does not advise deleting them."""
    with Lookupd() as lookupd:
        where = {"broadcast_address": "127.0.0.1", "lookupd_tcp_address": lookupd.addresses["TCP"]}
        lost, other = (starter(workers=1, **where) for _ in range(2))
        for nsqd, topic in ((lost, "only-there"), (other, "t")):
            nsqd.web.do("create", topic)
        eventually(lambda: len(lookupd.web.get("/topics").json()["topics"]) == 2)
        at = f"--lookupd-http-address={lookupd.http_address}"
        words = [at, "--host=false", "--sample=0", "--json", "--quiet"]
        assert doctor(*words).returncode == 0
        lost.kill()
        eventually(lambda: len(lookupd.nodes()) == 1)
        done = doctor(*words)
        told = findings(done)
        assert done.returncode == 1
        text = f"nsqd 127.0.0.1:{lost.http_port} is lost: it was registered with nsqlookupd "
        assert told["nsqds", "error"]["text"].startswith(text)
        ghosts = told["ghost-topics", "warning"]
        assert "only-there" in ghosts["text"] and ghosts["advice"].startswith("do not delete them")


def test_a_message_that_always_fails(nsqd: Starter) -> None:
    daemon = nsqd()
    consumer = daemon.connect().sub("t", "c", rdy=1)
    daemon.web.post("/pub", b"body", topic="t")
    for _ in range(speed.MANY_ATTEMPTS):
        message = consumer.message()
        consumer.req(message)
    consumer.message()
    at = f"--nsqd-http-address=127.0.0.1:{daemon.http_port}"
    done = doctor(at, "--host=false", "--sample=0", "--json", "--fail-on=warning")
    told = findings(done)["poison-messages", "warning"]["text"]
    name = message.id.decode()
    attempts = speed.MANY_ATTEMPTS + 1
    assert told == (
        f"message {name} of channel t/c has had {attempts} attempts, the most in this channel"
    )
    assert done.returncode == 1


def test_a_cluster_named_by_the_environment(nsqd: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = nsqd(broadcast_address="127.0.0.1", lookupd_tcp_address="127.0.0.1:1")
    monkeypatch.setenv("NSQCY_NSQD_HTTP_ADDRESS", f"127.0.0.1:{daemon.http_port}")
    done = doctor("--host=false", "--sample=0")
    assert done.returncode == 1
    text = f"nsqd 127.0.0.1:{daemon.http_port} cannot register with nsqlookupd 127.0.0.1:1"
    assert f"error    registration: {text}\n" in done.stdout
    summary = r"^\d+ ok,( 1 warning,)? 1 error\nnothing to check: .*\bcopies\b"
    assert re.search(summary, done.stdout, re.M)


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_config, "USUAL_LOOKUPD", "127.0.0.1:1")
    monkeypatch.setattr(look_config, "USUAL_NSQD", "127.0.0.1:1")
    assert main(["doctor", "--host=false", "--quiet"]) == 1  # no other check applies
    facts = look_and_judge(command.doctor.make_context("doctor", ["--sample=0"]).params)
    levels = {each.finding.level for each in facts if each.check in ("nsqds", "lookupds")}
    assert levels == {"note"}


def test_a_host(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.ini"
    config.write_text(
        f"[nsqd]\ndata_path = {tmp_path}\ntcp_address = 127.0.0.1:0\nhttp_address =\n"
    )
    done = doctor(f"--config={config}", "--cluster=false")
    assert done.returncode == 0 or "error    " in done.stdout
    assert f"ok       config: {config}: valid for nsqd; options set: 3\n" in done.stdout
    assert f"ok       data-path: {tmp_path} is writable\n" in done.stdout
    assert os.listdir(tmp_path) == ["nsqd.ini"]

    config.write_text("[nsqd]\ndata_pith = x\n")
    done = doctor(f"--config={config}", "--cluster=false", "--quiet")
    assert done.returncode == 1
    assert "error    config: " in done.stdout
    assert 'line 2: unknown key "data_pith"; did you mean data_path?' in done.stdout


def test_a_command_line_that_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    for word, text in {
        "--nsqd-http-address=foo": "--nsqd-http-address: ",
        "--daemon=redis": "--daemon is 'redis': expected one of nsqd, nsqlookupd, nsqadmin",
        "word": "got unexpected extra argument (word)",
        "--timeout=0": "--timeout is '0': expected > 0",
    }.items():
        assert main(["doctor", word]) == 2
        out, err = capfd.readouterr()
        assert not out and err.startswith(f"nsqcy doctor: {text}")
    for word in ("-help", "--help", "-h"):
        assert main(["doctor", word]) == 0
        out, err = capfd.readouterr()
        assert out.startswith("Usage: nsqcy doctor [OPTIONS]\n") and not err
    assert main(["doctor", "--checks"]) == 0
    assert capfd.readouterr().out == report.list_of_checks()


def test_watching(starter: Starter) -> None:
    """Each round prints new and resolved findings, until ^C."""
    nsqd = starter()
    nsqd.web.post("/pub", b"body", topic="t")
    words = [
        f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}",
        "--host=false",
        "--sample=0",
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "nsqcy", "doctor", *words, "--watch=50ms", "--fail-on=warning"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None

        def changed(way: str) -> list[str]:
            assert process.stdout is not None
            found = [each["check"] for each in json.loads(process.stdout.readline())[way]]
            return [each for each in found if each != "disks"]

        assert changed("new") == ["unread-topics"]
        nsqd.web.do("create", "t", "c")
        assert changed("gone") == ["unread-topics"]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(10) == 1, "a message is still waiting"
    finally:
        process.kill()
        process.wait()
