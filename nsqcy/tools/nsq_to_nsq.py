"""nsq_to_nsq: publishes messages from topics to other nsqds.

A message is finished when its destination responds OK, and requeued otherwise. All messages in
flight are published concurrently.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from functools import partial

from nsqcy.client.aio import Producer
from nsqcy.client.codec import Message
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, INT, STRING, STRINGS, WORDS, Options, Section
from nsqcy.names import is_valid_name, printable
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_options import (
    CONSUMER_OPT,
    PRODUCER_OPT,
    consumer_keywords,
    producer_keywords,
)
from nsqcy.tools.common import ToolError
from nsqcy.tools.consuming import Consuming
from nsqcy.tools.destinations import HOSTPOOL, MODES, MULTICAST, chooser
from nsqcy.tools.json_filter import JsonFilter, Verdict
from nsqcy.tools.status import StatusMeters

NAME = "nsq_to_nsq"
ONE_OF_THEM = tuple(mode for mode in MODES if mode != MULTICAST)

# While a destination is down, messages fail immediately and are redelivered.
AT_ONCE = {"retries": 0, "reconnect_interval": 0.1, "max_reconnect_interval": 1.0}


class NsqOptions(Options, program=NAME):
    """The option values of one nsq_to_nsq."""

    _basic = Section("Basic")
    version = common.VERSION

    _source = Section("Source")
    topic = Option("topic", STRINGS, (), "topic to read; may be repeated")
    channel = Option("channel", STRING, NAME, "channel name")
    nsqd_tcp_address = common.NSQD_TCP_ADDRESS
    lookupd_http_address = common.LOOKUPD_HTTP_ADDRESS
    max_in_flight = Option("max-in-flight", INT, 200, "maximum messages in flight per topic")
    consumer_opt = CONSUMER_OPT

    _destination = Section("Destination")
    destination_topic = Option(
        "destination-topic", STRING, "", "topic to publish to; default: the same topic"
    )
    destination_nsqd_tcp_address = Option(
        "destination-nsqd-tcp-address", WORDS, (), "host:port of an nsqd to publish to"
    )
    mode = Option(
        "mode", STRING, HOSTPOOL, f"how a destination is chosen: {', '.join(ONE_OF_THEM)}"
    )
    headers = Option(
        "headers",
        BOOL,
        False,
        "forward message headers; both sides must run nsqcy",
    )
    status_every = Option(
        "status-every",
        INT,
        250,
        "number of publishes between log lines with publish times; 0 for none",
    )
    producer_opt = PRODUCER_OPT

    _filter = Section("Filter")
    require_json_field = Option(
        "require-json-field", STRING, "", "forward only JSON objects that have this key"
    )
    require_json_value = Option(
        "require-json-value", STRING, "", "forward only objects whose required key has this value"
    )
    whitelist_json_field = Option(
        "whitelist-json-field", STRINGS, (), "JSON key to keep; all other keys are removed"
    )


NSQ_TO_NSQ = NsqOptions.table


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_to_nsq and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    asyncio.run(run(resolve(common.parse(NSQ_TO_NSQ, argv))))
    return 0


def resolve(settings: Settings) -> NsqOptions:
    """Return the validated options. Raises ToolError."""
    options = NsqOptions(settings.values)
    if not options.topic or not options.channel:
        raise ToolError("--topic and --channel are required")
    if not all(map(is_valid_name, options.topic)):
        raise ToolError("--topic is invalid")
    if options.destination_topic and not is_valid_name(options.destination_topic):
        raise ToolError("--destination-topic is invalid")
    if not is_valid_name(options.channel):
        raise ToolError("--channel is invalid")
    common.require_one_source(options.nsqd_tcp_address, options.lookupd_http_address)
    if not options.destination_nsqd_tcp_address:
        raise ToolError("--destination-nsqd-tcp-address required")
    if options.mode not in ONE_OF_THEM:
        raise ToolError(f"--mode must be one of {', '.join(ONE_OF_THEM)}")
    return options


async def run(options: NsqOptions) -> None:
    """Publish messages until stopped."""
    agent = common.user_agent(NAME)
    keywords = consumer_keywords(options.consumer_opt)
    keywords |= {
        "max_in_flight": options.max_in_flight,
        "user_agent": agent,
        "headers": options.headers,
    }
    async with Consuming(options) as consuming:
        pump = Pump(options, consuming, agent)
        try:
            for topic in options.topic:
                handle = partial(pump.handle, options.destination_topic or topic)
                await consuming.add(topic, options.channel, message_handler=handle, **keywords)
            await consuming.stopped()
        finally:
            await consuming.close()
            await pump.close()


class Pump:
    """Publishes all consumers' messages to the destinations."""

    def __init__(self, options: NsqOptions, consuming: Consuming, agent: str) -> None:
        addresses = options.destination_nsqd_tcp_address
        keywords = producer_keywords(options.producer_opt) | {"user_agent": agent} | AT_ONCE
        keywords["headers"] = options.headers
        self._filter = JsonFilter(
            options.require_json_field, options.require_json_value, options.whitelist_json_field
        )
        self._chooser = chooser(options.mode, len(addresses), random.random)
        self._lines = consuming.lines
        self._meters = StatusMeters(addresses, options.status_every)
        for warning in self._meters.warnings:
            common.say(warning)
        try:
            self._producers = [Producer(each, name=each, **keywords) for each in addresses]
        except (ValueError, TypeError) as error:
            raise ToolError(str(error)) from None
        for each in addresses:
            self._lines.introduce(each)

    def handle(self, topic: str, message: Message) -> bool | None:
        """Publish a message. Return False if it failed, or None if its result follows later."""
        verdict, body, complaint = self._filter.apply(message.body)
        if complaint:
            common.say(complaint)
        if verdict is not Verdict.PASS:
            return verdict is Verdict.DROP
        message.enable_async()
        started = time.monotonic()
        (destination,) = self._chooser.choose(started)
        answer = self._producers[destination].publish_nowait(
            topic, body, headers=message.headers or None
        )
        answer.add_done_callback(partial(self._answered, message, destination, started))
        return None

    def _answered(
        self, message: Message, destination: int, started: float, answer: asyncio.Future[bytes]
    ) -> None:
        now = time.monotonic()
        error = answer.exception()
        if error is not None:
            self._chooser.failed(destination, now)
            common.say(f"ERROR: failed to publish msg {printable(message.id)} - {error}")
            message.requeue()
            return
        self._chooser.succeeded(destination, now, now - started)
        message.finish()
        for line in self._meters.add(destination, now - started):
            common.say(line)

    async def close(self) -> None:
        """Close the producers, and drop pending results."""
        await asyncio.gather(*(producer.close(graceful=False) for producer in self._producers))


if __name__ == "__main__":
    sys.exit(main())
