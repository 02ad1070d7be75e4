"""Spark's own cluster on this machine: a master and workers, each with its own executor."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil
import pyspark

from nsqcy.testing.http_requests import Web, eventually
from support.nsqd_process import environment, free_port
from support.spark_requirements import QUICK_JAVA

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0


class Standalone:
    """A cluster that runs for the duration of a context, and leaves nothing behind."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._web = free_port()
        self.url = f"spark://127.0.0.1:{free_port()}"
        # Executors have the environment of workers, without our directory, so they have no nsqcy
        # unless it is sent to them.
        self._environment = os.environ | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            "PYTHONPATH": "",
        }

    def __enter__(self) -> Self:
        here = ["--host", "127.0.0.1"]
        port = self.url.rpartition(":")[2]
        try:
            self._start("master.Master", *here, "--port", port, "--webui-port", str(self._web))
            for number in range(self._workers):
                size = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
                place = ["--work-dir", str(self._folder / f"worker{number}")]
                self._start("worker.Worker", *here, *size, *place, self.url)
            eventually(lambda: self._alive() == self._workers, START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        family = [psutil.Process(each.pid) for each in self._processes if each.poll() is None]
        family += [child for each in family for child in each.children(recursive=True)]
        for process in reversed(family):
            process.kill()
        for each in self._processes:
            each.wait()
        psutil.wait_procs(family, 30)

    def _start(self, name: str, *words: str) -> None:
        log = (self._folder / f"{name}{len(self._processes)}.log").open("w")
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *words]
        self._processes.append(
            subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        )
        log.close()

    def _alive(self) -> int:
        """Return the workers that the master lists."""
        try:
            return int(Web(self._web).get("/json/").json()["aliveworkers"])
        except (OSError, ValueError):  # it is starting
            return 0

    def log(self) -> str:
        """Return the ends of all log files."""
        paths = [*self._folder.glob("*.log"), *self._folder.glob("worker*/*/*/stderr")]
        return "\n".join(f"== {path}\n{path.read_text()[-3000:]}" for path in paths)


def bare_python(folder: Path) -> dict[str, str]:
    """Return the environment of a Python that has only pyarrow installed."""
    import pyarrow

    packages = folder / "packages"
    packages.mkdir()
    for path in Path(pyarrow.__file__).parents[1].glob("pyarrow*"):
        (packages / path.name).symlink_to(path)
    python = folder / "bare-python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    return {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


def submit(*words: str, **more: str) -> str:
    """Return the output of a program that spark-submit runs."""
    return drive(str(SPARK_HOME / "bin/spark-submit"), *words, **more)


def drive(*command: str, **more: str) -> str:
    """Return the output of a driver, which must succeed."""
    ours = {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    done = subprocess.run(
        command,
        env=environment() | ours | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
