"""FastStream on nsqd: deliveries, redeliveries, and the remaining messages when a broker stops."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

pytest.importorskip("faststream")

from faststream.exceptions import FeatureNotSupportedException, SubscriberNotFound
from faststream.security import BaseSecurity, SASLPlaintext

from nsqcy.client import ConnectionFailed, Consumer
from nsqcy.integrations.faststream import NsqBroker, NsqResponse, TestNsqBroker
from nsqcy.integrations.faststream.annotations import NsqMessage
from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import Web

pytestmark = pytest.mark.slow

LIMIT = 20.0  # less than the client's close_timeout, for which no stop() may wait


@pytest.fixture(scope="module")
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture(params=["nsqd", "test broker"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def started(broker: NsqBroker, kind: str = "nsqd") -> AbstractAsyncContextManager[NsqBroker]:
    return TestNsqBroker(broker) if kind == "test broker" else broker


def run(
    broker: NsqBroker, work: Callable[[NsqBroker], Awaitable[None]], kind: str = "nsqd"
) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT), started(broker, kind) as running:
            await running.start()
            await work(running)

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def web_of(daemon: Nsqd) -> Web:
    return Web.at(daemon.http_address)


def test_a_stopping_broker_does_not_get_its_requeued_messages_again(daemon: Nsqd) -> None:
    broker = NsqBroker(daemon.tcp_address)
    begun, gate = asyncio.Event(), asyncio.Event()

    @broker.subscriber("fsd-stopping", max_workers=2)
    async def handle(number: int) -> None:
        begun.set()
        await gate.wait()

    async def work(running: NsqBroker) -> None:
        await running.publish(0, "fsd-stopping")
        await begun.wait()
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0)
        async with NsqBroker(daemon.tcp_address) as other:
            await other.publish(1, "fsd-stopping")
            for number in range(50):  # round trips for a message that appears and disappears
                await other.publish(number, "fsd-elsewhere")
        gate.set()
        await stopping

    run(broker, work)
    with Consumer("fsd-stopping", "faststream", daemon.tcp_address, max_tries=0) as consumer:
        message = consumer.get(LIMIT)
        assert message is not None
        assert message.attempts <= 2
        message.finish()


def test_stopping_requeues_fetched_messages_and_incomplete_batches(daemon: Nsqd) -> None:
    broker = NsqBroker(daemon.tcp_address)
    fetching = broker.subscriber("fsd-fetched")

    @broker.subscriber("fsd-batch", batch=True, within=60)
    async def handle(numbers: list[int]) -> None: ...

    async def work(running: NsqBroker) -> None:
        await running.publish(1, "fsd-fetched")
        assert await fetching.get_one(timeout=LIMIT) is not None
        await running.publish_batch(1, 2, topic="fsd-batch")
        await asyncio.to_thread(web_of(daemon).await_counts, "fsd-batch", "faststream", depth=0)

    run(broker, work)
    web_of(daemon).await_counts("fsd-fetched", "faststream", depth=1, in_flight_count=0)
    web_of(daemon).await_counts("fsd-batch", "faststream", depth=2, in_flight_count=0)


class Odd(BaseException):
    """A BaseException that is unknown to FastStream."""


def test_a_batch_follows_one_whose_handler_failed_oddly(daemon: Nsqd) -> None:
    broker, seen = NsqBroker(daemon.tcp_address), list[list[int]]()

    @broker.subscriber("fsd-odd", batch=True)
    async def handle(numbers: list[int]) -> None:
        seen.append(numbers)
        if len(seen) == 1:
            raise Odd

    async def work(running: NsqBroker) -> None:
        await running.publish(1, "fsd-odd")
        await until(lambda: seen == [[1], [1]])

    run(broker, work)


def test_a_broker_starts_again(daemon: Nsqd) -> None:
    broker, seen = NsqBroker(daemon.tcp_address), list[int]()

    @broker.subscriber("fsd-again")
    async def handle(number: int) -> None:
        seen.append(number)

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            for number in range(2):
                await broker.start()
                await broker.publish(number, "fsd-again")
                await until(lambda number=number: number in seen)  # type: ignore[misc]
                await broker.stop()

    asyncio.run(main())
    assert seen == [0, 1]


def test_no_message_is_lost_when_nsqd_is_killed() -> None:
    seen = set[int]()

    async def publish(running: NsqBroker, numbers: range) -> None:
        for number in numbers:
            await running.publish(number, "fsd-killed")

    with nsqd(durability="os") as own:
        broker = NsqBroker(own.tcp_address, client_options={"requeue_delay": 0.01})

        @broker.subscriber("fsd-killed", max_workers=5)
        async def handle(number: int) -> None:
            seen.add(number)

        async def work(running: NsqBroker) -> None:
            await publish(running, range(100))
            own.kill()
            await asyncio.to_thread(own.start)
            assert await running.ping()
            await publish(running, range(100, 200))
            await until(lambda: len(seen) == 200)

        run(broker, work)
    assert seen == set(range(200))


def test_messages_that_wait_are_handled_once_although_nsqd_restarts() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    seen: list[int] = []
    with nsqd(durability="os") as own:
        web = web_of(own)
        broker = NsqBroker(own.tcp_address)

        async def in_flight(count: int) -> None:
            await asyncio.to_thread(
                web.await_counts, "fsd-waits", "faststream", depth=0, in_flight_count=count
            )

        @broker.subscriber("fsd-waits", max_in_flight=10)
        async def handle(number: int) -> None:
            begun.set()
            await gate.wait()
            seen.append(number)

        async def work(running: NsqBroker) -> None:
            await running.publish(0, "fsd-waits")
            await begun.wait()
            for number in range(1, 5):
                await running.publish(number, "fsd-waits")
            await in_flight(5)
            own.kill()
            own.start()
            await in_flight(5)
            gate.set()
            await in_flight(0)

        run(broker, work)
    assert sorted(seen) == [0, 0, 1, 2, 3, 4]


def test_a_delay_longer_than_the_limit_is_served_in_parts(daemon: Nsqd) -> None:
    broker, seen = NsqBroker(daemon.tcp_address, max_defer=0.3), list[tuple[float, int]]()

    @broker.subscriber("fsd-late")
    async def see(text: str, message: NsqMessage) -> None:
        seen.append((time.time(), message.raw_message.attempts))

    async def work(running: NsqBroker) -> None:
        begun = time.time()
        await running.publish("later", "fsd-late", delay=1.0)
        await until(lambda: bool(seen))
        assert seen[0][0] >= begun + 0.99
        assert seen[0][1] > 1

    run(broker, work)


@pytest.mark.parametrize("how", ["broker", "publisher", "result", "batch"])
def test_a_message_has_a_key_and_a_priority(daemon: Nsqd, kind: str, how: str) -> None:
    topic = f"fsd-keys-{how}-{kind[0]}"
    broker, seen = NsqBroker(daemon.tcp_address), list[dict[str, str]]()
    publisher = broker.publisher(topic, priority=7)

    @broker.subscriber(f"{topic}-in")
    @broker.publisher(topic, priority=7)
    async def answer(text: str) -> NsqResponse:
        return NsqResponse(text, key="ada")

    @broker.subscriber(topic)
    async def see(text: str, message: NsqMessage) -> None:
        seen.append({name: str(message.headers.get(name)) for name in ("key", "priority")})

    async def work(running: NsqBroker) -> None:
        if how == "broker":
            await running.publish("x", topic, key="ada", priority=7)
        elif how == "publisher":
            await publisher.publish("x", key="ada")
        elif how == "result":
            await running.publish("x", f"{topic}-in")
        else:
            await running.publish_batch("x", topic=topic, key="ada", priority=7)
        await until(lambda: bool(seen))

    run(broker, work, kind)
    assert seen == [{"key": "ada", "priority": "7"}]


def test_nsqd_delivers_urgent_messages_first_and_each_once(daemon: Nsqd) -> None:
    broker, seen = NsqBroker(daemon.tcp_address), list[int]()
    web, topic = web_of(daemon), "fsd-urgent"
    assert web.put("/topic/config", b'{"dedup_window": "10m"}', topic=topic).status == 200
    rules = b'{"urgent_first": true}'
    assert web.put("/channel/config", rules, topic=topic, channel="faststream").status == 200
    web.create(topic, "faststream")

    async def publish() -> None:
        async with NsqBroker(daemon.tcp_address) as publisher:
            for priority in (3, 9, 5, 9):
                await publisher.publish(priority, topic, priority=priority, dedup_id=str(priority))
            await publisher.publish(0, topic)

    @broker.subscriber(topic)
    async def see(number: int) -> None:
        seen.append(number)

    async def work(running: NsqBroker) -> None:
        await until(lambda: len(seen) == 4)

    asyncio.run(publish())
    run(broker, work)
    assert seen == [9, 5, 3, 0]


def test_keys_that_cannot_be_published(daemon: Nsqd, kind: str) -> None:
    broker = NsqBroker(daemon.tcp_address)
    plain = NsqBroker(daemon.tcp_address, headers=False)

    async def work(running: NsqBroker) -> None:
        for keys in ({"key": ""}, {"priority": 10}, {"dedup_id": "x" * 256}):
            with pytest.raises(ValueError, match=r"must (be|have) from"):
                await running.publish("x", "fsd-plain", **keys)

    async def without(running: NsqBroker) -> None:
        with pytest.raises(ValueError, match="priority require a broker with headers=True"):
            await running.publish("x", "fsd-plain", key="ada")

    run(broker, work, kind)
    run(plain, without, kind)


def test_what_needs_headers_is_refused_without_them(daemon: Nsqd, kind: str) -> None:
    broker = NsqBroker(daemon.tcp_address, headers=False)

    async def work(running: NsqBroker) -> None:
        with pytest.raises(ValueError, match="reply_to requires a broker with headers=True"):
            await running.publish("why", "fsd-plain", reply_to="answers")
        with pytest.raises(ValueError, match=r"delay of more than 3600 s \(max_defer\)"):
            await running.publish("later", "fsd-plain", delay=7200)

    run(broker, work, kind)


def test_a_batch_has_one_content_type_and_no_delay(daemon: Nsqd, kind: str) -> None:
    async def work(running: NsqBroker) -> None:
        with pytest.raises(ValueError, match="the same content type"):
            await running.publish_batch("text", 1, topic="fsd-mixed")
        with pytest.raises(FeatureNotSupportedException, match="publish the messages one by one"):
            await running.publisher("fsd-mixed", delay=1, batch=True)._publish(
                NsqResponse([1, 2]).as_publish_command(), _extra_middlewares=()
            )

    run(NsqBroker(daemon.tcp_address), work, kind)


def test_names_that_nsq_does_not_allow(daemon: Nsqd, kind: str) -> None:
    broker, seen = NsqBroker(daemon.tcp_address), list[str]()
    subscribers = [
        broker.subscriber("fsd/orders", "billing/eu"),
        broker.subscriber("fsd-temporary#ephemeral", "c#ephemeral"),
    ]
    for each in subscribers:

        @each
        async def handle(text: str) -> None:
            seen.append(text)

    async def work(running: NsqBroker) -> None:
        await running.publish("slash", "fsd/orders")
        await running.publish("temporary", "fsd-temporary#ephemeral")
        await until(lambda: len(seen) == 2)

    run(broker, work, kind)
    assert sorted(seen) == ["slash", "temporary"]
    assert subscribers[0].topic.startswith("fsd_orders-")
    assert subscribers[0].channel.startswith("billing_eu-")
    assert subscribers[1].topic == "fsd-temporary#ephemeral"


def test_requests_need_the_test_broker() -> None:
    broker = NsqBroker("127.0.0.1:1")
    publisher = broker.publisher("fsd-asked")

    @broker.subscriber("fsd-asked")
    async def double(number: int) -> int:
        return number * 2

    async def work(running: NsqBroker) -> None:
        assert await (await running.request(4, "fsd-asked")).decode() == 8
        assert await (await publisher.request(5)).decode() == 10
        with pytest.raises(SubscriberNotFound):
            await running.request(4, "fsd-nobody")

    run(broker, work, "test broker")


def test_security_is_tls_or_refused(daemon: Nsqd, tmp_path: Path) -> None:
    files = make("127.0.0.1").save(tmp_path)
    trusted = ssl.create_default_context(cafile=str(files.certificate))
    trusted.check_hostname = False

    async def publish(address: str) -> None:
        broker = NsqBroker(address, security=BaseSecurity(ssl_context=trusted))
        async with asyncio.timeout(LIMIT), broker:
            await broker.publish("secret", "fsd-tls")

    with pytest.raises(ConnectionFailed, match="does not support TLS"):
        asyncio.run(publish(daemon.tcp_address))
    with nsqd(**files.options, tls_required="true") as own:
        asyncio.run(publish(own.tcp_address))
    with pytest.raises(ValueError, match="does not support SASLPlaintext"):
        NsqBroker("127.0.0.1:1", security=SASLPlaintext("user", "secret"))
