from nsqcy.storage.disk_format import Footer
from nsqcy.storage.log import Log

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
