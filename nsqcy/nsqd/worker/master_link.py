"""A worker's end of the control channel: typed calls to the master and, through it, to other
workers.

The channel is its only state. The calls are in nsqd/process_messages.
"""

from typing import Any

from nsqcy.nsqd.process_calls import Call, Result
from nsqcy.process.control import Channel


class MasterLink:
    """Calls block the calling greenlet and raise the exceptions of `Call.send`; `notify` never
    blocks."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def call(self, call: Call[Any, Result]) -> Result:
        """Run a call in the master."""
        return call.send(self._channel)

    def notify(self, call: Call[Any, None]) -> None:
        """Run a call in the master without waiting for it."""
        call.notify(self._channel)

    def ask(self, worker: int, call: Call[Any, Result]) -> Result:
        """Run a call in another worker."""
        return call.send(self._channel, worker)
