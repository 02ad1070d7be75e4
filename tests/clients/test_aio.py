"""The asyncio-specific parts of the client (tasks, waiting, cancellation) with a scripted nsqd."""

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import uvloop

from nsqcy.client.aio import Consumer, Message, Producer
from nsqcy.client.errors import Closed, ConnectionFailed, PublishTimeout, Requeue
from support.fake_nsqd import Link, MockNsqd, Peer

LIMIT = 20.0
FOREVER = 3600.0  # a close_timeout too long for any test

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def nsqd() -> Iterator[MockNsqd]:
    with MockNsqd() as nsqd:
        yield nsqd


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return functools.partial(run_in, request.param)


def run_in(
    new_loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, None]
) -> None:
    """Run in an event loop; any error that the loop reports is a failure."""
    complaints: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, about: complaints.append(about))
        async with asyncio.timeout(LIMIT):
            await work

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert complaints == []


async def until(predicate: Callable[[], Any]) -> Any:
    while not (found := predicate()):
        await asyncio.sleep(0.002)
    return found


async def spread(messages: Iterable[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        await asyncio.sleep(0)
        yield message


async def subscriber(nsqd: MockNsqd, number: int = 0) -> Link:
    await until(lambda: len(nsqd.links) > number and nsqd.links[number].said("RDY"))
    return nsqd.links[number]


def deliver(link: Link, *bodies: bytes, attempts: int = 1) -> None:
    with link:
        link.deliver(*bodies, attempts=attempts)


# -- iterating


def test_iterating(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        taken = []
        async with Consumer("t", "c", nsqd.address, max_in_flight=3) as consumer:
            deliver(await subscriber(nsqd), b"1", b"2", b"3")
            async for message in consumer:
                taken.append(message.body)
                message.finish()
                if len(taken) == 3:
                    break
        assert taken == [b"1", b"2", b"3"]

    run(main())
    link = nsqd.link()
    assert link.ended.wait(LIMIT)
    assert len(link.said("FIN")) == 3 and link.said("REQ") == []


def test_iterating_starts_it_and_its_end_ends_that(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        consumer = Consumer("t", "c", nsqd.address)

        async def iterate() -> list[bytes]:
            return [message.body async for message in consumer]

        tasks = [asyncio.create_task(iterate()) for _ in range(3)]
        await subscriber(nsqd)
        await consumer.close()
        assert await asyncio.gather(*tasks) == [[], [], []]
        assert [message async for message in consumer] == []

    run(main())


def test_get(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        async with Consumer("t", "c", nsqd.address) as consumer:
            assert await consumer.get(timedelta(0)) is None
            waiting = asyncio.create_task(consumer.get())
            deliver(await subscriber(nsqd), b"1")
            message = await waiting
            assert message is not None and message.body == b"1"
            message.finish()
            waiting = asyncio.create_task(consumer.get(FOREVER))
            await until(lambda: consumer._waiters)
            await consumer.close()
            assert await waiting is None
        assert await consumer.get() is None

    run(main())


def test_several_iterate(nsqd: MockNsqd, run: Run) -> None:
    """Each message goes to exactly one iterator, even if others are cancelled."""

    async def main() -> None:
        taken: list[bytes] = []

        async def take(consumer: Consumer) -> None:
            async for message in consumer:
                taken.append(message.body)
                message.finish()

        async with Consumer("t", "c", nsqd.address, max_in_flight=100) as consumer:
            tasks = [asyncio.create_task(take(consumer)) for _ in range(5)]
            link = await subscriber(nsqd)
            for number in range(50):
                deliver(link, b"%d" % number)
                if number % 10 == 0 and len(tasks) > 1:
                    tasks.pop(0).cancel()
            await until(lambda: len(taken) == 50)
            assert sorted(taken) == sorted(b"%d" % number for number in range(50))

    run(main())


def test_whose_time_is_over_leaves_the_message_to_another(nsqd: MockNsqd, run: Run) -> None:
    """Another waiter gets the message if a waiter is woken and times out in the same turn."""

    async def main() -> None:
        async with Consumer("t", "c", nsqd.address) as consumer:
            link = await subscriber(nsqd)
            first = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)
            second = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)
            # Cancel the first waiter in the turn in which deliver() wakes it.
            deliver_ = consumer.deliver

            def and_cancel(messages: list[Message]) -> None:
                deliver_(messages)
                first.cancel()

            consumer.deliver = and_cancel  # type: ignore[method-assign]
            deliver(link, b"m")
            message = await second
            assert message.body == b"m"
            message.finish()
            with pytest.raises(asyncio.CancelledError):
                await first

    run(main())


def test_batches(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        async with Consumer("t", "c", nsqd.address, max_in_flight=4) as consumer:
            link = await subscriber(nsqd)
            batches = consumer.batches(3, within=LIMIT)
            deliver(link, b"1", b"2", b"3", b"4")
            first = await anext(batches)
            second = await anext(batches)  # no more messages can arrive until these are answered
            assert [[each.body for each in batch] for batch in (first, second)] == [
                [b"1", b"2", b"3"],
                [b"4"],
            ]
            for message in first + second:
                message.finish()
            short = consumer.batches(3, within=0.01)
            deliver(link, b"5")
            (message,) = await anext(short)
            assert message.body == b"5"
            message.finish()

    run(main())


# -- handlers


def test_a_handler_that_is_cancelled_by_what_it_waits_for(nsqd: MockNsqd, run: Run) -> None:
    async def handler(message: Message) -> None:
        waited = asyncio.get_running_loop().create_future()
        waited.cancel()
        await waited

    async def main() -> None:
        seen: list[Any] = []
        async with Consumer(
            "t",
            "c",
            nsqd.address,
            message_handler=handler,
            on_exception=lambda message, error: seen.append(error),
        ):
            link = await subscriber(nsqd)
            deliver(link, b"m")
            await until(lambda: link.said("REQ"))
        assert isinstance(seen[0], asyncio.CancelledError)

    run(main())


@pytest.mark.parametrize(("concurrency", "maximum"), [(None, 5), (2, 2), (9, 5)])
def test_concurrency(nsqd: MockNsqd, concurrency: int | None, maximum: int, run: Run) -> None:
    async def main() -> None:
        running: set[bytes] = set()
        peak = 0
        gate = asyncio.Event()

        async def handler(message: Message) -> None:
            nonlocal peak
            running.add(message.body)
            peak = max(peak, len(running))
            await gate.wait()
            running.discard(message.body)

        async with Consumer(
            "t",
            "c",
            nsqd.address,
            message_handler=handler,
            max_in_flight=5,
            concurrency=concurrency,
        ):
            link = await subscriber(nsqd)
            deliver(link, *(b"%d" % number for number in range(5)))
            await until(lambda: len(running) == maximum)
            gate.set()
            await until(lambda: len(link.said("FIN")) == 5)
        assert peak == maximum

    run(main())


def test_a_close_waits_for_what_handlers_do_afterwards(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        gate, done = asyncio.Event(), asyncio.Event()

        async def handler(message: Message) -> None:
            message.finish()
            await gate.wait()
            done.set()

        consumer = Consumer("t", "c", nsqd.address, message_handler=handler)
        await consumer.start()
        link = await subscriber(nsqd)
        deliver(link, b"m")
        await until(lambda: link.said("FIN"))
        closing = asyncio.create_task(consumer.close())
        await until(link.ended.is_set)
        assert not closing.done()
        gate.set()
        await closing
        assert done.is_set()

    run(main())


def test_a_hard_close_cancels_handlers(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        ends: list[str] = []

        async def handler(message: Message) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        consumer = Consumer("t", "c", nsqd.address, message_handler=handler)
        await consumer.start()
        deliver(await subscriber(nsqd), b"m")
        await until(lambda: consumer.total_in_flight)
        await consumer.close(graceful=False)
        await until(lambda: ends)
        assert await consumer.join(0)

    run(main())


def test_a_handler_closes(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        after: list[bool] = []

        async def handler(message: Message) -> None:
            message.finish()
            await consumer.close()
            await asyncio.sleep(0)  # a cancelled task would end here
            after.append(True)

        consumer = Consumer("t", "c", nsqd.address, message_handler=handler)
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            deliver(await subscriber(nsqd), b"m")
        await until(lambda: after)

    run(main())


def test_concurrency_alone_sets_how_many_are_in_flight(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        running: set[bytes] = set()
        gate = asyncio.Event()

        async def handler(message: Message) -> None:
            running.add(message.body)
            await gate.wait()

        async with Consumer("t", "c", nsqd.address, message_handler=handler, concurrency=20):
            link = await subscriber(nsqd)
            await until(lambda: link.lines[-1] == "RDY 20")
            deliver(link, *(b"%d" % number for number in range(20)))
            await until(lambda: len(running) == 20)
            gate.set()
            await until(lambda: len(link.said("FIN")) == 20)

    run(main())


def failing() -> None:
    raise RuntimeError("on purpose")


def refused() -> None:
    raise Requeue(7, backoff=False)


def returning() -> None: ...


@pytest.mark.parametrize("end", [failing, refused, returning])
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_the_end_of_on_giving_up_decides(
    nsqd: MockNsqd, kind: str, end: Callable[[], None], run: Run
) -> None:
    """A message is finished after the hook returns, and requeued if the hook fails."""

    async def main() -> None:
        failed: list[BaseException] = []
        gate = asyncio.Event()
        waiting: list[Message] = []

        def function(message: Message) -> None:
            waiting.append(message)
            end()

        async def coroutine(message: Message) -> None:
            waiting.append(message)
            await gate.wait()
            end()

        async with Consumer(
            "t",
            "c",
            nsqd.address,
            max_in_flight=2,
            on_giving_up=coroutine if kind == "coroutine" else function,
            on_exception=lambda message, error: failed.append(error),
        ):
            link = await subscriber(nsqd)
            deliver(link, b"m", attempts=6)
            await until(lambda: waiting)
            if kind == "coroutine":
                assert not waiting[0].has_responded()
            gate.set()
            await until(waiting[0].has_responded)
            await until(lambda: link.said("FIN") or link.said("REQ"))
            delays = [line.split()[2] for line in link.said("REQ")]
            if end is failing:
                assert (delays, [str(each) for each in failed]) == (["32000"], ["on purpose"])
            elif end is refused:
                assert (delays, failed) == (["7000"], [])
            else:
                assert (delays, failed) == ([], [])
            assert len(link.said("FIN")) == 1 - len(delays)

    run(main())


def test_on_giving_up_is_cancelled_by_what_it_waits_for(nsqd: MockNsqd, run: Run) -> None:
    async def hook(message: Message) -> None:
        waited = asyncio.get_running_loop().create_future()
        waited.cancel()
        await waited

    async def main() -> None:
        async with Consumer("t", "c", nsqd.address, on_giving_up=hook):
            link = await subscriber(nsqd)
            deliver(link, b"m", attempts=6)
            await until(lambda: link.said("REQ"))
            assert link.said("FIN") == []

    run(main())


@pytest.mark.parametrize("graceful", [True, False])
def test_on_giving_up_at_the_end(nsqd: MockNsqd, graceful: bool, run: Run) -> None:
    """A graceful close waits for the hook; otherwise the hook is cancelled, and nothing is
    finished."""

    async def main() -> None:
        ends: list[str] = []
        waiting = asyncio.Event()

        async def hook(message: Message) -> None:
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        consumer = Consumer("t", "c", nsqd.address, on_giving_up=hook, close_timeout=0.05)
        await consumer.start()
        link = await subscriber(nsqd)
        deliver(link, b"m", attempts=6)
        await waiting.wait()
        await consumer.close(graceful=graceful)
        await until(lambda: ends)
        await until(link.ended.is_set)  # nsqd requeues the message
        assert link.said("FIN") == []

    run(main())


def test_on_giving_up_may_close(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        async def hook(message: Message) -> None:
            await consumer.close()
            message.finish()

        consumer = Consumer("t", "c", nsqd.address, on_giving_up=hook, close_timeout=FOREVER)
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            link = await subscriber(nsqd)
            deliver(link, b"m", attempts=6)
        assert len(link.said("FIN")) == 1

    run(main())


def test_on_exception_may_wait_and_answer(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        def handler(message: Message) -> None:
            raise RuntimeError("on purpose")

        async def hook(message: Message, error: BaseException) -> None:
            await asyncio.sleep(0)
            message.finish()

        async with Consumer("t", "c", nsqd.address, message_handler=handler, on_exception=hook):
            link = await subscriber(nsqd)
            deliver(link, b"m")
            await until(lambda: link.said("FIN"))
            assert link.said("REQ") == []

    run(main())


def test_callbacks_may_be_coroutine_functions(
    nsqd: MockNsqd, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    """Callbacks are awaited while the consumer keeps running, and their exceptions are logged."""
    caplog.set_level(logging.CRITICAL)
    caplog.set_level(logging.ERROR, "nsqcy.client")

    async def main() -> None:
        told: list[str] = []

        async def note(what: object) -> None:
            await asyncio.sleep(0)
            told.append(type(what).__name__)
            raise RuntimeError("on purpose")

        async def note_retry(publish: object, error: object) -> None:
            await asyncio.sleep(0)
            told.append("retry")

        async with Consumer(
            "t", "c", [nsqd.address, "127.0.0.1:1"], on_error=note, on_ready=note, on_heartbeat=note
        ):
            link = await subscriber(nsqd)
            with link:
                link.beat()
            await until(lambda: len(told) >= 3)
            assert set(told) == {"ConnectionFailed", "Connection"}
        assert "a callback failed" in caplog.text

        told.clear()
        async with Producer(nsqd.address, on_retry=note_retry, on_error=note) as producer:
            first = producer.publish_nowait("t", b"bad")
            second = producer.publish_nowait("t", b"good")
            with pytest.raises(Exception, match="E_BAD_MESSAGE"):
                await first
            assert await second == b"OK"
            await until(lambda: set(told) == {"retry", "NsqdError"})

    def script(peer: Any, line: str, body: bytes) -> bool:
        if body == b"bad":
            peer.error("E_BAD_MESSAGE no")
        return body == b"bad"

    nsqd.options["script"] = script
    run(main())


# -- the end


def test_a_handler_does_not_wait_for_itself(nsqd: MockNsqd, run: Run) -> None:
    """A message is finished when its handler returns, and run() returns only after that."""

    async def main() -> None:
        after: list[bytes] = []
        both = asyncio.Barrier(2)

        async def handler(message: Message) -> None:
            await both.wait()
            await consumer.close()
            await asyncio.sleep(0)
            after.append(message.body)

        consumer = Consumer(
            "t", "c", nsqd.address, message_handler=handler, concurrency=2, close_timeout=FOREVER
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            link = await subscriber(nsqd)
            deliver(link, b"1", b"2")  # both handlers close the consumer
        assert sorted(after) == [b"1", b"2"]
        assert link.ended.wait(LIMIT)
        assert len(link.said("FIN")) == 2

    run(main())


@pytest.mark.parametrize("kind", ["messages", "batches"])
def test_an_iteration_does_not_wait_for_itself(nsqd: MockNsqd, kind: str, run: Run) -> None:
    async def main() -> None:
        consumer = Consumer("t", "c", nsqd.address, max_in_flight=2, close_timeout=FOREVER)
        await consumer.start()
        link = await subscriber(nsqd)
        deliver(link, b"1", b"2")
        await until(lambda: consumer.total_in_flight == 2)
        taken: list[Message] = []
        if kind == "messages":
            async for message in consumer:
                await consumer.close()
                message.finish()
                taken.append(message)
        else:
            async for batch in consumer.batches(2):
                await consumer.close()
                for message in batch:
                    message.finish()
                taken += batch
        await consumer.close()  # close() waits for the end: the caller holds no messages
        assert link.ended.wait(LIMIT)
        answers = (len(link.said("FIN")), len(link.said("REQ")))
        assert answers == ((1, 1) if kind == "messages" else (2, 0))

    run(main())


def test_a_close_after_an_iteration_waits(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        consumer = Consumer("t", "c", nsqd.address, close_timeout=FOREVER)
        other = asyncio.create_task(anext(consumer))
        link = await subscriber(nsqd)
        deliver(link, b"1")
        held = await other
        iterating = asyncio.create_task(iterate_once(consumer))
        deliver(link, b"2")
        message = await iterating
        message.finish()
        closing = asyncio.create_task(consumer.close())
        await until(lambda: link.said("CLS"))
        assert not closing.done()
        held.finish()
        await closing
        assert not consumer.is_running

    run(main())


async def iterate_once(consumer: Consumer) -> Message:
    async for message in consumer:
        return message
    raise AssertionError


def test_cancelling_run_closes(nsqd: MockNsqd, run: Run) -> None:
    """Handlers finish the messages that they have begun; the rest are requeued."""

    async def main() -> None:
        gate, inside = asyncio.Event(), asyncio.Event()

        async def handler(message: Message) -> None:
            inside.set()
            await gate.wait()

        consumer = Consumer(
            "t",
            "c",
            nsqd.address,
            message_handler=handler,
            concurrency=1,
            max_in_flight=2,
            close_timeout=FOREVER,
        )
        running = asyncio.create_task(consumer.run())
        link = await subscriber(nsqd)
        deliver(link, b"1", b"2")
        await inside.wait()
        running.cancel()
        await until(lambda: link.said("CLS"))
        await until(lambda: link.said("REQ"))
        assert not running.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not consumer.is_running
        assert link.ended.wait(LIMIT)
        assert (len(link.said("FIN")), link.said("REQ")) == (1, [f"REQ {1:016x} 0"])

    run(main())


def test_cancelling_run_has_an_end(nsqd: MockNsqd, run: Run) -> None:
    """After close_timeout, handlers are cancelled, and none of their messages is finished."""

    async def main() -> None:
        inside = asyncio.Event()

        async def handler(message: Message) -> None:
            inside.set()
            await asyncio.Event().wait()

        consumer = Consumer("t", "c", nsqd.address, message_handler=handler, close_timeout=0.05)
        running = asyncio.create_task(consumer.run())
        link = await subscriber(nsqd)
        deliver(link, b"1")
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert link.ended.wait(LIMIT)
        assert link.said("FIN") == []

    run(main())


def test_a_cancelled_close_goes_on(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        consumer = Consumer("t", "c", nsqd.address, close_timeout=FOREVER)
        first = asyncio.create_task(anext(consumer))
        link = await subscriber(nsqd)
        deliver(link, b"1")
        message = await first
        closing = asyncio.create_task(consumer.close())
        await until(lambda: link.said("CLS"))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        message.finish()
        assert await consumer.join()
        assert link.ended.wait(LIMIT)
        assert len(link.said("FIN")) == 1

    run(main())


def test_a_hard_close_cuts_a_graceful_one_short(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        async def handler(message: Message) -> None:
            message.finish()
            await asyncio.Event().wait()

        consumer = Consumer("t", "c", nsqd.address, message_handler=handler, close_timeout=FOREVER)
        await consumer.start()
        link = await subscriber(nsqd)
        deliver(link, b"1")
        await until(lambda: link.said("FIN"))
        closing = asyncio.create_task(consumer.close())
        await until(lambda: link.said("CLS"))
        await consumer.close(graceful=False)
        await closing

    run(main())


def test_a_hard_close_in_a_handler_spares_it(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        ends: list[bytes] = []
        both = asyncio.Barrier(2)

        async def handler(message: Message) -> None:
            await both.wait()
            try:
                if message.body == b"waits":
                    await asyncio.Event().wait()
                await consumer.close(graceful=False)
                await until(lambda: ends)
            finally:
                ends.append(message.body)

        consumer = Consumer("t", "c", nsqd.address, message_handler=handler, concurrency=2)
        await consumer.start()
        deliver(await subscriber(nsqd), b"closes", b"waits")
        await until(lambda: ends == [b"waits", b"closes"])
        await consumer.close()
        assert not consumer.transports

    run(main())


def test_a_close_waits_for_callbacks(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        gate, told = asyncio.Event(), asyncio.Event()
        done: list[object] = []

        async def hook(what: object) -> None:
            told.set()
            await gate.wait()
            done.append(what)

        consumer = Consumer("t", "c", nsqd.address, on_ready=hook, close_timeout=FOREVER)
        producer = Producer("127.0.0.1:1", on_error=hook, close_timeout=FOREVER)
        for each in (consumer, producer):
            told.clear()
            await each.start()
            await told.wait()
        closing = [asyncio.create_task(each.close()) for each in (consumer, producer)]
        await until(lambda: not (consumer.is_running or producer.is_running))
        assert not any(each.done() for each in closing)
        gate.set()
        await asyncio.gather(*closing)
        assert len(done) >= 2

    run(main())


def test_a_cancelled_close_of_a_producer_goes_on(run: Run) -> None:
    async def main(nsqd: MockNsqd) -> None:
        producer = Producer(nsqd.address, close_timeout=FOREVER)
        publishing = asyncio.create_task(producer.publish("t", b"1"))
        await until(lambda: nsqd.links and len(nsqd.links[0].bodies) == 2)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with nsqd.link() as link:
            link.answer()
        assert await publishing == b"OK"
        await producer.close()  # close() also waits for the end
        assert not producer.transports

    with MockNsqd(script=mute) as nsqd:
        run(main(nsqd))


# -- control


def test_before_it_starts(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        consumer = Consumer("t", "c", lookupd_http_addresses="127.0.0.1:1")
        consumer.set_max_in_flight(7)
        consumer.pause()
        consumer.resume()
        consumer.query_lookupd()
        consumer.connect_to_nsqd("127.0.0.1", nsqd.port)
        async with consumer:
            link = await subscriber(nsqd)
            link.expect("IDENTIFY", "SUB t c", "RDY 7")
            consumer.pause()
            await until(lambda: link.lines[-1] == "RDY 0")
            consumer.resume()
            await until(lambda: link.lines[-1] == "RDY 7")
            assert list(consumer.connections) == [nsqd.address]
            assert (consumer.max_in_flight, consumer.total_ready_count) == (7, 7)
            assert not consumer.is_starved
        assert (consumer.total_ready_count, consumer.total_in_flight) == (0, 0)

    run(main())


def test_closed_before_it_starts(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        consumer = Consumer("t", "c", nsqd.address)
        await consumer.close()
        await consumer.start()
        assert [message async for message in consumer] == []
        assert not consumer.is_running

    run(main())
    assert nsqd.links == []


@pytest.mark.parametrize("concurrency", [0, -1])
def test_nonsense(concurrency: int, run: Run) -> None:
    with pytest.raises(ValueError, match="concurrency cannot be"):
        Consumer("t", "c", "a", concurrency=concurrency)


def test_a_close_while_it_connects(run: Run) -> None:
    async def main() -> None:
        for graceful in (True, False):
            consumer = Consumer("t", "c", ["10.255.255.1", "127.0.0.1:1"])
            await consumer.start()
            await consumer.close(graceful=graceful)
            producer = Producer(["10.255.255.1", "127.0.0.1:1"])
            await producer.start()
            await producer.close(graceful=graceful)

    run(main())


def test_a_close_in_the_turn_of_a_connection(nsqd: MockNsqd, run: Run) -> None:
    """A connection can be closed in any state, and reports nothing afterwards."""

    async def main(turns: int) -> None:
        consumer = Consumer("t", "c", nsqd.address)
        await consumer.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await consumer.close(graceful=False)
        assert not consumer.connections

    for turns in range(12):
        run(main(turns))


# -- producing


def mute(peer: Any, line: str, body: bytes) -> bool:
    return line.startswith("PUB")


def test_a_cancelled_publish_keeps_its_place(run: Run) -> None:
    async def main(nsqd: MockNsqd) -> None:
        async with Producer(nsqd.address) as producer:
            tasks = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(3)]
            await until(lambda: nsqd.links and len(nsqd.links[0].bodies) == 4)
            tasks[0].cancel()
            with nsqd.link() as link:
                link.answer()
                link.answer()
            assert await tasks[1] == b"OK"
            assert not tasks[2].done()
            with nsqd.link() as link:
                link.answer()
            assert await tasks[2] == b"OK"
            assert producer.core.pending_bytes == 0

    with MockNsqd(script=mute) as nsqd:
        run(main(nsqd))


@pytest.mark.parametrize("held", ["IDENTIFY", "LIMITS"])
def test_a_publish_that_is_cancelled_before_it_is_sent(held: str, run: Run) -> None:
    """The publish waits for the connection, or for the limits of its topic."""

    async def main(nsqd: MockNsqd) -> None:
        async with Producer(nsqd.address) as producer:
            tasks = [asyncio.create_task(producer.publish("t", body)) for body in (b"123456", b"x")]
            await until(lambda: nsqd.links and nsqd.links[0].said(held))
            tasks[0].cancel()
            await asyncio.wait(tasks[:1])
            with nsqd.link() as link:
                link.obey(held)
            assert await tasks[1] == b"OK"
            assert nsqd.link().bodies[1:] == [b"x"]
            assert producer.core.pending_bytes == 0

    def hold(peer: Peer, line: str, _body: bytes) -> bool:
        peer.limits = limits | {"max_msg_size": 10}
        return line.partition(" ")[0] == held

    limits = {"max_msg_size": 5, "max_body_size": 60, "max_defer_timeout": 1000}
    with MockNsqd(settings={"limits": limits}, script=hold) as nsqd:
        run(main(nsqd))


def test_room(run: Run) -> None:
    async def main(nsqd: MockNsqd) -> None:
        async with Producer(nsqd.address, max_pending=2) as producer:
            first = asyncio.create_task(producer.publish("t", b"12"))
            await until(lambda: producer.is_full)
            others = [asyncio.create_task(producer.publish("t", b"3")) for _ in range(2)]
            with pytest.raises(PublishTimeout, match="2 bytes of publishes are unanswered"):
                await producer.publish("t", b"4", timeout=0.01)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.publish("t", b"4"), 0.01)
            await until(lambda: nsqd.links and len(nsqd.links[0].bodies) == 2)
            with nsqd.link() as link:
                link.answer()
            await first
            await until(lambda: len(nsqd.link().bodies) == 4)
            with nsqd.link() as link:
                link.answer()
                link.answer()
            await asyncio.gather(*others)

    with MockNsqd(script=mute) as nsqd:
        run(main(nsqd))


def test_who_waits_for_room_hears_of_the_end(run: Run) -> None:
    async def main(nsqd: MockNsqd) -> None:
        producer = Producer(nsqd.address, max_pending=1)
        first = asyncio.create_task(producer.publish("t", b"1"))
        await until(lambda: producer.is_full)
        second = asyncio.create_task(producer.publish("t", b"2"))
        await asyncio.sleep(0)
        await producer.close(graceful=False)
        for task in (first, second):
            with pytest.raises(Closed):
                await task

    with MockNsqd(script=mute) as nsqd:
        run(main(nsqd))


def test_publish_all_tells_of_the_first_error(run: Run) -> None:
    def script(peer: Any, line: str, body: bytes) -> bool:
        if line.startswith("MPUB") and b"bad" in body:
            peer.error("E_BAD_MESSAGE no")
            return True
        return False

    async def main(nsqd: MockNsqd) -> None:
        async with Producer(nsqd.address) as producer:
            bodies = [b"good", b"bad", b"good"]
            with pytest.raises(Exception, match="E_BAD_MESSAGE"):
                await producer.publish_all("t", bodies, batch_messages=1)
            with pytest.raises(TypeError):
                await producer.publish_all("t", [b"good", "text"])  # type: ignore[list-item]
            assert await producer.publish_all("t", [b"good"] * 5, batch_messages=2) == 5
            good = spread([b"good"] * 5)
            assert await producer.publish_all("t", good, batch_messages=2) == 5

    with MockNsqd(script=script) as nsqd:
        run(main(nsqd))


def test_a_close_sends_what_waits(run: Run) -> None:
    """Pending publishes are sent even if nsqd reads slowly."""
    gate = threading.Event()

    def script(peer: Any, line: str, body: bytes) -> bool:
        if body == b"wait":
            gate.wait(LIMIT)
        return line.startswith("PUB")

    async def main(nsqd: MockNsqd) -> None:
        producer = Producer(nsqd.address, timeout=LIMIT)
        waits = [producer.publish_nowait("t", body) for body in (b"wait", bytes(1 << 24))]
        await until(lambda: nsqd.links and "PUB t" in nsqd.links[0].lines)
        closing = asyncio.create_task(producer.close(graceful=False))
        for each in waits:
            with pytest.raises(Closed):
                await each
        gate.set()
        await closing

    with MockNsqd(script=script) as nsqd:
        run(main(nsqd))
        assert nsqd.link().ended.wait(LIMIT)
        assert [len(body) for body in nsqd.link().bodies[1:]] == [4, 1 << 24]


def test_a_producer_says_all_before_its_loop_ends(nsqd: MockNsqd, run: Run) -> None:
    async def main() -> None:
        async with Producer(nsqd.address) as producer:
            with pytest.raises(ConnectionFailed):
                await Producer("127.0.0.1:1", retries=0).publish("t", b"x")
            await producer.publish("t", bytes(1 << 20))

    run(main())
    assert nsqd.link().ended.wait(LIMIT)
    assert len(nsqd.link().bodies[1]) == 1 << 20


def test_large_bodies_wait_until_the_transport_has_room(run: Run) -> None:
    """Copying all pending publishes took ten times as long as sending them."""
    go_on = threading.Event()

    def script(peer: Peer, line: str, body: bytes) -> None:
        if line.startswith("PUB"):
            go_on.wait(LIMIT)

    async def main() -> None:
        with MockNsqd(script=script) as nsqd:
            async with Producer(nsqd.address) as producer:
                futures = [producer.publish_nowait("t", bytes(1 << 20)) for _ in range(40)]
                transport = await until(lambda: next(iter(producer.transports), None))
                await until(transport.get_write_buffer_size)
                assert transport.get_write_buffer_size() < 4 << 20
                go_on.set()
                assert await asyncio.gather(*futures) == [b"OK"] * 40

    run(main())
