"""Handles forks of a program: in the child, the parent's producers and consumers are closed.

Their threads, event loops and connections stay in the parent. Owns the list of clients that the
child closes, and the error of later calls to them.
"""

import os
import weakref
from typing import Protocol

from nsqcy.client.errors import Closed


class Abandoned(Protocol):
    def abandon(self) -> None:
        """End in a forked child process, without the parent's threads or event loop."""


_open: weakref.WeakSet[Abandoned] = weakref.WeakSet()


def close_in_child(client: Abandoned) -> None:
    """Abandon this client in every child process that is forked from now on."""
    _open.add(client)


def forget(client: Abandoned) -> None:
    """Forget a client that has ended."""
    _open.discard(client)


def closed_by_fork(kind: str) -> Closed:
    """Return the error of a call in the child. kind: for example "producer"."""
    return Closed(
        f"the {kind} was created before this process was forked: create one after the fork"
    )


def _abandon_all() -> None:
    for client in list(_open):
        client.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_all)
