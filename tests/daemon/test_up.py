"""`nsqcy up`: one command runs all daemons, which start and stop together."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest

from nsqcy.testing.http_requests import Web, eventually
from support.etcd_process import needs_etcd
from support.nsqd_process import environment, free_port
from support.up_process import BUDGET, PORTS, Up, UpNode


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Start `nsqcy up` with these arguments: `up(*args)`."""
    made: list[Up] = []

    def start(*args: str, ports: Sequence[str] = PORTS) -> Up:
        made.append(Up(tmp_path, *args, ports=ports))
        return made[-1]

    yield start
    for each in made:
        each.destroy()


@pytest.mark.parametrize(
    "signum", [pytest.param(signal.SIGTERM, marks=pytest.mark.real_start), signal.SIGINT]
)
def test_one_life(up: Callable[..., Up], signum: int) -> None:
    both = up().serving()
    both.nsqd.create("t", "c")
    both.nsqd.pub("t", b"kept")
    producers = eventually(lambda: both.lookupd.get("/lookup", topic="t").json().get("producers"))
    where = [(each["broadcast_address"], each["tcp_port"]) for each in producers]
    assert where == [("127.0.0.1", both.tcp_port)]
    assert both.admin is not None
    assert both.admin.get("/api/topics").json() == {"topics": ["t"], "message": ""}
    assert both.admin.get("/").status == 200
    assert both.page == f"http://127.0.0.1:{both.admin.port}/"

    # Like a terminal, signal the whole group; the daemons are not in it.
    os.killpg(both.process.pid, signum)
    assert both.wait() == 0
    assert both.nothing_left()
    log = both.log()
    assert "[nsqcy up]" not in log
    closing = re.search(r"\[nsqlookupd\] .* HTTP: closing", log)
    page = re.search(r"\[nsqadmin\] .* HTTP: closing", log)
    assert page and closing and page.start() < log.index("NSQ: bye") < closing.start()

    again = up().serving()
    assert again.data == "data"
    again.nsqd.await_counts("t", "c", depth=1)


