"""Connection migration: hands a session over to the worker that owns its topic.

Owns the exchange with the other worker and the handling of its outcome; the session owns the
content.
"""

import errno
import os
from collections import deque
from typing import Any

import gevent

from nsqcy.formats import SESSION, FormatError
from nsqcy.nsqd.process_messages.to_worker import AdoptSession
from nsqcy.nsqd.worker.master_link import MasterLink
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError, is_unreachable
from nsqcy.protocol.core import Session
from nsqcy.server.core import Loop, accept_migration
from nsqcy.util import descriptors


class SessionMigration:
    """Handles sessions that leave this worker, and sessions that arrive."""

    def __init__(self, loop: Loop, master: MasterLink) -> None:
        self._loop = loop
        self._master = master
        self._leaving: deque[tuple[Session, int]] = deque()
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._spawn)

    def begin(self, session: Session, owner: int) -> None:
        """Hand a session over to another worker. Never blocks."""
        self._leaving.append((session, owner))
        self._wake.send()

    def adopt(self, fd: int, state: dict[str, Any], unread: bytes, unsent: bytes) -> None:
        """Adopt a session from another worker. Raises OSError if only the reserve of descriptors is
        left, and FormatError if this worker does not read the session's format."""
        try:
            if descriptors.is_reserved(fd):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            SESSION.check_fields(state, "a session from another worker")
        except (FormatError, OSError):
            os.close(fd)
            raise
        self._loop.enter()
        accept_migration(self._loop, fd, state, unread, unsent)

    def _spawn(self) -> None:
        while self._leaving:
            gevent.spawn(self.hand_over, *self._leaving.popleft())

    def hand_over(self, session: Session, owner: int) -> None:
        """Migrate a session through the master. The session stays here if the other worker refuses
        it, or if no descriptor is left to send it."""
        if session.closed:
            return
        state, unread, unsent = session.pack()
        try:
            fd = os.dup(session.fileno())
            self._master.ask(owner, AdoptSession(state, len(unread), unread + unsent, (fd,)))
        except (CallTimeout, ChannelClosed, OSError, RemoteError) as error:
            self._loop.enter()
            if is_unreachable(error):
                # It is unknown whether the other worker has received the session and executed its
                # commands.
                session.leave()
            else:
                session.stay()
        else:
            self._loop.enter()
            session.leave()
