"""A cluster of two workers: nsqcy is installed on all hosts, sent along in a zip, or installed only
on the driver.

This is a soak test: it starts seven JVMs, four of them at a time.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.spark.__main__ import main as pack
from support.archive_files import rows_by_glob
from support.nsqd_process import Nsqd
from support.spark_sources import batch, rows
from support.spark_standalone import Standalone, bare_python, drive, submit

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "tests" / "support" / "spark_cluster_driver.py")
COUNT = 100_000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Nsqd]:
    path = tmp_path / "nsqd"
    path.mkdir()
    daemon = Nsqd(path, workers=1, retention_time="1h", durability="os").start()
    conn = daemon.connect()
    for at in range(0, COUNT, 5000):
        conn.mpub("orders", [b"order %d" % number for number in range(at, at + 5000)])
    conn.close()
    yield daemon
    daemon.destroy()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Standalone(folder) as cluster:
        yield cluster
        print(cluster.log())


def here(daemon: Nsqd) -> dict[str, str]:
    return {"nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}


def bodies(daemon: Nsqd, topic: str) -> Counter[bytes]:
    source = here(daemon) | {"topic": topic}
    return Counter(row["body"] for row in rows(batch(source, "body")))


def archived(root: Path) -> Counter[bytes]:
    return Counter(body for _, _, body in rows_by_glob(root))


@pytest.mark.timeout(900)
def test_a_cluster(daemon: Nsqd, cluster: Standalone, tmp_path: Path) -> None:
    expected = Counter(b"order %d" % number for number in range(COUNT))
    flags = ["--master", cluster.url, "--driver-memory", "512m", "--executor-memory", "512m"]
    zipped = str(tmp_path / "nsqcy-spark.zip")
    assert pack([zipped]) == 0
    bare = bare_python(tmp_path)

    # nsqcy is importable for drivers and executors
    installed = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
    conf = [f"--conf={name}={value}" for name, value in installed.items()]
    words = [json.dumps(here(daemon)), "orders", "copies", str(tmp_path / "copies")]
    said = json.loads(submit(*flags, *conf, PROGRAM, *words).splitlines()[-1])
    assert said == {
        "batch": [COUNT, COUNT],
        "executors": 2,
        "on_driver": ["nsqcy", "nsqcy.base.core"],
        "on_executors": ["nsqcy", "nsqcy.base.core"],
    }
    assert bodies(daemon, "copies") == expected

    # nsqcy is sent in a zip: it is not installed anywhere, and nothing is compiled
    words = [json.dumps(here(daemon)), "orders", "zipped", str(tmp_path / "zipped")]
    nowhere = bare | {"PYTHONPATH": ""}
    said = json.loads(
        submit(*flags, "--py-files", zipped, PROGRAM, *words, **nowhere).splitlines()[-1]
    )
    assert (said["batch"], said["executors"]) == ([COUNT, COUNT], 2)
    assert said["on_driver"] == said["on_executors"] == ["nsqcy"]
    assert bodies(daemon, "zipped") == expected

    # a job, with nsqcy only on the driver
    job = ["archive", "--once", "--topic=orders", "--option=minPartitions=4"]
    job += [f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}"]
    program = str(ROOT / "nsqcy" / "pipeline" / "__main__.py")
    only_executors = {"PYSPARK_PYTHON": bare["PYSPARK_PYTHON"]}
    submit(*flags, program, *job, f"--root={tmp_path}/submitted", **only_executors)
    assert archived(tmp_path / "submitted") == expected

    # the same job without spark-submit
    size = ["--driver-memory=512m", "--conf=spark.executor.memory=512m"]
    words = [*job, f"--root={tmp_path}/by-itself", f"--master={cluster.url}", *size]
    drive(sys.executable, "-m", "nsqcy.pipeline", *words, **only_executors)
    assert archived(tmp_path / "by-itself") == expected
