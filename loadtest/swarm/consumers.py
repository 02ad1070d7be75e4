"""The consuming user: all channels of the test, with a ledger of deliveries.

A client with its own connections, as in an application: nsqcy.client on gevent.
"""

import random
import time
from functools import partial

from gevent.pool import Group
from locust import User, constant, task
from locust.env import Environment

from loadtest.soak.bodies import Stamp
from loadtest.soak.ledger import Order, Place
from loadtest.swarm.run import DEFERRED, DELIVER, Run
from nsqcy.client import Consumer, Error, Message, finish

TOGETHER = 256  # maximum messages that a consumer handles at a time
POLL = 5.0  # seconds between two queries of nsqlookupds
CLOSE = 5.0  # time limit in seconds for a user to end
MILLISECOND = 1_000_000  # in ns


class ConsumeUser(User):
    """Send SUB for every channel of every topic on all nsqds, and FIN or REQ for each message."""

    wait_time = constant(1)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.test = Run.current
        self._consumers: list[Consumer] = []
        self._readers = Group()

    def on_start(self) -> None:
        options = self.test.options
        for place in options.places:
            consumer = Consumer(
                *place,
                options.nsqds,
                options.lookupds,
                runtime="gevent",
                on_error=partial(self._failed, place),
                max_in_flight=options.rdy,
                max_tries=0,
                lookupd_poll_interval=POLL,
                close_timeout=CLOSE,
                **options.connection,
            )
            self._consumers.append(consumer)
            self._readers.spawn(self._read, place, consumer)

    @task
    def consume(self) -> None:
        """Run until it is stopped."""
        self._readers.join(raise_error=True)

    def on_stop(self) -> None:
        closing = Group()
        for consumer in self._consumers:
            closing.spawn(consumer.close)
        closing.join()
        self._readers.join(timeout=CLOSE)

    def _read(self, place: Place, consumer: Consumer) -> None:
        order = Order()
        for batch in consumer.batches(TOGETHER):
            now = time.time_ns()
            finish([message for message in batch if self._take(place, message, order, now)])

    def _take(self, place: Place, message: Message, order: Order, now: int) -> bool:
        """Record a message; return whether to finish it."""
        test = self.test
        stamp = test.bodies.read(message.body)
        if stamp is None:
            test.ledger.count(place, "foreign")
            return True
        if message.attempts > 1:
            test.ledger.count(place, "again")
        else:
            self._first(place, message, stamp, order, now)
            options = test.options
            if options.requeue_share and random.random() < options.requeue_share:
                message.requeue(time_ms=options.requeue_delay, backoff=False)
                test.ledger.count(place, "requeued")
                return False
        test.ledger.finish(place, stamp.publisher, stamp.number)
        return True

    def _first(self, place: Place, message: Message, stamp: Stamp, order: Order, now: int) -> None:
        """Record the lateness of a message's first delivery."""
        assert stamp.due is not None  # every body is long enough for a due time
        late = (now - stamp.due) / MILLISECOND
        if late < 0:
            self.test.ledger.count(place, "early" if stamp.deferred else "ahead")
        kind = DEFERRED if stamp.deferred else DELIVER
        self._tell(kind, place, max(0.0, late), length=len(message.body))
        if not stamp.deferred and order.breaks(stamp.publisher, stamp.number, message.nsqd_address):
            self.test.ledger.count(place, "out_of_order")

    def _failed(self, place: Place, error: Error) -> None:
        """Record the failure of a connection."""
        self._tell("SUB", place, None, error=error)

    def _tell(
        self,
        kind: str,
        place: Place,
        milliseconds: float | None,
        *,
        length: int = 0,
        error: Error | None = None,
    ) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name="/".join(place),
            response_time=milliseconds,
            response_length=length,
            exception=error,
            context={},
        )
