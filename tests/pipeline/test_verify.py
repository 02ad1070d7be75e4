"""Findings of verify in an archive that was modified from outside."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nsqcy.pipeline import manifests
from nsqcy.pipeline.__main__ import main
from nsqcy.spark.offsets import Range
from support.archive_files import HOUR, LOG, OTHER, HandmadeArchive, save, table

Lines = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def archive(tmp_path: Path) -> HandmadeArchive:
    """Archive of two logs, in three batches."""
    archive = HandmadeArchive(tmp_path)
    archive.batch({LOG: range(5, 105), OTHER: range(1, 11)})
    archive.batch({LOG: range(105, 205)})
    archive.batch({LOG: range(205, 305), OTHER: range(11, 21)})
    return archive


@pytest.fixture
def verify(archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]) -> Lines:
    """Return the exit code and the problems and notes of verify."""

    def run(*words: str) -> tuple[int, list[str]]:
        code = main(["verify", f"--root={archive.root}", *words])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines[-1]["event"] == "done"
        told = [line.get("problem") or line["text"] for line in lines if "text" in line]
        return code, [text for text in told if " rows, seq " not in text]

    return run


def files(archive: HandmadeArchive) -> list[Path]:
    return sorted(archive.root.glob("topic=*/*/*/*/*.parquet"))


def test_an_archive_that_is_whole(archive: HandmadeArchive, verify: Lines) -> None:
    assert verify() == (0, [])
    assert verify("--quick") == (0, [])
    assert verify("--topic=orders") == (0, [])


def test_a_topic_that_is_not_there(verify: Lines) -> None:
    assert verify("--topic=invoices") == (1, ["no rows of topic 'invoices'"])


def test_what_it_says(archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"--root={archive.root}"]) == 0
    *_, one, other, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert one["text"] == f"topic 'orders', log {LOG}: 300 rows, seq 5 to 304"
    assert (other["log_id"], other["rows"], other["first"], other["last"]) == (OTHER, 20, 1, 20)
    assert (done["rows"], done["logs"], done["problems"]) == (320, 2, 0)


def test_a_deleted_file(archive: HandmadeArchive, verify: Lines) -> None:
    path = files(archive)[2]
    path.unlink()
    gap = f"topic 'orders', log {LOG}: seq 105 to 204 are missing (100 rows)"
    gone = f"{path.relative_to(archive.root)} is missing: 100 rows (seq 105 to 204)"
    assert verify() == (1, [gone, gap])
    assert verify("--quick") == (1, [gone, gap])


def test_a_deleted_row(archive: HandmadeArchive, verify: Lines) -> None:
    path = files(archive)[0]
    rows = pq.ParquetFile(path).read()
    save(path, rows.slice(0, 50).to_batches() and join(rows, 50))
    name = path.relative_to(archive.root)
    code, (changed, count, gap) = verify()
    assert code == 1
    assert changed.startswith(f"{name} has changed: its checksum is ")
    assert count == f"{name} has 99 rows instead of 100"
    assert gap == f"topic 'orders', log {LOG}: seq 55 to 55 are missing (1 rows)"


def join(rows: "pq.Table", without: int) -> "pq.Table":
    import pyarrow as pa

    return pa.concat_tables([rows.slice(0, without), rows.slice(without + 1)])


def test_a_swapped_file(archive: HandmadeArchive, verify: Lines) -> None:
    """The file is replaced with a different file that has the same seqs."""
    path = files(archive)[2]
    save(path, table(LOG, range(105, 205), "nobod"))
    code, (changed,) = verify()
    assert code == 1 and f"{path.relative_to(archive.root)} has changed" in changed


def test_a_flipped_bit(archive: HandmadeArchive, verify: Lines) -> None:
    path = files(archive)[2]
    data = bytearray(path.read_bytes())
    data[data.index(b"body 150") + 6] ^= 1
    path.write_bytes(data)
    code, (changed,) = verify()
    assert code == 1 and f"{path.relative_to(archive.root)} has changed" in changed


def test_two_files_in_each_others_place(archive: HandmadeArchive, verify: Lines) -> None:
    one, other = files(archive)[0], files(archive)[2]
    aside = archive.root / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    code, found = verify()
    assert code == 1 and len(found) == 2


def test_a_row_twice(archive: HandmadeArchive, verify: Lines) -> None:
    archive.batch({LOG: range(300, 306)})
    again = f"topic 'orders', log {LOG}: seq 300 to 304 are duplicated (5 rows)"
    assert verify() == (1, [again])


def test_a_file_of_nobody(archive: HandmadeArchive, verify: Lines) -> None:
    path = files(archive)[0]
    copy = path.with_name("copy.parquet")
    shutil.copy(path, copy)
    name = str(copy.relative_to(archive.root))
    assert verify() == (1, [f"{name} is not in any manifest: run nsqcy-pipeline orphans"])


def test_a_batch_that_is_being_written(archive: HandmadeArchive, verify: Lines) -> None:
    folder = manifests.hidden(archive.root, manifests.UNPLACED) / "1f3c9a2e-000000003"
    save(folder / "topic=orders" / HOUR / f"batch={folder.name}" / "a.parquet", table(LOG, [305]))
    assert verify() == (0, [])
    manifests.write(archive.root, manifests.describe_batch(archive.root, folder.name, []))
    code, (note,) = verify()
    assert code == 0
    assert note.startswith("batch 1f3c9a2e-000000003 is incomplete")


def test_files_of_a_batch_that_was_never_finished(archive: HandmadeArchive, verify: Lines) -> None:
    (path,) = archive.batch({LOG: range(295, 305)}, finished=False)
    name = str(path.relative_to(archive.root))
    assert verify() == (1, [f"{name} is not in any manifest: run nsqcy-pipeline orphans"])


def test_a_batch_that_has_lost_its_manifest(archive: HandmadeArchive, verify: Lines) -> None:
    """Later batches of the query exist, so the batch will not be written again."""
    manifests.manifest_path(archive.root, "1f3c9a2e-000000001").unlink()
    code, (stray, gap) = verify()
    assert code == 1
    name = files(archive)[2].relative_to(archive.root)
    assert stray == f"{name} is not in any manifest: run nsqcy-pipeline orphans"
    assert "seq 105 to 204 are missing" in gap


def test_what_cannot_be_read(archive: HandmadeArchive, verify: Lines) -> None:
    path = files(archive)[0]
    path.write_bytes(path.read_bytes()[:100])
    code, (changed, broken) = verify()
    assert code == 1 and " has changed: " in changed
    assert broken.startswith(f"{path.relative_to(archive.root)} cannot be read: ")


def test_a_missing_end(archive: HandmadeArchive, verify: Lines) -> None:
    """The last batch's files and manifest are missing: only Spark's checkpoint shows this."""
    archive.checkpoint({LOG: 305, OTHER: 21}, 2)
    assert verify() == (0, [])
    for path in files(archive)[3:]:
        path.unlink()
    manifests.manifest_path(archive.root, "1f3c9a2e-000000002").unlink()
    text = (
        "seq {} to {} ({} rows) are missing, although the checkpoint or the manifests list them "
        "as archived"
    )
    assert verify() == (
        1,
        [
            f"topic 'orders', log {LOG}: " + text.format(205, 304, 100),
            f"topic 'orders', log {OTHER}: " + text.format(11, 20, 10),
        ],
    )


def test_a_log_of_which_nothing_is_there(archive: HandmadeArchive, verify: Lines) -> None:
    """An older nsqcy trusted the manifest of a batch that was repeated with another log's rows."""
    archive.checkpoint({LOG: 305, OTHER: 21}, 2)
    third = "9c9c" * 8
    archive.checkpoint({LOG: 305, OTHER: 21, third: 11}, 3, start={third: 4})
    missing = (
        f"topic 'orders', log {third}: seq 4 to 10 (7 rows) are missing, although the "
        "checkpoint or the manifests list them as archived"
    )
    assert verify() == (1, [missing])
    assert verify("--quick") == (1, [missing])
    archive.checkpoint({LOG: 305, OTHER: 21, third: 11}, 3, committed=False, start={third: 4})
    (manifests.hidden(archive.root, "checkpoint") / "commits" / "3").unlink()
    assert verify() == (0, [])


