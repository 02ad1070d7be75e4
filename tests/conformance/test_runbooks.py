"""The commands of the runbooks, run in the order of the page on a host that is made up."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import goqueue
import pytest
from conftest import Starter
from daemon import environment, free_port
from goqueue import data_file, messages, write_queue
from web import Web, eventually

pytestmark = pytest.mark.ours

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

SYSTEMCTL = """\
import os, signal, subprocess, sys, time
command, service = sys.argv[1:]
assert service == "nsqd"
pidfile = {host!r} + "/pid"
if command == "start":
    with open({host!r} + "/log", "a") as log:
        daemon = subprocess.Popen({nsqd!r}, stderr=log, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, start_new_session=True)
    with open(pidfile, "w") as file:
        file.write(str(daemon.pid))
elif os.path.exists(pidfile):
    with open(pidfile) as file:
        pid = int(file.read())
    os.kill(pid, signal.SIGTERM)
    while os.path.exists(f"/proc/{{pid}}") and open(f"/proc/{{pid}}/stat").read().split()[2] != "Z":
        time.sleep(0.01)
    os.unlink(pidfile)
"""


class Host:
    """A directory that stands for /, and commands that stand for the system's."""

    def __init__(self, path: Path, workers: int) -> None:
        self.path = path
        self.data = path / "var/lib/nsqd"
        self.data.mkdir(parents=True)
        (path / "etc").mkdir()
        (path / "bin").mkdir()
        self.web = Web(free_port())
        nsqd = [sys.executable, "-m", "nsqcy.nsqd.main", f"--data-path={self.data}"]
        nsqd += ["--tcp-address=127.0.0.1:0", f"--http-address=127.0.0.1:{self.web.port}"]
        nsqd += [f"--workers={workers}"]
        self.install("nsqcy", "from nsqcy.__main__ import main; raise SystemExit(main())")
        self.install("systemctl", SYSTEMCTL.format(host=str(path), nsqd=nsqd))

    def install(self, name: str, source: str) -> None:
        file = self.path / "bin" / name
        file.write_text(f"#!{sys.executable}\n{source}\n")
        file.chmod(0o755)

    def type(self, text: str) -> str:
        """What a command prints; it must succeed."""
        text = text.replace("/var/lib", f"{self.path}/var/lib").replace("/etc", f"{self.path}/etc")
        text = text.replace(":4151", f":{self.web.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            env=environment() | {"PATH": f"{self.path}/bin:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        if "systemctl start" in text:
            eventually(self.answers)
        return done.stdout

    def answers(self) -> bool:
        try:
            return self.web.get("/ping").body == b"OK"
        except OSError:
            return False


@pytest.fixture
def host(tmp_path: Path, workers: int) -> Host:
    return Host(tmp_path, workers)


def test_replacing_nsqd_and_going_back(host: Host, nsqd: Starter) -> None:
    blocks = SHELL.findall((RUNBOOKS / "replacing-nsqd.md").read_text())
    assert len(blocks) == 10
    (host.path / "etc/nsqd.cfg").write_text('data_path = "/var/lib/nsqd"\nmem_queue_size = 1000\n')
    queues = {"t": messages(0, 20), "t:c": messages(50, 300), "u:d": messages(900, 4, attempts=1)}
    for name, its in queues.items():
        write_queue(host.data, name, its, limit=1000)
    topics = [{"name": "t", "paused": True, "channels": [{"name": "c", "paused": True}]}]
    (host.data / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))
    try:
        printed = [host.type(block) for block in blocks[:7]]
        assert "t:c: 300 messages to deliver" in printed[3]
        assert "import: complete, 324 messages, 0 places unreadable" in printed[4]
        stats = printed[6]
        assert re.search(r"\*P \[t +\] depth: 20 ", stats), stats
        assert re.search(r"\*P \[c +\] depth: 300 ", stats), stats
        host.type(blocks[7])
        assert not list(host.data.glob("imported-go-*"))
        host.type(blocks[8])
        export = host.data.with_name("nsqd-export")
        assert {name: sorted(its) for name, its in goqueue.queues(export).items()} == queues
        host.type(blocks[9])
        assert data_file(host.data.with_name("nsqd-nsqcy"), "t").exists() is False
        assert (host.data.with_name("nsqd-nsqcy") / "t.topic").is_dir()
        host.web.await_counts("t", "c", depth=300)
    finally:
        host.type("systemctl stop nsqd")


def test_checking_data(host: Host) -> None:
    """A record is damaged after a clean exit: its place is told, and the rest is delivered."""
    stop, as_json, keep, again = SHELL.findall((RUNBOOKS / "checking-data.md").read_text())
    try:
        host.type("systemctl start nsqd")
        host.web.create("t", "c")
        host.web.mpub("t", [b"message %d" % number for number in range(100)])
        printed = host.type(stop)
        assert "t: 100 records, seqs 1 to 100" in printed and "of a clean exit" in printed
        assert "exit code" not in printed
        (segment,) = host.data.glob("t.topic/*.seg")
        content = bytearray(segment.read_bytes())
        content[content.index(b"message 50")] ^= 1
        segment.write_bytes(content)
        printed = host.type(again.partition("\n")[0])
        assert "damaged record of 56 bytes, seq 51\n" in printed
        assert "channel c: depth 100, deferred 0; of these lost: 1\n" in printed
        assert "exit code 1" in printed
        assert "exit code 1" in host.type(as_json)
        report = json.loads(host.data.with_name("nsqd-check.json").read_text())
        assert report["topics"][0]["channels"][0]["lost"] == 1
        host.type(keep)
        assert (
            segment.read_bytes()
            == (host.data.with_name("nsqd-before") / "t.topic" / segment.name).read_bytes()
        )
        host.type(again)
        host.web.await_counts("t", "c", depth=100)
    finally:
        host.type("systemctl stop nsqd")
