"""One Spark session for all tests of a process: a JVM takes a long time to start.

The job `nsqcy-pipeline` finds this session, like any program in a process with a session.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from nsqcy.pipeline.options import SPARK, Options
from nsqcy.pipeline.session import make_session
from nsqcy.pipeline.streams import SLOW
from support.spark_requirements import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
SECRET = "s3a-secret-of-the-jobs"


@pytest.fixture(scope="session")
def jvm_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that Spark logs to."""
    return tmp_path_factory.mktemp("jvm") / "stderr"


@pytest.fixture(scope="session")
def spark(jvm_log: Path) -> Iterator["SparkSession"]:
    given = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(jvm_log.parent / "warehouse"),
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }
    options = Options(SPARK, {"master": "local[2]", "driver-memory": "1g", "conf": given})
    stderr = os.dup(2)
    with pytest.MonkeyPatch.context() as patch, jvm_log.open("w") as log:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        os.dup2(log.fileno(), 2)
        try:
            session = make_session(options, "tests")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    yield session
    session.stop()


def patiently(run: Callable[[], Result]) -> Result:
    """Run a stream; rerun it if the worker of its source has not started within the ten seconds
    that Spark gives it: a busy machine may take longer."""
    while True:
        try:
            return run()
        except Exception as error:
            if SLOW not in str(error):
                raise


def to_its_end(start: Callable[[], Any]) -> Any:
    """Start a stream with `availableNow`, and return its query once it has ended."""

    def run() -> Any:
        query = start()
        assert query.awaitTermination(200)
        return query

    return patiently(run)
