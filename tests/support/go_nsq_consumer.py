"""A consumer that sends what go-nsq sends: one connection, concurrent handlers, and backoff after a
failure.

Records when the handler of each message began and ended. Use it with other consumers in one process
to see messages of several connections in order.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsqcy.testing.wire_client import Hangup, Message, Silence
from support.nsqd_process import Nsqd

IDENTITY: dict[str, Any] = {
    "client_id": "host",
    "hostname": "host.example",
    "user_agent": "go-nsq/1.1.0",
    "short_id": "host",
    "long_id": "host.example",
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "snappy": False,
    "heartbeat_interval": 30000,
    "sample_rate": 0,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
    "msg_timeout": 0,
}
REQUEUE_DELAY, BACKOFF = 20, 0.03  # ms, seconds


@dataclass
class Handled:
    message: Message
    began: float
    ended: float
    succeeded: bool


class GoNsqConsumer:
    """`handler` returns whether it succeeds; it runs in `concurrency` threads."""

    def __init__(
        self,
        daemon: Nsqd,
        topic: str,
        channel: str,
        handler: Callable[[Message], bool],
        *,
        max_in_flight: int,
        concurrency: int,
    ) -> None:
        self.handled: list[Handled] = []
        self._handler = handler
        self._max_in_flight = max_in_flight
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of writes, and of the backoff
        self._backs_off = False
        self._is_closing = False
        self._conn = daemon.connect()
        self._conn.negotiate(**IDENTITY)
        self._conn.sub(topic, channel, rdy=max_in_flight)
        works = [self._read] + [self._handle] * concurrency
        self._threads = [threading.Thread(target=work) for work in works]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        while not self._is_closing:
            try:
                self._messages.put(self._conn.message(0.1))
            except Silence:
                continue
            except Hangup:
                break
        for _ in self._threads[1:]:
            self._messages.put(None)

    def _handle(self) -> None:
        while message := self._messages.get():
            began = time.monotonic()
            succeeded = self._handler(message)
            # Before the answer: the next message of the key may be delivered at once.
            self.handled.append(Handled(message, began, time.monotonic(), succeeded))
            with self._lock:
                if succeeded:
                    self._conn.fin(message)
                    if self._backs_off:
                        self._conn.rdy(self._max_in_flight)
                        self._backs_off = False
                    continue
                self._conn.req(message, REQUEUE_DELAY)
                self._conn.rdy(0)
                self._backs_off = True
            time.sleep(BACKOFF)
            with self._lock:
                if self._backs_off:
                    self._conn.rdy(1)

    def close(self) -> None:
        self._is_closing = True
        for thread in self._threads:
            thread.join()
        self._conn.close()
