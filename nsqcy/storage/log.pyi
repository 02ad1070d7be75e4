from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

from nsqcy.storage.io import FileCalls
from nsqcy.storage.log_writer import LogWriter

_Path = str | bytes | PathLike[str]

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
