from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

from nsqcy.storage.io import IoThread

_Path = str | bytes | PathLike[str]
_Done = Callable[[int], object] | None

class FormatError(Exception): ...

DAMAGE_TEXTS: dict[int, str]

def live() -> dict[str, int]: ...
def topic_directory(topic: str) -> str: ...
def parse_journal(
    data: bytes, path: str = "journal"
) -> tuple[list[bytes], bytes | None, int | None]: ...
def crc32c(data: bytes, crc: int = 0, *, software: bool = False) -> int: ...

class Footer(NamedTuple):
    records: int
    first_seq: int
    last_seq: int
    first_time: int
    last_time: int
    max_id: int
    data_end: int

class Recovered:
    log: Log
    journal: list[bytes]
    damages: list[tuple[str, int, str]]
    log_id: bytes | None
    next_seq: int
    max_id: int
    clean: bool
    segments: list[tuple[int, int, bytes | None, Footer | None]]
    overlaps: list[tuple[int, int, int, int, int]]
    open_end: bool

class Log:
    io: IoThread
    topic: str
    directory: str
    last_error_text: str
    log_id: bytes
    on_damage: Callable[[str, int, str], object] | None
    on_failure: Callable[[str, str, str, int], bool] | None
    on_recovery: Callable[[str], object] | None
    max_bytes_per_file: int
    sync_every: int
    sync_timeout: int
    disk_bytes: int
    journal_bytes: int
    closed: bool
    def __new__(
        cls,
        io: IoThread,
        data_path: _Path,
        topic: str,
        *,
        max_bytes_per_file: int = 104857600,
        sync_every: int = 2500,
        sync_timeout: int = 2000000000,
        log_id: bytes | None = None,
        on_damage: Callable[[str, int, str], object] | None = None,
        on_failure: Callable[[str, str, str, int], bool] | None = None,
        on_recovery: Callable[[str], object] | None = None,
    ) -> Log: ...
    def recover(self) -> Recovered: ...
