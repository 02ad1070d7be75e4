"""pynsq's interface.

    from nsqcy.compat import pynsq as nsq

    def handler(message):
        print(message.body)
        return True

    nsq.Reader("topic", "channel", handler, nsqd_tcp_addresses=["127.0.0.1:4150"])
    nsq.run()

Readers and writers run on asyncio's event loop, which tornado's IOLoop also uses: a program may
continue to use tornado, but does not need it. Docstrings note where names differ from pynsq's;
docs/COMPATIBILITY.md lists the differences.
"""

from nsqcy.compat.pynsq import event, protocol
from nsqcy.compat.pynsq.backoff_timer import BackoffTimer
from nsqcy.compat.pynsq.loop import run
from nsqcy.compat.pynsq.message import Message
from nsqcy.compat.pynsq.protocol import (
    FRAME_TYPE_ERROR,
    FRAME_TYPE_MESSAGE,
    FRAME_TYPE_RESPONSE,
    Error,
    decode_message,
    finish,
    identify,
    mpub,
    nop,
    pub,
    ready,
    requeue,
    subscribe,
    touch,
    unpack_response,
    valid_channel_name,
    valid_topic_name,
)
from nsqcy.compat.pynsq.reader import Reader
from nsqcy.compat.pynsq.sync import SyncConn
from nsqcy.compat.pynsq.writer import Writer

__all__ = [
    "FRAME_TYPE_ERROR",
    "FRAME_TYPE_MESSAGE",
    "FRAME_TYPE_RESPONSE",
    "BackoffTimer",
    "Error",
    "Message",
    "Reader",
    "SyncConn",
    "Writer",
    "decode_message",
    "event",
    "finish",
    "identify",
    "mpub",
    "nop",
    "protocol",
    "pub",
    "ready",
    "requeue",
    "run",
    "subscribe",
    "touch",
    "unpack_response",
    "valid_channel_name",
    "valid_topic_name",
]
