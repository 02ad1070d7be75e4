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

class Checkpoints(Limits):
    @property
    def durability(self) -> str: ...
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
    def transfer_written(self, error: str | None, done: Callable[[str | None], object]) -> None: ...
    def transfers_synced(self, reason: str | None) -> None: ...
