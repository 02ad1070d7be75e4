"""One process of one Python client library: publishes and consumes one topic until stdin closes.

python -m loadtest.upgrades.clients LIBRARY JSON, where JSON has the fields of Job. Prints the
record as JSON once each acknowledged message has arrived, or after PATIENCE. Each library is used
as its documentation recommends. nsqjs.js does the same for nsqjs.
"""

import asyncio
import json
import select
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtest.upgrades.record import Record

TICK = 0.01  # seconds between two groups of publishes
PATIENCE = 20.0  # seconds for the last messages
CHANNEL = "c"


@dataclass
class Job:
    address: str
    topic: str
    writers: int
    readers: int
    rate: float  # publishes per second, of all writers
    codec: str = ""  # snappy or deflate
    ca: str = ""  # of nsqd's certificate: connect with TLS

    @property
    def fields(self) -> dict[str, bool]:
        """The fields of IDENTIFY, which are keywords in each library."""
        return ({self.codec: True} if self.codec else {}) | ({"tls_v1": True} if self.ca else {})


class Schedule:
    """Count how many publishes are due, even if ticks are late."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._last = time.monotonic()
        self._credit = 0.0

    def due(self) -> int:
        now = time.monotonic()
        self._credit += (now - self._last) * self._rate
        self._last = now
        count = int(self._credit)
        self._credit -= count
        return count


def nsqcy(job: Job) -> Record:
    from nsqcy.client.aio import Consumer, Producer

    record = Record(job.writers)

    async def consume(consumer: Consumer) -> None:
        async for message in consumer:
            record.received[message.body] += 1
            message.finish()

    async def publish(producer: Producer, writer: int, body: bytes) -> None:
        began = time.time()
        try:
            await producer.publish(job.topic, body)
        except Exception as error:
            record.fail(error)
        else:
            record.acknowledge(writer, body, began)

    async def write(producer: Producer, writer: int) -> None:
        schedule = Schedule(job.rate / job.writers)
        async with asyncio.TaskGroup() as group:
            while not _stopped():
                for _ in range(schedule.due()):
                    group.create_task(publish(producer, writer, record.next_body()))
                await asyncio.sleep(TICK)

    async def main() -> None:
        options: dict[str, Any] = dict(job.fields)
        if job.ca:
            options["tls_options"] = {"ca_certs": job.ca}
        consumers = [
            Consumer(job.topic, CHANNEL, job.address, max_in_flight=200, **options)
            for _ in range(job.readers)
        ]
        consuming = [asyncio.create_task(consume(each)) for each in consumers]
        # Without retries, a connection that ends fails its publishes.
        producers = [
            Producer(job.address, retries=0, on_error=record.fail, **options)
            for _ in range(job.writers)
        ]
        await asyncio.gather(*(write(each, n) for n, each in enumerate(producers)))
        deadline = time.monotonic() + PATIENCE
        while record.lost and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        for task in consuming:
            task.cancel()
        for face in (*producers, *consumers):
            await face.close()

    asyncio.run(main())
    return record


def pynsq(job: Job) -> Record:
    import nsq
    from tornado.ioloop import IOLoop, PeriodicCallback

    record = Record(job.writers)
    options: dict[str, Any] = dict(job.fields)
    if job.ca:
        options["tls_options"] = {"ca_certs": job.ca, "cert_reqs": ssl.CERT_REQUIRED}

    def handle(message: Any) -> bool:
        record.received[bytes(message.body)] += 1
        return True

    for _ in range(job.readers):
        nsq.Reader(
            message_handler=handle,
            nsqd_tcp_addresses=[job.address],
            topic=job.topic,
            channel=CHANNEL,
            max_in_flight=100,
            **options,
        )
    writers = [nsq.Writer([job.address], **options) for _ in range(job.writers)]
    schedules = [Schedule(job.rate / job.writers) for _ in writers]

    def publish(writer: int) -> None:
        body = record.next_body()
        began = time.time()

        def answered(_connection: object, answer: object) -> None:
            if answer == b"OK":
                record.acknowledge(writer, body, began)
            else:
                record.fail(answer)

        writers[writer].pub(job.topic, body, answered)

    def tick() -> None:
        if _stopped():
            ticks.stop()
            _await_last(loop, record)
            return
        for number, schedule in enumerate(schedules):
            for _ in range(schedule.due()):
                publish(number)

    ticks = PeriodicCallback(tick, TICK * 1000)
    loop = IOLoop.current()
    loop.call_later(1.0, ticks.start)  # pub() fails until the writer has connected
    loop.start()
    return record


def _await_last(loop: Any, record: Record) -> None:
    deadline = time.monotonic() + PATIENCE

    def look() -> None:
        if record.lost and time.monotonic() < deadline:
            loop.call_later(0.1, look)
        else:
            loop.stop()

    loop.call_later(1.0, look)  # the last publishes are answered


def gnsq(job: Job) -> Record:
    from gevent import monkey

    monkey.patch_all()
    import gevent
    import gnsq as library

    record = Record(job.writers)
    options: dict[str, Any] = dict(job.fields)
    if job.ca:
        options["tls_options"] = {"ca_certs": job.ca, "cert_reqs": ssl.CERT_REQUIRED}

    def handle(_consumer: object, message: Any) -> None:
        record.received[message.body] += 1

    for _ in range(job.readers):
        consumer = library.Consumer(
            job.topic, CHANNEL, nsqd_tcp_addresses=[job.address], max_in_flight=100, **options
        )
        consumer.on_message.connect(handle, weak=False)
        consumer.start(block=False)
    # Its producer mistakes the OK after an upgrade to TLS or snappy for an answer, and fails.
    producers = [library.Producer(job.address) for _ in range(job.writers)]
    for producer in producers:
        producer.start()

    def publish(writer: int, body: bytes) -> None:
        began = time.time()
        try:
            producers[writer].publish(job.topic, body)
        except Exception as error:
            record.fail(error)
        else:
            record.acknowledge(writer, body, began)

    schedules = [Schedule(job.rate / job.writers) for _ in producers]
    pending = set()
    while not _stopped():
        for number, schedule in enumerate(schedules):
            for _ in range(schedule.due()):
                greenlet = gevent.spawn(publish, number, record.next_body())
                pending.add(greenlet)
                greenlet.link(pending.discard)
        gevent.sleep(TICK)
    gevent.joinall(list(pending), timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while record.lost and time.monotonic() < deadline:
        gevent.sleep(0.1)
    return record


def _stopped() -> bool:
    """Return whether stdin has been closed; nothing is written to it."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


LIBRARIES: dict[str, Callable[[Job], Record]] = {"nsqcy": nsqcy, "pynsq": pynsq, "gnsq": gnsq}

if __name__ == "__main__":
    LIBRARIES[sys.argv[1]](Job(**json.loads(sys.argv[2]))).write()
