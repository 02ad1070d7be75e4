"""A failure of a query as one line."""

import logging
from pathlib import Path

import pytest

from nsqcy.spark.failures import one_line_errors, reason


def test_one_line_of_a_long_story() -> None:
    long = (
        "Job aborted\n  Traceback\n nsqcy.spark.errors.DataLoss: nsq: rows are lost: 5\nJVM stack"
    )
    assert reason(Exception(long)) == "nsq: rows are lost: 5"
    python = (
        "[FOREACH] An error occurred\nTraceback (most recent call last):\n  File\n{}\n\tat org.x: 5"
    )
    damaged = python.format("nsqcy.pipeline.manifests.Damaged: batch a.b has no rows")
    assert reason(Exception(damaged)) == "batch a.b has no rows"
    full = python.format("OSError: [Errno 28] No space left on device: 'x.y'")
    assert reason(Exception(full)) == "OSError: [Errno 28] No space left on device: 'x.y'"
    assert reason(Exception("one\ntwo")) == "one"
    assert reason(ValueError()) == "ValueError"


STREAM = "[STREAM_FAILED] Query [id = 1a-6f, runId = 9e-00] terminated with exception: "
PLAN = """
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1a-6f, runId = 9e-00]
Current State: ACTIVE
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{STREAM}[FOREACH_BATCH] Reason: Traceback (most recent call last):\n"
            f'  File "a.py", line 9, in f\n    raise ValueError("bad")\nValueError: bad{PLAN}',
            "ValueError: bad",
        ),
        (
            f"{STREAM}[FOREACH_BATCH] Reason: Traceback (most recent call last):\n"
            '  File "a.py", line 9, in f\n'
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1966.parquet.\n"
            ": org.apache.spark.SparkException: Job aborted\n\tat org.x(Y.java:3)\n"
            "Caused by: org.apache.spark.SparkException: Task failed while writing rows.\n\tat x\n"
            f"Caused by: java.io.IOException: No space left on device\n\tat x{PLAN}",
            "No space left on device",
        ),
        (
            f"{STREAM}[USER_RAISED_EXCEPTION] bad row SQLSTATE: P0001{PLAN}",
            "[USER_RAISED_EXCEPTION] bad row",
        ),
        (
            "An error occurred while calling o66.start.\n"
            ": java.io.IOException: mkdir of file:/full failed\n\tat org.x(Y.java:3)\n",
            "mkdir of file:/full failed",
        ),
        (
            "An error occurred while calling o66.start.\n: java.lang.StackOverflowError\n\tat x",
            "java.lang.StackOverflowError",
        ),
        (
            "[UNRESOLVED_COLUMN] There is no column a. SQLSTATE: 42703; line 1 pos 0;\n'Filter",
            "[UNRESOLVED_COLUMN] There is no column a.",
        ),
    ],
)
def test_what_spark_raises(text: str, line: str) -> None:
    assert reason(Exception(text)) == line


def test_a_file_is_named() -> None:
    with pytest.raises(OSError) as caught:
        Path("/no/such/file").read_text()
    assert reason(caught.value) == "/no/such/file: No such file or directory"


def test_an_error_ends_the_program_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise ValueError("Job aborted\n nsqcy.spark.errors.NoTopic: nsq: no such topic\n\tat org.x")
    assert caught.value.code == 1
    assert capsys.readouterr().err == "nsq: no such topic\n"


def test_the_traceback_follows_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), one_line_errors(verbose=True):
        raise ValueError("nsq: no such topic")
    first, second, *_, last = capsys.readouterr().err.splitlines()
    assert (first, last) == ("nsq: no such topic", "ValueError: nsq: no such topic")
    assert second.startswith("Traceback")


def test_success_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with one_line_errors():
        pass
    assert capsys.readouterr().err == ""


def test_pyspark_does_not_log_what_it_raises() -> None:
    with one_line_errors():
        assert not logging.getLogger("SQLQueryContextLogger").isEnabledFor(logging.ERROR)
