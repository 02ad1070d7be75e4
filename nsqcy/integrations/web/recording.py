"""Producer for tests: it records messages instead of sending them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nsqcy.client import Producer
from nsqcy.client.common_interface import OK, Headers
from nsqcy.client.keys import keyed
from nsqcy.client.producer import dpub_head
from nsqcy.client.threads_or_greenlets import Future
from nsqcy.client.times import Duration, Milliseconds, milliseconds


@dataclass(frozen=True, slots=True)
class Published:
    """A message that a test has recorded. `defer` is in milliseconds."""

    topic: str
    body: bytes
    defer: int = 0
    headers: Headers = field(default_factory=dict)


class RecordingProducer(Producer):
    """Appends each message to `messages`. Checks names, bodies and headers as Producer does.

    Raises ValueError and TypeError for invalid arguments.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("127.0.0.1:4150", **options)
        self.messages: list[Published] = []

    def publish(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> bytes:
        self._record(topic, [data], defer, keyed(headers, key, dedup_id, priority))
        return OK

    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> bytes:
        self._record(topic, messages, None, keyed(headers, key, None, priority))
        return OK

    def publish_all(
        self, topic: str, messages: Iterable[bytes], *, headers: Headers | None = None, **_: int
    ) -> int:
        return self._record(topic, messages, None, headers)

    def publish_nowait(
        self,
        topic: str,
        data: bytes,
        defer: Milliseconds | None = None,
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> Future:
        headers = keyed(headers, key, dedup_id, priority)
        return self._answered(self.publish(topic, data, defer, headers=headers))

    def multipublish_nowait(
        self,
        topic: str,
        messages: Iterable[bytes],
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> Future:
        headers = keyed(headers, key, None, priority)
        return self._answered(self.multipublish(topic, messages, headers=headers))

    pub = publish
    mpub = multipublish

    def _record(
        self,
        topic: str,
        bodies: Iterable[bytes],
        defer: Milliseconds | None,
        headers: Headers | None,
    ) -> int:
        defer = None if defer is None else milliseconds(defer)
        dpub_head(topic, defer or 0)
        new = []
        for body in bodies:
            self._body(body, headers)
            new.append(Published(topic, bytes(body), defer or 0, dict(headers or {})))
        self.messages += new
        return len(new)

    def _answered(self, result: bytes) -> Future:
        future = self._loop.runtime.future()
        future.set_result(result)
        return future
