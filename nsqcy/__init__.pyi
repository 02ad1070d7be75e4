from nsqcy.client import (
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
    cancel,
    finish,
)

__all__ = [
    "NSQ_VERSION",
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
    "__version__",
    "cancel",
    "finish",
]

__version__: str
NSQ_VERSION: str
