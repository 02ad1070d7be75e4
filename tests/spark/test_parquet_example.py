"""The example that writes a topic to Parquet."""

import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from nsqcy import testing
from nsqcy.client import Producer
from support.nsqd_process import environment
from support.spark_requirements import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "parquet.py"


@pytest.mark.timeout(300)
def test_two_runs_write_every_message_once(tmp_path: Path) -> None:
    output, checkpoint = tmp_path / "clicks.parquet", tmp_path / "clicks.checkpoint"
    settings = {"JAVA_TOOL_OPTIONS": QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1"}
    with testing.nsqd(retention_time="1h") as daemon:
        for bodies in ([b"one", b"two"], [b"three"]):
            with Producer(daemon.tcp_address) as producer:
                producer.multipublish("clicks", bodies)
            done = subprocess.run(
                [sys.executable, EXAMPLE, "clicks", output, checkpoint],
                env=environment() | settings | {"NSQD_TCP_ADDRESS": daemon.tcp_address},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    texts = ds.dataset(output, format="parquet").to_table(columns=["text"])["text"].to_pylist()
    assert sorted(texts) == ["one", "three", "two"]
