"""nsq_tail: prints the messages of topics on stdout, one per line.

A message is finished after it was written. Messages that were not written are requeued.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Iterable, Sequence

from nsqcy.client.aio import Consumer
from nsqcy.client.codec import Message, finish
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, INT, STRING, STRINGS, Options, OptionTable
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_options import CONSUMER_OPT, consumer_keywords
from nsqcy.tools.common import ToolError
from nsqcy.tools.consuming import Consuming
from nsqcy.tools.threads import Threads

NAME = "nsq_tail"
AT_ONCE = 100  # messages per write

OUTPUT = (
    Option("topic", STRINGS, (), "topic to print; may be repeated"),
    Option("channel", STRING, "", "channel name; default: a new temporary channel"),
    Option("n", INT, 0, "messages per topic to print before exiting; 0 for unlimited"),
    Option("print-topic", BOOL, False, "print the topic before each message"),
)
SOURCES = (
    common.NSQD_TCP_ADDRESS,
    common.LOOKUPD_HTTP_ADDRESS,
    Option("max-in-flight", INT, 200, "maximum messages in flight per topic"),
    CONSUMER_OPT,
)
NSQ_TAIL = OptionTable(NAME, {"Basic": (common.VERSION,), "Output": OUTPUT, "Sources": SOURCES})


class TailOptions(Options):
    """The values of one nsq_tail."""

    table = NSQ_TAIL

    topic: tuple[str, ...]
    channel: str
    n: int
    print_topic: bool
    nsqd_tcp_address: tuple[str, ...]
    lookupd_http_address: tuple[str, ...]
    max_in_flight: int
    consumer_opt: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_tail and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    asyncio.run(tail(resolve(common.parse(NSQ_TAIL, argv))))
    return 0


def resolve(settings: Settings) -> TailOptions:
    """Return the validated options. Raises ToolError."""
    options = TailOptions(settings.values)
    common.require_one_source(options.nsqd_tcp_address, options.lookupd_http_address)
    if not options.topic:
        raise ToolError("--topic required")
    if 0 < options.n < options.max_in_flight:
        options = options.replace(max_in_flight=options.n)
    if not options.channel:
        options = options.replace(channel=f"tail{random.randrange(1_000_000):06d}#ephemeral")
    return options


async def tail(options: TailOptions) -> None:
    """Print messages until the limit is reached or the tool is stopped."""
    keywords = consumer_keywords(options.consumer_opt)
    keywords |= {
        "max_in_flight": options.max_in_flight,
        "user_agent": common.user_agent(NAME),
    }
    output = Threads()  # a single thread keeps lines of two topics apart
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
    """Print the messages of one consumer until it is closed, or at most `maximum` if above 0."""
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
            consumer.pause()  # before finishing these, or nsqd would send more
        finish(printed)
        if not left:
            stop()
            return


def put_back(messages: Iterable[Message]) -> None:
    """Requeue messages without delay."""
    for message in messages:
        message.requeue(0, backoff=False)


if __name__ == "__main__":
    sys.exit(main())
