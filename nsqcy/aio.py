"""The asyncio client: the short name of nsqcy.client.aio."""

from nsqcy.client.aio import (
    AlreadyAnswered,
    Closed,
    Connection,
    ConnectionFailed,
    Consumer,
    DecodeError,
    Error,
    Message,
    NoConnection,
    NsqdError,
    Producer,
    ProtocolError,
    Publish,
    PublishTimeout,
    Requeue,
    finish,
)

__all__ = [
    "AlreadyAnswered",
    "Closed",
    "Connection",
    "ConnectionFailed",
    "Consumer",
    "DecodeError",
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
