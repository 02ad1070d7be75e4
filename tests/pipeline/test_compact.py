"""Compaction: fewer files with the same rows, even after a kill at any point."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline import compact, manifests
from nsqcy.pipeline.__main__ import main
from support.archive_files import LOG, OTHER, HandmadeArchive, rows_by_glob, save, table

NEXT_HOUR = "dt=2026-01-31/hr=08"


@pytest.fixture
def archive(tmp_path: Path) -> HandmadeArchive:
    archive = HandmadeArchive(tmp_path)
    archive.batch({LOG: range(1, 101), OTHER: range(1, 11)})
    archive.batch({LOG: range(101, 201)})
    archive.batch({LOG: range(201, 301), OTHER: range(11, 21)})
    return archive


def files(archive: HandmadeArchive) -> list[str]:
    return sorted(manifests.on_disk(archive.root))


def run(archive: HandmadeArchive, *words: str) -> int:
    return main(["compact", f"--root={archive.root}", *words])


def whole(archive: HandmadeArchive) -> bool:
    return main(["verify", f"--root={archive.root}"]) == 0


def test_rows_stay_what_they_are(archive: HandmadeArchive) -> None:
    before = rows_by_glob(archive.root)
    assert len(files(archive)) == 5
    assert run(archive) == 0
    hour = "topic=orders/dt=2026-01-31/hr=07/batch=compact-00000001"
    assert files(archive) == [f"{hour}/part-0000{n}.zstd.parquet" for n in range(2)]
    assert rows_by_glob(archive.root) == before
    assert whole(archive)
    assert not any(manifests.hidden(archive.root, manifests.STAGED).iterdir())


def test_late_rows_are_merged_into_what_was_merged(archive: HandmadeArchive) -> None:
    run(archive)
    archive.batch({LOG: range(301, 401)})
    before = rows_by_glob(archive.root)
    assert whole(archive)
    run(archive)
    assert {manifests.batch_of(path) for path in files(archive)} == {"compact-00000002"}
    assert rows_by_glob(archive.root) == before
    assert whole(archive)
    done = files(archive)
    # nothing remains to be merged: there is one file for each log.
    assert run(archive) == 0 and files(archive) == done


def test_which_hours(archive: HandmadeArchive) -> None:
    archive.batch({LOG: range(301, 401)}, NEXT_HOUR)
    archive.batch({LOG: range(401, 501)}, NEXT_HOUR)
    contents = manifests.read(archive.root)
    over = compact.end_of("topic=orders/dt=2026-01-31/hr=07")

    def chosen(**options: Any) -> list[str]:
        given = {"topic": "", "closed_before": over + 3600, "at_least": 2} | options
        return [hour[-2:] for hour in compact.hours(contents, **given)]

    assert chosen() == ["07", "08"]
    assert chosen(closed_before=over) == ["07"]
    assert chosen(closed_before=over - 1) == []
    assert chosen(at_least=3) == ["07"]
    assert chosen(topic="others") == []


def test_an_hour_with_a_batch_under_way_waits(
    archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.batch({LOG: range(301, 401)}, finished=False)
    before = files(archive)
    assert run(archive) == 0
    assert "has an unfinished batch and is skipped" in capsys.readouterr().out
    assert files(archive) == before


def test_columns_that_came_later_are_a_file_of_their_own(archive: HandmadeArchive) -> None:
    import pyarrow as pa

    (path,) = archive.batch({LOG: range(301, 302)}, finished=False)
    wider = table(LOG, [301]).append_column("value", pa.array(["x"]))
    save(path, wider)
    described = manifests.describe(archive.root, str(path.relative_to(archive.root)))
    manifests.write(archive.root, manifests.Manifest("1f3c9a2e-000000003", (described,)))
    run(archive)
    assert len(files(archive)) == 3 and whole(archive)


class Killed(BaseException):
    pass


CALLS = ["merge", "check_same", "staged", "exchange", "finish"]


@pytest.mark.parametrize("late", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("where", CALLS)
def test_killed_anywhere(
    archive: HandmadeArchive, monkeypatch: pytest.MonkeyPatch, where: str, late: bool
) -> None:
    """Readers always see each row exactly once, and the next run completes the rest."""
    before = rows_by_glob(archive.root)
    original: Callable[..., Any] = getattr(compact, where)

    def killed(*args: Any) -> Any:
        if late:
            original(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(compact, where, killed)
        with pytest.raises(Killed):
            run(archive)
    assert rows_by_glob(archive.root) == before
    assert whole(archive)
    assert run(archive) == 0
    assert len(files(archive)) == 2
    assert rows_by_glob(archive.root) == before
    assert whole(archive)


def test_what_arrives_at_the_last_moment_stays(
    archive: HandmadeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is written after compaction has read the hour, and before it swaps the
    directories."""
    original = compact.exchange

    def exchange(one: Path, other: Path) -> None:
        archive.batch({LOG: range(301, 401)})
        original(one, other)

    monkeypatch.setattr(compact, "exchange", exchange)
    run(archive)
    assert len(rows_by_glob(archive.root)) == 420
    assert whole(archive)


