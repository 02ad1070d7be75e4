"""nsq_to_http: sends each message in a topic as an HTTP request.

A message is finished if a destination accepts it, and requeued otherwise. It is resent only after
redelivery.
"""

import asyncio
import logging
import random
import re
import sys
import time
from collections.abc import Sequence
from urllib.parse import quote_plus

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from nsqcy import NSQ_VERSION
from nsqcy.client.codec import Message
from nsqcy.cluster.web_client import Terms
from nsqcy.config.durations import SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import FLOAT, INT, STRING, STRINGS, Options, Section
from nsqcy.errors import RequestError
from nsqcy.names import printable
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_options import CONSUMER_OPT, consumer_keywords
from nsqcy.tools.common import ToolError
from nsqcy.tools.consuming import Consuming
from nsqcy.tools.destinations import HOSTPOOL, MODES, chooser
from nsqcy.tools.http_sender import HttpSender, Request
from nsqcy.tools.status import StatusMeters
from nsqcy.tools.threads import Threads

NAME = "nsq_to_http"
PLAIN = "application/octet-stream"
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
OURS = frozenset({"content-length", "transfer-encoding"})  # set from the body


class HttpOptions(Options, program=NAME):
    """The option values of one nsq_to_http. Durations are int nanoseconds."""

    _basic = Section("Basic")
    version = common.VERSION

    _messages = Section("Messages")
    topic = Option("topic", STRING, "", "topic name")
    channel = Option("channel", STRING, NAME, "channel name")
    sample = Option("sample", FLOAT, 1.0, "share of the messages to send, 0 to 1")
    nsqd_tcp_address = common.NSQD_TCP_ADDRESS
    lookupd_http_address = common.LOOKUPD_HTTP_ADDRESS
    max_in_flight = Option("max-in-flight", INT, 200, "maximum messages in flight")
    consumer_opt = CONSUMER_OPT

    _requests = Section("Requests")
    post = Option("post", STRINGS, (), "URL that receives messages by POST")
    get = Option(
        "get", STRINGS, (), "URL that receives messages by GET; the message replaces %s in it"
    )
    mode = Option(
        "mode", STRING, HOSTPOOL, f"how a destination is chosen: {', '.join(MODES)} (all)"
    )
    n = Option("n", INT, 100, "maximum concurrent requests")
    content_type = Option("content-type", STRING, PLAIN, "Content-Type of POST requests")
    header = Option("header", STRINGS, (), "header to add to every request, as Name: value")
    status_every = Option(
        "status-every",
        INT,
        250,
        "number of requests between log lines with request times; 0 for none",
    )
    http_client_connect_timeout = common.CONNECT_TIMEOUT
    http_client_request_timeout = common.request_timeout(20 * SECOND)


NSQ_TO_HTTP = HttpOptions.table


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_to_http and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    options = resolve(common.parse(NSQ_TO_HTTP, argv))
    asyncio.run(run(options))
    return 0


def resolve(settings: Settings) -> HttpOptions:
    """Return the validated options. Raises ToolError."""
    options = HttpOptions(settings.values)
    headers(options)
    if not options.topic or not options.channel:
        raise ToolError("--topic and --channel are required")
    if options.content_type != PLAIN:
        if not options.post:
            raise ToolError("--content-type only used with --post")
        if not options.content_type:
            raise ToolError("--content-type requires a value when used")
    common.require_one_source(options.nsqd_tcp_address, options.lookupd_http_address)
    _check_destinations(options)
    if not 0 <= options.sample <= 1:
        raise ToolError("ERROR: --sample must be between 0.0 and 1.0")
    if options.mode not in MODES:
        raise ToolError(f"--mode must be one of {', '.join(MODES)}")
    if options.n < 1:
        raise ToolError("--n must be 1 or more")
    return options


