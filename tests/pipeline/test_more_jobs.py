"""Jobs that read a topic's log, with Spark and a real nsqd: a single test for all of them."""

import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from nsqcy.pipeline import publishing_plan
from nsqcy.pipeline.__main__ import main
from nsqcy.testing.http_requests import eventually
from support.archive_files import LOG, HandmadeArchive
from support.nsqd_process import Nsqd
from support.spark_sources import batch, rows

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.timeout(900)]

Job = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Nsqd]:
    path = tmp_path / "data"
    path.mkdir()
    daemon = Nsqd(path, workers=1, retention_time="1h", durability="os", events=True).start()
    yield daemon
    daemon.destroy()


def bodies(daemon: Nsqd, topic: str) -> Counter[bytes]:
    source = {"topic": topic, "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    return Counter(row["body"] for row in rows(batch(source, "body")))


def test_jobs(
    daemon: Nsqd,
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    replayed(daemon, job, tmp_path, monkeypatch, capsys)
    rolled_up(daemon, job, tmp_path)
    dead_letters(daemon, job)


def replayed(
    daemon: Nsqd,
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemon.connect().mpub("orders", [b"%d" % n for n in range(2500)])
    odd = Counter(b"%d" % n for n in range(1, 2000, 2))
    number = "cast(cast(body as string) as int)"
    where = f"--where={number} % 2 = 1 and {number} < 2000"  # no row of the last round matches
    assert job("replay", where, "--dry-run")[-1]["rows"] == 1000

    # the driver dies after publishing a round, before recording it
    words = ["replay", where, "--to=again", "--round-rows=800"]
    save = publishing_plan.save

    def dying(path: Path, plan: publishing_plan.Plan) -> None:
        if plan.done == 2:
            raise OSError("killed")
        save(path, plan)

    with monkeypatch.context() as patch:
        patch.setattr(publishing_plan, "save", dying)
        assert main([words[0], "--config=jobs.toml", *words[1:]]) == 1
        assert "killed" in capsys.readouterr().err
    assert bodies(daemon, "again").total() == 800
    daemon.connect().mpub("orders", [b"later"])
    said = job(*words)
    assert said[0]["done"] == 1
    assert said[-1]["rows"] == 1000
    assert bodies(daemon, "again") == odd
    assert job(*words)[-1]["rows"] == 1000  # the replay is already complete
    assert bodies(daemon, "again") == odd

    # replay a part of an archive
    archive = HandmadeArchive(tmp_path / "archive")
    archive.batch({LOG: range(1, 101)}, "dt=2026-01-31/hr=07")
    archive.batch({LOG: range(101, 111)}, "dt=2026-01-31/hr=08")
    words = ["replay", "--root=archive", "--to=from-files"]
    assert job(*words, "--end=2026-01-31T07:30:00", "--tasks=1")[-1]["rows"] == 100
    assert list(bodies(daemon, "from-files")) == [b"body %d" % n for n in range(1, 101)]


def rolled_up(daemon: Nsqd, job: Job, tmp_path: Path) -> None:
    """Roll up the same topic and a consumer's progress in it."""
    conn = daemon.connect().sub("orders", "c", rdy=100)
    message = conn.message()
    conn.req(message)
    conn.take(20)
    daemon.web.await_counts("orders", "c", requeue_count=1, in_flight_count=100, depth=2381)
    eventually(lambda: daemon.web.stats()["events"]["published"] >= 21)
    words = ["rollup", "--events", "--once", "--plots=no", "--root=sums"]
    done = job(*words)[-1]
    assert (done["rows"], done["late"]) == (2501 + 21, 0)

    def totals() -> tuple[int, int, int, int]:
        topics = ds.dataset("sums/topics").to_table()
        channels = ds.dataset("sums/channels").to_table()
        return tuple(
            pc.sum(column).as_py()
            for column in (
                topics["count"],
                topics["bytes"],
                channels["finished"],
                channels["requeued"],
            )
        )

    size = sum(len(b"%d" % n) for n in range(2500)) + len(b"later")
    assert totals() == (2501, size, 20, 1)
    daemon.connect().mpub("orders", [b"12345"] * 10)
    assert job(*words)[-1]["rows"] == 10
    assert totals() == (2511, size + 50, 20, 1)


def dead_letters(daemon: Nsqd, job: Job) -> None:
    """Check dead letters that nsqd has created: list them, and republish them."""
    policy = {"max_attempts": 1, "dead_letter_topic": "dead"}
    daemon.web.create("bills", "c")
    answer = daemon.web.put(
        "/channel/config", json.dumps(policy).encode(), topic="bills", channel="c"
    )
    assert answer.status == 200, answer.body
    for number in range(3):
        publish_with_header(daemon, "bills", b"bill %d" % number, str(number))
    conn = daemon.connect()
    conn.identify(client_id="worker-7")
    conn.sub("bills", "c", rdy=3)
    for message in conn.messages(3):
        conn.req(message)
    daemon.connect().pub("dead", b"no letter")
    daemon.web.await_counts("dead", message_count=4)
    said = job("dlq", "--topic=dead", "--where=attempts is null or origin_channel = 'c'")
    (group,) = [line for line in said if "letters" in line and line["event"] == "line"]
    assert (group["letters"], group["most_attempts"], group["reason"]) == (3, 1, "attempts")
    assert (group["origin_channel"], group["last_client"]) == ("c", "worker-7")
    assert "1 messages in the topic are not dead letters" in [line.get("text") for line in said]
    words = ["--topic=dead", "--republish=bills-again", "--where=body != 'bill 1'"]
    assert job("dlq", *words)[-1]["rows"] == 2
    source = {"topic": "bills-again", "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    found = rows(batch(source | {"columns": "body,headers"}, "body", "headers"))
    assert sorted((row["body"], row["headers"]) for row in found) == [
        (b"bill 0", [("trace", "0")]),
        (b"bill 2", [("trace", "2")]),
    ]


def publish_with_header(daemon: Nsqd, topic: str, body: bytes, value: str) -> None:
    url = f"http://127.0.0.1:{daemon.http_port}/pub?topic={topic}"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"X-Nsq-Trace": value})):
        pass
