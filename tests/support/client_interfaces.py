"""The blocking and the asyncio client behind one interface for tests.

A test makes all calls through `face.call`: in the thread of the event loop for asyncio, directly
for the blocking client.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import nsqcy.client
import nsqcy.client.aio

LIMIT = 30.0  # maximum seconds for any call


class Face:
    """Creates consumers and producers, and closes them."""

    name: str
    module: Any

    def __init__(self) -> None:
        self._made: list[Any] = []

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call the function, and return its result once there is one."""
        return self.begin(function, *args, **options).result(LIMIT)

    def begin(self, function: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        """Call the function, and return a future for its result."""
        raise NotImplementedError

    def consumer(self, *args: Any, **options: Any) -> Any:
        """Return a consumer that has started."""
        made = self.call(self._make, self.module.Consumer, args, options)
        self.call(made.start)
        return made

    def producer(self, *args: Any, **options: Any) -> Any:
        return self.call(self._make, self.module.Producer, args, options)

    def _make(self, kind: Callable[..., Any], args: Any, options: Any) -> Any:
        made = kind(*args, **options)
        self._made.append(made)
        return made

    def publish_nowait(self, producer: Any, topic: str, bodies: Iterable[bytes]) -> "list[Any]":
        """Publish without waiting; return functions that wait."""
        raise NotImplementedError

    def end(self) -> None:
        for each in self._made:
            self.call(each.close, graceful=False)


class Aio(Face):
    name = "aio"
    module = nsqcy.client.aio

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, function: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        async def call() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def publish_nowait(self, producer: Any, topic: str, bodies: Iterable[bytes]) -> "list[Any]":
        async def wait(future: Any) -> Any:
            return await future

        futures = self.call(lambda: [producer.publish_nowait(topic, body) for body in bodies])
        return [lambda future=future: self.call(wait, future) for future in futures]

    def end(self) -> None:
        super().end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()


class Blocking(Face):
    name = "blocking"
    module = nsqcy.client

    def begin(self, function: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return function(*args, **options)

    def publish_nowait(self, producer: Any, topic: str, bodies: Iterable[bytes]) -> "list[Any]":
        futures = [producer.publish_nowait(topic, body) for body in bodies]
        return [lambda future=future: future.result(LIMIT) for future in futures]


FACES: list[type[Face]] = [Aio, Blocking]


class Kept:
    """A handler that keeps every message for the test to answer."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def __call__(self, message: Any) -> None:
        message.enable_async()
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]