def _check_destinations(options: HttpOptions) -> None:
    if not options.get and not options.post:
        raise ToolError("--get or --post required")
    if options.get and options.post:
        raise ToolError("use --get or --post not both")
    for address in options.get:
        if address.count("%s") != 1:
            raise ToolError("invalid GET address - must be a printf string")
    for address in (*options.get, *options.post):
        try:
            url = parse_url(address.replace("%s", "x"))
        except LocationParseError:
            url = None
        if url is None or not url.host or url.scheme not in ("http", "https"):
            raise ToolError(f"invalid address {address} - must be an HTTP URL")


def headers(options: HttpOptions) -> dict[str, str]:
    """Return the headers for every request. Headers given on the command line override the
    defaults. Raises ToolError."""
    found = {"user-agent": ("User-Agent", f"{NAME} v{NSQ_VERSION}")}
    if options.post:
        found["content-type"] = ("Content-Type", options.content_type)
    for text in options.header:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not value or not HEADER_NAME.fullmatch(name) or not value.isprintable():
            raise ToolError("--header value format should be 'Name: value'")
        if name.lower() not in OURS:
            found[name.lower()] = (name, value)
    return {name: value.encode().decode("latin-1") for name, value in found.values()}


async def run(options: HttpOptions) -> None:
    """Send messages until stopped."""
    keywords = consumer_keywords(options.consumer_opt)
    keywords |= {
        "max_in_flight": options.max_in_flight,
        "user_agent": common.user_agent(NAME),
    }
    async with Consuming(options) as consuming:
        pump = Pump(options, consuming)
        await consuming.add(
            options.topic,
            options.channel,
            message_handler=pump.handle,
            concurrency=max(1, min(options.n, options.max_in_flight)),
            **keywords,
        )
        await consuming.stopped()


class Pump:
    """Sends one consumer's messages to the destinations."""

    def __init__(self, options: HttpOptions, consuming: Consuming) -> None:
        self._options = options
        self._consuming = consuming
        addresses = options.post or options.get
        self._addresses = addresses
        self._urls = [parse_url(address) for address in options.post]
        # For log lines: addresses without user names and passwords.
        self._shown = [re.sub(r"//[^/?#]*@", "//", address) for address in addresses]
        self._chooser = chooser(options.mode, len(addresses), random.random)
        self._headers = headers(options)
        self._threads = Threads(options.n)
        self._meters = StatusMeters(self._shown, options.status_every)
        for warning in self._meters.warnings:
            common.say(warning)
        self._sender = HttpSender(
            Terms(
                connect_timeout=options.http_client_connect_timeout / SECOND,
                request_timeout=options.http_client_request_timeout / SECOND,
            )
        )

    async def handle(self, message: Message) -> bool:
        """Send a message. Return whether to finish it."""
        if self._options.sample < 1 and random.random() >= self._options.sample:
            return True
        for destination in self._chooser.choose(time.monotonic()):
            started = time.monotonic()
            problem = await self._send(destination, message.body)
            now = time.monotonic()
            if problem:
                self._chooser.failed(destination, now)
                self._consuming.lines.tell(
                    logging.ERROR,
                    1,
                    f"[{self._options.topic}/{self._options.channel}] {problem} from"
                    f" {self._shown[destination]} for msg {printable(message.id)}",
                )
                return False
            self._chooser.succeeded(destination, now, now - started)
            for line in self._meters.add(destination, now - started):
                common.say(line)
        return True

    async def _send(self, destination: int, body: bytes) -> str:
        """Send a body to a destination. Return the error, or an empty string on success."""
        if self._options.get:
            address = self._addresses[destination].replace("%s", quote_plus(body))
            request = Request("GET", parse_url(address), self._headers)
        else:
            request = Request("POST", self._urls[destination], self._headers, body)
        try:
            status = await self._threads.call(self._sender.send, request)
        except RequestError as error:
            return str(error)
        good = status == 200 if self._options.get else 200 <= status < 300
        return "" if good else f"got status code {status}"


if __name__ == "__main__":
    sys.exit(main())