def test_the_plan_of_a_batch_is_in_its_manifest(archive: HandmadeArchive, verify: Lines) -> None:
    """The manifest has the plan because Spark keeps its own record only for some time."""
    name = "1f3c9a2e-000000002"
    path = manifests.manifest_path(archive.root, name)
    manifest = manifests.read_one(path)
    third = "9c9c" * 8
    planned = (Range("orders", LOG, 205, 305), Range("orders", third, 4, 11))
    manifests.write(archive.root, dataclasses.replace(manifest, planned=planned))
    assert verify() == (
        1,
        [
            f"topic 'orders', log {third}: seq 4 to 10 (7 rows) are missing, although the "
            "checkpoint or the manifests list them as archived"
        ],
    )


def test_an_unreadable_checkpoint(archive: HandmadeArchive, verify: Lines) -> None:
    archive.checkpoint({LOG: 305, OTHER: 21}, 2)
    path = manifests.hidden(archive.root, "checkpoint") / "offsets" / "2"
    path.write_text("")
    code, (problem,) = verify()
    assert code == 1
    assert problem == f"the checkpoint cannot be read: {path} has no offset of format nsq"


def test_many_gaps_are_summed_up(archive: HandmadeArchive, verify: Lines) -> None:
    archive.batch({LOG: range(305, 405, 2)})
    code, found = verify()
    assert code == 1 and len(found) == 6
    assert found[-1].endswith(": 44 more ranges with 44 rows are missing")


