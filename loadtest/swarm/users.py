"""The users: publishers by PUB, MPUB, DPUB and HTTP, and consumers of all channels.

Each is a client with connections of its own, as programs have them: nsqcy.client on gevent, and
locust's fast HTTP client. What they do is told to locust, for its page and its figures, and written
into the ledger of the run.
"""

import random
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent.pool import Group
from locust import FastHttpUser, User, constant, task
from locust.exception import StopUser

from loadtest.swarm import bodies
from loadtest.swarm.ledger import Order, Place
from loadtest.swarm.pacing import Pace
from loadtest.swarm.run import DEFERRED, DELIVER, Run
from nsqcy.client import Consumer, Error, Message, Producer, finish
from nsqcy.client.face import mpub_body

TOGETHER = 256  # messages that a consumer takes in one go
POLL = 5.0  # seconds between two questions to lookupds
CLOSE = 5.0  # seconds until a user is gone that has something under way
ANSWER = 30.0  # seconds until a publish has failed
MILLISECOND = 1_000_000  # in ns


class Attempt:
    """One publish: `messages`, which a publisher sends at once, and what is known of it."""

    def __init__(self, test: Run, topic: str, publisher: int, numbers: range) -> None:
        self.topic = topic
        self.messages: list[bytes] = []
        self._test = test
        self._publisher = publisher
        self._numbers = numbers

    def make(self, due: float, delay: int) -> None:
        """Due at that time of the monotonic clock; deferred by so many milliseconds."""
        self._due = due
        late = int((time.monotonic() - due) * 1e9)
        stamp = time.time_ns() - late + delay * MILLISECOND
        self.messages = [
            self._test.body(self._publisher, number, stamp, deferred=delay > 0)
            for number in self._numbers
        ]

    @property
    def milliseconds(self) -> float:
        """Since it was due."""
        return (time.monotonic() - self._due) * 1e3

    def accepted(self) -> None:
        self._test.ledger.publish(self.topic, self._publisher, self._numbers)


class Publishing(User):
    """What all publishing users have in common: they are on time, and keep books.

    How messages get to nsqd is a matter of each.
    """

    abstract = True

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.test = Run.current
        self._publisher = self.test.new_publisher()
        self._numbers = dict.fromkeys(self.test.options.all_topics, 0)

    def on_start(self) -> None:
        rate = self.test.options.publish_rate
        self._pace = Pace(rate, time.monotonic(), random.random())
        gevent.sleep(self._pace.wait(time.monotonic()))

    def wait_time(self) -> float:
        """Seconds until the next task."""
        return self._pace.wait(time.monotonic())

    @contextmanager
    def attempt(self, count: int, delay: int = 0) -> Iterator[Attempt]:
        """What is to be published now; for as long as it is under way."""
        if self.test.quiet.halted:
            raise StopUser
        topic = random.choice(self.test.options.all_topics)
        first = self._numbers[topic]
        self._numbers[topic] += count
        attempt = Attempt(self.test, topic, self._publisher, range(first, first + count))
        attempt.make(self._pace.take(time.monotonic()), delay)
        self.test.quiet.waiting += 1
        try:
            yield attempt
        finally:
            self.test.quiet.waiting -= 1


class OverTcp(Publishing):
    """Publishes over the V2 protocol: one connection to each nsqd, one publish at a time."""

    abstract = True
    command = ""

    @property
    def batch(self) -> int:
        """How many messages it publishes at once."""
        return 1

    def on_start(self) -> None:
        options = self.test.options
        self.producer = Producer(
            options.nsqds,
            options.lookupds,
            runtime="gevent",
            retries=0,  # each failure is to be seen
            lookupd_poll_interval=POLL,
            close_timeout=CLOSE,
            **options.connection,
        )
        self.producer.start()
        super().on_start()

    def on_stop(self) -> None:
        self.producer.close()

    def send(self, attempt: Attempt) -> None:
        """Wait for the OK; raises Error."""
        raise NotImplementedError

    @task
    def publish(self) -> None:
        error: Error | None = None
        delay = self.test.options.defer if self.command == "DPUB" else 0
        with self.attempt(self.batch, delay) as attempt:
            try:
                self.send(attempt)
            except Error as failed:
                error = failed
            else:
                attempt.accepted()
            self.environment.events.request.fire(
                request_type=self.command,
                name=attempt.topic,
                response_time=attempt.milliseconds,
                response_length=sum(map(len, attempt.messages)),
                exception=error,
                context={"messages": self.batch},
            )


