"""Skips if pyspark, pyarrow or java is missing, and fixtures that run jobs with a real nsqd."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline.__main__ import main
from support.nsqd_process import Nsqd
from support.spark_requirements import (
    QUICK_JAVA,
    pytest_collection_modifyitems,
    pytest_pycollect_makemodule,
)

ROOT = Path(__file__).parents[2]
Job = Callable[..., list[dict[str, Any]]]

__all__ = ["pytest_collection_modifyitems", "pytest_pycollect_makemodule"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Nsqd]:
    path = tmp_path / "data"
    path.mkdir()
    daemon = Nsqd(path, workers=1, retention_time="24h", durability="os").start()
    yield daemon
    daemon.destroy()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Make Spark's worker processes import this nsqcy, and stop Spark at the end."""
    from pyspark.sql import SparkSession

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    yield
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()


@pytest.fixture
def job(session: None, daemon: Nsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Job:
    """Run a job, which must succeed, and return its output."""
    (tmp_path / "jobs.toml").write_text(
        f"""
        [common]
        topic = "orders"
        nsqd-tcp-address = "127.0.0.1:{daemon.tcp_port}"
        master = "local[2]"
        driver-memory = "1g"
        option = {{ maxOffsetsPerTrigger = 2000 }}
        [common.conf]
        "spark.sql.warehouse.dir" = "{tmp_path}/warehouse"
        "spark.hadoop.fs.s3a.secret.key" = "s3a-secret-of-the-jobs"
        [archive]
        decode = "json"
        schema = "{tmp_path}/orders.ddl"
        """
    )
    (tmp_path / "orders.ddl").write_text("number INT, note STRING")

    def run(name: str, *words: str) -> list[dict[str, Any]]:
        code = main([name, f"--config={tmp_path}/jobs.toml", *words])
        out, err = capsys.readouterr()
        assert code == 0, out + err
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    return run
