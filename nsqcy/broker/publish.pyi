from nsqcy.broker.log_access import LogAccess

class Publishing(LogAccess):
    @property
    def message_count(self) -> int: ...
    @property
    def message_bytes(self) -> int: ...
