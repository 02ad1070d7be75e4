"""The publishing users: they publish on schedule, with PUB, MPUB, DPUB or HTTP requests, and record
accepted messages in a ledger.

Each is a client with its own connections, as in an application: nsqcy.client on gevent, and
locust's fast HTTP client.
"""

import random
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from locust import FastHttpUser, User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.swarm.pacing import Pace
from loadtest.swarm.run import Run
from nsqcy.client import Error, Producer
from nsqcy.client.codec import mpub_body

POLL = 5.0  # seconds between two queries of nsqlookupds
CLOSE = 5.0  # time limit in seconds for a user to end
ANSWER = 30.0  # timeout of a publish, in seconds
MILLISECOND = 1_000_000  # in ns


class Attempt:
    """One publish: `messages` that are sent together, with their numbers and due time."""

    def __init__(self, test: Run, topic: str, publisher: int, numbers: range) -> None:
        self.topic = topic
        self.messages: list[bytes] = []
        self._test = test
        self._publisher = publisher
        self._numbers = numbers

    def make(self, due: float, delay: int) -> None:
        """Create the messages of a publish that is due at this time on the monotonic clock,
        deferred by `delay` milliseconds."""
        self._due = due
        late = int((time.monotonic() - due) * 1e9)
        stamp = time.time_ns() - late + delay * MILLISECOND
        self.messages = [
            self._test.body(self._publisher, number, stamp, deferred=delay > 0)
            for number in self._numbers
        ]

    @property
    def milliseconds(self) -> float:
        """Return the time since the publish was due."""
        return (time.monotonic() - self._due) * 1e3

    def accepted(self) -> None:
        self._test.ledger.publish(self.topic, self._publisher, self._numbers)


class Publishing(User):
    """Common part of all publishing users: schedule and ledger.

    Subclasses send the messages.
    """

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.test = Run.current
        self._publisher = self.test.new_publisher()
        self._numbers = dict.fromkeys(self.test.options.all_topics, 0)

    def on_start(self) -> None:
        rate = self.test.options.publish_rate
        self._pace = Pace(rate, time.monotonic(), random.random())
        gevent.sleep(self._pace.wait(time.monotonic()))

    def wait_time(self) -> float:
        """Return the seconds until the next task."""
        return self._pace.wait(time.monotonic())

    @contextmanager
    def attempt(self, count: int, delay: int = 0) -> Iterator[Attempt]:
        """Yield the next publish, recorded while it is in progress."""
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
    """Publishes over the V2 protocol, with one connection to each nsqd and one publish at a
    time."""

    abstract = True
    command = ""

    @property
    def batch(self) -> int:
        """Return the number of messages per publish."""
        return 1

    def on_start(self) -> None:
        options = self.test.options
        self.producer = Producer(
            options.nsqds,
            options.lookupds,
            runtime="gevent",
            retries=0,  # each failure must be visible
            lookupd_poll_interval=POLL,
            close_timeout=CLOSE,
            **options.connection,
        )
        self.producer.start()
        super().on_start()

    def on_stop(self) -> None:
        self.producer.close()

    def send(self, attempt: Attempt) -> None:
        """Wait for the OK. Raises Error."""
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
    """Sends POST /pub, and sometimes /mpub, to one of the nsqds over a persistent connection."""

    weight = 2
    network_timeout = connection_timeout = ANSWER
    insecure = False

    def __init__(self, environment: Environment) -> None:
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
