"""Files that the next run of a job relies on: written atomically, and verified by checksum.

Owns the writing of such files and the detection of damage, but not their meaning. A JSON file
contains the CRC-32 of its content; older files without a checksum are accepted.
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECK = "crc32"
PIECE = 1 << 20


class Damaged(Exception):
    """The contents of a file are damaged."""


# --- JSON -------------------------------------------------------------------------------------


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    """Write a JSON object, with a checksum as its last key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps({**found, CHECK: json_checksum(found)}, indent=1) + "\n")
    replace(path, partial)


def read_json(path: Path, what: str, version: int) -> dict[str, Any]:
    """Read an object of this version. Raises Damaged, FileNotFoundError."""
    try:
        found = json.loads(path.read_bytes().decode())
        check = found.pop(CHECK, None)
        is_sound = check is None or check == json_checksum(found)
        written_by = found["v"]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise Damaged(f"{path} is not {what}") from None
    if not is_sound:
        raise Damaged(f"{path} is damaged: it does not match its checksum {check}")
    if written_by != version:
        raise Damaged(f"{path}: version {written_by!r}, but this nsqcy supports version {version}")
    return dict(found)


def json_checksum(found: Mapping[str, Any]) -> str:
    """Return the checksum of the values, which does not depend on spaces or the order of keys."""
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


# --- any file ---------------------------------------------------------------------------------


def checksum(path: Path, *, sync: bool = False) -> tuple[int, int]:
    """Return size and CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            size += len(piece)
            crc = zlib.crc32(piece, crc)
        if sync:
            os.fsync(file.fileno())
    return size, crc


def replace(path: Path, partial: Path) -> None:
    """Rename a written file to its final name, once it is on disk."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


def sync_folders(folder: Path, root: Path) -> None:
    """Sync a directory and its parents, up to the root."""
    while folder != root:
        sync_folder(folder)
        folder = folder.parent
    sync_folder(root)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
