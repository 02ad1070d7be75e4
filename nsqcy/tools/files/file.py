"""One file: appended to, noted, synced, repaired.

Owns the order of write, note and sync, and the question how far a file is safe. Knows neither
names nor folders; see the package for the rules.
"""

import zlib

from nsqcy.tools.files.codecs import BLOCK, Codec, Member
from nsqcy.tools.files.disk import Disk
from nsqcy.tools.files.notes import Note

CHUNK = 1 << 18  # bytes of messages to write at once


class File:
    """A locked file. After an OSError of any call it can only be closed.

    size    bytes in it
    length  bytes of messages in it, before compression; what was found counts
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
        self._base = 0  # how long it was at the last sync
        self._crc = 0  # of what came since

    def repair(self) -> int:
        """Cut off what was never acknowledged; how many bytes. What remains is synced."""
        found = self._disk.size(self._fd)
        sound = self._sound_length(found)
        if sound < found:
            self._disk.truncate(self._fd, sound)
        self.size = self.length = self._base = sound
        if found:
            self._disk.sync(self._fd)
        return found - sound

    def begin(self) -> None:
        """From here on a crash leaves a file that knows how far it is safe."""
        self._disk.set_note(self._fd, Note(self.size, self.size, 0).encoded())
        self._disk.sync(self._fd)

    def add(self, data: bytes) -> None:
        """To be written with others at the next flush."""
        self.length += len(data)
        self._waiting.append(data)
        self._room -= len(data)
        if self._room <= 0:
            self.flush()

    def flush(self) -> None:
        """Write what was added; a codec may still keep some of it."""
        if self._waiting:
            if self._member is None:
                self._member = self._codec.member()
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._room = CHUNK
            self._append(self._member.add(data))

    def sync(self) -> None:
        """Everything added is safe when this returns."""
        self.flush()
        if self._member is not None:
            member, self._member = self._member, None
            self._append(member.end())
        if (found := self._disk.size(self._fd)) != self.size:
            # Somebody else has cut it, as logrotate may, or written to it: count anew.
            self.size = self._base = found
            self._crc = 0
        elif self.size == self._base:
            return
        self._disk.set_note(self._fd, Note(self._base, self.size, self._crc).encoded())
        self._disk.sync(self._fd)
        self._base = self.size
        self._crc = 0

    def complete(self) -> None:
        """Nothing will be added any more: make it valid and safe, and take the note off."""
        if self.size == 0 and self._codec.framed:
            self.add(b"")
        self.sync()
        self._disk.drop_note(self._fd)
        self._disk.sync(self._fd)

    def is_at(self, path: str) -> bool:
        return self._disk.is_at(self._fd, path)

    def links(self) -> int:
        """How many names it has."""
        return self._disk.links(self._fd)

    def close(self) -> None:
        """Gives the lock back too."""
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
