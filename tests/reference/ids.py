"""Message ids: a slow and simple reference implementation of base/ids.pyx."""

EPOCH_TICKS = 1288834974288


class LeaseWord:
    """First tick that is not leased."""

    def __init__(self) -> None:
        self.free = 0


class IdSource:
    def __init__(self, word: LeaseWord, node_id: int) -> None:
        self.word = word
        self.node_id = node_id
        self.tick = -1
        self.sequence = 4096

    def next_id(self, wall_ns: int) -> int:
        clock = (wall_ns >> 20) - EPOCH_TICKS
        if self.sequence == 4096 or clock > self.tick:
            self.tick = max(clock, self.word.free)
            self.word.free = self.tick + 1
            self.sequence = 0
        self.sequence += 1
        return self.tick << 22 | self.node_id << 12 | self.sequence - 1

    def raise_above(self, id: int) -> None:
        after = (id >> 22) + 1
        self.word.free = max(self.word.free, after)
        if self.tick < after:
            self.sequence = 4096
