from nsqcy.broker.channel import Channel
from nsqcy.storage.log import Log

class Snapshot:
    @property
    def records_wait(self) -> bool: ...
    def __init__(
        self, log: Log, head: bytes, channels: list[Channel], records_wait: bool
    ) -> None: ...
