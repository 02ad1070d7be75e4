"""gnsq's Consumer on top of the blocking client."""

import logging
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from nsqcy import client
from nsqcy.compat.gnsq.errors import NSQRequeueMessage, error_of
from nsqcy.compat.gnsq.message import Message
from nsqcy.compat.gnsq.options import addresses, connection_options
from nsqcy.compat.gnsq.signals import ANY, Signal


class Consumer:
    """Calls the receivers of `on_message` with itself and each message. A message is finished when
    they return; NSQRequeueMessage or another exception requeues it after `requeue_delay` ms.

    A consumer with several fixed nsqds runs one receiver per nsqd at a time; other consumers run
    one. on_response and on_auth are never sent.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        name: str | None = None,
        message_handler: Callable[..., object] | None = None,
        max_tries: int = 5,
        max_in_flight: int = 1,
        requeue_delay: int = 0,
        lookupd_poll_interval: float = 60,
        lookupd_poll_jitter: float = 0.3,
        low_ready_idle_timeout: float = 10,
        max_backoff_duration: float = 128,
        backoff_on_requeue: bool = True,
        **kwargs: Any,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.name = name or f"gnsq.consumer.{topic}.{channel}"
        self.max_tries = max_tries
        self.requeue_delay = requeue_delay
        self.backoff_on_requeue = backoff_on_requeue
        self.logger = logging.getLogger(self.name)
        self.nsqd_tcp_addresses = addresses(nsqd_tcp_addresses)
        self._consumer = client.Consumer(
            topic,
            channel,
            self.nsqd_tcp_addresses,
            addresses(lookupd_http_addresses),
            self._handle,
            concurrency=max(1, len(self.nsqd_tcp_addresses)),
            runtime="gevent",
            name=self.name,
            on_error=self._error,
            max_tries=0,
            lookupd_poll_interval=lookupd_poll_interval,
            lookupd_poll_jitter=lookupd_poll_jitter,
            low_rdy_idle_timeout=low_ready_idle_timeout,
            max_backoff_duration=max_backoff_duration,
            **connection_options(kwargs),
        )
        self._consumer.set_max_in_flight(max_in_flight)  # may be less than the number of receivers
        self._is_started = False
        self._is_closed = False
        if message_handler is not None:
            self.on_message.connect(message_handler, weak=False)

    # -- signals

    @cached_property
    def on_message(self) -> Signal:
        return Signal("Sent when a message arrives. Argument: `message`.")

    @cached_property
    def on_response(self) -> Signal:
        return Signal("Never sent.")

    @cached_property
    def on_error(self) -> Signal:
        return Signal("Sent when nsqd returns an error. Argument: `error`.")

    @cached_property
    def on_finish(self) -> Signal:
        return Signal("Sent when a message has been finished. Argument: `message_id`.")

    @cached_property
    def on_requeue(self) -> Signal:
        return Signal("Sent when a message has been requeued. Arguments: `message_id`, `timeout`.")

    @cached_property
    def on_giving_up(self) -> Signal:
        return Signal(
            "Sent when a message has exceeded `max_tries`, before it is finished. Argument: "
            "`message`."
        )

    @cached_property
    def on_auth(self) -> Signal:
        return Signal("Never sent.")

    @cached_property
    def on_exception(self) -> Signal:
        return Signal("Sent when a receiver of on_message raises. Arguments: `message`, `error`.")

    @cached_property
    def on_close(self) -> Signal:
        return Signal("Sent when the consumer has been closed.")

    # -- lifecycle

    def start(self, block: bool = True) -> None:
        """Start, and wait for the consumer to end unless `block` is false."""
        if not self._is_started:
            if not self.on_message.receivers_for(ANY):
                raise RuntimeError("no receivers connected to on_message")
            self._is_started = True
            self._consumer.start()
        else:
            self.logger.warning("%s already started", self.name)
        if block:
            self.join()

    def close(self) -> None:
        """Stop. join() waits for messages that are being handled."""
        if not self.is_running:
            return
        self._is_closed = True
        self._consumer.close(wait=False)
        self.on_close.send(self)

    def join(self, timeout: float | None = None, raise_error: bool = False) -> None:
        self._consumer.join(timeout)

    @property
    def is_running(self) -> bool:
        return self._is_started and not self._is_closed

    # -- control

    @property
    def is_starved(self) -> bool:
        """Return whether collected messages should be answered now."""
        return self._consumer.is_starved

    @property
    def total_ready_count(self) -> int:
        return self._consumer.total_ready_count

    @property
    def total_in_flight(self) -> int:
        return self._consumer.total_in_flight

    @property
    def max_in_flight(self) -> int:
        return self._consumer.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._consumer.set_max_in_flight(count)

    def redistribute_ready_state(self) -> None:
        """Do nothing: setting max_in_flight already redistributes."""

    def query_nsqd(self) -> None:
        """Do nothing: lost connections are re-established anyway."""

    def query_lookupd(self) -> None:
        self._consumer.query_lookupd()

    def connect_to_nsqd(self, address: str, port: int) -> None:
        self._consumer.connect_to_nsqd(address, port)

    # -- messages

    def _error(self, error: client.Error) -> None:
        if isinstance(error, client.NsqdError):
            self.on_error.send(self, error=error_of(error))

    def _handle(self, delivered: client.Message) -> None:
        delivered.enable_async()  # the handler's result is applied here
        message = Message.of(delivered)
        message.on_finish.connect(self._finished)
        message.on_requeue.connect(self._requeued)
        try:
            self._process(message)
        except NSQRequeueMessage as error:
            backoff = self.backoff_on_requeue if error.backoff is None else error.backoff
            self._requeue(message, backoff)
        except Exception as error:
            self.logger.exception("[%s] caught exception while handling message", self.name)
            self.on_exception.send(self, message=message, error=error)
            self._requeue(message, True)

    def _process(self, message: Message) -> None:
        if self.max_tries and message.attempts > self.max_tries:
            self.logger.warning(
                "giving up on message %r after max tries %d", message.id, self.max_tries
            )
            self.on_giving_up.send(self, message=message)
        else:
            self.on_message.send(self, message=message)
            if message.is_async():
                return
        if not message.has_responded():
            message.finish()

    def _requeue(self, message: Message, backoff: bool) -> None:
        if not message.has_responded():
            message.requeue(self.requeue_delay, backoff)

    def _finished(self, message: Message) -> None:
        self.on_finish.send(self, message_id=message.id)

    def _requeued(self, message: Message, timeout: int, backoff: bool) -> None:
        self.on_requeue.send(self, message_id=message.id, timeout=timeout)
