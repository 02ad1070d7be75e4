"""Fast path for the most frequent message: a run of records for a file that already has records.

Has the effect of `decode`, `Holder.received` and `CopyFiles` in one step. Refuses all other
messages.
"""

import time
from collections.abc import Callable
from functools import partial

from nsqcy.copies.holder import Holder
from nsqcy.net.core import FrameData
from nsqcy.nsqd.copies.copy_files import CopyFiles
from nsqcy.nsqd.copies.wire import parse_run


class RunSink:
    """Writes the runs of a stream to the files of a copy."""

    __slots__ = ("_copy", "_enter", "_holder", "_kick")

    def __init__(
        self,
        holder: Holder,
        copy: CopyFiles,
        enter: Callable[[], object],
        kick: Callable[[], object],
    ) -> None:
        """
        enter: called before topics may be accessed
        kick: submits the file operations
        """
        self._holder = holder
        self._copy = copy
        self._enter = enter
        self._kick = kick

    def take(self, payload: bytes, data: FrameData) -> bool:
        """Write the run in a Write's frame. Return False if the state machine must decide."""
        holder = self._holder
        run = parse_run(payload)
        if run is None or holder.has_ended:
            return False
        path, offset, position = run
        self._enter()
        if not self._copy.write_run(path, offset, data, partial(holder.stored, position)):
            return False
        holder.heard = time.monotonic()
        self._kick()
        return True
