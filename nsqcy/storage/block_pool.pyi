from typing import final

@final
class BlockPool:
    resident_bytes: int
    budget: int
    arenas: int
    blocks: int
    entries: int
    deferred: int
    def __init__(self, budget: int) -> None: ...
