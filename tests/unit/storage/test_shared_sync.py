"""When one sync of the file system may replace the syncs of many files."""

from pathlib import Path

import pytest

from nsqcy.storage import shared_sync

MOUNT = "21 1 8:1 / / rw,relatime - {} /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("release", "kind", "reliable"),
    [
        ("5.17.0", "ext4", True),
        ("6.1.0-18-amd64", "xfs", True),
        ("10.0", "btrfs", True),
        ("5.16.20", "ext4", False),
        ("5.8.1", "xfs", False),
        ("4.18.0-513.el8", "xfs", False),
        ("6.1.0", "overlay", False),
        ("6.1.0", "ext3", False),
        ("6.1.0", "nfs4", False),
        ("unknown", "ext4", False),
    ],
)
def test_where_it_reports_every_error(
    tmp_path: Path, release: str, kind: str, reliable: bool
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(MOUNT.format(kind))
    assert shared_sync.is_reliable("/", str(tmp_path), release) is reliable


def test_an_unknown_file_system(tmp_path: Path) -> None:
    assert not shared_sync.is_reliable("/", str(tmp_path), "6.1.0")


@pytest.mark.parametrize(
    ("dirty", "writeback", "count"),
    [(0, 0, 64), (65 << 10, 1 << 10, 66), (1 << 20, 0, 1024), (1 << 20, 1, 0)],
)
def test_the_more_is_unwritten_the_more_files_it_must_save(
    tmp_path: Path, dirty: int, writeback: int, count: int
) -> None:
    """Other programs' data is synced as well."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(
        f"MemFree: 9999999 kB\nDirty: {dirty} kB\nWriteback: {writeback} kB\nWritebackTmp: 5 kB\n"
    )
    assert shared_sync.count(str(tmp_path)) == count
