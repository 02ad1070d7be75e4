"""nsq_stat: prints a channel's statistics, summed across all nsqds, at regular intervals.

Rediscovers nsqds at each interval. Exits if one of them cannot be queried, because the sum would be
wrong.
"""

import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from nsqcy.cluster.discovery import Found, trust_in
from nsqcy.cluster.stats import ChannelFigures, NodeStats, node_stats, topic_producers
from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.config.durations import SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import DURATION, INT, STRING, WORDS, Options, Section
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.common import ToolError
from nsqcy.users import token_file

NAME = "nsq_stat"
NSQD_FLAG = "--nsqd-http-address"
HEADER_EVERY = 25  # lines


HEADER = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
"""


class StatOptions(Options, program=NAME):
    """The option values of one nsq_stat. Durations are int nanoseconds."""

    _basic = Section("Basic")
    version = common.VERSION

    _statistics = Section("Statistics")
    topic = Option("topic", STRING, "", "topic name")
    channel = Option("channel", STRING, "", "channel name")
    interval = Option("interval", DURATION, 2 * SECOND, "interval between lines")
    count = Option("count", INT, 0, "number of lines to print before exiting; default: no limit")

    _sources = Section("Sources")
    nsqd_http_address = Option("nsqd-http-address", WORDS, (), "host:port of an nsqd to query")
    lookupd_http_address = common.LOOKUPD_HTTP_ADDRESS
    http_client_connect_timeout = common.CONNECT_TIMEOUT
    http_client_request_timeout = common.request_timeout(5 * SECOND)
    auth_token_file = token_file.OPTION
    trust_lookupd = token_file.TRUST


NSQ_STAT = StatOptions.table


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_stat and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    options = resolve(common.parse(NSQ_STAT, argv))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    watch(options)
    return 0


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def resolve(settings: Settings) -> StatOptions:
    """Return the validated options. Raises ToolError."""
    options = StatOptions(settings.values)
    if not options.topic or not options.channel:
        raise ToolError("--topic and --channel are required")
    common.require_positive(
        settings, "interval", "http_client_connect_timeout", "http_client_request_timeout"
    )
    if "count" in settings.given:
        common.require_positive(settings, "count")
    common.require_one_source(options.nsqd_http_address, options.lookupd_http_address, NSQD_FLAG)
    for flag, addresses in (
        (NSQD_FLAG, options.nsqd_http_address),
        ("--lookupd-http-address", options.lookupd_http_address),
    ):
        if any("://" in address for address in addresses):
            raise ToolError(f"{flag} error - address should not contain scheme")
    return options


def watch(options: StatOptions) -> None:
    """Query and print until there are `count` lines. The first query prints no line, because it has
    no rates."""
    web = WebClient(
        Terms(
            connect_timeout=options.http_client_connect_timeout / SECOND,
            request_timeout=options.http_client_request_timeout / SECOND,
            user_agent=common.user_agent(NAME),
            token=token_file.of_command(options.auth_token_file),
            trust=trust_in(
                lambda: (*options.lookupd_http_address, *options.nsqd_http_address),
                all_listed=options.trust_lookupd,
            ),
        )
    )
    seconds = options.interval / SECOND
    before: ChannelFigures | None = None
    looks = 0
    while not options.count or looks <= options.count:
        now = look(web, options)
        if looks % HEADER_EVERY == 0:
            common.show(HEADER)
        if before is not None:
            common.show(line(before, now, seconds))
        before = now
        looks += 1
        time.sleep(seconds)


def look(web: WebClient, options: StatOptions) -> ChannelFigures:
    """Return the channel's statistics, summed across all nsqds. Raises ToolError if a query
    fails."""
    topic, channel = options.topic, options.channel
    try:
        found = topic_producers(
            topic,
            web=web,
            lookupds=options.lookupd_http_address,
            nsqds=options.nsqd_http_address,
        )
    except ValueError as error:
        raise ToolError(f"ERROR: failed to get topic producers - {error}") from None
    if problem := _problems(found):
        raise ToolError(f"ERROR: failed to get topic producers - {problem}")
    stats = node_stats(found.producers, topic, channel, web=web)
    if problem := _problems(stats):
        raise ToolError(f"ERROR: failed to get nsqd stats - {problem}")
    summed = stats.topics.get(topic)
    if summed is None or channel not in summed.channels:
        raise ToolError(
            f"ERROR: failed to find channel({channel}) in stats metadata for topic({topic})"
        )
    return summed.channels[channel].figures


def _problems(asked: Found | NodeStats) -> str:
    errors = {address: str(error) for address, error in asked.errors.items()}
    if isinstance(asked, Found):
        errors |= dict.fromkeys(asked.unknown, "TOPIC_NOT_FOUND")
    return "; ".join(f"{address}: {text}" for address, text in errors.items())


def line(before: ChannelFigures, now: ChannelFigures, seconds: float) -> str:
    """Format one line. Rates are the growth of counters divided by the configured interval,
    truncated to whole numbers."""
    came = now.message_count - before.message_count
    went = came - (now.depth - before.depth)
    return (
        f"{int(came / seconds):7} {int(went / seconds):7} | "
        f"{now.depth:7} {now.memory_depth:7} {now.backend_depth:7} "
        f"{now.in_flight_count:5} {now.deferred_count:5} | "
        f"{now.requeue_count:7} {now.timeout_count:7} "
        f"{now.message_count:12} {now.client_count:7}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
