"""Files in an archive's directories that no manifest lists."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqcy.pipeline import manifests
from nsqcy.pipeline.__main__ import main
from support.archive_files import LOG, HandmadeArchive, rows_by_glob

Lines = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def archive(tmp_path: Path) -> HandmadeArchive:
    archive = HandmadeArchive(tmp_path)
    archive.batch({LOG: range(1, 11)})
    archive.batch({LOG: range(11, 21)})
    return archive


@pytest.fixture
def orphans(archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]) -> Lines:
    """Return the exit code and the lines of the job."""

    def run(*words: str) -> tuple[int, list[str]]:
        code = main(["orphans", f"--root={archive.root}", *words])
        *lines, done = map(json.loads, capsys.readouterr().out.splitlines())
        assert done["orphans"] == len(lines)
        return code, [line["text"] for line in lines]

    return run


def test_an_archive_without(archive: HandmadeArchive, orphans: Lines) -> None:
    assert orphans() == (0, [])
    assert orphans("--remove") == (0, [])


def test_rows_that_the_archive_has(archive: HandmadeArchive, orphans: Lines) -> None:
    """The job was killed before the manifest, and Spark's state was lost: the rows were
    repeated."""
    before = rows_by_glob(archive.root)
    (path,) = archive.batch({LOG: range(6, 16)}, finished=False)
    name = path.relative_to(archive.root)
    told = f"{name}: the archive has all of its rows; use --remove to delete this file"
    assert orphans() == (1, [told])
    assert path.exists()
    assert orphans("--remove") == (0, [f"{name}: removed"])
    assert rows_by_glob(archive.root) == before
    assert orphans() == (0, [])


def test_rows_that_are_nowhere_else_stay(archive: HandmadeArchive, orphans: Lines) -> None:
    (path,) = archive.batch({LOG: range(16, 26)}, finished=False)
    name = path.relative_to(archive.root)
    told = f"{name}: the archive lacks 5 of its rows, so the file is kept; run archive first"
    assert orphans("--remove") == (1, [told])
    path.write_bytes(path.read_bytes()[:100])
    assert orphans("--remove") == (1, [f"{name}: the file cannot be read, so it is kept"])
    assert path.exists()


def test_a_batch_that_is_being_moved_is_none(archive: HandmadeArchive, orphans: Lines) -> None:
    (path,) = archive.batch({LOG: range(21, 31)})
    name = manifests.batch_of(str(path))
    (manifests.hidden(archive.root, manifests.UNPLACED) / name).mkdir(parents=True)
    assert orphans("--remove") == (0, [])
    assert path.exists()


def test_without_manifests_nothing_is_removed(
    archive: HandmadeArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in manifests.hidden(archive.root, "manifests").iterdir():
        path.unlink()
    assert main(["orphans", f"--root={archive.root}", "--remove"]) == 2
    assert "has no manifests" in capsys.readouterr().err
    assert len(rows_by_glob(archive.root)) == 20


@pytest.mark.parametrize("lock", [manifests.WRITING, manifests.COMPACTING])
def test_beside_another_job(
    archive: HandmadeArchive, capsys: pytest.CaptureFixture[str], lock: str
) -> None:
    with manifests.locked(archive.root, lock):
        assert main(["orphans", f"--root={archive.root}", "--remove"]) == 1
    assert "another job is using" in capsys.readouterr().err
