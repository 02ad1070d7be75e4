"""nsqcy: a drop-in NSQ for Python shops.

Owns two version numbers: nsqcy's own, and that of the NSQ release that it is compatible with.
Clients and test harnesses read the second one to determine what the daemon can do.

The names of `nsqcy.client` are also available here. They are imported when they are first used, so
that the daemons do not import the client. `__init__.pyi` declares them for type checkers.
"""

import importlib

__version__ = "0.1.0"
NSQ_VERSION = "1.3.0"


def __getattr__(name: str) -> object:
    if name == "__all__":
        return ["NSQ_VERSION", "__version__", *_names_of_client()]
    if name.startswith("_") or _is_module(name) or name not in _names_of_client():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("nsqcy.client"), name)
    globals()[name] = value  # later uses do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_names_of_client()})


def _is_module(name: str) -> bool:
    """Return whether this is a module in the package: importing one calls `__getattr__` first."""
    from importlib.util import find_spec

    return find_spec(f"{__name__}.{name}") is not None


def _names_of_client() -> list[str]:
    names: list[str] = importlib.import_module("nsqcy.client").__all__
    return names
