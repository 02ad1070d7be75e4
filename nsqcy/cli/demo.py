"""The demonstration load of `nsqcy up --demo`: a shop whose topics are worth watching in nsqadmin.

Owns the topics, their policies, and the producers and consumers that use them. `nsqcy up` runs it
as a child process with the addresses of the nsqds; it knows nothing else about the daemons.

    orders         two fast channels
    page-views     one channel that consumes in batches
    emails         a slow channel: its backlog grows for a minute, and drains in the next one
    payments       a few messages fail three times, and become dead letters in payments-dead
    reminders      every message is deferred

Exit codes:

    0  stopped by SIGTERM or SIGINT
    1  an nsqd refused a topic or a policy
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsqcy.client.aio import Consumer, Error, Message, Producer
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.errors import RequestError
from nsqcy.logging.logger import Log
from nsqcy.process import spawn, systemd

Body = dict[str, object]
Work = Coroutine[Any, Any, None]
Handler = Callable[[Message], Coroutine[Any, Any, bool | None]]

TOPICS: Mapping[str, Sequence[str]] = {
    "orders": ("billing", "warehouse"),
    "page-views": ("analytics",),
    "emails": ("smtp",),
    "payments": ("gateway",),
    "payments-dead": ("inspect",),
    "reminders": ("push",),
}

# Nothing consumes the dead letters, and a consumer may be stopped: limit every topic.
TOPIC_POLICY = {"max_depth": 20_000, "on_full": "drop-oldest"}
DEAD_LETTER_POLICY = {"max_depth": 200, "on_full": "drop-oldest"}
CHANNEL_POLICY = {"max_attempts": 3, "dead_letter_topic": "payments-dead"}

# Messages per second.
ORDERS, PAGE_VIEWS, EMAILS, PAYMENTS, REMINDERS = 20, 60, 20, 10, 2

EMAIL_PHASE = 60.0  # seconds in which the backlog of emails grows, and then shrinks again
EMAIL_RATES = (10, 40)  # emails per second that are sent in these phases
VIEWS = 100  # maximum batch of page views
CONCURRENCY = 9  # maximum in flight per consumer; each connection needs at least one
CLOSE_TIMEOUT = 2.0
EXPIRED = "expired"
FIRST_FAILURE, FAILURE_EVERY = 5, 150  # payments that fail: the 5th, and then every 150th
REMINDER_DELAYS = (30_000, 120_000)  # minimum and maximum, milliseconds

PRODUCTS = ("teapot", "kettle", "mug", "tray", "strainer")
PAGES = ("/", "/cart", "/checkout", *(f"/products/{each}" for each in PRODUCTS))
TEMPLATES = ("order-confirmation", "invoice", "shipping-notice")
COUNTRIES = ("DE", "FR", "JP", "PT", "US")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load until a signal arrives; return the exit code.

    argv: `TCP=HTTP`, the two addresses of an nsqd, for each nsqd
    """
    nsqds = [Nsqd(*word.split("=")) for word in (sys.argv[1:] if argv is None else argv)]
    log = Log("[demo] ")
    notifier = systemd.notifier(os.environ, log)
    try:
        for nsqd in nsqds:
            nsqd.prepare()
    except (RequestError, ValueError) as error:
        log.fatal(f"failed to set up the demo on nsqd: {error}")
        return 1
    asyncio.run(_run([nsqd.tcp for nsqd in nsqds], notifier))
    return 0


@dataclass(frozen=True)
class Nsqd:
    """An nsqd's addresses."""

    tcp: str
    http: str

    def prepare(self) -> None:
        """Create the topics, channels and policies. Raises RequestError."""
        web = NsqdHTTPClient.from_url(self.http)
        for topic, channels in TOPICS.items():
            web.create_topic(topic)
            web.topic_config(topic, TOPIC_POLICY)
            for channel in channels:
                web.create_channel(topic, channel)
        web.topic_config("payments-dead", DEAD_LETTER_POLICY)
        web.channel_config("payments", "gateway", CHANNEL_POLICY)


