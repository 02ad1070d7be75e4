"""The hand-over of a worker from one process to the next, over a socket pair between the two.

Owns the order of the messages, and when the hand-over counts: the successor is the worker once it
has received the last message, `yours`. Until then, the predecessor continues as the worker if
anything fails. Independent of what is handed over, and of the master.

    predecessor                      successor
    begin (numbers of formats) ───►
    parcels, with descriptors ────►
    all (number of parcels)   ────►
                              ◄────  received, or refused (reason) at any time
    yours                     ────►

The datagrams are those of the control channel. The predecessor blocks its hub while it sends, so
that nothing changes what it has sent.
"""

import contextlib
import select
import socket
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import gevent

from nsqcy import formats
from nsqcy.formats import FormatError
from nsqcy.nsqd import upgrade_steps
from nsqcy.process import ancillary
from nsqcy.process.control import (
    CHUNK,
    NO_DESCRIPTORS,
    NOTIFY,
    ControlError,
    Decoder,
    Message,
    encode,
)

BEGIN, ALL, RECEIVED, REFUSED, YOURS = "begin", "all", "received", "refused", "yours"
SEND_LIMIT = 5.0  # maximum seconds for the successor to receive everything
_SIZE = CHUNK + 64  # bytes of the largest datagram


class Parcel(NamedTuple):
    """One part of what is handed over. `state` is JSON. The recipient owns the descriptors; the
    sender keeps its own."""

    kind: str
    state: dict[str, Any]
    blob: bytes = b""
    fds: tuple[int, ...] = ()


class NotHandedOver(Exception):
    """The predecessor is still the worker; the text is the reason."""


class HandingOver:
    """The predecessor's side. Its methods block the process; they raise NotHandedOver."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._deadline = time.monotonic() + SEND_LIMIT

    def send(self, parcels: Iterable[Parcel]) -> None:
        """Send everything, and wait until the successor has received it."""
        self._send(Parcel(BEGIN, {"formats": formats.numbers_in_use()}))
        count = 0
        for parcel in parcels:
            self._send(parcel)
            count += 1
            if count == 1:
                upgrade_steps.reached("sending")
        self._send(Parcel(ALL, {"count": count}))
        upgrade_steps.reached("sent")
        self._await_answer()

    def commit(self) -> None:
        """Make the successor the worker. If this returns, this process must exit."""
        self._send(Parcel(YOURS, {}))

    def _send(self, parcel: Parcel) -> None:
        header = {"method": parcel.kind, "args": parcel.state}
        fds = parcel.fds
        try:
            for datagram in encode(Message(NOTIFY, header, parcel.blob, fds)):
                self._send_datagram(datagram, fds)
                fds = ()
        except ValueError as error:
            raise NotHandedOver(f"cannot send to the successor: {error}") from None
        except OSError:
            self._await_answer()  # the successor has exited; it may have sent the reason
            raise NotHandedOver("the successor has exited") from None

    def _send_datagram(self, datagram: bytes, fds: tuple[int, ...]) -> None:
        while True:
            try:
                return ancillary.send(self._sock, datagram, fds)
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT)

    def _await_answer(self) -> None:
        """Return once the successor has received everything."""
        answer = _parcel(self._receive())
        if answer.kind != RECEIVED:
            raise NotHandedOver(str(answer.state.get("reason")))

    def _receive(self) -> Message:
        while True:
            try:
                datagram = ancillary.receive(self._sock, _SIZE)
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLIN)
                continue
            except OSError as error:
                raise NotHandedOver(f"cannot receive from the successor: {error}") from None
            message = None if datagram is None else Decoder().feed(datagram.data, datagram.fds)
            if message is None:
                raise NotHandedOver("the successor has exited")
            return message

    def _wait(self, event: int) -> None:
        left = self._deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._sock, event)
        if left <= 0 or not poll.poll(1000 * left):
            reason = f"the successor has not received everything within {SEND_LIMIT:g} s"
            raise NotHandedOver(reason)


class TakingOver:
    """The successor's side."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = Decoder()
        self._has_begun = False
        self._parcels: list[Parcel] = []

    def receive(self) -> list[Parcel]:
        """Return the parcels once this process is the worker. Blocks the greenlet. Raises
        NotHandedOver if it will not be."""
        hub = gevent.get_hub()
        watcher = hub.loop.io(self._sock.fileno(), 1)
        try:
            while not self._receive_some():
                hub.wait(watcher)
        except (ControlError, FormatError, NotHandedOver, OSError) as error:
            self._refuse(str(error))
            raise NotHandedOver(str(error)) from None
        finally:
            watcher.close()
            self._decoder.close()
        return self._parcels

    def _receive_some(self) -> bool:
        """Receive what is available; return whether this process is the worker now."""
        while True:
            try:
                datagram = ancillary.receive(self._sock, _SIZE)
            except (BlockingIOError, InterruptedError):
                return False
            if datagram is None:
                raise NotHandedOver("the worker has not handed over")
            message = self._decoder.feed(datagram.data, datagram.fds)
            if message is not None and self._take(_parcel(message)):
                return True

    def _take(self, parcel: Parcel) -> bool:
        """Handle a parcel; return whether it is the last one."""
        if not self._has_begun:
            formats.check_numbers_in_use(parcel.state.get("formats"), "the worker")
            self._has_begun = True
        elif parcel.kind == YOURS:
            return True
        elif parcel.kind == ALL:
            if parcel.state["count"] != len(self._parcels):
                raise NotHandedOver("parcels were lost")
            upgrade_steps.reached("received")
            self._answer(Parcel(RECEIVED, {}))
        else:
            self._parcels.append(parcel)
            if len(self._parcels) == 1:
                upgrade_steps.reached("receiving")
        return False

    def _refuse(self, reason: str) -> None:
        with contextlib.suppress(OSError):  # the predecessor may have exited
            self._answer(Parcel(REFUSED, {"reason": reason}))

    def _answer(self, parcel: Parcel) -> None:
        header = {"method": parcel.kind, "args": parcel.state}
        for datagram in encode(Message(NOTIFY, header)):
            ancillary.send(self._sock, datagram)


def _parcel(message: Message) -> Parcel:
    """Return the parcel in a message. Raises NotHandedOver if descriptors were lost."""
    if message.lost:
        raise NotHandedOver(NO_DESCRIPTORS)
    header = message.header
    return Parcel(header["method"], header["args"], message.blob, message.fds)
