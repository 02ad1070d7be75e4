from collections.abc import Callable

from nsqcy.storage.io import FileCalls

class SegmentFiles:
    io: FileCalls
    topic: str
    directory: str
    last_error_text: str
    on_failure: Callable[[str, str, str, int], bool] | None
    on_recovery: Callable[[str], object] | None
    log_id: bytes
    disk_bytes: int
