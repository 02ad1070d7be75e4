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
