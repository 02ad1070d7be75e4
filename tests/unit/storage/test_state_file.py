"""Small files with a checksum: a damaged version is never used, and never destroyed."""

import builtins
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsqcy.storage import state_file
from nsqcy.storage.state_file import StateFile, parse_object, signed
from nsqcy.util import files
from support.disk_format import crc32c
from support.gevent_hub import Lines

NAME = "state.json"
PREVIOUS = f"previous/{NAME}"


def version(number: int) -> bytes:
    return signed(json.dumps({"number": number}, indent=1).encode() + b"\n")


def numbers(content: bytes) -> int:
    number: int = parse_object(content)["number"]
    return number


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    """The file in its third version."""
    file = StateFile(str(tmp_path), NAME)
    for number in (1, 2, 3):
        file.write(version(number))
    return file


def said(file: StateFile) -> list[str]:
    lines = Lines()
    state_file.report(file.look(numbers), lines)
    return lines.all


def test_the_newest_version_and_the_one_before(tmp_path: Path, file: StateFile) -> None:
    assert (tmp_path / NAME).read_bytes() == version(3)
    assert (tmp_path / PREVIOUS).read_bytes() == version(2)
    assert sorted(os.listdir(tmp_path)) == ["previous", NAME]
    assert file.look(numbers) == (3, file.path, (), False)
    assert said(file) == []


def test_the_checksum_is_the_last_key() -> None:
    assert signed(b'{"a":1}\n') == b'{"a":1,"checksum":"%08x"}\n' % crc32c(b'{"a":1')
    head = b'{\n "a": 1'
    assert json.loads(signed(head + b"\n}")) == {"a": 1, "checksum": f"{crc32c(head):08x}"}


def flip(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damaged(content: bytes) -> list[bytes]:
    cuts = [content[:at] for at in range(len(content.rstrip()))]
    return cuts + [flip(content, bit) for bit in range(8 * len(content))]


def test_a_damaged_version_is_never_used(tmp_path: Path, file: StateFile) -> None:
    """A flipped bit may also turn the last line feed into a character that JSON skips, or the
    checksum's key into an unknown one. In these cases, the content is intact."""
    for content in damaged(version(3)):
        (tmp_path / NAME).write_bytes(content)
        found = file.look(numbers)
        if found.path == file.path:
            assert found.value == 3
        else:
            assert found.value == 2 and found.path == file.previous
            assert said(file) == [
                f"{file.path} is damaged: {found.faults[0].error}; "
                f"nsqd uses {file.previous}, the previous version"
            ]


def test_a_damaged_version_is_set_aside_before_the_next(tmp_path: Path, file: StateFile) -> None:
    bad = version(3)[:-3]
    for number in (1, 2):
        (tmp_path / NAME).write_bytes(bad)
        file.write(version(4))
        assert (tmp_path / NAME).read_bytes() == version(4)
        assert (tmp_path / PREVIOUS).read_bytes() == version(2)
        name = f"{NAME}.damaged" + ("" if number == 1 else "-2")
        assert (tmp_path / name).read_bytes() == bad


def test_a_missing_version(tmp_path: Path, file: StateFile) -> None:
    (tmp_path / NAME).unlink()
    assert file.look(numbers).value == 2
    assert said(file) == [
        f"{file.path} is missing; nsqd uses {file.previous}, the previous version"
    ]
    file.write(version(4))
    assert file.look(numbers).value == 4
    assert (tmp_path / PREVIOUS).read_bytes() == version(2)


def test_no_version_is_good(tmp_path: Path, file: StateFile) -> None:
    for name in (NAME, PREVIOUS):
        (tmp_path / name).write_bytes(b"")
    found = file.look(numbers)
    assert found.value is None and len(found.faults) == 2
    assert all(
        "is damaged: " in line and "there is no other version" in line for line in said(file)
    )


def test_no_version_at_all(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path), NAME)
    assert file.look(numbers) == (None, "", (), False)
    (tmp_path / NAME).write_bytes(b"")
    assert [fault.path for fault in file.look(numbers).faults] == [file.path]


def test_content_without_a_checksum(tmp_path: Path, file: StateFile) -> None:
    (tmp_path / NAME).write_bytes(b'{"number": 7}')
    assert file.look(numbers) == (7, file.path, (), False)
    file.write(version(8))
    assert (tmp_path / PREVIOUS).read_bytes() == b'{"number": 7}'


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_version_that_cannot_be_read(
    tmp_path: Path, file: StateFile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real: Callable[..., Any] = builtins.open

    def fail(path: Any, *args: Any, **words: Any) -> Any:
        if path == file.path:
            raise OSError(number, os.strerror(number), path)
        return real(path, *args, **words)

    monkeypatch.setattr(builtins, "open", fail)
    assert file.look(numbers).value == 2
    assert f"{file.path} cannot be read: {os.strerror(number).lower()}; nsqd uses" in said(file)[0]
    file.write(version(4))
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == version(3)
    assert (tmp_path / NAME).read_bytes() == version(4)
    assert (tmp_path / PREVIOUS).read_bytes() == version(2)


def test_a_failed_write_changes_nothing(
    tmp_path: Path, file: StateFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        file.write(version(4))
    assert (tmp_path / NAME).read_bytes() == version(3)
    assert (tmp_path / PREVIOUS).read_bytes() == version(2)


class TestShared:
    """A file that other programs also write, without a checksum in it."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> StateFile:
        file = StateFile(str(tmp_path), NAME, is_shared=True)
        for number in (1, 2, 3):
            file.write(b'{"number":%d}' % number)
        return file

    def test_a_changed_bit(self, tmp_path: Path, file: StateFile) -> None:
        """The disk changes a bit without changing the time of the file."""
        path = tmp_path / NAME
        before = path.stat()
        path.write_bytes(b'{"number":7}')
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        found = file.look(numbers)
        assert (found.value, found.path, found.is_foreign) == (2, file.previous, False)
        assert [fault.error for fault in found.faults] == ["its checksum does not match"]
        file.write(b'{"number":4}')
        assert file.look(numbers).value == 4
        assert (tmp_path / f"{NAME}.damaged").read_bytes() == b'{"number":7}'
        assert (tmp_path / PREVIOUS).read_bytes() == b'{"number":2}'

    def test_another_program(self, tmp_path: Path, file: StateFile) -> None:
        files.replace(str(tmp_path), NAME, b'{"number":7}')
        assert file.look(numbers) == (7, file.path, (), True)
        file.write(b'{"number":4}')
        assert file.look(numbers) == (4, file.path, (), False)
        assert (tmp_path / PREVIOUS).read_bytes() == b'{"number":7}'

    def test_killed_before_the_rename(self, tmp_path: Path, file: StateFile) -> None:
        file.write(b'{"number":4}')
        files.replace(str(tmp_path), NAME, (tmp_path / PREVIOUS).read_bytes())
        assert file.look(numbers) == (3, file.path, (), False)

    @pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
    def test_without_checksums(self, tmp_path: Path, file: StateFile, content: bytes) -> None:
        (tmp_path / f"{PREVIOUS}.checksums").write_bytes(content)
        (tmp_path / NAME).write_bytes(b'{"number":7}')
        assert file.look(numbers) == (7, file.path, (), False)
        file.write(b'{"number":4}')
        (tmp_path / NAME).write_bytes(b"{")
        assert file.look(numbers).value == 7
