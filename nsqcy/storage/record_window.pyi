from nsqcy.storage.log import Log

class RecordWindow:
    @property
    def log(self) -> Log | None: ...
    @property
    def next_seq(self) -> int: ...