async def _run(nsqds: list[str], notifier: systemd.Notifier) -> None:
    """Produce and consume until a signal arrives."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopped.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.BLOCKED)
    async with Producer(nsqds) as producer, asyncio.TaskGroup() as group:
        work = [*_consuming(nsqds), *_publishing(producer)]
        tasks = [group.create_task(each) for each in work]
        notifier.ready("publishing and consuming")
        await stopped.wait()
        for task in tasks:
            task.cancel()


# -- consuming


def _consuming(nsqds: list[str]) -> list[Work]:
    """Return the coroutines that run the consumers."""

    def handle(topic: str, channel: str, handler: Handler) -> Work:
        consumer = Consumer(
            topic,
            channel,
            nsqds,
            message_handler=handler,
            concurrency=CONCURRENCY,
            close_timeout=CLOSE_TIMEOUT,
        )
        return consumer.run()

    return [
        handle("orders", "billing", _take(0.005)),
        handle("orders", "warehouse", _take(0.02)),
        handle("emails", "smtp", _slow_server()),
        handle("payments", "gateway", _charge),
        handle("reminders", "push", _take(0.01)),
        _count_views(nsqds),
    ]


def _take(seconds: float) -> Handler:
    """Return a handler that waits, as if for another service."""

    async def handle(message: Message) -> None:
        await asyncio.sleep(seconds)

    return handle


def _slow_server() -> Handler:
    """Return a handler that sends one email at a time: for a minute slowly, and then fast."""
    lock = asyncio.Lock()
    begin = asyncio.get_running_loop().time()

    async def send(message: Message) -> None:
        async with lock:
            age = asyncio.get_running_loop().time() - begin
            phase = int(age // EMAIL_PHASE) % len(EMAIL_RATES)
            await asyncio.sleep(1 / EMAIL_RATES[phase])

    return send


async def _charge(message: Message) -> bool:
    await asyncio.sleep(0.05)
    return bool(json.loads(message.body)["card"] != EXPIRED)


async def _count_views(nsqds: list[str]) -> None:
    async with Consumer("page-views", "analytics", nsqds, max_in_flight=VIEWS) as consumer:
        async for batch in consumer.batches(VIEWS, within=1.0):
            for message in batch:
                message.finish()


# -- publishing


def _publishing(producer: Producer) -> list[Work]:
    """Return the coroutines that publish to the topics."""
    shop = Shop(random.Random())
    return [
        _publish(producer, "orders", ORDERS, shop.orders()),
        _publish(producer, "page-views", PAGE_VIEWS, shop.page_views()),
        _publish(producer, "emails", EMAILS, shop.emails()),
        _publish(producer, "payments", PAYMENTS, shop.payments()),
        _publish(producer, "reminders", REMINDERS, shop.reminders(), REMINDER_DELAYS),
    ]


async def _publish(
    producer: Producer,
    topic: str,
    rate: float,
    bodies: Iterator[Body],
    delays: tuple[int, int] | None = None,
) -> None:
    """Publish at most `rate` messages per second. delays: a range in milliseconds."""
    for body in bodies:
        defer = random.randint(*delays) if delays else None
        with contextlib.suppress(Error):  # nsqd refused this message; it may accept the next one
            await producer.publish(topic, json.dumps(body).encode(), defer=defer)
        await asyncio.sleep(1 / rate)


class Shop:
    """Makes the bodies of messages."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def orders(self) -> Iterator[Body]:
        for number in itertools.count(1):
            yield {
                "order_id": number,
                "customer_id": self._customer(),
                "country": self._dice.choice(COUNTRIES),
                "items": [
                    {"product": each, "quantity": self._dice.randint(1, 4)}
                    for each in self._dice.sample(PRODUCTS, self._dice.randint(1, 3))
                ],
                "total": self._amount(),
            }

    def page_views(self) -> Iterator[Body]:
        while True:
            yield {
                "page": self._dice.choice(PAGES),
                "visitor_id": self._customer(),
                "ms": self._dice.randint(20, 400),
            }

    def emails(self) -> Iterator[Body]:
        while True:
            yield {
                "to": f"customer-{self._customer()}@example.com",
                "template": self._dice.choice(TEMPLATES),
            }

    def payments(self) -> Iterator[Body]:
        for number in itertools.count(1):
            fails = number % FAILURE_EVERY == FIRST_FAILURE
            yield {
                "payment_id": number,
                "order_id": number,
                "amount": self._amount(),
                "card": EXPIRED if fails else "valid",
            }

    def reminders(self) -> Iterator[Body]:
        while True:
            yield {"customer_id": self._customer(), "text": "Your cart is waiting"}

    def _customer(self) -> int:
        return self._dice.randint(1, 5000)

    def _amount(self) -> float:
        return self._dice.randint(500, 20_000) / 100


if __name__ == "__main__":
    sys.exit(main())
