"""The commands of the runbooks, run in page order on a simulated host."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter, one_worker
from support import nsq_diskqueue
from support.nsq_diskqueue import data_file, messages, write_queue
from support.simulated_host import Host, blocks

pytestmark = pytest.mark.ours


@pytest.fixture
def host(tmp_path: Path, workers: int) -> Iterator[Host]:
    host = Host(tmp_path, workers)
    yield host
    host.end()


@one_worker
def test_replacing_nsqd_and_going_back(host: Host, nsqd: Starter) -> None:
    page = blocks("replacing-nsqd")
    assert len(page) == 10
    (host.path / "etc/nsqd.cfg").write_text('data_path = "/var/lib/nsqd"\nmem_queue_size = 1000\n')
    queues = {"t": messages(0, 20), "t:c": messages(50, 300), "u:d": messages(900, 4, attempts=1)}
    for name, its in queues.items():
        write_queue(host.data, name, its, limit=1000)
    topics = [{"name": "t", "paused": True, "channels": [{"name": "c", "paused": True}]}]
    (host.data / "nsqd.dat").write_text(json.dumps({"topics": topics, "version": "1.3.0"}))
    printed = [host.type(block) for block in page[:7]]
    assert "t:c: 300 messages to deliver" in printed[3]
    assert "import: complete; messages: 324; unreadable parts: 0" in printed[4]
    stats = printed[6]
    assert re.search(r"\*P \[t +\] depth: 20 ", stats), stats
    assert re.search(r"\*P \[c +\] depth: 300 ", stats), stats
    host.type(page[7])
    assert not list(host.data.glob("imported-go-*"))
    host.type(page[8])
    export = host.data.with_name("nsqd-export")
    assert {name: sorted(its) for name, its in nsq_diskqueue.queues(export).items()} == queues
    host.type(page[9])
    assert data_file(host.data.with_name("nsqd-nsqcy"), "t").exists() is False
    assert (host.data.with_name("nsqd-nsqcy") / "t.topic").is_dir()
    host.web.await_counts("t", "c", depth=300)


@one_worker
def test_checking_data(host: Host) -> None:
    """A record is damaged after a clean exit: its position is reported, and the rest is
    delivered."""
    stop, as_json, keep, compare, again, start = blocks("checking-data")
    host.type("systemctl start nsqd")
    host.web.create("t", "c")
    host.web.mpub("t", [b"message %d" % number for number in range(100)])
    printed = host.type(stop, failing=True)
    assert "t: 100 records, seqs 1 to 100" in printed and "written by a clean exit" in printed
    assert "exit code" not in printed
    (segment,) = host.data.glob("t.topic/*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"message 50")] ^= 1
    segment.write_bytes(content)
    printed = host.type(again, failing=True)
    assert "damaged record of 56 bytes, seq 51\n" in printed
    assert "channel c: depth 100, deferred 0; 1 of them lost\n" in printed
    assert "exit code 1" in printed
    assert "exit code 1" in host.type(as_json, failing=True)
    report = json.loads(host.data.with_name("nsqd-check.json").read_text())
    assert report["topics"][0]["channels"][0]["lost"] == 1
    host.type(keep)
    assert (
        segment.read_bytes()
        == (host.data.with_name("nsqd-before") / "t.topic" / segment.name).read_bytes()
    )
    host.type(start)
    host.names["TOPIC"] = "t"
    host.web.await_counts("t", "c", depth=100)
    assert "nsqd.dat" in host.type(compare)
