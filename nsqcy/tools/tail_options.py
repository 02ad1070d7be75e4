"""nsq_tail's options, and the rules that relate them."""

import random

from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, INT, STRING, STRINGS, Options, Section
from nsqcy.options.option import Option
from nsqcy.tools import common
from nsqcy.tools.client_options import CONSUMER_OPT
from nsqcy.tools.common import ToolError

NAME = "nsq_tail"


class TailOptions(Options, program=NAME):
    """The option values of one nsq_tail."""

    _basic = Section("Basic")
    version = common.VERSION

    _output = Section("Output")
    topic = Option("topic", STRINGS, (), "topic to print; may be repeated")
    channel = Option("channel", STRING, "", "channel name; default: a new temporary channel")
    n = Option("n", INT, 0, "messages per topic to print before exiting; 0 for unlimited")
    print_topic = Option("print-topic", BOOL, False, "print the topic before each message")

    _sources = Section("Sources")
    nsqd_tcp_address = common.NSQD_TCP_ADDRESS
    lookupd_http_address = common.LOOKUPD_HTTP_ADDRESS
    max_in_flight = Option("max-in-flight", INT, 200, "maximum messages in flight per topic")
    consumer_opt = CONSUMER_OPT


NSQ_TAIL = TailOptions.table


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
