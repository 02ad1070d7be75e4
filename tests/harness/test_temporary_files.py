"""Temporary files are in memory, except those of tests that need a disk."""

import os
import tempfile
from pathlib import Path

import pytest

import conftest

REAL_DISK = os.environ.get("NSQCY_REAL_DISK", tempfile.gettempdir())


def test_a_directory_is_where_temporary_files_are(tmp_path: Path) -> None:
    assert tmp_path.is_relative_to(tempfile.gettempdir())


@pytest.mark.real_disk
def test_a_directory_on_a_disk(tmp_path: Path) -> None:
    assert tmp_path.is_relative_to(REAL_DISK) and not tmp_path.is_relative_to("/dev/shm")


@pytest.mark.parametrize(
    ("variables", "free", "flags", "expected"),
    [
        ({}, 5 << 30, 0, "/dev/shm"),
        ({}, 3 << 30, 0, "/given"),
        ({}, 5 << 30, os.ST_NOEXEC, "/given"),
        ({"TMPDIR": "/given"}, 5 << 30, 0, "/given"),
    ],
    ids=["room", "little room", "no programs", "TMPDIR is set"],
)
def test_where_temporary_files_are(
    variables: dict[str, str],
    free: int,
    flags: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", variables.copy())
    monkeypatch.setattr(tempfile, "tempdir", "/given")
    space = os.statvfs_result((4096, 4096, 0, 0, free // 4096, 0, 0, 0, flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    monkeypatch.setattr(conftest, "available_memory", lambda: 5 << 30)
    conftest.use_memory_disk()
    assert tempfile.gettempdir() == expected
