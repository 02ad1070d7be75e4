"""Files that the next run relies on: written data is read back, and damage is detected."""

import json
from pathlib import Path

import pytest

from nsqcy.pipeline import state_files

FOUND = {"v": 1, "name": "a", "parts": [["t", 1, 25]], "open": {"b": None, "a": 1.5}}


def read(path: Path) -> object:
    return state_files.read_json(path, "a plan", 1)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    for found in (FOUND, FOUND | {"name": "ü\ud800"}):
        state_files.write_json(path, found)
        assert read(path) == found
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]
    path.write_text(json.dumps({"v": 1}))  # as an earlier nsqcy wrote it
    assert read(path) == {"v": 1}


def test_each_flipped_bit(tmp_path: Path) -> None:
    """The damage is detected, or does not change the data that is read: a space, or the name of the
    checksum."""
    path = tmp_path / "x.json"
    state_files.write_json(path, FOUND)
    content = path.read_bytes()
    noticed = 0
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = read(path)
        except state_files.Damaged:
            noticed += 1
            continue
        assert isinstance(found, dict)
        assert FOUND.items() <= found.items()
    assert noticed > 4 * len(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a plan"),
        (b"[]", "is not a plan"),
        (b"{}", "is not a plan"),
        (b"[" * 100_000, "is not a plan"),
        (b'{"v": "\xff"}', "is not a plan"),
        (b'{"v": 2}', "version 2, but this nsqcy supports version 1"),
        (b'{"v": 1, "crc32": 5}', "is damaged: it does not match its checksum"),
    ],
)
def test_other_content(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(state_files.Damaged, match=said):
        read(path)