def test_files_without_manifests(archive: HandmadeArchive, verify: Lines) -> None:
    shutil.rmtree(manifests.hidden(archive.root, "manifests"))
    note = "no manifests: only the files are checked"
    assert verify() == (0, [note])
    files(archive)[2].unlink()
    assert verify()[0] == 1


def test_a_broken_manifest(archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifests.manifest_path(archive.root, "1f3c9a2e-000000001")
    row = {
        "path": 5,
        "topic": "t",
        "log_id": "l",
        "from": 1,
        "to": 2,
        "count": 1,
        "size": 1,
        "crc": 1,
    }
    for content, said in [
        (b"{", "is not a manifest"),
        (b'{"v": 2}', "version 2, but this nsqcy supports version 1"),
        (b"[" * 100_000, "is not a manifest"),
        (b'{"v": 1, "batch": "\xff", "files": []}', "is not a manifest"),
        (b'{"v": 1, "batch": 5, "files": []}', "is not a manifest"),
        (json.dumps({"v": 1, "batch": "b", "files": [row]}).encode(), "is not a manifest"),
        (
            json.dumps({"v": 1, "batch": "b", "files": [row | {"path": "p", "to": 1.5}]}).encode(),
            "is no",
        ),
    ]:
        path.write_bytes(content)
        assert main(["verify", f"--root={archive.root}"]) == 1
        assert said in capsys.readouterr().err


def test_rows_of_two_logs_in_a_file(archive: HandmadeArchive, verify: Lines) -> None:
    import pyarrow as pa

    path = files(archive)[0]
    save(path, pa.concat_tables([table(LOG, [1]), table(OTHER, [1])]))
    assert any(
        "rows of 2 logs, but each file must have rows of a single log" in text
        for text in verify()[1]
    )


def test_while_compact_runs(archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]) -> None:
    with manifests.locked(archive.root, manifests.COMPACTING):
        assert main(["verify", f"--root={archive.root}"]) == 1
    assert "another job is using" in capsys.readouterr().err
