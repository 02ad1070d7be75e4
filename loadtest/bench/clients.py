"""Comparison of Python clients: one process per client against the same nsqd, in one run.

publish   messages one by one, each waiting for its OK, 500 of them in flight at a time
mpub      the same in batches of 100, 10 in flight
consume   previously published messages, RDY 2500, finished one by one
both      publishing and consuming in one process at the same time; counts delivered messages

The rates are those of the client, which has its own core if the machine has enough cores; CPU time
is the client process's, excluding its startup. Every library is used as its documentation
recommends.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from loadtest.bench import daemon, load

BODY = bytes(range(33, 33 + 100)) * 2
UNDER_WAY, BATCH, BATCHES, READY = 500, 100, 10, 2500
SCENARIOS = ["publish", "mpub", "consume", "both"]
SHARE = {"nsqcy aio": 1.0, "nsqcy": 1.0}  # share of the messages; the other libraries get a fifth

Work = Callable[["Job"], None]


class Job:
    """The work of one process, and the clock that measures it."""

    def __init__(self, scenario: str, address: str, topic: str, messages: int) -> None:
        self.scenario = scenario
        self.address = address
        self.topic = topic
        self.messages = messages
        self.channel = "bench"

    def begin(self) -> None:
        """Connect and get ready: the measurement starts here."""
        self._clock = time.perf_counter(), time.process_time()

    def end(self) -> None:
        seconds = time.perf_counter() - self._clock[0]
        cpu = time.process_time() - self._clock[1]
        print(json.dumps({"rate": self.messages / seconds, "cpu": cpu / self.messages * 1e6}))

    @property
    def publishes(self) -> bool:
        return self.scenario != "consume"

    @property
    def consumes(self) -> bool:
        return self.scenario in ("consume", "both")


async def many(
    job: Job, one: Callable[[], Awaitable[Any]], some: Callable[[], Awaitable[Any]]
) -> None:
    """Publish all messages, with one coroutine per concurrent publish."""

    async def repeat(work: Callable[[], Awaitable[Any]], times: int) -> None:
        for _ in range(times):
            await work()

    if job.scenario == "mpub":
        times = job.messages // BATCH // BATCHES
        await asyncio.gather(*(repeat(some, times) for _ in range(BATCHES)))
    else:
        times = job.messages // UNDER_WAY
        await asyncio.gather(*(repeat(one, times) for _ in range(UNDER_WAY)))


def aio(job: Job) -> None:
    from nsqcy.client.aio import Consumer, Producer

    async def consume() -> None:
        left = job.messages
        async with Consumer(job.topic, job.channel, job.address, max_in_flight=READY) as consumer:
            async for message in consumer:
                message.finish()
                left -= 1
                if not left:
                    return

    async def main() -> None:
        async with Producer(job.address) as producer:
            await producer.publish("warm", b"x")
            job.begin()
            consuming = asyncio.create_task(consume()) if job.consumes else None
            if job.publishes:
                batch = [BODY] * BATCH
                await many(
                    job,
                    lambda: producer.publish(job.topic, BODY),
                    lambda: producer.multipublish(job.topic, batch),
                )
            if consuming:
                await consuming
            job.end()

    asyncio.run(main())


def blocking(job: Job) -> None:
    import threading

    from nsqcy.client import Consumer, Producer

    def consume() -> None:
        left = job.messages
        with Consumer(job.topic, job.channel, job.address, max_in_flight=READY) as consumer:
            for message in consumer:
                message.finish()
                left -= 1
                if not left:
                    return

    def publish(producer: Producer) -> None:
        batch = [BODY] * BATCH
        mpub = job.scenario == "mpub"
        maximum = BATCHES if mpub else UNDER_WAY
        under_way: deque[Any] = deque()
        for _ in range(job.messages // BATCH if mpub else job.messages):
            if len(under_way) == maximum:
                under_way.popleft().result()
            if mpub:
                under_way.append(producer.multipublish_nowait(job.topic, batch))
            else:
                under_way.append(producer.publish_nowait(job.topic, BODY))
        for each in under_way:
            each.result()

    with Producer(job.address) as producer:
        producer.publish("warm", b"x")
        job.begin()
        consuming = threading.Thread(target=consume)
        if job.consumes:
            consuming.start()
        if job.publishes:
            publish(producer)
        if job.consumes:
            consuming.join()
        job.end()


def ansq(job: Job) -> None:
    import ansq

    async def consume() -> None:
        reader = await ansq.create_reader(job.topic, job.channel, [job.address])
        for connection in reader.connections:
            await connection.rdy(READY)  # set_max_in_flight is not implemented
        left = job.messages
        async for message in reader.messages():
            await message.fin()
            left -= 1
            if not left:
                break
        await reader.close()

    async def main() -> None:
        writer = await ansq.create_writer([job.address])
        await writer.pub("warm", "x")
        job.begin()
        consuming = asyncio.create_task(consume()) if job.consumes else None
        if job.publishes:
            batch = [BODY] * BATCH
            await many(
                job,
                lambda: writer.pub(job.topic, BODY),
                lambda: writer.mpub(job.topic, *batch),
            )
        if consuming:
            await consuming
        job.end()
        await writer.close()

    asyncio.run(main())


def pynsq(job: Job) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    async def publish(writer: Any) -> None:
        loop = asyncio.get_running_loop()

        def answered(send: Callable[..., Any], body: Any) -> Awaitable[Any]:
            future: asyncio.Future[Any] = loop.create_future()
            send(job.topic, body, callback=lambda conn, data: future.set_result(data))
            return future

        batch = [BODY] * BATCH
        await many(job, lambda: answered(writer.pub, BODY), lambda: answered(writer.mpub, batch))

    async def main() -> None:
        writer = nsq.Writer([job.address])
        ready = asyncio.Event()
        while not writer.conns:
            await asyncio.sleep(0.01)
        writer.pub("warm", b"x", callback=lambda conn, data: ready.set())
        await ready.wait()
        left = job.messages
        done = asyncio.Event()

        def handle(message: Any) -> bool:
            nonlocal left
            left -= 1
            if not left:
                done.set()
            return True

        job.begin()
        if job.consumes:
            nsq.Reader(
                job.topic,
                job.channel,
                message_handler=handle,
                nsqd_tcp_addresses=[job.address],
                max_in_flight=READY,
            )
        if job.publishes:
            await publish(writer)
        if job.consumes:
            await done.wait()
        job.end()

    IOLoop.current().run_sync(main)


def gnsq(job: Job) -> None:
    import gevent
    import gnsq

    def consume() -> None:
        left = job.messages
        consumer = gnsq.Consumer(job.topic, job.channel, job.address, max_in_flight=READY)

        @consumer.on_message.connect
        def handle(consumer: Any, message: Any) -> None:
            nonlocal left
            message.finish()
            left -= 1
            if not left:
                consumer.close()

        consumer.start()

    def publish(producer: Any) -> None:
        batch = [BODY] * BATCH

        def repeat(work: Callable[[], Any], times: int) -> None:
            for _ in range(times):
                work()

        if job.scenario == "mpub":
            work, workers = lambda: producer.multipublish(job.topic, batch), BATCHES
            times = job.messages // BATCH // BATCHES
        else:
            work, workers = lambda: producer.publish(job.topic, BODY), UNDER_WAY
            times = job.messages // UNDER_WAY
        gevent.joinall([gevent.spawn(repeat, work, times) for _ in range(workers)])

    producer = gnsq.Producer(job.address)
    producer.start()
    producer.publish("warm", b"x")
    job.begin()
    consuming = gevent.spawn(consume) if job.consumes else None
    if job.publishes:
        publish(producer)
    if consuming:
        consuming.join()
    job.end()
    producer.close()


LIBRARIES: dict[str, Work] = {
    "nsqcy aio": aio,
    "nsqcy": blocking,
    "pynsq": pynsq,
    "gnsq": gnsq,
    "ansq": ansq,
}


# -- all libraries


def run(library: str, job: Job) -> dict[str, float]:
    """Run one library in its own process."""
    words = [library, job.scenario, job.address, job.topic, str(job.messages)]
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench.clients", *words],
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def fill(nsqd: daemon.Daemon, job: Job) -> None:
    """Publish the messages that will be consumed."""
    nsqd.web.create(job.topic, job.channel)
    if job.scenario != "consume":
        return
    sock = load.producer(nsqd.tcp)
    for _ in range(job.messages // BATCH):
        sock.sendall(load.mpub(job.topic, [BODY] * BATCH))
        load.expect(sock, load.OK)
    sock.close()


def compare(nsqd: daemon.Daemon, libraries: list[str], messages: int, repeat: int) -> None:
    host, port = nsqd.tcp
    for scenario in SCENARIOS:
        figures: dict[str, list[dict[str, float]]] = {name: [] for name in libraries}
        for turn in range(repeat):
            for name in libraries:
                count = int(messages * SHARE.get(name, 0.2)) // 1000 * 1000
                topic = f"{scenario}-{name.replace(' ', '-')}-{turn}-{os.getpid()}"
                job = Job(scenario, f"{host}:{port}", topic, count)
                fill(nsqd, job)
                figures[name].append(run(name, job))
                nsqd.web.do("delete", topic)
        print(f"{scenario}")
        ours = {name: median(figures[name], "rate") for name in libraries if name in SHARE}
        for name in libraries:
            rate, cpu = median(figures[name], "rate"), median(figures[name], "cpu")
            times = ", ".join(f"{own / rate:.1f} x for {who}" for who, own in ours.items())
            less = "" if name in SHARE else f"   {times}"
            print(f"  {name:10} {rate / 1000:8.1f} k/s {cpu:7.2f} us CPU{less}", flush=True)


def median(figures: list[dict[str, float]], which: str) -> float:
    return statistics.median(each[which] for each in figures)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=200_000, help="of ours; a fifth for others")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the median is shown")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="with commas")
    parser.add_argument("--target", metavar="HOST:PORT", help="an NSQ that runs already")
    parser.add_argument("--target-http", metavar="HOST:PORT", help="its HTTP address")


def run_all(args: argparse.Namespace) -> None:
    with ExitStack() as stack:
        if args.target:
            nsqd = daemon.running(args.target, args.target_http, 0)
        else:
            nsqd = stack.enter_context(daemon.private(1, mem_queue_size=1_000_000_000))
        compare(nsqd, args.libraries.split(","), args.messages, args.repeat)


if __name__ == "__main__":  # runs one library
    name, scenario, address, topic, messages = sys.argv[1:]
    LIBRARIES[name](Job(scenario, address, topic, int(messages)))
