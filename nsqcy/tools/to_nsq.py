"""to_nsq: publishes stdin, split into messages, to each of the given nsqds.

Messages are published in order, without waiting for each response. The first failure ends the tool;
some later messages may already have been published.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from nsqcy.client.aio import Producer
from nsqcy.config.loader import Settings
from nsqcy.config.options import INT, STRING, Options, Section
from nsqcy.names import is_valid_name
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_lines import ClientLines
from nsqcy.tools.client_options import PRODUCER_OPT, producer_keywords
from nsqcy.tools.common import ToolError
from nsqcy.tools.message_splitter import Pieces, TooLong
from nsqcy.tools.progress import Progress, bytes_left
from nsqcy.tools.threads import Threads
from nsqcy.tools.throttle import Throttle

NAME = "to_nsq"
CHUNK = 1 << 16  # bytes per read
STDIN = 0
MAX_MESSAGES, MAX_BYTES = 1000, 4 << 20  # of unanswered messages; at these limits, reading pauses


class ToOptions(Options, program=NAME):
    """The option values of one to_nsq."""

    _basic = Section("Basic")
    version = common.VERSION

    _input = Section("Input")
    delimiter = Option("delimiter", STRING, "\n", "byte that separates messages")
    rate = Option("rate", INT, 0, "maximum messages per second; 0 for no limit")

    _destination = Section("Destination")
    topic = Option("topic", STRING, "", "topic to publish to")
    nsqd_tcp_address = common.NSQD_TCP_ADDRESS
    producer_opt = PRODUCER_OPT

    @property
    def delimiter_byte(self) -> bytes:
        return os.fsencode(self.delimiter)


TO_NSQ = ToOptions.table


def main(argv: Sequence[str] | None = None) -> int:
    """Run to_nsq and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    asyncio.run(publish(resolve(common.parse(TO_NSQ, argv))))
    return 0


def resolve(settings: Settings) -> ToOptions:
    """Return the validated options. Raises ToolError."""
    options = ToOptions(settings.values)
    if not options.topic:
        raise ToolError("--topic required")
    if not is_valid_name(options.topic):
        raise ToolError("--topic is invalid")
    if len(options.delimiter_byte) != 1:
        raise ToolError("--delimiter must be a single byte")
    if not options.nsqd_tcp_address:
        raise ToolError("--nsqd-tcp-address required")
    return options


async def publish(options: ToOptions) -> None:
    """Publish until the input ends or the tool is stopped."""
    keywords = producer_keywords(options.producer_opt)
    keywords |= {"user_agent": common.user_agent(NAME), "retries": 0}
    try:
        producers = [Producer(each, name=each, **keywords) for each in options.nsqd_tcp_address]
    except (ValueError, TypeError) as error:
        raise ToolError(str(error)) from None
    if options.rate > 0:
        common.say(f"Throttling messages rate to max:{options.rate}/second")
    lines = ClientLines()
    for address in options.nsqd_tcp_address:
        lines.introduce(address)
    lines.attach()
    progress = Progress(bytes_left(STDIN))
    publisher = Publisher(options, producers)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, publisher.end)
    try:
        await publisher.publish_input(progress)
    finally:
        progress.close()
        await asyncio.gather(*(producer.close() for producer in producers))
        lines.detach()
    if publisher.failure is not None:
        raise ToolError(str(publisher.failure))


class Publisher:
    """Publishes stdin."""

    def __init__(self, options: ToOptions, producers: Sequence[Producer]) -> None:
        self.failure: BaseException | None = None
        self._topic = options.topic
        self._producers = producers
        self._pieces = Pieces(options.delimiter_byte)
        self._throttle = Throttle(options.rate, time.monotonic())
        self._ended = asyncio.Event()
        self._news = asyncio.Event()  # event that is set on each response, and at the end
        self._messages = 0  # unanswered
        self._bytes = 0

    def end(self, failure: BaseException | None = None) -> None:
        """Stop publishing."""
        self.failure = self.failure or failure
        self._ended.set()
        self._news.set()

    async def publish_input(self, progress: Progress) -> None:
        """Publish the input until it ends and all messages are answered, or until end()."""
        threads = Threads()
        ended = asyncio.ensure_future(self._ended.wait())
        data = b"?"
        while data:
            reading = asyncio.ensure_future(threads.call(_read))
            await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ended.is_set():
                reading.cancel()
                return
            data = reading.result()
            pieces = self._split(data)
            for piece in pieces:
                if not await self._may_publish():
                    return
                self._publish(piece)
                if any(producer.core.has_unsent for producer in self._producers):
                    await self._all_answers()  # if nsqd refuses it, nothing after it is published
            progress.add(len(data), len(pieces))
        ended.cancel()
        await self._all_answers()

    def _split(self, data: bytes) -> list[bytes]:
        try:
            return self._pieces.feed(data) if data else self._pieces.end()
        except TooLong as error:
            raise ToolError(str(error)) from None

    async def _may_publish(self) -> bool:
        """Wait until the next message may be published. Return False at the end."""
        if delay := self._throttle.delay(time.monotonic()):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), delay)
        while not self._ended.is_set() and (
            self._messages >= MAX_MESSAGES or self._bytes >= MAX_BYTES
        ):
            await self._answer()
        return not self._ended.is_set()

    def _publish(self, piece: bytes) -> None:
        for producer in self._producers:
            self._messages += 1
            self._bytes += len(piece)
            answer = producer.publish_nowait(self._topic, piece)
            if answer.done():  # refused before it was sent: publish nothing after it
                self._answered(len(piece), answer)
            else:
                answer.add_done_callback(partial(self._answered, len(piece)))

    def _answered(self, size: int, answer: asyncio.Future[bytes]) -> None:
        self._messages -= 1
        self._bytes -= size
        self._news.set()
        if (error := answer.exception()) is not None:
            self.end(error)

    async def _all_answers(self) -> None:
        """Wait until every message has been answered, or the run has ended."""
        while self._messages and not self._ended.is_set():
            await self._answer()

    async def _answer(self) -> None:
        """Wait for the next response, or the end."""
        self._news.clear()
        await self._news.wait()


def _read() -> bytes:
    try:
        return os.read(STDIN, CHUNK)
    except OSError as error:
        raise ToolError(f"read from stdin: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
