"""Archives with Spark and a real nsqd: few tests, because Spark is slow to start."""

import datetime
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from nsqcy.client import Producer
from nsqcy.pipeline import archive, checkpoint, manifests, rollup
from nsqcy.pipeline.__main__ import main
from nsqcy.pipeline.rows import GLOB
from support.archive_files import rolled_up, rows_by_glob
from support.nsqd_process import Nsqd
from support.spark_session import SECRET

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.timeout(900)]

COUNT = 5000
HOUR = 3600

Job = Callable[..., list[dict[str, Any]]]


def publish(daemon: Nsqd, count: int, topic: str = "orders") -> None:
    conn = daemon.connect()
    conn.mpub(topic, [b'{"number": %d, "note": "n"}' % n for n in range(count)])
    conn.close()


def test_from_topic_to_archive_and_back_from_crashes(
    daemon: Nsqd, job: Job, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "the [archive] {of} x"
    here = f"--root={root}"
    publish(daemon, COUNT - 1)
    daemon.connect().mpub("orders", [b"no json"])

    def seqs() -> list[int]:
        return [seq for _, seq, _ in rows_by_glob(root)]

    # everything, in batches
    said = job("archive", "--once", here)
    assert said[-1]["rows"] == COUNT
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    assert any("java" in each for each in commands) and SECRET not in " ".join(commands)
    sizes = [line["rows"] for line in said if line["event"] == "progress"]
    assert sizes == [2000, 2000, 1000]
    assert [line["behind"] for line in said if line["event"] == "progress"] == [3000, 1000, 0]
    assert seqs() == list(range(1, COUNT + 1))
    assert job("verify", here)[-1]["rows"] == COUNT

    # an earlier nsqcy, killed after it wrote the files and before it wrote their manifest
    state = manifests.hidden(root, "checkpoint")
    last = checkpoint.read(state).committed
    (written,) = manifests.hidden(root, "manifests").glob(f"*-{last:09}.json")
    written.unlink()
    for path in (state / "commits").glob(f"*{last}*"):
        path.unlink()
    (root / ".spark-staging-0").mkdir()
    publish(daemon, 10)
    said = job("archive", "--once", here)
    assert [line["text"] for line in said if line["event"] == "warning"] == [
        "removed .spark-staging-0, left by a crash"
    ]
    assert written.exists() and seqs() == list(range(1, COUNT + 11))

    # Spark's state lost its last files, so a batch is repeated with different rows
    last = checkpoint.read(state).committed
    for number in (last, last - 1):
        for path in state.glob(f"*/*{number}*"):
            path.unlink()
    publish(daemon, 20)
    assert job("archive", "--once", here)[-1]["event"] == "done"
    assert seqs() == list(range(1, COUNT + 31))
    assert job("verify", here)[-1]["problems"] == 0

    # Spark's state is lost
    shutil.rmtree(state)
    publish(daemon, 10)
    assert job("archive", "--once", here)[-1]["rows"] == 10
    assert seqs() == list(range(1, COUNT + 41))
    assert job("verify", here)[-1]["problems"] == 0

    # compacted after the end of the hours
    before = rows_by_glob(root)
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 4 * HOUR)
        done = job("compact", here)[-1]
    assert done["files_before"] >= 5 and done["files_after"] == done["hours"]
    assert rows_by_glob(root) == before
    assert job("verify", here)[-1]["rows"] == COUNT + 40
    publish(daemon, 10)
    assert job("archive", "--once", here)[-1]["rows"] == 10
    assert job("verify", here)[-1]["rows"] == COUNT + 50

    # doctor reports the job's lag
    lines = [line["text"] for line in job("doctor", f"--checkpoint={state}")]
    assert any("the job is 0 records behind" in line for line in lines)

    # the decoded rows, read by Spark
    found = spark.read.option(GLOB, "false").parquet(str(root))
    assert found.count() == COUNT + 50
    assert found.where("value.number = 27 and value._corrupt is null").count() == 1
    (bad,) = found.where("value._corrupt is not null").select("seq", "value._corrupt").collect()
    assert tuple(bad) == (COUNT, "no json")
    assert found.select("topic", "dt").distinct().first()[0] == "orders"

    # any JSON as a variant, and headers, even after compaction; UTC hours in any time zone
    zone = "--conf=spark.sql.session.timeZone=Pacific/Kiritimati"
    begun = datetime.datetime.now(datetime.UTC)
    whole = (tmp_path / "jobs.toml").read_text()
    (tmp_path / "jobs.toml").write_text(whole.partition("[archive]")[0])
    here = [f"--root={tmp_path}/variants", "--topic=variants"]
    for _ in range(2):
        publish(daemon, 19, "variants")
        with Producer(f"127.0.0.1:{daemon.tcp_port}", headers=True) as producer:
            producer.publish("variants", b'{"number": 19}', headers={"trace-id": "4bf9"})
        job("archive", "--once", "--decode=variant", zone, *here)
    hours = {manifests.hour_of(path) for path in manifests.on_disk(tmp_path / "variants")}
    ended = datetime.datetime.now(datetime.UTC)
    assert hours <= {f"topic=variants/dt={at:%Y-%m-%d}/hr={at:%H}" for at in (begun, ended)}
    number = "sum(variant_get(value, '$.number', 'int'))"
    for _ in range(2):
        found = spark.read.parquet(f"{tmp_path}/variants")
        assert found.selectExpr(number).first()[0] == 2 * 190
        assert (
            found.where(
                "headers['trace-id'] = '4bf9' and variant_get(value, '$.number', 'int') = 19"
            ).count()
            == 2
        )
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now + 4 * HOUR)
            job("compact", *here)
        assert job("verify", *here)[-1]["rows"] == 40


@pytest.mark.parametrize(("name", "sink"), [("archive", archive.Files), ("rollup", rollup.Counts)])
def test_ends_in_batches(
    name: str,
    sink: Any,
    daemon: Nsqd,
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A failure in the first batch, before Spark has written where the batch begins, and SIGTERM in
    a later one: the exit status reports both, and the next run completes the work exactly once."""
    words = [name, "--once", f"--root={tmp_path}/root"]
    words += ["--plots=no"] if name == "rollup" else []
    state = tmp_path / "root" / f"_{name}" / "checkpoint"
    write = sink.write
    publish(daemon, COUNT)

    def failing(*_: Any) -> None:
        raise OSError("killed")

    def stopped(sink: Any, frame: Any, query_id: str, number: int) -> None:
        if number:
            os.kill(os.getpid(), signal.SIGTERM)
        write(sink, frame, query_id, number)

    for broken, text, committed in (
        (failing, "OSError: killed", -1),
        (stopped, "stopped before it finished; run the command again", 0),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sink, "write", broken)
            assert main([words[0], f"--config={tmp_path}/jobs.toml", *words[1:]]) == 1
        assert capsys.readouterr().err.endswith(f"nsqcy-pipeline {name}: {text}\n")
        assert checkpoint.read(state).committed >= committed
        publish(daemon, 10)
    job(*words)
    if name == "archive":
        assert [seq for _, seq, _ in rows_by_glob(tmp_path / "root")] == list(range(1, COUNT + 21))
        assert job("verify", f"--root={tmp_path}/root")[-1]["problems"] == 0
    else:
        assert rolled_up(tmp_path / "root") == COUNT + 20
