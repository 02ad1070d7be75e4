"""The examples that read JSON: with a schema, and in windows with a watermark."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy import testing
from nsqcy.client import Producer
from support.nsqd_process import environment
from support.spark_requirements import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def daemon() -> Iterator[testing.Nsqd]:
    with testing.nsqd(retention_time="1h") as found:
        yield found


def publish(daemon: testing.Nsqd, topic: str, *bodies: object) -> None:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in bodies]
    with Producer(daemon.tcp_address) as producer:
        producer.multipublish(topic, [text.encode() for text in texts])


def run(daemon: testing.Nsqd, name: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    settings = {
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "NSQD_TCP_ADDRESS": daemon.tcp_address,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *words],
        env=environment() | settings,
        capture_output=True,
        text=True,
    )


def test_orders_are_parsed_and_the_rest_is_reported(daemon: testing.Nsqd) -> None:
    publish(
        daemon,
        "orders",
        {"id": 1, "country": "PT", "total": 25},
        {"id": 2, "country": "DE", "total": 5.5},
        "not JSON",
        {"id": 3, "country": "PT", "total": 0.25},
        {"id": "four"},
    )
    done = run(daemon, "spark_json.py", "orders")
    assert (done.returncode, done.stdout) == (
        0,
        "DE: 1 orders, 5.50 in total\n"
        "PT: 2 orders, 25.25 in total\n"
        "message 3 is not an order: not JSON\n"
        'message 5 is not an order: {"id": "four"}\n',
    ), done.stderr


def test_an_error_is_one_line(daemon: testing.Nsqd) -> None:
    done = run(daemon, "spark_json.py", "wrong")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(
        "nsq: topic 'wrong' not found on 1 nsqds; publish a message to it, or correct the name\n"
    )
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr


def test_a_minute_is_written_once_the_watermark_has_passed(
    daemon: testing.Nsqd, tmp_path: Path
) -> None:
    def views(*times: str) -> None:
        publish(daemon, "views", *({"page": "/", "at": f"2026-01-31T{at}Z"} for at in times))

    words = ("views", tmp_path / "views.parquet", tmp_path / "checkpoint")
    views("07:00:10", "07:01:05", "07:00:40", "07:20:00")
    done = run(daemon, "spark_windows.py", *words)
    assert (done.returncode, done.stdout) == (0, "07:00 /: 2\n07:01 /: 1\n"), done.stderr
    views("07:00:50", "07:20:30", "07:40:00")  # the first one is too late
    done = run(daemon, "spark_windows.py", *words)
    first = "07:00 /: 2\n07:01 /: 1\n"
    assert (done.returncode, done.stdout) == (0, f"{first}07:20 /: 2\n"), done.stderr