def test_options_of_nsqd_come_from_its_file_and_from_flags(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    file = tmp_path / "mine.ini"
    other = free_port()
    text = f"data_path = elsewhere\nmax_rdy_count = 7\nlookupd_tcp_address = 127.0.0.1:{other}\n"
    file.write_text("[nsqd]\n" + text)
    both = up("--config", "mine.ini", "--msg-timeout", "3s", "--nsqlookupd-log-level=error")
    both.serving()
    assert both.data == "elsewhere"
    assert (tmp_path / "elsewhere" / "nsqd.dat").exists()
    assert not (tmp_path / "data").exists()
    addresses = both.nsqd.get("/config/nsqlookupd_tcp_addresses").json()
    assert len(addresses) == 2 and f"127.0.0.1:{other}" in addresses
    assert "[nsqlookupd]" not in both.log()


def test_without_nsqadmin(up: Callable[..., Up]) -> None:
    both = up("--no-nsqadmin", ports=PORTS[:-1]).serving()
    assert both.admin is None and "nsqadmin" not in both.said()
    assert not any("nsqcy.nsqadmin.main" in each.cmdline() for each in both.family())


def test_the_page_of_nsqadmin_is_where_it_says(up: Callable[..., Up]) -> None:
    both = up("--nsqadmin-base-path", "nsq/").serving()
    assert both.admin is not None
    assert both.page == f"http://127.0.0.1:{both.admin.port}/nsq"
    assert both.admin.get("/nsq").status == 200


NAMES = ("nsqd", "nsqlookupd", "nsqadmin")


@pytest.mark.parametrize("name", NAMES)
def test_when_one_dies_all_end(up: Callable[..., Up], name: str) -> None:
    both = up().serving()
    both.child(name).kill()
    assert both.wait() == 1
    assert "[nsqcy up] " in both.log()
    assert f"FATAL: {name} was killed by SIGKILL; stopping everything\n" in both.log()
    assert not [each for each in NAMES if each != name and f"{each} was killed" in both.log()]
    eventually(both.nothing_left)


@pytest.mark.parametrize(
    "flag, name", [(PORTS[0], "nsqd"), (PORTS[2], "nsqlookupd"), (PORTS[4], "nsqadmin")]
)
def test_a_port_that_is_taken(up: Callable[..., Up], flag: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        both = up(f"{flag}={address}")
        assert both.wait() == 1
    assert f"listen tcp {address}: bind: address already in use; " in both.log()
    line = f"FATAL: {name} exited with status 1 before it was ready; stopping everything"
    assert line in both.log()
    assert both.said() == ""


def test_nobody_stays_behind_when_it_is_killed(up: Callable[..., Up]) -> None:
    both = up().serving()
    both.nsqd.create("t", "c")
    both.nsqd.pub("t", b"kept")
    both.process.kill()
    eventually(both.nothing_left, BUDGET)
    assert up().serving().nsqd.counts("t", "c")["depth"] == 1


def test_hangups_are_passed_on(up: Callable[..., Up], tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.ini").write_text(f"[{name}]\n")
    flags = ["--config", "--nsqlookupd-config", "--nsqadmin-config"]
    files = [f"{flag}={name}.ini" for flag, name in zip(flags, NAMES, strict=True)]
    both = up(*files).serving()
    for name in NAMES:
        (tmp_path / f"{name}.ini").write_text(f"[{name}]\nbogus = 1\n")
    both.process.send_signal(signal.SIGHUP)
    eventually(lambda: both.log().count("the configuration stays unchanged") == 3)
    assert not both.ended()


def test_it_can_be_stopped_before_it_is_ready(up: Callable[..., Up]) -> None:
    both = up()
    eventually(lambda: both.family() or both.ended())
    both.process.terminate()
    assert both.wait() == 0
    assert both.said() == ""
    eventually(both.nothing_left)


def test_the_demo_has_something_to_watch(up: Callable[..., Up], tmp_path: Path) -> None:
    demo = up("--demo").serving_demo()

    def channel(topic: str, channel: str) -> Any:
        return demo.nsqd.counts(topic, channel)

    eventually(lambda: channel("orders", "billing")["message_count"] > 10, BUDGET)
    eventually(lambda: channel("page-views", "analytics")["message_count"] > 10, BUDGET)
    eventually(lambda: channel("emails", "smtp")["message_count"] > 10, BUDGET)
    eventually(lambda: channel("reminders", "push")["deferred_count"] > 0, BUDGET)
    eventually(lambda: channel("payments-dead", "inspect")["depth"] > 0, BUDGET)
    assert "INFO" not in demo.log()

    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.wait() == 0
    assert demo.nothing_left()
    lines = demo.log().splitlines()  # even on a busy machine, some message is being handled
    assert [each for each in lines if "] close() waits at most" not in each] == []
    assert not Path(demo.data).exists() and not (tmp_path / "data").exists()


@pytest.mark.real_start
def test_the_demo_keeps_messages_in_a_given_directory(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    demo = up("--demo", "--data-path=mine", "--log-level=info").serving_demo()
    assert demo.data == "mine" and "INFO" in demo.log() and "saves all messages" in demo.said()
    demo.process.terminate()
    assert demo.wait() == 0
    assert (tmp_path / "mine" / "nsqd.dat").exists()


def test_the_demo_needs_http(up: Callable[..., Up]) -> None:
    demo = up("--demo", "--http-address=", ports=[each for each in PORTS if each != PORTS[1]])
    assert demo.wait() == 1
    assert "[demo] " in demo.log() and "FATAL: failed to set up the demo on nsqd: " in demo.log()
    assert demo.said() == ""


@needs_etcd
def test_nodes_keep_copies_of_each_others_messages(up: Callable[..., Up], tmp_path: Path) -> None:
    all_of_them = up("--nodes=3", "--copies-lease=2s", "--copies-timeout=2s")
    nodes = all_of_them.serving_nodes()
    assert [each.data for each in nodes] == ["data/node0", "data/node1", "data/node2"]
    eventually(lambda: len(all_of_them.lookupd.get("/nodes").json()["producers"]) == 3)

    def status() -> tuple[int, dict[str, Any]]:
        flag = f"--lookupd-http-address=127.0.0.1:{all_of_them.lookupd.port}"
        done = subprocess.run(
            [sys.executable, "-m", "nsqcy", "copies", "status", "--json", flag],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=BUDGET,
        )
        assert not done.stderr
        return done.returncode, json.loads(done.stdout)

    def published(node: UpNode) -> int:
        """Return the status, or 0 for a publish that was pending when too few copies were left."""
        try:
            return node.web.post("/pub", b"m", topic="t").status
        except HTTPException:
            return 0

    def is_whole() -> bool:
        """Query the nodes first: `status` starts an interpreter each time. A restarted node
        has different ports."""
        nodes = all_of_them.lookupd.get("/nodes").json()["producers"]
        try:
            pages = [Web(node["http_port"]).get("/copies").json() for node in nodes]
        except (OSError, HTTPException, ValueError):
            return False
        workers = [worker for page in pages for worker in page["workers"]]
        groups = [group for worker in workers for group in worker["groups"]]
        if len(nodes) < 3 or any(group.get("responding", 3) < 3 for group in groups):
            return False
        code, found = status()
        return code == 0 and len(found["nodes"]) == 3

    for node in nodes:
        eventually(lambda node=node: published(node) == 200, BUDGET)
        node.web.create("t", "c")
    eventually(is_whole, BUDGET)
    assert {group["copies"] for group in status()[1]["groups"]} == {3}

    for node in nodes[:2]:
        node.process.kill()
    eventually(lambda: published(nodes[2]) == 503, BUDGET)
    code, found = status()
    assert code == 1
    risk = "topic t: 1 of 3 copies responds, publishes are refused"
    assert [each for each in found["risks"] if each.startswith(risk)]
    eventually(is_whole, BUDGET)
    assert all_of_them.log().count("was killed by SIGKILL; restarting it in 6s") == 2

    nodes[2].web.put("/config/drain", b"true", hand_over="true")
    eventually(lambda: "node2 exited with status 0; not restarting it" in all_of_them.log(), BUDGET)

    os.killpg(all_of_them.process.pid, signal.SIGINT)
    assert all_of_them.wait() == 0
    assert all_of_them.nothing_left()
    assert "during the shutdown" not in all_of_them.log()
    for name in ("node0", "node1", "node2", "etcd"):
        assert (tmp_path / "data" / name).is_dir()
    assert (tmp_path / "data" / "copies.secret").stat().st_mode & 0o77 == 0


@needs_etcd
def test_a_node_that_lost_its_directory_starts_empty(up: Callable[..., Up], tmp_path: Path) -> None:
    """While one nsqd's directory cannot be created, the other nsqds continue."""
    cluster = up(
        "--nodes=3", "--copies-lease=2s", "--copies-timeout=2s", "--no-nsqadmin", ports=PORTS[:-1]
    )
    nodes = cluster.serving_nodes()
    lost = nodes[1]
    directory = tmp_path / lost.data
    old = json.loads((directory / "copies" / "machine.json").read_text())
    workers = lost.process.children()
    lost.process.kill()
    psutil.wait_procs(workers, BUDGET)  # the workers save their messages
    eventually(lambda: "node1 was killed by SIGKILL; restarting it in 6s" in cluster.log())
    shutil.rmtree(directory)
    directory.touch()
    failed = "node1 failed to create data-path - data/node1: file exists; restarting it in 6s"
    eventually(lambda: failed in cluster.log(), BUDGET)
    assert not cluster.ended() and nodes[0].web.get("/ready").status == 200
    directory.unlink()

    def is_complete() -> bool:
        ports = [each["http_port"] for each in cluster.lookupd.get("/nodes").json()["producers"]]
        try:
            pages = [Web(port).get("/metrics").body.decode() for port in ports]
        except (OSError, HTTPException):
            return False
        return len(pages) == 3 and all(
            'nsqd_copies_missing{worker="0"} 0' in each for each in pages
        )

    eventually(is_complete, BUDGET)
    assert json.loads((directory / "copies" / "machine.json").read_text()) != old
    os.killpg(cluster.process.pid, signal.SIGINT)
    assert cluster.wait() == 0


@needs_etcd
def test_a_node_that_cannot_start_again_does_not_stop_the_others(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    cluster = up(
        "--nodes=2", "--copies-lease=2s", "--copies-timeout=2s", "--no-nsqadmin", ports=PORTS[:-1]
    )
    nodes = cluster.serving_nodes()
    nodes[1].process.kill()
    (tmp_path / nodes[1].data / "nsqd.dat").unlink()
    (tmp_path / nodes[1].data / "nsqd.dat").mkdir()
    eventually(
        lambda: "node1 exited with status 1 before it was ready; restart" in cluster.log(), BUDGET
    )
    assert not cluster.ended() and nodes[0].web.get("/ready").status == 200


def test_nodes_need_etcd(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsqcy", "up", "--nodes=3"],
        cwd=tmp_path,
        env=environment() | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=BUDGET,
    )
    assert done.returncode == 1 and not done.stdout
    assert "FATAL: --nodes needs etcd, which is not in the PATH: install it (" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words, code, out, err",
    [
        (["--help"], 0, "Usage: nsqcy up", ""),
        (["--version"], 0, "nsqd v1.3.0", ""),
        (["data"], 2, "", "unexpected argument: data; see nsqcy up --help\n"),
        (["--bogus"], 2, "", "flag provided but not defined: -bogus; see nsqcy up --help\n"),
        (
            ["--nsqlookupd-tcp-adress=:1"],
            2,
            "",
            "flag provided but not defined: -nsqlookupd-tcp-adress;"
            " did you mean --nsqlookupd-tcp-address?\n",
        ),
        (
            ["--nsqadmin-http-addr=:1"],
            2,
            "",
            "flag provided but not defined: -nsqadmin-http-addr;"
            " did you mean --nsqadmin-http-address?\n",
        ),
        (["--no-nsqadmin", "--nsqadmin-base-path=/b"], 2, "", "--nsqadmin-base-path and --no-nsqa"),
        (["--nodes"], 2, "", "--nodes must be a number from 1 to 9\n"),
        (["--nodes=10"], 2, "", "--nodes must be a number from 1 to 9\n"),
        (["--data-path"], 2, "", "flag needs an argument: -data-path; write --data-path=STRING\n"),
        (["--config=/no/such"], 1, "", "[nsqcy up] "),
        (["--data-path=/dev/null/x"], 1, "", "[nsqcy up] "),
    ],
)
def test_words(words: list[str], code: int, out: str, err: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsqcy", "up", *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=BUDGET,
    )
    assert (done.returncode, done.stdout[: len(out)]) == (code, out)
    assert done.stderr.startswith(err) and bool(done.stderr) == bool(err)
    assert list(tmp_path.iterdir()) == []
