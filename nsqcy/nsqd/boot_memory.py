"""The memory for messages that a worker receives with its boot data.

Owns the fields only. The master creates and closes the descriptors (nsqd/master/worker_memory.py).
"""

from typing import Any, NamedTuple


class WorkerMemory(NamedTuple):
    """Descriptors of a worker's memfds, and the parts that the worker must not read.

    left_fd is -1 if there is nothing to restore. An item of leave_out is a topic's name, and the
    number of a block, or 0 for the whole topic.
    """

    records_fd: int
    state_fd: int
    left_fd: int
    marks_fd: int
    leave_out: list[tuple[str, int]]

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> "WorkerMemory | None":
        """Read the boot data."""
        if value is None:
            return None
        return cls(**value | {"leave_out": [(name, block) for name, block in value["leave_out"]]})

    def fds(self) -> list[int]:
        """Return the descriptors that exist."""
        found = (self.records_fd, self.state_fd, self.left_fd, self.marks_fd)
        return [fd for fd in found if fd >= 0]
