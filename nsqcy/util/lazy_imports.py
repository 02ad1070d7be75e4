"""Import on first use, for rarely needed modules that are slow to import or use much memory."""

import sys
from importlib import import_module
from types import ModuleType

import gevent


def module(name: str) -> ModuleType:
    """Return a module. The first import runs in a thread, so other greenlets continue."""
    if name not in sys.modules:
        gevent.get_hub().threadpool.apply(import_module, (name,))
    return import_module(name)
