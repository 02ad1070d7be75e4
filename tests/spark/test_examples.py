"""The Spark examples, in the session of the tests: a JVM takes a long time to start."""

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds
import pytest

from nsqcy import testing
from nsqcy.client import Producer
from nsqcy.pipeline.streams import SLOW
from support.spark_session import patiently

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


class Done(NamedTuple):
    status: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def daemon() -> Iterator[testing.Nsqd]:
    # An acknowledged message can be read at once.
    with testing.nsqd(retention_time="1h", durability="os") as found:
        yield found


@pytest.fixture
def run(
    spark: Any,
    jvm_log: Path,
    daemon: testing.Nsqd,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run an example to its end, and leave the session open for the next one."""
    monkeypatch.setenv("NSQD_TCP_ADDRESS", daemon.tcp_address)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def go(name: str, *words: str | Path) -> Done:
        path = str(EXAMPLES / name)
        monkeypatch.setattr(sys, "argv", [path, *map(str, words)])
        before, status = len(jvm_log.read_text()), 0
        try:
            patiently(lambda: runpy.run_path(path, run_name="__main__"))
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        if SLOW in err:
            return go(name, *words)
        return Done(status, out, jvm_log.read_text()[before:] + err)

    return go


def publish(daemon: testing.Nsqd, topic: str, *bodies: object) -> None:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in bodies]
    with Producer(daemon.tcp_address) as producer:
        producer.multipublish(topic, [text.encode() for text in texts])


def check_orders_are_parsed_and_the_rest_is_reported(
    run: Run, daemon: testing.Nsqd, tmp_path: Path
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
    done = run("spark_json.py", "orders")
    assert (done.status, done.stdout) == (
        0,
        "DE: 1 orders, 5.50 in total\n"
        "PT: 2 orders, 25.25 in total\n"
        "message 3 is not an order: not JSON\n"
        'message 5 is not an order: {"id": "four"}\n',
    ), done.stderr


def check_a_minute_is_written_once_the_watermark_has_passed(
    run: Run, daemon: testing.Nsqd, tmp_path: Path
) -> None:
    def views(*times: str) -> None:
        publish(daemon, "views", *({"page": "/", "at": f"2026-01-31T{at}Z"} for at in times))

    words = ("views", tmp_path / "views.parquet", tmp_path / "views.checkpoint")
    views("07:00:10", "07:01:05", "07:00:40", "07:20:00")
    done = run("spark_windows.py", *words)
    assert (done.status, done.stdout) == (0, "07:00 /: 2\n07:01 /: 1\n"), done.stderr
    views("07:00:50", "07:20:30", "07:40:00")  # the first view is too late
    done = run("spark_windows.py", *words)
    first = "07:00 /: 2\n07:01 /: 1\n"
    assert (done.status, done.stdout) == (0, f"{first}07:20 /: 2\n"), done.stderr


def check_two_runs_write_every_message_once(run: Run, daemon: testing.Nsqd, tmp_path: Path) -> None:
    output, checkpoint = tmp_path / "clicks.parquet", tmp_path / "clicks.checkpoint"
    for bodies in (["one", "two"], ["three"]):
        publish(daemon, "clicks", *bodies)
        done = run("parquet.py", "clicks", output, checkpoint)
        assert done.status == 0, done.stdout + done.stderr
    texts = ds.dataset(output, format="parquet").to_table(columns=["text"])["text"].to_pylist()
    assert sorted(texts) == ["one", "three", "two"]


def check_an_error_is_one_line(run: Run, daemon: testing.Nsqd, tmp_path: Path) -> None:
    done = run("spark_json.py", "wrong")
    assert (done.status, done.stdout) == (1, "")
    assert done.stderr.endswith(
        "nsq: topic 'wrong' not found on 1 nsqd; publish a message to it, or correct the name\n"
    )
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr


CHECKS = [
    check_orders_are_parsed_and_the_rest_is_reported,
    check_a_minute_is_written_once_the_watermark_has_passed,
    check_two_runs_write_every_message_once,
    check_an_error_is_one_line,
]


@pytest.mark.timeout(900)
def test_examples(run: Run, daemon: testing.Nsqd, tmp_path: Path) -> None:
    for check in CHECKS:
        check(run, daemon, tmp_path)
