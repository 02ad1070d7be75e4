"""Starts Spark for a job, with clear errors for missing requirements.

In local mode, the default, everything runs in the driver: it needs the heap, and listens only on
local addresses. Under spark-submit, its settings apply.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcy.pipeline.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("pyspark", "pyarrow")
OLDEST_JAVA = 17
INSTALL = 'pip install "nsqcy[spark]"'
SECRET = re.compile("(?i)secret|password|token|access[.]?key")  # like the names that Spark redacts
LOGGING = Path(__file__).with_name("log4j2.properties")


class Missing(Exception):
    """A requirement is not installed."""


def java() -> str | None:
    """Return the java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return shutil.which(str(Path(home, "bin", "java")))
    return shutil.which("java")


@cache
def java_version(path: str) -> str:
    """Return the version that java reports; empty if java is missing. Starts a JVM."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return found[1] if found else ""


def major(version: str) -> int:
    """17 of 17.0.15, 8 of 1.8.0_402."""
    numbers = re.findall(r"[0-9]+", version)
    if not numbers:
        return 0
    return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])


def submitted() -> bool:
    """Return whether spark-submit started this process, with a JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_packages(*names: str, extra: str = "spark") -> None:
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise Missing(f'{" and ".join(missing)} {are} not installed: pip install "nsqcy[{extra}]"')


def require_spark() -> None:
    require_packages(*PACKAGES)
    if submitted():
        return
    path = java()
    if path is None:
        where = "at JAVA_HOME" if os.environ.get("JAVA_HOME") else "on the PATH"
        raise Missing(
            f"java is not {where}: Spark needs version {OLDEST_JAVA} or newer "
            "(apt install openjdk-17-jre-headless)"
        )
    version = java_version(path)
    if version and major(version) < OLDEST_JAVA:
        raise Missing(f"java {version} is too old: Spark needs {OLDEST_JAVA} or newer")


def settings(options: Options) -> dict[str, str]:
    """Return Spark's settings. `--conf` overrides them."""
    found = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # only Spark writes INT96
        "spark.ui.showConsoleProgress": "false",
    }
    if submitted():
        found["spark.log.level"] = "WARN"  # spark-submit's default is INFO
    else:
        cores = os.cpu_count() or 1
        # When a stream is stopped, Spark parses its error recursively, which overflows Java's
        # default stack.
        found |= {
            "spark.driver.memory": options["driver-memory"],
            "spark.driver.extraJavaOptions": (
                f"-Xss4m -Dlog4j2.configurationFile={LOGGING.as_uri()}"
            ),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(cores),
        }
    return found | dict(options["conf"])


def make_session(options: Options, job: str) -> "SparkSession":
    """Return a session with `format("nsq")`. Raises Missing."""
    require_spark()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from nsqcy.spark import register
    from nsqcy.spark.failures import quiet_pyspark

    quiet_pyspark()
    builder = SparkSession.builder.appName(f"nsqcy-pipeline {job}")
    master = options["master"] or (None if submitted() else "local[*]")
    if master:
        builder = builder.master(master)
    if master and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    every = settings(options)
    for name, value in every.items():
        builder = builder.config(name, value)
    # The settings of this call are on the JVM's command line, which all users of the machine can
    # read. The JVM receives the others over a connection.
    public = SparkConf(loadDefaults=False)
    if master:
        public.setMaster(master)
    public.setAll([each for each in every.items() if not SECRET.search(each[0])])
    with signals_postponed():
        SparkContext._ensure_initialized(conf=public)
    spark = builder.getOrCreate()
    register(spark)
    return spark


@contextmanager
def signals_postponed() -> Iterator[None]:
    """Handle SIGTERM and ^C at the end. If PySpark is interrupted, it removes the directory through
    which it finds its new JVM. The JVM then does not notice that the program has exited."""
    postponed: list[int] = []
    ours = (signal.SIGINT, signal.SIGTERM)
    before = {
        each: signal.signal(each, lambda number, _: postponed.append(number)) for each in ours
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if postponed:
        signal.raise_signal(postponed[0])


def uri(path: Path) -> str:
    """Return the URI of a file or directory for Spark, which does not decode percent-encoding."""
    return f"file://{path.absolute()}"
