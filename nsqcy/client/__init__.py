"""The Python client: consumers and producers of NSQ.

Here for threads and for gevent; for asyncio, under the same names, in nsqcy.client.aio.
"""

from nsqcy.client.blocking import Consumer, Producer
from nsqcy.client.codec import Message, Publish, finish
from nsqcy.client.connection import Connection
from nsqcy.client.errors import (
    AlreadyAnswered,
    Closed,
    ConnectionFailed,
    Error,
    NoConnection,
    NsqdError,
    ProtocolError,
    PublishTimeout,
    Requeue,
)

__all__ = [
    "AlreadyAnswered",
    "Closed",
    "Connection",
    "ConnectionFailed",
    "Consumer",
    "Error",
    "Message",
    "NoConnection",
    "NsqdError",
    "Producer",
    "ProtocolError",
    "Publish",
    "PublishTimeout",
    "Requeue",
    "finish",
]
