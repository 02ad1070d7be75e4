from typing import final

from nsqcy.storage.record_window import RecordWindow

@final
class ReadAhead:
    @property
    def first_seq(self) -> int: ...
    @property
    def reading(self) -> bool: ...
    def __new__(cls, window: RecordWindow, first_seq: int) -> ReadAhead: ...
