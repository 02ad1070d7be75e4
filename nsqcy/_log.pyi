from collections.abc import Callable
from os import PathLike

from nsqcy._io import IoThread

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
def verify_run(
    run: bytearray, first_seq: int, count: int, dense: bool = True
) -> list[tuple[int, int, int]]: ...
def scan_segment(
    data: bytes,
) -> tuple[list[tuple[int, int, int, int, int, int]], list[tuple[int, int, int]]]: ...

class Recovered:
    log: Log
    journal: list[bytes]
    damages: list[tuple[str, int, str]]
    log_id: bytes | None
    next_seq: int
    max_id: int
    clean: bool
    @property
    def runs(self) -> list[tuple[int, int, int, int, int, int, RunHandle]]: ...

class Log:
    io: IoThread
    directory: str
    last_error_text: str
    log_id: bytes
    on_damage: Callable[[str, int, str], object] | None
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
    ) -> Log: ...
    def recover(self) -> Recovered: ...

class RunHandle:
    log: Log
    def __new__(cls, log: Log) -> RunHandle: ...
    @property
    def pieces(self) -> list[tuple[int, int, int, int, int, int]]: ...
    @property
    def bytes(self) -> int: ...

class LogProbe:
    log: Log
    def __new__(cls, log: Log) -> LogProbe: ...
    def append(
        self,
        run: bytearray,
        first_seq: int,
        last_seq: int,
        count: int,
        flags: int = 0,
        into: RunHandle | None = None,
        done: _Done = None,
    ) -> RunHandle: ...
    def retract(self, handle: RunHandle, n: int, first_seq: int, count: int) -> None: ...
    def read(self, handle: RunHandle, done: Callable[[int, bytearray], object]) -> None: ...
    def release(self, handle: RunHandle) -> None: ...
    def sync(self, done: _Done = None) -> None: ...
    def tick(self, now: int) -> int: ...
    def write_snapshot(self, snapshot: bytes, done: _Done = None) -> None: ...
    def append_delta(self, delta: bytes) -> bool: ...
    def close(self, done: _Done = None) -> None: ...
    def delete(self, done: _Done = None) -> None: ...
    @property
    def segments(self) -> list[tuple[int, int]]: ...
