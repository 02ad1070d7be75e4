"""The command as a whole, without Spark: help, invalid arguments, missing packages."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.pipeline import __main__ as command
from nsqcy.pipeline import session
from nsqcy.pipeline.__main__ import JOBS, main, terminable
from nsqcy.pipeline.options import SPARK, Options
from nsqcy.pipeline.report import Report

ROOT = Path(__file__).parents[2]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(f"  {job} " in overview for job in JOBS)
    assert main([]) == 2
    for job in JOBS:
        assert main([job, "--help"]) == 0
        assert "--config" in capsys.readouterr().out


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in [
        (["archiv"], "nsqcy-pipeline: unknown job 'archiv'; did you mean archive?"),
        (
            ["archive"],
            "nsqcy-pipeline archive: exactly one of --topic, --topics and --topics-pattern",
        ),
        (
            ["archive", "--topic=a", "--option=columns=seq,body,topic"],
            "--option columns: an archive requires log_id, timestamp",
        ),
        (
            ["archive", "--topic=a", "--decode=json"],
            "--decode=json and --schema require each other",
        ),
        (["verify", "--root=nowhere"], "nsqcy-pipeline verify: there is no archive at nowhere"),
    ]:
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_nothing_heavy_is_imported_before_a_job_runs() -> None:
    code = (
        "import sys; from nsqcy.pipeline.__main__ import main; main(['--help'])\n"
        "print({'pyspark', 'pyarrow', 'gevent'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("\nset()\n"), done.stderr


def test_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["archive", "--topic=a", f"--root={tmp_path}/a"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "nsqcy-pipeline archive: java is not on the PATH: Spark needs version 17"
    )
    assert not (tmp_path / "a").exists()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["archive", "--topic=a", f"--root={tmp_path}/a"]) == 1
    assert "java is not at JAVA_HOME" in capsys.readouterr().err


def test_without_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    for job in (["archive", "--topic=a"], ["verify"], ["compact"]):
        assert main([*job, f"--root={tmp_path}"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(' not installed: pip install "nsqcy[spark]"')


def java_that_says(folder: Path, text: str) -> str:
    folder.mkdir()
    path = folder / "java"
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    path.chmod(0o755)
    return str(path)


def test_versions_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = java_that_says(tmp_path / "old", 'openjdk version "1.8.0_402"')
    assert session.major(session.java_version(path)) == 8
    monkeypatch.setenv("PATH", str(tmp_path / "old"), prepend=os.pathsep)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(session.Missing, match=r"java 1.8.0_402 is too old: Spark needs 17"):
        session.require_spark()
    path = java_that_says(tmp_path / "new", 'openjdk version "21.0.1" 2023-10-17')
    assert session.major(session.java_version(path)) == 21
    monkeypatch.setenv("PATH", str(tmp_path / "new"), prepend=os.pathsep)
    session.require_spark()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_jvm_is_started_whole(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """If PySpark is interrupted while it starts a JVM, it loses the JVM, which would run
    forever."""
    started = []

    def start(*_: Any, **__: Any) -> None:
        signal.raise_signal(number)
        started.append(number)

    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", start)
    monkeypatch.setattr(session, "require_spark", lambda: None)
    with terminable(threading.Event()), pytest.raises(KeyboardInterrupt):
        session.make_session(Options(SPARK, {}), "archive")
    assert started == [number]


def test_what_spark_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(SPARK, {"conf": {"spark.ui.enabled": "true"}})
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    told = session.settings(options)
    assert (told["spark.driver.memory"], told["spark.ui.enabled"]) == ("2g", "true")
    # spark-submit has already set these options.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    told = session.settings(options)
    assert "spark.driver.memory" not in told and told["spark.log.level"] == "WARN"


def test_the_traceback_is_shown_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: Options, report: Report) -> int:
        raise OSError(28, "No space left on device", "/full")

    job = SimpleNamespace(HELP="fails", OPTIONS=(), run=run)
    monkeypatch.setattr(command, "load", lambda name: job)
    for flags, count in (([], 0), (["-v"], 1), (["--verbose"], 1)):
        assert main(["verify", *flags]) == 1
        err = capsys.readouterr().err
        assert err.startswith("nsqcy-pipeline verify: /full: No space left on device\n")
        assert err.count("Traceback") == count


def test_doctor_without_java_and_nsqd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["doctor", "--nsqd-tcp-address=127.0.0.1:1"]) == 1
    lines = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert lines[1].startswith("error    java is not installed")
    assert lines[-1] == "error    nsqd 127.0.0.1:1 cannot be reached: Connection refused"


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "--topic=t", "--root=s3a://AKIA:hunter2@bucket/x"],
        ["archive", "--topic=t", "--checkpoint=s3a://AKIA:hunter2@bucket/x"],
        ["archive", "--topic=t", "--lookupd-http-address=http://me:hunter2@h:1"],
        ["stats", "--nsqd-http-address=http://me:hunter2@h:1"],
        ["archive", "--topic=t", "--option=authSecrt=hunter2"],
        ["archive", "--topic=t", "--option=authSecret=hunter2", "--nsqd-tcp-address=127.0.0.1:1"],
        ["replay", "--topic=t", "--to=u", "--to-option=authSecret=hunter2", "--rate=x"],
    ],
)
def test_errors_show_no_secrets(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # the default of --root is relative to the current directory
    assert main(words) in (1, 2)
    said = "".join(capsys.readouterr())
    assert "hunter2" not in said and said.startswith(f"nsqcy-pipeline {words[0]}: ")
