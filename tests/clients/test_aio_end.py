"""The end of an asyncio consumer with a real nsqd."""

import asyncio

from nsqcy.client.aio import Consumer
from support.nsqd_process import Nsqd


def test_who_iterates_learns_of_the_end_before_he_has_answered(shared: Nsqd, topic: str) -> None:
    async def consume() -> None:
        consumer = Consumer(topic, "ch", f"127.0.0.1:{shared.tcp_port}")
        await consumer.start()
        message = await anext(consumer)
        waiting = asyncio.ensure_future(anext(consumer, None))
        await asyncio.sleep(0)  # now the task is waiting
        closing = asyncio.ensure_future(consumer.close())
        assert await asyncio.wait_for(waiting, 10) is None
        assert not closing.done()
        message.finish()
        await asyncio.wait_for(closing, 10)

    shared.web.pub(topic, b"one")
    asyncio.run(consume())
    shared.web.await_counts(topic, "ch", depth=0, in_flight_count=0)
