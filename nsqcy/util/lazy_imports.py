"""Modules that few ever need, and that take a moment and megabytes: imported when first wanted."""

import sys
from importlib import import_module
from types import ModuleType

import gevent


def module(name: str) -> ModuleType:
    """Imported in a thread the first time: greenlets go on meanwhile."""
    if name not in sys.modules:
        gevent.get_hub().threadpool.apply(import_module, (name,))
    return import_module(name)
