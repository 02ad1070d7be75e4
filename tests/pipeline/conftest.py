"""Fixtures that run jobs with a real nsqd; skips tests without pyspark, pyarrow or java."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline.__main__ import main
from support.nsqd_process import Nsqd
from support.spark_requirements import pytest_collection_modifyitems, pytest_pycollect_makemodule
from support.spark_session import jvm_log, spark

Job = Callable[..., list[dict[str, Any]]]

__all__ = ["jvm_log", "pytest_collection_modifyitems", "pytest_pycollect_makemodule", "spark"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Nsqd]:
    path = tmp_path / "data"
    path.mkdir()
    daemon = Nsqd(path, workers=1, retention_time="24h", durability="os").start()
    yield daemon
    daemon.destroy()


@pytest.fixture
def job(spark: Any, daemon: Nsqd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Job:
    """Run a job, which must succeed, and return its output."""
    (tmp_path / "jobs.toml").write_text(
        f"""
        [common]
        topic = "orders"
        nsqd-tcp-address = "127.0.0.1:{daemon.tcp_port}"
        master = "local[2]"
        driver-memory = "1g"
        option = {{ maxOffsetsPerTrigger = 2000 }}
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
