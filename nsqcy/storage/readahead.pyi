from typing import final

from nsqcy.storage.store import Window

@final
class Excerpt:
    @property
    def first_seq(self) -> int: ...
    @property
    def reading(self) -> bool: ...
    def __new__(cls, window: Window, first_seq: int) -> Excerpt: ...
