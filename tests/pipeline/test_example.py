"""The complete example in docs/PIPELINE.md: three JVMs, one after another."""

import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from support.nsqd_process import Nsqd, environment
from support.spark_sources import batch, rows

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"


@pytest.mark.timeout(900)
def test_the_example(daemon: Nsqd, tmp_path: Path) -> None:
    ports = {
        "NSQD_TCP_PORT": str(daemon.tcp_port),
        "NSQD_HTTP_PORT": str(daemon.http_port),
        "EXAMPLE_SECONDS": "20",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env=environment() | ports,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  better\n" in done.stdout
    source = {"topic": "zen-never", "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    found = [row["body"] for row in rows(batch(source, "body"))]
    archived = ds.dataset(tmp_path / "archive", format="parquet").to_table(columns=["body"])
    expected = [body for body in archived["body"].to_pylist() if b"never" in body]
    assert expected and sorted(found) == sorted(expected)
