from collections.abc import Callable, Mapping
from typing import Any

from nsqcy.base.ids import IdSource
from nsqcy.broker.scheduler import Scheduler
from nsqcy.broker.topic import Topic
from nsqcy.channels.scheduler_state import SchedulerState
from nsqcy.config.policies import Policies
from nsqcy.logging.types import Lines
from nsqcy.storage.io import IoThread

def boot_id() -> bytes: ...

class Shard(Scheduler):
    def __init__(
        self,
        *,
        agenda: SchedulerState,
        ids: IdSource,
        io: IoThread | None,
        data_path: str | None,
        log_options: Mapping[str, Any] | None = None,
        policies: Policies | None = None,
        has_room: Callable[[], bool] | None = None,
        on_event: Callable[[str, str, str | None], object] | None = None,
        log: Lines | None = None,
    ) -> None: ...
    @property
    def data_path(self) -> str | None: ...
    hold_new: int
    @property
    def policies(self) -> Policies | None: ...
    def policies_changed(self, name: str) -> None: ...
    def load_topic(self, key: bytes, paused: bool, channels: Mapping[str, bool]) -> Topic: ...
    def report_failed_write(self, topic: str, verb: str, path: str, error: int) -> bool: ...
    def report_written_again(self, topic: str) -> None: ...
    def topic(self, key: bytes, *, create: bool = False) -> Topic | None: ...
    def set_refusal(self, reason: str | None) -> None: ...
    def set_draining(self, draining: bool) -> None: ...
    def save(self) -> None: ...
