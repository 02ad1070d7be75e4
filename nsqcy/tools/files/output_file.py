"""One output file: append, note, sync, repair.

Owns the order of write, note and sync, and the rule for the valid length of a file. Knows nothing
about names or directories; the package docstring contains the rules.
"""

import zlib

from nsqcy.tools.files.codecs import BLOCK, Codec, Member
from nsqcy.tools.files.disk import Disk
from nsqcy.tools.files.note_encoding import Note

CHUNK = 1 << 18  # message bytes per write


class File:
    """A locked file. After an OSError from any call, only close() is allowed.

    size    bytes in the file
    length  bytes of messages before compression, plus the size of the file when opened
    """

    def __init__(self, disk: Disk, fd: int, path: str, codec: Codec) -> None:
        self.path = path
        self.size = self.length = 0
        self._disk = disk
        self._fd = fd
        self._codec = codec
        self._member: Member | None = None
        self._waiting: list[bytes] = []
        self._room = CHUNK
        self._base = 0  # length at the last sync
        self._crc = 0  # CRC of the bytes since the last sync

    def repair(self) -> int:
        """Truncate the bytes that were never acknowledged, and sync the rest. Return the number of
        bytes removed."""
        found = self._disk.size(self._fd)
        sound = self._sound_length(found)
        if sound < found:
            self._disk.truncate(self._fd, sound)
        self.size = self.length = self._base = sound
        if found:
            self._disk.sync(self._fd)
        return found - sound

    def begin(self) -> None:
        """Write the first note, after which the file can be repaired after a crash."""
        self._disk.set_note(self._fd, Note(self.size, self.size, 0).encoded())
        self._disk.sync(self._fd)

    def add(self, data: bytes) -> None:
        """Buffer data for the next flush."""
        self.length += len(data)
        self._waiting.append(data)
        self._room -= len(data)
        if self._room <= 0:
            self.flush()

    def flush(self) -> None:
        """Write buffered data; the codec may still retain some of it."""
        if self._waiting:
            if self._member is None:
                self._member = self._codec.member()
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._room = CHUNK
            self._append(self._member.add(data))

    def sync(self) -> None:
        """Make everything added so far durable."""
        self.flush()
        if self._member is not None:
            member, self._member = self._member, None
            self._append(member.end())
        if (found := self._disk.size(self._fd)) != self.size:
            # Another program, such as logrotate, has changed the file: continue from its current
            # size.
            self.size = self._base = found
            self._crc = 0
        elif self.size == self._base:
            return
        self._disk.set_note(self._fd, Note(self._base, self.size, self._crc).encoded())
        self._disk.sync(self._fd)
        self._base = self.size
        self._crc = 0

    def complete(self) -> None:
        """Complete the file: end the member, sync, and remove the note."""
        if self.size == 0 and self._codec.framed:
            self.add(b"")
        self.sync()
        self._disk.drop_note(self._fd)
        self._disk.sync(self._fd)

    def is_at(self, path: str) -> bool:
        return self._disk.is_at(self._fd, path)

    def links(self) -> int:
        """Return the number of hard links."""
        return self._disk.links(self._fd)

    def close(self) -> None:
        """Close the file and release its lock."""
        self._disk.close(self._fd)

    def _append(self, data: bytes) -> None:
        if data:
            self._disk.write(self._fd, data)
            self.size += len(data)
            self._crc = zlib.crc32(data, self._crc)

    def _sound_length(self, size: int) -> int:
        raw = self._disk.note(self._fd)
        note = Note.decoded(raw) if raw else None
        if note is not None and note.length <= size and self._checksum(note) == note.crc:
            return note.length
        if note is not None and note.base <= size:
            return note.base
        return self._codec.sound_length(self._read, size)

    def _checksum(self, note: Note) -> int:
        crc = 0
        for offset in range(note.base, note.length, BLOCK):
            crc = zlib.crc32(self._read(offset, min(BLOCK, note.length - offset)), crc)
        return crc

    def _read(self, offset: int, count: int) -> bytes:
        return self._disk.read(self._fd, offset, count)
