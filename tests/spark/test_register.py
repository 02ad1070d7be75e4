"""`register` sets the Python that Spark's workers run. In the quick start, Spark calls it
itself."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.spark import register


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from pyspark import cloudpickle

    import nsqcy.options
    import nsqcy.spark

    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    yield
    for package in (nsqcy.spark, nsqcy.options):
        cloudpickle.unregister_pickle_by_value(package)  # type: ignore[no-untyped-call]


def session(**more: Any) -> Any:
    formats: list[type] = []
    return SimpleNamespace(
        dataSource=SimpleNamespace(register=formats.append), formats=formats, **more
    )


def on(master: str) -> Any:
    return session(sparkContext=SimpleNamespace(master=master, pythonExec="python3"))


def test_with_a_local_master_workers_run_the_python_of_the_driver() -> None:
    spark = on("local[*]")
    register(spark)
    assert spark.sparkContext.pythonExec == sys.executable
    assert [each.name() for each in spark.formats] == ["nsq"]


def test_what_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    spark = on("local[*]")
    register(spark)
    assert spark.sparkContext.pythonExec == "python3"


def test_on_a_cluster_executors_have_a_python_of_their_own() -> None:
    spark = on("spark://host:7077")
    register(spark)
    assert spark.sparkContext.pythonExec == "python3"


def test_spark_connect_has_no_context() -> None:
    spark = session()
    register(spark)
    assert spark.formats