def test_other_rows_are_not_taken(archive: HandmadeArchive) -> None:
    contents = manifests.read(archive.root)
    old = [file for file in contents.files.values() if file.log_id == LOG]
    path = archive.root / "new.parquet"
    for rows, said in [
        (table(LOG, range(1, 300)), "has fewer rows than"),
        (table(LOG, range(1, 302)), "has more rows than"),
        (table(LOG, range(1, 301), "other"), "does not have the rows of"),
    ]:
        save(path, rows)
        with pytest.raises(manifests.Damaged, match=said):
            compact.check_same(archive.root, old, path)
    save(path, table(LOG, range(1, 301)))
    compact.check_same(archive.root, old, path)


def test_a_manifest_that_lies(archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]) -> None:
    path = manifests.manifest_path(archive.root, "1f3c9a2e-000000001")
    content = json.loads(path.read_text())
    content["files"][0]["count"] = 99
    path.write_text(json.dumps(content))
    before = files(archive)
    assert run(archive) == 1
    assert "is damaged: it does not match its checksum" in capsys.readouterr().err
    del content["crc32"]  # as an earlier nsqcy wrote it
    path.write_text(json.dumps(content))
    assert run(archive) == 1
    assert "differ from their manifests; run nsqcy-pipeline verify" in capsys.readouterr().out
    assert files(archive) == before


def test_a_damaged_file_is_not_merged(
    archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's hour is unchanged; other hours are merged."""
    for start in (301, 401):
        archive.batch({LOG: range(start, start + 100)}, NEXT_HOUR)
    path = archive.root / files(archive)[0]
    content = bytearray(path.read_bytes())
    content[content.index(b"body 50") + 6] ^= 1
    path.write_bytes(content)
    before = files(archive)
    assert run(archive) == 1
    assert f"wrong: {files(archive)[0]} has changed" in capsys.readouterr().out
    assert files(archive)[:5] == before[:5]
    assert [manifests.batch_of(file) for file in files(archive)[5:]] == ["compact-00000001"]
    assert not whole(archive)
    path.unlink()
    assert run(archive) == 1
    assert f"wrong: {before[0]} is missing" in capsys.readouterr().out


def test_an_hour_that_is_not_over(tmp_path: Path) -> None:
    archive = HandmadeArchive(tmp_path)
    now = time.gmtime()
    hour = f"dt={time.strftime('%Y-%m-%d', now)}/hr={time.strftime('%H', now)}"
    archive.batch({LOG: range(1, 3)}, hour)
    archive.batch({LOG: range(3, 5)}, hour)
    run(archive, "--closed-for=0s")
    assert len(files(archive)) == 2