class PublishUser(OverTcp):
    """PUB."""

    weight = 4
    command = "PUB"

    def send(self, attempt: Attempt) -> None:
        self.producer.publish(attempt.topic, attempt.messages[0], timeout=ANSWER)


class BatchUser(OverTcp):
    """MPUB."""

    weight = 1
    command = "MPUB"

    @property
    def batch(self) -> int:
        return int(self.test.options.batch)

    def send(self, attempt: Attempt) -> None:
        self.producer.multipublish(attempt.topic, attempt.messages, timeout=ANSWER)


class DeferUser(OverTcp):
    """DPUB."""

    weight = 1
    command = "DPUB"

    def send(self, attempt: Attempt) -> None:
        defer = self.test.options.defer
        self.producer.publish(attempt.topic, attempt.messages[0], defer, timeout=ANSWER)


class HttpUser(FastHttpUser, Publishing):
    """POST /pub, and now and then /mpub, to one of the nsqds, over a connection that stays."""

    weight = 2
    network_timeout = connection_timeout = ANSWER
    insecure = False

    def __init__(self, environment: Any) -> None:
        self.host = random.choice(Run.current.https)
        self.insecure = Run.current.options.nsqd_tls_insecure
        super().__init__(environment)

    @staticmethod
    def ssl_context_factory() -> ssl.SSLContext:
        return Run.current.options.tls or ssl.create_default_context()

    @task(9)
    def pub(self) -> None:
        with self.attempt(1) as attempt:
            self._post("HTTP pub", f"/pub?topic={attempt.topic}", attempt, attempt.messages[0])

    @task(1)
    def mpub(self) -> None:
        with self.attempt(self.test.options.batch) as attempt:
            path = f"/mpub?topic={attempt.topic}&binary=true"
            self._post("HTTP mpub", path, attempt, mpub_body(attempt.messages))

    def _post(self, kind: str, path: str, attempt: Attempt, body: bytes) -> None:
        with self.client.post(
            path,
            data=body,
            name=attempt.topic,
            context={"messages": len(attempt.messages)},
            catch_response=True,
        ) as answer:
            answer.request_meta |= {"request_type": kind, "response_time": attempt.milliseconds}
            if answer.status_code == 200:
                attempt.accepted()


class ConsumeUser(User):
    """SUB to every channel of every topic, from all nsqds; a FIN for each message, or a REQ."""

    wait_time = constant(1)

    def __init__(self, environment: Any) -> None:
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
                on_error=lambda error, place=place: self._tell("SUB", place, None, error=error),
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
        """Until it is stopped."""
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
        """Write a message down; whether it is to be finished."""
        test = self.test
        stamp = bodies.read(message.body)
        if stamp is None or stamp.run != test.number:
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

    def _first(
        self, place: Place, message: Message, stamp: bodies.Stamp, order: Order, now: int
    ) -> None:
        """The first delivery of a message: how late it is."""
        late = (now - stamp.due) / MILLISECOND
        if late < 0:
            self.test.ledger.count(place, "early" if stamp.deferred else "ahead")
        kind = DEFERRED if stamp.deferred else DELIVER
        self._tell(kind, place, max(0.0, late), length=len(message.body))
        if not stamp.deferred and order.breaks(
            stamp.publisher, stamp.number, message.nsqd_address
        ):
            self.test.ledger.count(place, "out_of_order")

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
