"""The decisions that archive makes, without Spark: names, hours, startup, and cleanup."""

from pathlib import Path
from typing import Any

import pytest

from nsqcy.errors import UsageError
from nsqcy.pipeline import archive, checkpoint, manifests
from nsqcy.pipeline.__main__ import main
from nsqcy.pipeline.options import Options
from support.archive_files import LOG, OTHER, QUERY, HandmadeArchive


def test_hours() -> None:
    seven = 1_769_842_800  # 2026-01-31T07:00:00Z
    assert list(archive.hours(seven, seven + 3599)) == ["topic=*/dt=2026-01-31/hr=07"]
    assert list(archive.hours(seven - 1, seven)) == [
        "topic=*/dt=2026-01-31/hr=06",
        "topic=*/dt=2026-01-31/hr=07",
    ]
    assert list(archive.hours(0, seven)) == ["topic=*/dt=*/hr=*"]


def test_a_new_query_begins_behind_what_there_is(tmp_path: Path) -> None:
    state = manifests.hidden(tmp_path, "checkpoint")
    assert archive.beginning(tmp_path, state) == "earliest"
    handmade = HandmadeArchive(tmp_path)
    handmade.batch({LOG: range(1, 11), OTHER: range(1, 4)})
    handmade.batch({LOG: range(11, 21)})
    expected = f'{{"orders": {{"{LOG}": 21, "{OTHER}": 4}}}}'
    assert archive.beginning(tmp_path, state) == expected
    handmade.checkpoint({LOG: 11}, 0)  # Spark's checkpoint takes precedence
    assert archive.beginning(tmp_path, state) == "earliest"


def test_what_a_crash_has_left_is_swept(tmp_path: Path) -> None:
    handmade = HandmadeArchive(tmp_path)
    handmade.batch({LOG: range(1, 11)})
    staging = tmp_path / ".spark-staging-1234"
    (staging / "topic=orders").mkdir(parents=True)
    (staging / "topic=orders" / "part-0.parquet").write_bytes(b"torn")
    partial = manifests.manifest_path(tmp_path, "x").with_suffix(".partial")
    partial.write_text("{")
    assert set(archive.sweep(tmp_path)) == {
        ".spark-staging-1234",
        "_archive/manifests/x.partial",
    }
    assert not staging.exists() and not partial.exists()
    assert archive.sweep(tmp_path) == []
    assert len(manifests.read(tmp_path).files) == 1


def test_a_batch_with_a_manifest_is_not_written_again(tmp_path: Path) -> None:
    """The hours of the batch may have been compacted since."""
    HandmadeArchive(tmp_path).batch({LOG: range(1, 11)})
    written = []

    class Files(archive.Files):
        def _write(self, frame: Any, name: str) -> dict[str, Any]:
            written.append(name)
            return {"rows": 0}

    sink = Files(tmp_path, "none", "")
    sink.begin(QUERY)
    frame: Any = None
    for number in range(2):
        sink(frame, number)
    assert written == ["1f3c9a2e-000000001"]


def test_one_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with manifests.locked(tmp_path, manifests.WRITING):
        assert main(["archive", "--topic=a", f"--root={tmp_path}"]) == 1
    assert f"another job is using {tmp_path}: archive" in capsys.readouterr().err


def test_schemas(tmp_path: Path) -> None:
    def decoding(**given: str) -> str:
        return archive.decoding(Options(archive.OPTIONS, given))

    path = tmp_path / "orders.ddl"
    path.write_text("a INT, b STRING;\n")
    assert decoding() == decoding(decode="variant") == ""
    assert decoding(decode="json", schema=str(path)) == "a INT, b STRING, _corrupt STRING"
    path.write_text(" ")
    for given, said in [
        ({"schema": "x"}, "require each other"),
        ({"decode": "json", "schema": "nowhere"}, "--schema: nowhere: No such file"),
        ({"decode": "json", "schema": str(path)}, "is empty"),
    ]:
        with pytest.raises(UsageError, match=said):
            decoding(**given)


def test_checkpoints(tmp_path: Path) -> None:
    state = manifests.hidden(tmp_path, "checkpoint")
    assert checkpoint.read(state) == checkpoint.Checkpoint(-1, -1, {})
    handmade = HandmadeArchive(tmp_path)
    handmade.checkpoint({LOG: 11}, 0)
    handmade.checkpoint({LOG: 21}, 1, committed=False)
    for name in (".1.crc", "²"):
        (state / "offsets" / name).write_bytes(b"x")
    assert checkpoint.read(state) == checkpoint.Checkpoint(1, 0, {"orders": {LOG: 11}})
    for text, said in [
        ("v1\n{}\n{}", "has no offset of format nsq"),
        ("v2\n{}\n{}", "is not an offset of a query with one source"),
        ("", "has no offset"),
        *[
            ("v1\n{}\n" + text, "has no offset of format nsq")
            for text in (
                '{"pos": 5}',
                '{"pos": {"t": 5}}',
                '{"pos": {"t": {"l": 1e999}}}',
                "[" * 100_000,
            )
        ],
    ]:
        (state / "offsets" / "0").write_text(text)
        with pytest.raises(checkpoint.Unreadable, match=said):
            checkpoint.read(state)
