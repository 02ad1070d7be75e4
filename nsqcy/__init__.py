"""nsqcy: a drop-in NSQ for Python shops.

Owns two version numbers: nsqcy's own, and that of the NSQ release that it is compatible with.
Clients and test harnesses read the second one to determine what the daemon can do.

The names of `nsqcy.client` are also available here. They are imported when they are first used, so
that the daemons do not import the client. `__init__.pyi` declares them for type checkers.
"""

import importlib

__version__ = "0.1.0"
NSQ_VERSION = "1.3.0"

_CLIENT = (
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
)
__all__ = ["NSQ_VERSION", "__version__", *_CLIENT]


def __getattr__(name: str) -> object:
    if name not in _CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("nsqcy.client"), name)
    globals()[name] = value  # later uses do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLIENT})
