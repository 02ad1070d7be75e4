"""The producer, the consumers, and the unanswered messages of one process.

They are unusable in a forked child, which opens its own.
"""

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from nsqcy.client import Consumer, Producer
from nsqcy.integrations.client_options import (
    QUICK,
    UNTIL_ANSWERED,
    demand_seconds,
    sorted_options,
)
from nsqcy.integrations.unanswered import Unanswered

OWN_OPTIONS = ("max_tries", "max_attempts", "max_in_flight", "close_timeout")
END_WAIT = 5.0  # maximum seconds to wait for the last answers on close


class Settings:
    """Addresses and options of the client. Raises ValueError and TypeError for invalid ones."""

    def __init__(
        self,
        nsqds: tuple[str, ...],
        lookupds: tuple[str, ...],
        channel: str,
        msg_timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        demand_seconds("msg_timeout", msg_timeout)
        self.nsqds = nsqds
        self.lookupds = lookupds
        self.msg_timeout = msg_timeout
        consumer, producer = sorted_options(options, OWN_OPTIONS, "NsqBroker")
        self._channel = channel
        self._consumer: Any = QUICK | consumer | {"msg_timeout": msg_timeout}
        self._producer: Any = producer
        self.producer()
        self.consumer(channel, 1)

    @property
    def auth_secret(self) -> str | None:
        return self._producer.get("auth_secret")

    @property
    def has_headers(self) -> bool:
        """Whether messages may have headers of nsqd."""
        return bool(self._producer.get("headers"))

    @property
    def trust_lookupd(self) -> bool:
        return bool(self._producer.get("trust_lookupd"))

    def producer(self) -> Producer:
        return Producer(self.nsqds, self.lookupds, **self._producer)

    def consumer(self, topic: str, max_in_flight: int) -> Consumer:
        return Consumer(
            topic,
            self._channel,
            self.nsqds,
            self.lookupds,
            max_in_flight=max_in_flight,
            max_tries=0,
            close_timeout=UNTIL_ANSWERED,
            **self._consumer,
        )


class Connections:
    """The connections of the process that created them."""

    def __init__(self, settings: Settings) -> None:
        self.producer = settings.producer()
        self.unanswered = Unanswered(settings.msg_timeout)
        self._settings = settings
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process created the connections, not its parent before a fork."""
        return self._pid == os.getpid()

    def consume(self, topic: str, max_in_flight: int) -> Consumer:
        """Start a consumer of a topic."""
        consumer = self._settings.consumer(topic, max_in_flight)
        with self._lock:
            self._consumers.add(consumer)
        self.unanswered.start_thread()
        consumer.start()
        return consumer

    def close(self) -> None:
        """Release the unanswered messages to other workers, and end all connections."""
        consumers = list(self._consumers)
        for consumer in consumers:
            consumer.close(wait=False)
        self.unanswered.requeue_all()
        self.unanswered.close()
        for consumer in consumers:
            if not consumer.join(END_WAIT):
                consumer.close(graceful=False)
        self.producer.close()
