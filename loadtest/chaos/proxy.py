"""A network with faults: a TCP proxy on the caller's event loop.

Bytes pass unchanged and in order. A fault delays bytes, or ends connections.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

CHUNK = 1 << 16
TO_NSQD, TO_CLIENT = "to nsqd", "to client"  # directions
DRIBBLED = 256  # bytes of a chunk that are sent one by one
DROP = 0.002  # seconds between two of these bytes
LINGER = struct.Struct("ii")


class Proxy:
    """Forwards connections to `target`, a port on this host."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self.lag = 0.0  # seconds by which each chunk is delayed
        self.dribbles = False
        self.refuses = False  # new connections are closed immediately
        self._flowing = {TO_NSQD: asyncio.Event(), TO_CLIENT: asyncio.Event()}
        self._links: set[tuple[asyncio.Task[None], asyncio.StreamWriter]] = set()

    async def start(self) -> None:
        self.heal()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        tasks = [task for task, _ in self._links]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- faults

    def heal(self) -> None:
        self.lag, self.dribbles, self.refuses = 0.0, False, False
        for flowing in self._flowing.values():
            flowing.set()

    def stall(self, *ways: str) -> None:
        """Forward nothing, not even the end of a connection, but accept new connections."""
        for way in ways:
            self._flowing[way].clear()

    def cut(self) -> None:
        """Close connections, and refuse new ones."""
        self.refuses = True
        self._drop(lambda _: None)

    def reset(self) -> None:
        """Reset connections (RST)."""
        self._drop(_reset_at_close)

    def _drop(self, prepare: Callable[[asyncio.StreamWriter], None]) -> None:
        for task, writer in self._links:
            prepare(writer)
            task.cancel()

    # -- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends = {(task, writer)}
        self._links |= ends
        try:
            if not self.refuses:
                await self._flowing[TO_NSQD].wait()
                there, back = await asyncio.open_connection("127.0.0.1", self.target)
                ends.add((task, back))
                self._links |= ends
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump(reader, back, TO_NSQD))
                    pumps.create_task(self._pump(there, writer, TO_CLIENT))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links -= ends
            for _, each in ends:
                each.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str
    ) -> None:
        """Copy until one direction ends; the other may continue."""
        flowing = self._flowing[way]
        while data := await source.read(CHUNK):
            if self.lag:
                await asyncio.sleep(self.lag)
            if self.dribbles:
                data = await self._dribble(data, sink)
            if not flowing.is_set():
                await flowing.wait()
            sink.write(data)
            await sink.drain()
        await flowing.wait()
        with contextlib.suppress(OSError):
            sink.write_eof()

    async def _dribble(self, data: bytes, sink: asyncio.StreamWriter) -> bytes:
        """Return the bytes that are still to be sent."""
        for at in range(min(len(data), DRIBBLED)):
            sink.write(data[at : at + 1])
            await sink.drain()
            await asyncio.sleep(DROP)
        return data[DRIBBLED:]


def _reset_at_close(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER.pack(1, 0))
