"""Real text through all stages: topic, archive, verify, and replay to another topic.

`NSQCY_LINES` sets the number of lines. The lines are from the standard library's Python files,
repeated as often as necessary.
"""

import os
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.nsqd_process import Nsqd
from support.spark_sources import batch

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

LINES = int(os.environ.get("NSQCY_LINES", "5000000"))
AT_ONCE = 5000

Job = Callable[..., list[dict[str, Any]]]


def lines() -> Iterator[bytes]:
    """Yield non-empty lines: nsqd rejects empty messages."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    while True:
        for path in paths:
            for line in path.read_bytes().splitlines():
                if line.strip():
                    yield line[:4096]


def ordered_bodies(daemon: Nsqd, topic: str) -> pa.Array:
    source = {"topic": topic, "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    reader = batch(source, "body")
    batches = [each for part in reader.partitions() for each in reader.read(part)]
    table = pa.Table.from_batches(batches)
    assert table.num_rows == LINES
    return table.sort_by("body")["body"]


@pytest.mark.timeout(3600)
def test_lines_are_the_same_lines(
    daemon: Nsqd, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "jobs.toml"
    config.write_text(config.read_text().partition("[archive]")[0])
    source = islice(lines(), LINES)
    conn = daemon.connect()
    while some := list(islice(source, AT_ONCE)):
        conn.mpub("lines", some)
    conn.close()
    words = ["--topic=lines", "--driver-memory=2g", "--option=maxOffsetsPerTrigger=1000000"]
    assert job("archive", *words, "--once", "--root=files")[-1]["rows"] == LINES
    assert job("verify", "--topic=lines", "--root=files")[-1]["rows"] == LINES
    done = job("replay", *words, "--root=files", "--to=again")[-1]
    assert done["rows"] == LINES
    assert ordered_bodies(daemon, "again").equals(ordered_bodies(daemon, "lines"))
