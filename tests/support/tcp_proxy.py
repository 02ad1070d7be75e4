"""The proxy of the chaos test, for tests that have no event loop."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from loadtest.chaos.proxy import TO_CLIENT, TO_NSQD, Proxy


class ThreadedProxy:
    """Forwards connections to `target`, a port on this host, on its own thread. While it is
    cut, neither bytes nor closes pass in either direction; new connections are accepted but receive
    nothing. Once it is healed, everything that it kept is forwarded."""

    def __init__(self) -> None:
        self._proxy = Proxy()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._proxy.start())
        self.port = self._proxy.port
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def forward_to(self, port: int) -> None:
        self._proxy.target = port

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.stall, TO_NSQD, TO_CLIENT)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.heal)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
