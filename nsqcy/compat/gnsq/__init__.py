"""gnsq's interface.

    from nsqcy.compat import gnsq

    consumer = gnsq.Consumer("topic", "channel", "127.0.0.1:4150")

    @consumer.on_message.connect
    def handler(consumer, message):
        print(message.body)

    consumer.start()

Runs on greenlets, as gnsq does; monkey-patching is not necessary. Docstrings note where names
differ from gnsq's; docs/COMPATIBILITY.md lists the differences.
"""

from nsqcy.compat.gnsq import errors
from nsqcy.compat.gnsq.backofftimer import BackoffTimer
from nsqcy.compat.gnsq.consumer import Consumer
from nsqcy.compat.gnsq.http import LookupdClient, NsqdHTTPClient
from nsqcy.compat.gnsq.message import Message
from nsqcy.compat.gnsq.producer import Producer

__all__ = [
    "BackoffTimer",
    "Consumer",
    "LookupdClient",
    "Message",
    "NsqdHTTPClient",
    "Producer",
    "errors",
]
