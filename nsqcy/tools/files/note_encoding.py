"""The note of a file being written, which records its valid length.

Owns the encoding. disk.py stores the note; output_file.py interprets it.

    1 BASE LENGTH CRC     decimal numbers and eight hex digits, in ASCII

BASE is the file's length at the sync before the last, LENGTH at the last one, and CRC the CRC-32 of
the bytes between. The note is written before the last sync.
"""

import re
from typing import NamedTuple

_NOTE = re.compile(rb"1 ([0-9]{1,19}) ([0-9]{1,19}) ([0-9a-f]{8})")


class Note(NamedTuple):
    base: int
    length: int
    crc: int

    def encoded(self) -> bytes:
        return b"1 %d %d %08x" % self

    @classmethod
    def decoded(cls, raw: bytes) -> "Note | None":
        """Decode a note. Return None if it is invalid or of an unknown version."""
        found = _NOTE.fullmatch(raw)
        return found and cls(int(found[1]), int(found[2]), int(found[3], 16))
