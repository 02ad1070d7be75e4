"""A TCP proxy that can stop forwarding, like an interrupted network."""

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self


class Proxy:
    """Forwards connections to `target`. While it is cut, neither bytes nor closes pass in either
    direction; new connections are accepted but receive nothing. Once it is healed, everything that
    it kept is forwarded."""

    def __init__(self, target: tuple[str, int] | None = None) -> None:
        self.target = target
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def _call(self, work: Any) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.result(10)

    async def _listen(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None and self.target is not None
        self._tasks.add(task)
        try:
            await self._flowing.wait()
            there, back = await asyncio.open_connection(*self.target)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except OSError:
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(1 << 16)
            except OSError:
                data = b""
            await self._flowing.wait()
            with contextlib.suppress(OSError):
                sink.write(data)
                await sink.drain()
        sink.close()
