"""A transport of kombu: the producer, and the unacknowledged messages, of one kombu connection.

It belongs to the process that created it. A child process opens its own connections.
"""

import os
import socket
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from kombu.transport import virtual

from nsqcy import __version__
from nsqcy.client import ConnectionFailed, NoConnection, NsqdError, Producer, PublishTimeout
from nsqcy.client.common_interface import Headers
from nsqcy.client.options import Address
from nsqcy.integrations.delays import milliseconds
from nsqcy.integrations.kombu.channel import Channel
from nsqcy.integrations.kombu.inbox import Inbox
from nsqcy.integrations.kombu.payloads import encoded, keys_of, seconds_until
from nsqcy.integrations.kombu.settings import settings
from nsqcy.integrations.message_keys import MessageKeys
from nsqcy.integrations.process_producer import ProcessProducer
from nsqcy.integrations.queue_management import QueueManagement
from nsqcy.integrations.queue_names import nsq_name
from nsqcy.integrations.unanswered import Unanswered


class Transport(virtual.Transport):
    """kombu transport for nsqd; see the package."""

    Channel = Channel
    can_parse_url = True
    default_port = 4150
    driver_type = "nsqcy"
    driver_name = "nsqcy"
    polling_interval = None
    connection_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *virtual.Transport.connection_errors,
        ConnectionFailed,
        NoConnection,
        PublishTimeout,
        OSError,
    )
    channel_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *virtual.Transport.channel_errors,
        NsqdError,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.settings = settings(client)
        self.management = QueueManagement(
            nsq_name(self.settings.options.channel),
            self.settings.nsqds,
            self.settings.lookupds,
            self.settings.options.nsqd_http_addresses,
            self.settings.producer.get("auth_secret"),
            trust_lookupd=bool(self.settings.producer.get("trust_lookupd")),
        )
        self.temporary: set[str] = set()  # auto-delete and exclusive queues
        self.inbox = Inbox()
        self.unanswered = Unanswered(self.settings.options.msg_timeout)
        self._producer = ProcessProducer(self._new_producer)
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Return whether this process created the transport, not its parent before a fork."""
        return self._pid == os.getpid()

    def driver_version(self) -> str:
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, with its password masked."""
        scheme, separator, rest = uri.partition("://")
        credentials, at, hosts = rest.rpartition("@")
        if at and not include_password:
            credentials = f"{credentials.partition(':')[0]}:{mask}"
        return f"{scheme}{separator}{credentials}{at}{hosts}"

    # -- connections

    def establish_connection(self) -> "Transport":
        """Check that an nsqd is reachable. Raises OSError."""
        self._check_reachable(self.settings.nsqds or self.settings.lookupds)
        return super().establish_connection()

    def _check_reachable(self, addresses: Iterable[str]) -> None:
        failure: OSError | None = None
        for each in addresses:
            address = Address.parse(each)
            try:
                socket.create_connection(
                    (address.host, address.port), self.settings.options.connect_timeout
                ).close()
            except OSError as error:
                failure = error
            else:
                return
        if failure is not None:
            raise failure

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        if self.is_ours:
            self.unanswered.close()
            self.inbox.close()
        self._producer.close()

    # -- publishing

    def publish(self, topic: str, payload: dict[str, Any]) -> None:
        """Publish a payload, deferred until the task's ETA. Returns once nsqd has confirmed it.
        Raises ValueError for a key that is neither a text nor a number."""
        keys = keys_of(payload) if self.has_headers else MessageKeys()
        self.send(topic, encoded(payload), seconds_until(payload, time.time()), keys=keys)

    def send(
        self,
        topic: str,
        data: bytes,
        delay: float = 0.0,
        headers: Headers | None = None,
        keys: MessageKeys | None = None,
    ) -> None:
        """Publish bytes. Raises the errors of nsqcy.client.Producer.publish()."""
        options = self.settings.options
        self._producer.get().publish(
            topic,
            data,
            milliseconds(delay, options.max_defer),
            timeout=options.publish_timeout,
            headers=headers,
            **(keys or {}),
        )

    @property
    def has_headers(self) -> bool:
        """Return whether messages may have headers of nsqd: the client's option `headers`."""
        return bool(self.settings.producer.get("headers"))

    def _new_producer(self) -> Producer:
        return Producer(self.settings.nsqds, self.settings.lookupds, **self.settings.producer)

    # -- consuming

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages from a worker's event loop."""
        self.inbox.deliver_from(loop)

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivery = self.inbox.get(left)
            if delivery is None:
                raise TimeoutError
            if delivery.deliver():
                return
