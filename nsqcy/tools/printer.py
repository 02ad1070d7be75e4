"""Prints messages to stdout, for nsq_tail.

A message is finished once it is written. Messages that were not written are requeued.
"""

import sys
from collections.abc import Callable, Iterable

from nsqcy.client.aio import Consumer
from nsqcy.client.codec import Message, finish
from nsqcy.tools import common
from nsqcy.tools.client_options import consumer_keywords
from nsqcy.tools.common import ToolError
from nsqcy.tools.consuming import Consuming
from nsqcy.tools.tail_options import NAME, TailOptions
from nsqcy.tools.threads import Threads

AT_ONCE = 100  # messages per write


async def print_topics(options: TailOptions) -> None:
    """Print messages until the limit is reached or the tool is stopped."""
    keywords = consumer_keywords(options.consumer_opt)
    keywords |= {
        "max_in_flight": options.max_in_flight,
        "user_agent": common.user_agent(NAME),
    }
    output = Threads()  # a single thread, so that lines from two topics do not mix
    async with Consuming(options) as consuming:
        for topic in options.topic:
            common.say(f"Adding consumer for topic: {topic}")
            consumer = await consuming.add(topic, options.channel, **keywords)
            head = f"{topic} | ".encode() if options.print_topic else b""
            consuming.spawn(print_all(consumer, output, head, options.n, consuming.stop))
        await consuming.stopped()


async def print_all(
    consumer: Consumer, output: Threads, head: bytes, maximum: int, stop: Callable[[], None]
) -> None:
    """Print one consumer's messages until it is closed, but at most `maximum` if that is above
    0."""
    left = maximum if maximum > 0 else sys.maxsize
    async for batch in consumer.batches(AT_ONCE):
        printed = batch[:left]
        put_back(batch[left:])
        text = b"".join(b"%b%b\n" % (head, message.body) for message in printed)
        try:
            await output.call(common.show, text)
        except ToolError:
            put_back(printed)
            raise
        left -= len(printed)
        if not left:
            consumer.pause()  # done before finishing these, because nsqd would send more
        finish(printed)
        if not left:
            stop()
            return


def put_back(messages: Iterable[Message]) -> None:
    """Requeue messages without delay."""
    for message in messages:
        message.requeue(0, backoff=False)
