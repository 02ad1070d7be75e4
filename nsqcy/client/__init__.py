"""Python client for NSQ: consumers and producers.

This module is for threads and gevent. nsqcy.client.aio provides the same names for asyncio.
"""

from nsqcy.client.administration import NsqdAdmin
from nsqcy.client.blocking import Consumer, Producer
from nsqcy.client.cancelling import cancel
from nsqcy.client.codec import Message, Publish, finish
from nsqcy.client.connection import Connection
from nsqcy.client.errors import (
    AlreadyAnswered,
    Closed,
    ConnectionFailed,
    DeadLetter,
    DecodeError,
    Error,
    NoConnection,
    NsqdError,
    ProtocolError,
    PublishTimeout,
    RequestError,
    Requeue,
)
from nsqcy.client.peeked_message import PeekedMessage

__all__ = [
    "AlreadyAnswered",
    "Closed",
    "Connection",
    "ConnectionFailed",
    "Consumer",
    "DeadLetter",
    "DecodeError",
    "Error",
    "Message",
    "NoConnection",
    "NsqdAdmin",
    "NsqdError",
    "PeekedMessage",
    "Producer",
    "ProtocolError",
    "Publish",
    "PublishTimeout",
    "RequestError",
    "Requeue",
    "cancel",
    "finish",
]
