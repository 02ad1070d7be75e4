"""Errors that jobs report before they start Java."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.pipeline import ddl, dlq, replay, streams
from nsqcy.pipeline.__main__ import main
from support.archive_files import LOG
from support.fake_log_nsqd import FakeTopic, LogBroker

VALID = [
    "a INT",
    "a INT, b STRING",
    "`a b` int NOT NULL COMMENT 'the, first', c decimal(10, 2)",
    "a STRUCT<b: ARRAY<MAP<STRING, STRUCT<c INT, d: DOUBLE>>>, e timestamp_ntz>, f binary",
    "s string collate UTF8_LCASE, v variant, t time(3), i interval day to second",
    "1a INT, `größe` long",
]
INVALID = [
    ("a INTT", "column a has the unknown type 'INTT'; did you mean int"),
    ("a", "column a has no type"),
    ("a INT, STRUCT<b INT,>", "column STRUCT has no type"),
    ("a STRUCT<b INT,>", "expected the name of a column, found '>'"),
    ("a: INT", "column a has no type"),
    ("größe INT", "expected the name of a column, found 'größe'; write it as `größe`"),
    ("a INT b, STRING", "column STRING has no type"),
    ("a ARRAY", "expected '<' after ARRAY, found the end"),
    ("a ARRAY<INT", "expected '>' after the types of ARRAY, found the end"),
    ("a MAP<STRING>", "expected ',' after the first type of MAP, found '>'"),
    ("a STRUCT<b>", "column b has no type"),
    ("a INT>", "unexpected '>'"),
    ('{"type": "struct"}', "expected the name of a column, found '{'"),
]


@pytest.fixture
def nsqd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LogBroker]:
    """An nsqd; a job that starts Spark fails."""

    def started(*_: object) -> None:
        raise AssertionError("Spark has started")

    for module in (streams, replay, dlq):
        monkeypatch.setattr(module, "make_session", started)
    monkeypatch.chdir(tmp_path)
    nsqd = LogBroker()
    yield nsqd
    nsqd.close()


@pytest.mark.parametrize(
    "job",
    ["archive --once", "rollup --once --plots=no", "replay --to=b", "replay --dry-run", "dlq"],
)
def test_a_topic_that_does_not_exist(
    job: str, nsqd: LogBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*job.split(), "--topic=wrods", f"--nsqd-tcp-address={nsqd.address}"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "nsq: topic 'wrods' not found on 1 nsqd" in said


@pytest.mark.parametrize(
    "job", ["archive", "archive --once", "rollup --once --plots=no", "replay --to=b", "dlq"]
)
def test_an_nsqd_on_a_copy_of_a_disk(
    job: str, nsqd: LogBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = LogBroker()
    try:
        for number, each in enumerate((nsqd, copy)):
            each.topics["t"] = FakeTopic(LOG, 3 + number)
        one, other = sorted([nsqd.address, copy.address])
        words = [f"--nsqd-tcp-address={address}" for address in (one, other)]
        assert main([*job.split(), "--topic=t", *words]) == 1
        assert f"nsqd {one} and nsqd {other} both have log {LOG}" in capsys.readouterr().err
    finally:
        copy.close()


@pytest.mark.parametrize("job", ["archive --once", "rollup --once --plots=no", "replay --to=b"])
def test_an_unknown_option(job: str, nsqd: LogBroker, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *job.split(),
        "--topic=t",
        "--option=fetchByte=1",
        f"--nsqd-tcp-address={nsqd.address}",
    ]
    assert main(words) == 1
    assert "fetchByte" in capsys.readouterr().err


@pytest.mark.parametrize("text", VALID)
def test_schemas_that_are_valid(text: str) -> None:
    ddl.check(text)


@pytest.mark.parametrize(("text", "what"), INVALID)
def test_schemas_that_are_not(
    text: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.ddl"
    path.write_text(text)
    assert main(["archive", "--topic=t", "--decode=json", f"--schema={path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"nsqcy-pipeline archive: --schema: {path}: ") and what in said
