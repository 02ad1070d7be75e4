"""FastStream on nsqd, and on its test broker, which must behave the same."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("faststream")

from faststream import AckPolicy, BaseMiddleware, FastStream
from faststream.exceptions import FeatureNotSupportedException, SetupError, StopConsume
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from nsqcy.client import Consumer, Producer
from nsqcy.integrations.faststream import (
    NsqBroker,
    NsqPublisher,
    NsqResponse,
    NsqRoute,
    NsqRouter,
    TestNsqBroker,
)
from nsqcy.integrations.faststream.annotations import NsqBatchMessage, NsqMessage
from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import Web, eventually
from support.shop_process import shop_of

pytestmark = pytest.mark.slow

LIMIT = 30.0


class Order(BaseModel):
    id: int
    total: float = 0.0


@pytest.fixture(scope="module")
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture(params=["nsqd", "test broker"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def broker_on(daemon: Nsqd, **options: Any) -> NsqBroker:
    return NsqBroker(daemon.tcp_address, client_options={"requeue_delay": 0.01}, **options)


def run(broker: NsqBroker, work: Callable[[], Awaitable[None]], kind: str = "nsqd") -> None:
    """Run a coroutine function while the broker, or its test broker, is running."""

    async def main() -> None:
        async with asyncio.timeout(LIMIT):
            if kind == "nsqd":
                async with broker:
                    await broker.start()
                    await work()
            else:
                async with TestNsqBroker(broker):
                    await work()

    asyncio.run(main())


class Seen(list[Any]):
    """Values that handlers have received."""

    async def wait(self, count: int) -> None:
        while len(self) < count:
            await asyncio.sleep(0.005)


def test_a_result_is_published(daemon: Nsqd, kind: str) -> None:
    broker, seen = broker_on(daemon), Seen()

    @broker.subscriber("fs-orders", "billing")
    @broker.publisher("fs-invoices", headers={"kind": "invoice"})
    async def bill(order: Order) -> Order:
        return Order(id=order.id, total=order.total * 2)

    @broker.subscriber("fs-invoices")
    async def mail(invoice: Order, message: NsqMessage) -> None:
        seen.append((invoice, message.headers["kind"], message.correlation_id))

    async def work() -> None:
        await broker.publish(Order(id=7, total=2), "fs-orders", correlation_id="c7")
        await seen.wait(1)

    run(broker, work, kind)
    assert seen == [(Order(id=7, total=4), "invoice", "c7")]


def test_channels_get_all_messages_and_subscribers_of_one_share_them(
    daemon: Nsqd, kind: str
) -> None:
    broker, shared, other = broker_on(daemon), Seen(), Seen()
    for channel in ("a", "b"):  # a channel has only messages that are published after its creation
        Web.at(daemon.http_address).create("fs-shared", channel)

    for name in ("one", "two"):

        @broker.subscriber("fs-shared", "a", title=name)
        async def share(number: int) -> None:
            shared.append(number)

    @broker.subscriber("fs-shared", "b")
    async def all_of_them(number: int) -> None:
        other.append(number)

    async def work() -> None:
        for number in range(20):
            await broker.publish(number, "fs-shared")
        await shared.wait(20)
        await other.wait(20)

    run(broker, work, kind)
    assert sorted(shared) == sorted(other) == list(range(20))


def test_a_failure_requeues_and_a_rejection_drops(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon), Seen()

    @broker.subscriber("fs-retry")
    async def retry(text: str, message: NsqMessage) -> None:
        seen.append((text, message.raw_message.attempts))
        if text == "nack":
            if message.raw_message.attempts < 3:
                await message.nack(delay=0.01)
            return
        if message.raw_message.attempts < 2:
            raise ValueError("not yet")

    @broker.subscriber("fs-rejected", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def reject(text: str) -> None:
        seen.append((text, 0))
        raise ValueError("never")

    async def work() -> None:
        await broker.publish("fail", "fs-retry")
        await broker.publish("nack", "fs-retry")
        await broker.publish("drop", "fs-rejected")
        await seen.wait(6)

    run(broker, work)
    expected = [("drop", 0), ("fail", 1), ("fail", 2), ("nack", 1), ("nack", 2), ("nack", 3)]
    assert sorted(seen) == expected
    web = Web.at(daemon.http_address)
    web.await_counts("fs-rejected", "faststream", depth=0, in_flight_count=0, requeue_count=0)


def test_a_message_with_a_manual_policy_stays_in_flight(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon), Seen()

    @broker.subscriber("fs-manual", ack_policy=AckPolicy.MANUAL, max_in_flight=2)
    async def keep(text: str, message: NsqMessage) -> None:
        seen.append(message)

    async def work() -> None:
        await broker.publish("one", "fs-manual")
        await broker.publish("two", "fs-manual")
        await seen.wait(2)
        assert not seen[0].raw_message.has_responded()
        await seen[0].ack()
        await seen[0].ack()

    run(broker, work)
    web = Web.at(daemon.http_address)
    web.await_counts("fs-manual", "faststream", depth=1, in_flight_count=0)


@pytest.mark.parametrize("headers", [True, False])
def test_nothing_can_be_published(daemon: Nsqd, kind: str, headers: bool) -> None:
    broker, seen = broker_on(daemon, headers=headers), Seen()
    topic = f"fs-nothing-{headers}"

    @broker.subscriber(topic)
    @broker.publisher(f"{topic}-results")
    async def handle(text: str | None) -> str | None:
        seen.append(text)
        return text

    @broker.subscriber(f"{topic}-results")
    async def see(text: str | None) -> None:
        seen.append((text, "result"))

    async def work() -> None:
        await broker.publish(None, topic)
        await broker.publish("", topic)
        await seen.wait(4)
        with pytest.raises(ValueError, match="empty"):
            await broker.publish(b"", f"{topic}-bytes")

    async def in_memory() -> None:
        await broker.publish(None, topic)
        await broker.publish("", topic)

    run(broker, work if kind == "nsqd" else in_memory, kind)
    assert sorted(map(str, seen)) == sorted(map(str, [None, (None, "result"), "", ("", "result")]))


def test_batches(daemon: Nsqd, kind: str) -> None:
    broker, seen = broker_on(daemon), Seen()

    @broker.subscriber("fs-batch", batch=True, max_in_flight=3, within=0.2)
    @broker.publisher("fs-sums", batch=True)
    async def add(numbers: list[int], message: NsqBatchMessage) -> list[int]:
        assert len(message.batch_headers) == len(numbers)
        return [each + 1 for each in numbers]

    @broker.subscriber("fs-sums")
    async def see(number: int) -> None:
        seen.append(number)

    async def work() -> None:
        await broker.publish_batch(1, 2, 3, topic="fs-batch")
        await seen.wait(3)

    run(broker, work, kind)
    assert sorted(seen) == [2, 3, 4]


def test_routers_prefix_their_topics(daemon: Nsqd, kind: str) -> None:
    seen = Seen()

    async def handle(order: Order) -> str:
        return f"order {order.id}"

    router = NsqRouter(
        "fs-shop.", [NsqRoute(handle, "orders", publishers=[NsqPublisher("results")])]
    )

    @router.subscriber("results")
    async def see(text: str) -> None:
        seen.append(text)

    broker = broker_on(daemon)
    broker.include_router(router)

    async def work() -> None:
        await broker.publish(Order(id=3), "fs-shop.orders")
        await seen.wait(1)

    run(broker, work, kind)
    assert seen == ["order 3"]


def test_middlewares_wrap_consuming_and_publishing(daemon: Nsqd, kind: str) -> None:
    calls: list[str] = []

    class Recorder(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            calls.append("consume")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            calls.append("publish")
            return await call_next(cmd)

    broker, seen = broker_on(daemon, middlewares=[Recorder]), Seen()

    @broker.subscriber("fs-wrapped")
    async def handle(text: str) -> None:
        seen.append(text)

    async def work() -> None:
        await broker.publish("hello", "fs-wrapped")
        await seen.wait(1)

    run(broker, work, kind)
    assert calls == ["publish", "consume"]


def test_the_result_goes_to_the_topic_in_reply_to(daemon: Nsqd, kind: str) -> None:
    broker, seen = broker_on(daemon), Seen()

    @broker.subscriber("fs-questions")
    async def answer(text: str) -> NsqResponse:
        return NsqResponse(text.upper(), headers={"answered": "yes"})

    @broker.subscriber("fs-answers")
    async def see(text: str, message: NsqMessage) -> None:
        seen.append((text, message.headers["answered"], message.correlation_id))

    async def work() -> None:
        await broker.publish("why", "fs-questions", reply_to="fs-answers", correlation_id="q1")
        await seen.wait(1)

    run(broker, work, kind)
    assert seen == [("WHY", "yes", "q1")]


def test_a_delay_is_deferred_in_nsqd(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon), Seen()
    publisher = broker.publisher("fs-later", delay=0.5)

    @broker.subscriber("fs-later")
    async def see(text: str) -> None:
        seen.append(time.monotonic())

    async def work() -> None:
        begun = time.monotonic()
        await publisher.publish("soon")
        await broker.publish("now", "fs-later")
        await seen.wait(2)
        assert seen[0] - begun < seen[1] - begun
        assert seen[1] - begun >= 0.5

    run(broker, work)


def test_filters_see_the_content_type(daemon: Nsqd, kind: str) -> None:
    broker, seen = broker_on(daemon), Seen()
    subscriber = broker.subscriber("fs-filtered")

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def handle_json(body: dict[str, int]) -> None:
        seen.append(("json", body))

    @subscriber
    async def handle_text(body: str) -> None:
        seen.append(("text", body))

    async def work() -> None:
        await broker.publish({"a": 1}, "fs-filtered")
        await broker.publish("a", "fs-filtered")
        await seen.wait(2)

    run(broker, work, kind)
    assert sorted(seen) == [("json", {"a": 1}), ("text", "a")]


def test_a_handler_stops_its_subscriber_and_another_starts(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon), Seen()

    @broker.subscriber("fs-stopping", "a")
    async def stop(text: str) -> None:
        seen.append(text)
        raise StopConsume

    async def handle(text: str) -> None:
        seen.append(text)

    async def work() -> None:
        await broker.publish("first", "fs-stopping")
        await seen.wait(1)
        late = broker.subscriber("fs-late")
        late(handle)
        await late.start()
        await broker.publish("second", "fs-stopping")
        await broker.publish("third", "fs-late")
        await seen.wait(2)
        await late.stop()

    run(broker, work)
    assert seen == ["first", "third"]
    web = Web.at(daemon.http_address)
    eventually(lambda: web.counts("fs-stopping", "a")["client_count"] == 0)


def test_without_headers_other_clients_understand_each_other(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon, headers=False), Seen()

    @broker.subscriber("fs-plain")
    async def see(order: Order) -> None:
        seen.append(order)

    async def work() -> None:
        with Producer(daemon.tcp_address) as producer:
            producer.publish("fs-plain", b'{"id": 5}')
        await seen.wait(1)
        await broker.publish(Order(id=6), "fs-plain-out", headers={"lost": "yes"})
        with Consumer("fs-plain-out", "c", daemon.tcp_address) as consumer:
            message = consumer.get(LIMIT)
            assert message is not None and Order.model_validate_json(message.body).id == 6
            message.finish()

    run(broker, work)
    assert seen == [Order(id=5)]


def test_messages_can_be_fetched(daemon: Nsqd) -> None:
    broker = broker_on(daemon)
    subscriber = broker.subscriber("fs-fetched")

    async def work() -> None:
        for number in range(3):
            await broker.publish(number, "fs-fetched")
        first = await subscriber.get_one(timeout=LIMIT)
        found = [await first.decode()]
        await first.ack()
        async for message in subscriber:
            found.append(await message.decode())
            await message.ack()
            if len(found) == 3:
                break
        assert found == [0, 1, 2]
        assert await subscriber.get_one(timeout=0.1) is None

    run(broker, work)
    handled = broker.subscriber("fs-handled")
    handled(print)
    with pytest.raises(AssertionError, match="handlers"):
        asyncio.run(handled.get_one())


def test_a_handler_may_take_longer_than_the_message_timeout(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon, msg_timeout=1.0), Seen()

    @broker.subscriber("fs-long")
    async def handle(text: str, message: NsqMessage) -> None:
        seen.append(message.raw_message.attempts)
        await asyncio.sleep(2.5)
        seen.append("done")

    async def work() -> None:
        await broker.publish("slow", "fs-long")
        await seen.wait(2)

    run(broker, work)
    assert seen == [1, "done"]


def test_stopping_waits_for_handlers_and_requeues_the_rest(daemon: Nsqd) -> None:
    broker, seen = broker_on(daemon), Seen()
    gate = asyncio.Event()

    @broker.subscriber("fs-stopped", max_in_flight=5)
    async def handle(number: int) -> None:
        seen.append(number)
        await gate.wait()

    async def work() -> None:
        for number in range(5):
            await broker.publish(number, "fs-stopped")
        await seen.wait(1)
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        gate.set()
        await stopping

    run(broker, work)
    assert len(seen) == 1
    web = Web.at(daemon.http_address)
    web.await_counts("fs-stopped", "faststream", depth=4, in_flight_count=0)


def test_ping_and_the_asyncapi_document(daemon: Nsqd) -> None:
    broker = broker_on(daemon)

    @broker.subscriber("fs-documented", "billing")
    @broker.publisher("fs-results", title="Results")
    async def handle(order: Order) -> str:
        return "done"

    async def work() -> None:
        assert await broker.ping()

    run(broker, work)
    assert not asyncio.run(NsqBroker("127.0.0.1:1").ping(timeout=1))
    document = AsyncAPI(broker).to_specification().to_jsonable()
    assert document["channels"]["fs-documented:Handle"]["address"] == "fs-documented"
    assert "billing" in document["channels"]["fs-documented:Handle"]["description"]
    assert document["channels"]["Results"]["address"] == "fs-results"
    assert document["servers"]["development"]["protocol"] == "nsq"


def test_mistakes_are_refused() -> None:
    with pytest.raises(TypeError, match="client_options has no option 'snapy'"):
        NsqBroker("127.0.0.1:1", client_options={"snapy": True})
    broker = NsqBroker("127.0.0.1:1")
    with pytest.raises(SetupError, match="omit max_workers"):
        broker.subscriber("a", batch=True, max_workers=2)
    with pytest.raises(SetupError, match="NsqRouter"):
        broker.include_router(FastStream(broker))  # type: ignore[arg-type]
    with pytest.raises(FeatureNotSupportedException, match="reply_to"):
        asyncio.run(broker.request("a", "b"))
    with pytest.raises(FeatureNotSupportedException, match="reply_to"):
        asyncio.run(broker.publisher("a").request("b"))


def test_the_test_broker_records_calls() -> None:
    broker = NsqBroker("127.0.0.1:1")
    publisher = broker.publisher("fs-out")

    @broker.subscriber("fs-in")
    @publisher
    async def handle(order: Order) -> int:
        return order.id

    async def main() -> None:
        async with TestNsqBroker(broker):
            await broker.publish(Order(id=4), "fs-in")
            handle.mock.assert_called_once_with({"id": 4, "total": 0.0})
            publisher.mock.assert_called_once_with(4)
            with pytest.raises(ValueError, match="id"):
                await broker.publish({"no": "id"}, "fs-in")

    asyncio.run(main())


def test_a_message_is_handled_again_after_its_process_is_killed(
    daemon: Nsqd, tmp_path: Path
) -> None:
    command = ("faststream", "run", "faststream_shop:app")
    with shop_of(tmp_path, "faststream_shop", nsqd=daemon.tcp_address) as shop:
        worker = shop.worker(*command, ready="waiting for messages")
        gate = tmp_path / "gate"
        with Producer(daemon.tcp_address) as producer:
            producer.publish("gates", str(gate).encode())
        shop.has_notes("hang", 1)
        shop.kill(worker)
        gate.touch()
        worker = shop.worker(*command, ready="waiting for messages")
        states = [each["state"] for each in shop.has_notes("hang", 3)]
        assert states == ["begun", "begun", "done"]
        shop.stop(worker)
