from typing import final

from nsqcy.storage.log import Log

@final
class Store:
    resident_bytes: int
    budget: int
    arenas: int
    blocks: int
    entries: int
    deferred: int
    def __init__(self, budget: int) -> None: ...

class Window:
    @property
    def log(self) -> Log | None: ...
    @property
    def next_seq(self) -> int: ...
