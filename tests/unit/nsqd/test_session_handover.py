"""A session that migrates to another worker: which worker serves it after each outcome."""

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.formats import FormatError
from nsqcy.nsqd.process_messages.to_worker import AdoptSession
from nsqcy.nsqd.worker.session_handover import SessionMigration
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError
from nsqcy.util import descriptors


class Packed:
    """A session, reduced to the parts needed here, with an open descriptor."""

    def __init__(self, fd: int) -> None:
        self.closed = False
        self.fate = ""
        self._fd = fd

    def pack(self) -> tuple[dict[str, Any], bytes, bytes]:
        return {}, b"PUB t\n", b""

    def fileno(self) -> int:
        return self._fd

    def stay(self) -> None:
        self.fate = "goes on here"

    def leave(self) -> None:
        self.fate = "is let go"


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (None, "is let go"),
        (RemoteError("it has no room"), "goes on here"),
        (OSError(errno.EMFILE, "no descriptor to send it with"), "goes on here"),
        (RemoteError("the peer is gone", unreachable=True), "is let go"),
        (ChannelClosed("the peer is gone"), "is let go"),
        (CallTimeout("no answer within 5 s"), "is let go"),
    ],
)
def test_nobody_executes_twice_what_a_session_brings_along(
    error: Exception | None, fate: str
) -> None:
    """A worker that dies with the request may have received the session, and the publish in it."""

    def ask(worker: int, call: AdoptSession) -> None:
        for fd in call.fds:
            os.close(fd)
        if error is not None:
            raise error

    ours, theirs = os.pipe()
    session = Packed(ours)
    loop: Any = SimpleNamespace(enter=lambda: None)
    master: Any = SimpleNamespace(ask=ask)
    leaving: Any = session
    try:
        SessionMigration(loop, master).hand_over(leaving, 1)
    finally:
        os.close(ours)
        os.close(theirs)
    assert session.fate == fate


def test_a_session_in_another_format_is_refused() -> None:
    """The session goes on where it is."""
    ours, theirs = os.pipe()
    nothing: Any = None
    text = r"session format version 2 is newer than this nsqcy supports \(1\): restart nsqd"
    with pytest.raises(FormatError, match=text):
        SessionMigration(nothing, nothing).adopt(ours, {"format": 2}, b"", b"")
    os.close(theirs)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)


def test_a_worker_with_only_its_reserve_left_adopts_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session goes on where it is; `None` as the loop shows that nothing else is done."""
    ours, theirs = os.pipe()
    monkeypatch.setattr(descriptors, "first_reserved", lambda: ours)
    nothing: Any = None
    with pytest.raises(OSError, match="Too many open files"):
        SessionMigration(nothing, nothing).adopt(ours, {}, b"", b"")
    os.close(theirs)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ours)
