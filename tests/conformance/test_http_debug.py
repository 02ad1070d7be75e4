"""/debug/*, and nsqcy's replacements for Go's profiles."""

import http.client
import re
import shutil
import sys
import threading
from pathlib import Path

import pytest

from conftest import Starter, one_worker, three_workers
from nsqcy.testing.http_requests import Answer, eventually
from support.nsqd_process import Nsqd

PPROF = "/debug/pprof/"
TEXT = "text/plain; charset=utf-8"

needs_profiler = pytest.mark.skipif(
    not shutil.which("py-spy", path=str(Path(sys.executable).parent)), reason="needs py-spy"
)


@one_worker
@pytest.mark.case("HTTP-080")
def test_block_rate(shared: Nsqd) -> None:
    answer = shared.web.put("/debug/setblockrate?rate=x")
    reason = b'invalid block rate : strconv.Atoi: parsing "x": invalid syntax'
    assert (answer.status, answer.body) == (400, reason)
    assert answer.headers["content-type"] == TEXT
    assert "x-nsq-content-type" not in answer.headers
    assert shared.web.put("/debug/setblockrate").status == 400


@one_worker
@pytest.mark.case("HTTP-080")
@pytest.mark.ours
def test_two_that_crash_in_nsq(shared: Nsqd) -> None:
    for answer in (
        shared.web.put("/debug/setblockrate?rate=-10"),
        shared.web.put("/debug/setblockrate", b"rate=5"),
        shared.web.post("/debug/freememory"),
    ):
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"] == TEXT
        assert "x-nsq-content-type" not in answer.headers


@one_worker
@pytest.mark.case("HTTP-006", "HTTP-008")
def test_routes(shared: Nsqd) -> None:
    web = shared.web
    moved = web.get("/debug/pprof")
    assert (moved.status, moved.headers["location"]) == (301, PPROF)
    assert web.get("/debug/PPROF/heap").headers["location"] == PPROF + "heap"
    for name in ("allocs", "mutex", "trace"):
        answer = web.get(PPROF + name)
        assert (answer.status, answer.json()) == (404, {"message": "NOT_FOUND"})
    allowed = {
        "": "GET, OPTIONS",
        "cmdline": "GET, OPTIONS",
        "symbol": "GET, OPTIONS, POST",
        "profile": "GET, OPTIONS",
        "heap": "GET, OPTIONS",
    }
    for name, methods in allowed.items():
        answer = web.put(PPROF + name)
        assert (answer.status, answer.headers["allow"]) == (405, methods)
    assert web.get("/debug/setblockrate").headers["allow"] == "OPTIONS, PUT"
    assert web.get("/debug/freememory").headers["allow"] == "OPTIONS, POST"


@one_worker
@pytest.mark.case("LOG-02")
def test_profiles_are_not_logged(shared: Nsqd) -> None:
    answer = shared.web.get(PPROF)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'href="goroutine"' in answer.body
    assert shared.web.get(PPROF + "symbol").body == b"num_symbols: 1\n"
    assert shared.web.post(PPROF + "symbol", b"0x1").body == b"num_symbols: 1\n"
    words = shared.web.get(PPROF + "cmdline").body.split(b"\0")
    assert f"--data-path={shared.data}".encode() in words
    assert words[-1] != b""
    shared.web.get("/ping?after")
    eventually(lambda: "/ping?after" in shared.log_text())
    assert "200 GET /debug/pprof" not in shared.log_text()
    assert "200 POST /debug/pprof" not in shared.log_text()


def parts(answer: Answer) -> list[str]:
    assert (answer.status, answer.headers["content-type"]) == (200, TEXT)
    return re.split(r"(?m)^== ", answer.body.decode())[1:]


@pytest.mark.ours
def test_every_process_tells(shared: Nsqd, workers: int) -> None:
    shared.connect().sub("told", "c")
    stacks = parts(shared.web.get(PPROF + "goroutine"))
    memory = parts(shared.web.get(PPROF + "heap"))
    threads = parts(shared.web.get(PPROF + "threadcreate"))
    assert len(stacks) == len(memory) == len(threads) == workers + 1
    pids = [shared.process.pid, *shared.workers()]
    told = {int(part[: part.index("\n")].rpartition(" ")[2]) for part in stacks}
    assert told == set(pids)
    assert stacks[0].startswith("master, pid ") and "Greenlet" in stacks[0]
    assert all("Greenlet" in part for part in stacks)
    assert all("VmRSS:" in part for part in memory)
    assert all("TCP connections: " in part for part in memory[1:])
    assert all(part.split("\n")[1].strip() for part in threads)


@three_workers
@pytest.mark.ours
@needs_profiler
def test_a_profile_is_taken_while_the_worker_serves(nsqd: Starter) -> None:
    daemon = nsqd()
    link = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=60)
    link.request("GET", PPROF + "profile?seconds=2")
    taken: list[http.client.HTTPResponse] = []
    thread = threading.Thread(target=lambda: taken.append(link.getresponse()))
    thread.start()
    served = 0
    while not taken:
        daemon.web.pub("busy", b"x" * 1000)
        served += 1
    thread.join()
    assert taken[0].status == 200
    stacks = taken[0].read().decode().splitlines()
    assert stacks and all(line.rpartition(" ")[2].isdigit() for line in stacks), stacks
    assert served > 10
    link.close()


@pytest.mark.ours
def test_a_profile_has_an_end(shared: Nsqd) -> None:
    answer = shared.web.get(PPROF + "profile?seconds=301")
    assert (answer.status, answer.body) == (400, b"seconds must not exceed 300")


@pytest.mark.ours
@needs_profiler
def test_profiles_are_taken_one_at_a_time(tmp_path: Path) -> None:
    daemon = Nsqd(tmp_path, workers=1).start()
    links = [http.client.HTTPConnection("127.0.0.1", daemon.http_port) for _ in range(2)]
    for link in links:
        link.request("GET", PPROF + "profile?seconds=2")
    answers = [link.getresponse() for link in links]
    refused = (500, b"another profile is running")
    assert sorted(answer.status for answer in answers) == [200, 500]
    assert refused in [(answer.status, answer.read()) for answer in answers]
    for link in links:
        link.close()
    daemon.stop()
