from collections.abc import Callable
from os import PathLike
from typing import NamedTuple, Protocol, final

from typing_extensions import Buffer

_Path = str | bytes | PathLike[str]

_Done = Callable[[int], object] | None

@final
class Hold: ...

class FileCalls:
    repairer: Callable[[str, int, int, int, Callable[[bool | None], object]], object] | None
    @property
    def mirrors(self) -> bool: ...

class IoThread(FileCalls):
    def __new__(
        cls,
        *,
        open_limit: int = 512,
        first_reserved: int | None = None,
        stepped: bool = False,
        read_only: bool = False,
    ) -> IoThread: ...
    @property
    def read_only(self) -> bool: ...
    def fileno(self) -> int: ...
    def sync_times(self) -> dict[str, tuple[list[int], float]]: ...
    def kick_now(self) -> None: ...
    def poll_now(self) -> None: ...
    def drain_now(self) -> None: ...
    def close(self) -> None: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def open_files(self) -> int: ...
    @property
    def wakeups(self) -> int: ...
    def live(self) -> dict[str, int]: ...
    def open(
        self, path: _Path, *, create: bool = False, replace: bool = False, parent: bool = False
    ) -> FileHandle: ...
    def on_path_now(
        self, what: str, path: _Path, done: _Done = None, lane: str = "writes"
    ) -> None: ...
    def step_now(self, lane: str | None = None) -> bool: ...
    def under_way(self) -> list[tuple[str, int, str, str]]: ...
    def open_file_system(self, data_path: _Path) -> bool: ...

class FileHandle:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def write(self, data: bytes, offset: int, done: _Done = None, lane: str = "writes") -> None: ...
    def write_records(self, data: Buffer, offset: int, done: _Done = None) -> None: ...
    def read(self, into: bytearray, offset: int, done: _Done = None) -> None: ...
    def do(self, what: str, n: int = 0, done: _Done = None, lane: str = "writes") -> None: ...
    def rename(self, to: _Path, done: _Done = None, lane: str = "writes") -> None: ...

class _Mirror(Protocol):
    def write(self, path: str, offset: int, data: bytes, are_records: bool, /) -> int: ...
    def truncate(self, path: str, size: int, /) -> int: ...
    def rename(self, path: str, to: str, /) -> int: ...
    def delete(self, path: str, /) -> int: ...
    def failed(self, error: int, /) -> object: ...

@final
class RunBytes:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class MirroredIo(FileCalls):
    io: IoThread
    position: int
    waits: bool
    stopped: bool
    error: int
    pending: int
    def __new__(cls, io: IoThread, root: str | PathLike[str], mirror: _Mirror) -> MirroredIo: ...
    def committed(self, position: int) -> None: ...
    def wait(self, waits: bool) -> None: ...
    def stop(self) -> None: ...

class FormatError(Exception): ...

DAMAGE_TEXTS: dict[int, str]

def topic_directory(topic: str) -> str: ...
def parse_journal(
    data: bytes, path: str = "journal"
) -> tuple[list[bytes], bytes | None, int | None]: ...
def is_segment_header(data: bytes) -> bool: ...
def records_end(data: bytes) -> int: ...
def find_record(data: bytes, at: int) -> int: ...
def footer_length(tail: bytes) -> int: ...
def footer_begin(tail: bytes, size: int) -> int | None: ...
def crc32c(data: bytes, crc: int = 0, *, software: bool = False) -> int: ...

class Footer(NamedTuple):
    records: int
    first_seq: int
    last_seq: int
    first_time: int
    last_time: int
    max_id: int
    data_end: int

@final
class BlockPool:
    resident_bytes: int
    budget: int
    arenas: int
    blocks: int
    entries: int
    deferred: int
    def __init__(self, budget: int) -> None: ...

class SegmentFiles:
    io: FileCalls
    topic: str
    directory: str
    last_error_text: str
    on_failure: Callable[[str, str, str, int], bool] | None
    on_recovery: Callable[[str], object] | None
    log_id: bytes
    disk_bytes: int

class LogWriter(SegmentFiles):
    max_bytes_per_file: int
    sync_every: int
    sync_timeout: int
    journal_bytes: int
    closed: bool
    @property
    def ids_files(self) -> set[int]: ...

def live() -> dict[str, int]: ...

class UnreadableRange(NamedTuple):
    path: str
    segment: int
    offset: int
    bytes: int
    first_seq: int
    last_seq: int
    records: int
    error: int
    text: str

class Log(LogWriter):
    on_damage: Callable[[str, int, str], object] | None
    on_readable: Callable[[], object] | None
    @property
    def unreadable(self) -> UnreadableRange | None: ...
    @property
    def read_error_text(self) -> str: ...
    def __new__(
        cls,
        io: FileCalls,
        data_path: _Path,
        topic: str,
        *,
        max_bytes_per_file: int = 104857600,
        sync_every: int = 2500,
        sync_timeout: int = 2000000000,
        log_id: bytes | None = None,
        aside: _Path | None = None,
        on_damage: Callable[[str, int, str], object] | None = None,
        on_readable: Callable[[], object] | None = None,
        on_failure: Callable[[str, str, str, int], bool] | None = None,
        on_recovery: Callable[[str], object] | None = None,
    ) -> Log: ...

class Unreadable(OSError):
    offset: int
    bytes: int
    def __init__(self, error: int, path: str, offset: int = 0, bytes: int = 0) -> None: ...

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

def recover_log(log: Log) -> Recovered: ...

class RecordWindow:
    @property
    def log(self) -> Log | None: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def searches(self) -> int: ...

@final
class ReadAhead:
    @property
    def first_seq(self) -> int: ...
    @property
    def reading(self) -> bool: ...
    def __new__(cls, window: RecordWindow, first_seq: int) -> ReadAhead: ...

def verify_run(
    run: bytearray, first_seq: int, count: int, dense: bool = True
) -> list[tuple[int, int, int]]: ...
def scan_segment(
    data: bytes,
) -> tuple[list[tuple[int, int, int, int, int, int]], list[tuple[int, int, int]]]: ...

class Survey(NamedTuple):
    records: int
    first_time: int
    last_time: int
    max_id: int
    flags: int
    damaged: list[tuple[int, int, int]]

def survey_run(run: bytes | bytearray) -> Survey: ...

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
        durable: bool = False,
        goes_on: bool = False,
    ) -> RunHandle: ...
    def retract(self, handle: RunHandle, n: int, first_seq: int, count: int) -> None: ...
    def read(self, handle: RunHandle, done: Callable[[int, bytearray], object]) -> None: ...
    def release(self, handle: RunHandle) -> None: ...
    def sync(self, done: _Done = None) -> None: ...
    def commit(self) -> None: ...
    def tick(self, now: int) -> int: ...
    def write_snapshot(self, snapshot: bytes, done: _Done = None, leads: bool = False) -> None: ...
    def append_delta(self, delta: bytes) -> bool: ...
    def close(self, done: _Done = None) -> None: ...
    def delete(self, done: _Done = None) -> None: ...
    @property
    def segments(self) -> list[tuple[int, int]]: ...

def recovered_runs(
    found: Recovered,
) -> list[tuple[int, int, int, int, int, int, RunHandle]]: ...
