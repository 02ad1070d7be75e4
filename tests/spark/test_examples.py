"""The Spark examples, run one after the other by a single process: a JVM takes long to start."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.dataset as ds
import pytest

from nsqcy import testing
from nsqcy.client import Producer
from support.nsqd_process import environment
from support.spark_requirements import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"
# Runs each program that a line of stdin names, and prints its exit status as the last line.
PROGRAM = """
import json, runpy, sys
for line in sys.stdin:
    sys.argv = json.loads(line)
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    print(f"[{status}]", flush=True)
"""


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


class Driver:
    """The process that runs the examples, with the addresses that they read."""

    def __init__(self, daemon: testing.Nsqd, folder: Path) -> None:
        self._log = folder / "stderr"
        settings = {
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
            "NSQD_TCP_ADDRESS": daemon.tcp_address,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=environment() | settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, name: str, *words: str | Path) -> Done:
        assert self._process.stdin is not None and self._process.stdout is not None
        before = len(self._log.read_text())
        print(json.dumps([str(EXAMPLES / name), *map(str, words)]), file=self._process.stdin)
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("["):
                return Done(int(line.strip("[]\n")), "".join(lines), self._log.read_text()[before:])
            lines.append(line)
        raise AssertionError(self._log.read_text())

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def daemon() -> Iterator[testing.Nsqd]:
    with testing.nsqd(retention_time="1h") as found:
        yield found


@pytest.fixture
def driver(daemon: testing.Nsqd, tmp_path: Path) -> Iterator[Driver]:
    found = Driver(daemon, tmp_path)
    yield found
    found.end()


def publish(daemon: testing.Nsqd, topic: str, *bodies: object) -> None:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in bodies]
    with Producer(daemon.tcp_address) as producer:
        producer.multipublish(topic, [text.encode() for text in texts])


def check_orders_are_parsed_and_the_rest_is_reported(
    driver: Driver, daemon: testing.Nsqd, tmp_path: Path
) -> None:
    publish(
        daemon,
        "orders",
        {"id": 1, "country": "PT", "total": 25},
        {"id": 2, "country": "DE", "total": 5.5},
        "not JSON",
        {"id": 3, "country": "PT", "total": 0.25},
        {"id": "four"},
    )
    done = driver.run("spark_json.py", "orders")
    assert (done.status, done.stdout) == (
        0,
        "DE: 1 orders, 5.50 in total\n"
        "PT: 2 orders, 25.25 in total\n"
        "message 3 is not an order: not JSON\n"
        'message 5 is not an order: {"id": "four"}\n',
    ), done.stderr


def check_a_minute_is_written_once_the_watermark_has_passed(
    driver: Driver, daemon: testing.Nsqd, tmp_path: Path
) -> None:
    def views(*times: str) -> None:
        publish(daemon, "views", *({"page": "/", "at": f"2026-01-31T{at}Z"} for at in times))

    words = ("views", tmp_path / "views.parquet", tmp_path / "views.checkpoint")
    views("07:00:10", "07:01:05", "07:00:40", "07:20:00")
    done = driver.run("spark_windows.py", *words)
    assert (done.status, done.stdout) == (0, "07:00 /: 2\n07:01 /: 1\n"), done.stderr
    views("07:00:50", "07:20:30", "07:40:00")  # the first one is too late
    done = driver.run("spark_windows.py", *words)
    first = "07:00 /: 2\n07:01 /: 1\n"
    assert (done.status, done.stdout) == (0, f"{first}07:20 /: 2\n"), done.stderr


def check_two_runs_write_every_message_once(
    driver: Driver, daemon: testing.Nsqd, tmp_path: Path
) -> None:
    output, checkpoint = tmp_path / "clicks.parquet", tmp_path / "clicks.checkpoint"
    for bodies in (["one", "two"], ["three"]):
        publish(daemon, "clicks", *bodies)
        done = driver.run("parquet.py", "clicks", output, checkpoint)
        assert done.status == 0, done.stdout + done.stderr
    texts = ds.dataset(output, format="parquet").to_table(columns=["text"])["text"].to_pylist()
    assert sorted(texts) == ["one", "three", "two"]


def check_an_error_is_one_line(driver: Driver, daemon: testing.Nsqd, tmp_path: Path) -> None:
    """This comes last: a program that fails leaves its session to the next one."""
    done = driver.run("spark_json.py", "wrong")
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.endswith(
        "nsq: topic 'wrong' not found on 1 nsqds; publish a message to it, or correct the name\n"
    )
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr


CHECKS = [
    check_orders_are_parsed_and_the_rest_is_reported,
    check_a_minute_is_written_once_the_watermark_has_passed,
    check_two_runs_write_every_message_once,
    check_an_error_is_one_line,
]


@pytest.mark.timeout(900)
def test_examples(driver: Driver, daemon: testing.Nsqd, tmp_path: Path) -> None:
    for check in CHECKS:
        check(driver, daemon, tmp_path)
