from typing import Any

from nsqcy.base.core import IdSource
from nsqcy.channels.scheduler_state import SchedulerState
from nsqcy.storage.disk_probe import DiskProbe
from nsqcy.storage.io import IoThread

EXITING: str
DRAINING: str
UNKNOWN: str

class TopicHost:
    def __new__(
        cls, scheduler: SchedulerState, ids: IdSource, io: IoThread | None
    ) -> TopicHost: ...
    copies: Any
    snapshot_budget: int
    boot: bytes
    @property
    def health(self) -> str: ...
    @property
    def health_at(self) -> int: ...
    probe: DiskProbe | None
    @property
    def damages(self) -> int: ...
    log_hold_max_bytes: int
    log_cursor_expiry: int
    def set_health(self, reason: str | None) -> None: ...
    def report_damage(self, path: str, offset: int, text: str) -> None: ...
