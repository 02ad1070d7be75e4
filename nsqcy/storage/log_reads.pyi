from collections.abc import Callable
from typing import NamedTuple

from nsqcy.storage.log_writer import LogWriter

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

class LogReads(LogWriter):
    on_damage: Callable[[str, int, str], object] | None
    on_readable: Callable[[], object] | None
    @property
    def unreadable(self) -> UnreadableRange | None: ...
    @property
    def read_error_text(self) -> str: ...
