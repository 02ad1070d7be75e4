"""Publishers: PUB, MPUB and DPUB over connections of all kinds, /pub and /mpub over HTTP.

Each publisher has one topic on one nsqd and numbers its messages. A failed publish is not retried:
rejected messages must not be delivered, while unanswered ones may be.
"""

import asyncio
import http.client
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from loadtest.chaos.cluster import TOPICS, Node
from loadtest.chaos.load import FAILURES, MILLISECOND, Load, Refusal
from loadtest.chaos.register import Publisher
from loadtest.soak.bodies import Stamp
from nsqcy.client import NsqdError
from nsqcy.client.aio import Producer
from nsqcy.client.codec import mpub_body

ANSWER = 15.0  # timeout of a publish, in seconds
MIN_DELAY, MAX_DELAY = 100, 4000  # delay of a DPUB in milliseconds
BATCH = 30  # average number of messages per MPUB
SHARES = {"PUB": 16, "MPUB": 2, "DPUB": 2}
HTTP_SHARES = {"/pub": 9, "/mpub": 1}
REFUSED = 503


def start(load: Load, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Create a publisher over TCP and one over HTTP for each topic of each nsqd; the HTTP publisher
    has a fifth of the rate."""
    each = load.rate / len(load.cluster.nodes) / len(TOPICS)
    tasks = []
    for node in load.cluster.nodes:
        for number, topic in enumerate(TOPICS):
            tcp = _Tcp(load, node, topic, way=number + node.number)
            web = _Web(load, node, topic)
            tasks += [
                group.create_task(tcp.run(each * 0.8)),
                group.create_task(web.run(each * 0.2)),
            ]
    return tasks


class Refused(Exception):
    """nsqd has rejected the publish."""


class _Publishing:
    shares: dict[str, int]

    def __init__(self, load: Load, node: Node, topic: str) -> None:
        self.load = load
        self.node = node
        self.topic = topic
        self.publisher: Publisher = load.register.enter(topic, node.number, TOPICS[topic])

    async def run(self, rate: float) -> None:
        """Publish `rate` messages per second, or as many as are acknowledged."""
        names, weights = list(self.shares), list(self.shares.values())
        each = sum(w * (BATCH if "mpub" in n.lower() else 1) for n, w in self.shares.items())
        interval = each / sum(weights) / rate
        while not self.load.quiet.is_set():
            began = time.monotonic()
            (kind,) = self.load.chance.choices(names, weights)
            await self._publish(kind, began)
            await self.load.rest(max(0.0, began + interval - time.monotonic()))

    async def _publish(self, kind: str, began: float) -> None:
        count = self.load.chance.randint(1, 2 * BATCH - 1) if "mpub" in kind.lower() else 1
        delay = self.load.chance.randint(MIN_DELAY, MAX_DELAY) if kind == "DPUB" else 0
        numbers = self.load.register.attempt(self.publisher, count)
        due = time.time_ns() + delay * MILLISECOND
        bodies = [self.load.bodies.make(Stamp(self.publisher.number, n, due)) for n in numbers]
        milliseconds = None
        try:
            await self.send(kind, bodies, delay)
        except Refused as refused:
            self.load.ledger.refuse(self.topic, self.publisher.number, numbers)
            name = self.publisher.number, numbers[0], count
            self.load.refusals.append(Refusal(time.time(), kind, *name, str(refused)))
        except FAILURES:
            await self.load.rest(0.2)
        else:
            self.load.ledger.publish(self.topic, self.publisher.number, numbers)
            milliseconds = (time.monotonic() - began) * 1e3
        self.load.note(kind if kind.isupper() else f"HTTP {kind}", milliseconds, count)

    async def send(self, kind: str, bodies: list[bytes], delay: int) -> None:
        """Wait for the OK. Raises Refused, and errors in FAILURES."""
        raise NotImplementedError


class _Tcp(_Publishing):
    shares = SHARES

    def __init__(self, load: Load, node: Node, topic: str, *, way: int) -> None:
        super().__init__(load, node, topic)
        self._way = way

    async def run(self, rate: float) -> None:
        address = list(self.node.addresses.values())[self._way % 2]
        self._producer = Producer(
            address,
            retries=0,
            reconnect_interval=0.1,
            max_reconnect_interval=1.0,
            close_timeout=ANSWER,
            **self.load.way(self._way),
        )
        async with self._producer:
            await super().run(rate)

    async def send(self, kind: str, bodies: list[bytes], delay: int) -> None:
        send: Callable[..., Awaitable[object]] = self._producer.publish
        what: object = bodies[0]
        if kind == "MPUB":
            send, what = self._producer.multipublish, bodies
        options = {"defer": delay} if delay else {}
        try:
            await send(self.topic, what, timeout=ANSWER, **options)
        except NsqdError as error:
            raise Refused(str(error)) from error


class _Web(_Publishing):
    """A persistent connection, for as long as nsqd keeps it open."""

    shares = HTTP_SHARES

    async def run(self, rate: float) -> None:
        self._link = http.client.HTTPConnection(self.node.daemon.http_address, timeout=ANSWER)
        try:
            await super().run(rate)
        finally:
            self._link.close()

    async def send(self, kind: str, bodies: list[bytes], delay: int) -> None:
        path, body = f"{kind}?{urlencode({'topic': self.topic})}", bodies[0]
        if kind == "/mpub":
            path, body = path + "&binary=true", mpub_body(bodies)
        status, answer = await self.load.call(self._post, path, body)
        if status == REFUSED:
            raise Refused(answer.decode(errors="replace"))
        if status != 200:
            raise http.client.HTTPException(f"{status} {answer!r}")

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            self._link.request("POST", path, body)
            answer = self._link.getresponse()
            return answer.status, answer.read()
        except BaseException:
            self._link.close()
            raise
