from collections.abc import Callable

from nsqcy.broker.limits import Limits
from nsqcy.channels.channel import Channel
from nsqcy.storage.journal import TopicState, TransferRun
from nsqcy.storage.log import Log

class Snapshot:
    @property
    def records_wait(self) -> bool: ...
    def __init__(
        self, log: Log, head: bytes, channels: list[Channel], records_wait: bool
    ) -> None: ...

class PendingChange:
    def __call__(self, *args: object, **kwargs: object) -> object: ...

class Checkpoints(Limits):
    refused: str | None
    @property
    def durability(self) -> str: ...
    @property
    def has_pending_changes(self) -> bool: ...
    def saved_state(self) -> TopicState: ...
    def journal_transfer(
        self,
        channel: str,
        seq: int,
        packed: bytes,
        run: TransferRun,
        delayed: bool,
        done: Callable[[str | None], object],
    ) -> bool: ...
    def journal_transferred(self, channel: str, seq: int) -> None: ...
    def record(self, done: Callable[[str | None], object] | None = None) -> None: ...
    def delta_written(self, error: str | None, done: Callable[[str | None], object]) -> None: ...
    def deltas_synced(self, reason: str | None) -> None: ...
