"""nsq_tail's options, and the rules that relate them."""

import random

from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, INT, STRING, STRINGS, Options, OptionTable
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_options import CONSUMER_OPT
from nsqcy.tools.common import ToolError

NAME = "nsq_tail"

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
    """The option values of one nsq_tail."""

    table = NSQ_TAIL

    topic: tuple[str, ...]
    channel: str
    n: int
    print_topic: bool
    nsqd_tcp_address: tuple[str, ...]
    lookupd_http_address: tuple[str, ...]
    max_in_flight: int
    consumer_opt: tuple[str, ...]


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
