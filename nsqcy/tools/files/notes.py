"""The note a file carries while it is being written: what of it is safe.

Owns the note's bytes. Where it is kept is disk.py's, what follows from it file.py's.

    1 BASE LENGTH CRC     decimal numbers and eight hex digits, in ASCII

The file was BASE long at the last but one sync and LENGTH at the last; CRC is the CRC-32 of the
bytes between. It is written before the sync it speaks of.
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
        """None for what is no note of ours, or of a version that is not known."""
        found = _NOTE.fullmatch(raw)
        return found and cls(int(found[1]), int(found[2]), int(found[3], 16))
