"""The asyncio client: the short name of nsqcy.client.aio."""

from typing import TYPE_CHECKING

from nsqcy.client.aio import *  # noqa: F403

if not TYPE_CHECKING:  # a type checker takes the names from the line above
    from nsqcy.client.aio import __all__  # noqa: F401
