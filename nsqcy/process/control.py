"""The control channel: calls, replies and notifications between the master and one worker.

Owns the datagram format, the joining of chunks, the numbering of calls and the send queue.
Independent of particular methods. `encode` and `Decoder` do no I/O; `Channel` uses them on a gevent
hub. Nothing here ever blocks the hub.

A message is one datagram, or several if it is larger than CHUNK. Datagrams of two messages never
mix. Little-endian:

     0  u8   kind       CALL, REPLY or NOTIFY
     1  u8   flags      bit 0: more chunks follow; bit 1: continues the previous chunk
     2  u16  fds        number of descriptors in this datagram (first chunk only)
     4  u32  header     bytes of the JSON header (first chunk only, else 0)
     8  the JSON header, then the blob; split into CHUNK bytes per datagram

The JSON header is an object with these keys:

    id                calls and replies
    method, args      calls and notifications
    to                number of the worker to which the master forwards the message
    value or error    replies
    unreachable       with `error`: the handler could not reach another process

Descriptors may be lost: the receiver may have none left, or the kernel may refuse to send more of
this user's. Only the message that should carry them fails; the channel continues.
"""

import base64
import errno
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import gevent
from gevent.event import AsyncResult

from nsqcy.process import ancillary

CALL, REPLY, NOTIFY = 1, 2, 3
CHUNK = 60 * 1024
MAX_MESSAGE = 256 * 1024 * 1024
MAX_QUEUED = 65_536  # maximum messages in the send queue; a peer that is this far behind is stuck
_MORE, _CONTINUES = 1, 2
_PREFIX = struct.Struct("<BBHI")
_BATCH = 64  # maximum datagrams read per turn
_BULK = 256 * 1024  # maximum bytes read per turn; likewise for sending

GIVEN_UP = "the process executes its next program"
NO_DESCRIPTORS = os.strerror(errno.EMFILE)
"""Text of the RemoteError when a process had no descriptor left for a request or its answer."""


class ControlError(Exception):
    """The peer violated the protocol; the channel is unusable."""


class ChannelClosed(Exception):
    """The peer has exited, perhaps before it replied."""


class CallTimeout(Exception):
    """The peer did not reply in time."""


class RemoteError(Exception):
    """The peer's handler failed; the text is its error message.

    `unreachable`: the handler called another process that is gone or does not reply.
    """

    def __init__(self, text: str, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable


def is_unreachable(error: Exception) -> bool:
    """Return whether the peer, or a process that it called, is gone or does not reply."""
    if isinstance(error, RemoteError):
        return error.unreachable
    return isinstance(error, ChannelClosed | CallTimeout)


def is_out_of_descriptors(error: Exception) -> bool:
    """Return whether this process, or the peer, had no descriptor left."""
    return _error_text(error) == NO_DESCRIPTORS


class Message(NamedTuple):
    """A complete message. The message's current owner owns its descriptors. `lost`: some
    descriptors did not arrive, and the rest were closed."""

    kind: int
    header: dict[str, Any]
    blob: bytes = b""
    fds: tuple[int, ...] = ()
    lost: bool = False


class Answer(NamedTuple):
    """A call's result: a JSON value, and optional bytes and descriptors."""

    value: Any = None
    blob: bytes = b""
    fds: tuple[int, ...] = ()


class Request(NamedTuple):
    """A request for a handler, which must close the descriptors."""

    method: str
    args: dict[str, Any]
    blob: bytes = b""
    fds: tuple[int, ...] = ()
    to: int | None = None


class Handler(Protocol):
    """Handles requests. Each request runs in its own greenlet; greenlets are started in order of
    arrival."""

    def called(self, request: Request) -> Any:
        """Handle a call; return a JSON value or an `Answer`. An exception is sent as its text."""

    def notified(self, request: Request) -> None:
        """Handle a notification, which has no reply."""

    def hung_up(self, reason: str) -> None:
        """Handle the end of the channel. Runs on the hub and must not block."""


def encode(message: Message) -> Iterator[bytes]:
    """Split a message lazily into datagrams; the first one carries the descriptors.

    Raises ValueError if the message is too large or has too many descriptors.
    """
    header = json.dumps(message.header, separators=(",", ":")).encode()
    size = len(header) + len(message.blob)
    if size > MAX_MESSAGE:
        raise ValueError(f"a control message of {size} bytes (at most {MAX_MESSAGE})")
    if len(message.fds) > ancillary.MAX_FDS:
        raise ValueError(f"too many descriptors: {len(message.fds)} (maximum: {ancillary.MAX_FDS})")
    return _cut(message, header, size)


def _cut(message: Message, header: bytes, size: int) -> Iterator[bytes]:
    blob = message.blob
    for start in range(0, max(size, 1), CHUNK):
        end = start + CHUNK
        flags = (_MORE if end < size else 0) | (_CONTINUES if start else 0)
        first = (len(message.fds), len(header)) if start == 0 else (0, 0)
        prefix = _PREFIX.pack(message.kind, flags, *first)
        within = slice(max(start - len(header), 0), max(end - len(header), 0))
        yield b"".join((prefix, header[start:end], blob[within]))


class Decoder:
    """Joins datagrams into messages. Must not be used after a ControlError."""

    def __init__(self) -> None:
        self._kind = 0
        self._header_length = 0
        self._fds: tuple[int, ...] = ()
        self._lost = False
        self._parts: list[bytes] | None = None  # chunks of the current message
        self._size = 0

    def feed(self, datagram: bytes, fds: Sequence[int] = ()) -> Message | None:
        """Add a datagram; return a complete message, or None if more chunks follow.

        Takes ownership of the descriptors, even if it raises; `close` then closes them.
        """
        fresh = tuple(fds)
        self._fds += fresh
        if len(datagram) < _PREFIX.size:
            raise ControlError(f"a datagram of {len(datagram)} bytes")
        kind, flags, count, header_length = _PREFIX.unpack_from(datagram)
        if flags & _CONTINUES:
            self._continue(kind, len(fresh))
        else:
            self._begin(kind, count, header_length, len(fresh))
        return self._add(datagram[_PREFIX.size :], bool(flags & _MORE))

    @property
    def is_inside_message(self) -> bool:
        """Whether more chunks of a message must follow."""
        return self._parts is not None

    def close(self) -> None:
        """Close the descriptors of an incomplete message."""
        ancillary.close_all(self._fds)
        self._fds = ()
        self._parts = None

    def _begin(self, kind: int, count: int, header_length: int, received: int) -> None:
        if self._parts is not None:
            raise ControlError("a message began inside another")
        if kind not in (CALL, REPLY, NOTIFY):
            raise ControlError(f"unknown kind {kind}")
        if received > count:
            raise ControlError(f"{received} descriptors of {count}")
        self._lost = received < count
        if self._lost:
            ancillary.close_all(self._fds)
            self._fds = ()
        self._kind = kind
        self._header_length = header_length
        self._parts = []
        self._size = 0

    def _continue(self, kind: int, received: int) -> None:
        if self._parts is None or kind != self._kind or received:
            raise ControlError("a continuation chunk without a first chunk")

    def _add(self, part: bytes, more: bool) -> Message | None:
        assert self._parts is not None
        self._size += len(part)
        if self._size > MAX_MESSAGE:
            raise ControlError("the message is too large")
        self._parts.append(part)
        if more:
            return None
        # Remove the header from the first part if it fits there, so that a large blob is copied
        # only once.
        parts = self._parts
        if self._header_length > len(parts[0]):
            parts = [b"".join(parts)]
        header = _parse_header(parts[0], self._header_length)
        parts[0] = parts[0][self._header_length :]
        message = Message(self._kind, header, b"".join(parts), self._fds, self._lost)
        self._parts = None
        self._fds = ()
        return message


def _parse_header(payload: bytes, length: int) -> dict[str, Any]:
    if length > len(payload):
        raise ControlError("the header is longer than its message")
    try:
        header = json.loads(payload[:length])
    except (ValueError, RecursionError) as error:
        raise ControlError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ControlError("the header is not an object")
    return header


def _parse_request(message: Message) -> Request:
    method = message.header.get("method")
    args = message.header.get("args")
    to = message.header.get("to")
    if not isinstance(method, str) or not isinstance(args, dict):
        raise ControlError("a request without method or args")
    if to is not None and not isinstance(to, int):
        raise ControlError("a request with an invalid recipient")
    return Request(method, args, message.blob, message.fds, to)


class Channel:
    """One end of the channel, on this process's hub. Owns its socket.

    Takes ownership of descriptors passed to `notify` and `call`, and closes them once they are sent
    or the channel is closed.
    """

    def __init__(self, sock: socket.socket, handler: Handler) -> None:
        loop = gevent.get_hub().loop
        self._sock = sock
        self._handler = handler
        self._decoder = Decoder()
        self._queue: deque[tuple[Iterator[bytes], tuple[int, ...]]] = deque()
        # The message being sent: its remaining datagrams, and the unsent one with its descriptors.
        self._datagrams: Iterator[bytes] = iter(())
        self._unsent = b""
        self._riding: tuple[int, ...] = ()
        self._pending: dict[int, AsyncResult] = {}
        self._next_id = 1
        self._serving = 0  # requests that are being handled
        self._holds = False
        # Requests from the peer since `hold_requests`.
        self._held: list[tuple[Message, Request]] = []
        self._gives_up = False
        self._loop = loop
        self._reader = loop.io(sock.fileno(), 1)
        self._writer = loop.io(sock.fileno(), 2)
        self._withheld: list[Message] | None = None  # requests to the peer since `withhold`
        self.closed = False

    def start(self) -> None:
        """Start reading from the peer."""
        self._reader.start(self._readable)

    def notify(
        self,
        method: str,
        /,
        *,
        blob: bytes = b"",
        fds: Sequence[int] = (),
        **args: Any,
    ) -> None:
        """Send a notification; do nothing if the peer has exited."""
        self._send(Message(NOTIFY, _request_header(method, args, None), blob, tuple(fds)))

    def call(
        self,
        method: str,
        timeout: float | None,
        /,
        *,
        to: int | None = None,
        blob: bytes = b"",
        fds: Sequence[int] = (),
        **args: Any,
    ) -> Answer:
        """Call the peer and wait for its reply in this greenlet.

        Raises ChannelClosed, CallTimeout or RemoteError.
        """
        if self._gives_up:
            ancillary.close_all(fds)
            raise ChannelClosed(GIVEN_UP)
        header = _request_header(method, args, to)
        answer = AsyncResult()
        number = header["id"] = self._number(answer)
        self._send(Message(CALL, header, blob, tuple(fds)))
        if self.closed:
            self._pending.pop(number, None)
            raise ChannelClosed(method)
        try:
            result: Answer = answer.get(timeout=timeout)
        except gevent.Timeout:
            raise CallTimeout(f"{method}: no answer within {timeout} s") from None
        finally:
            self._pending.pop(number, None)
        return result

    def _number(self, answer: AsyncResult) -> int:
        """Return the number of a new call."""
        number = self._next_id
        self._next_id += 1
        self._pending[number] = answer
        return number

    def close(self, reason: str = "closed") -> None:
        """Close the channel. Waiting calls fail, and unsent messages are dropped."""
        if self.closed:
            return
        self.closed = True
        for watcher in (self._reader, self._writer):
            watcher.stop()
            watcher.close()
        self._decoder.close()
        self._drop_queue()
        for message in self._withheld or ():
            ancillary.close_all(message.fds)
        self._withheld = None
        self._sock.close()
        for answer in self._pending.values():
            answer.set_exception(ChannelClosed(reason))
        self._pending.clear()

    # -- rest, and the next program

    def hold_requests(self) -> None:
        """Keep the requests that arrive from now on, until `resume`; answers arrive as before."""
        self._holds = True

    def give_up_calls(self) -> None:
        """Let all calls fail as unreachable, until `resume`. The peer may still execute them."""
        self._gives_up = True
        for answer in self._pending.values():
            answer.set_exception(ChannelClosed(GIVEN_UP))
        self._pending.clear()

    def resume(self) -> None:
        """Handle the requests that were held, and permit calls."""
        self._holds = self._gives_up = False
        held, self._held = self._held, []
        for message, request in held:
            self._begin(message, request)

    @property
    def activity(self) -> str:
        """Return what keeps the channel from resting; empty if nothing does."""
        if self.closed:
            return "the channel is closed"
        if self._pending:
            return f"{len(self._pending)} calls are not answered"
        if self._serving:
            return f"{self._serving} requests are being handled"
        if not self.is_flushed:
            return "messages are not sent"
        return "a message is incomplete" if self._decoder.is_inside_message else ""

    def dump(self, keep: ancillary.Keep) -> dict[str, Any]:
        """Return the state of a channel that rests."""
        held = [
            {
                "kind": each.kind,
                "header": each.header,
                "blob": base64.b64encode(each.blob).decode(),
                "fds": [keep(fd) for fd in each.fds],
            }
            for each, _ in self._held
        ]
        return {"fd": keep(self._sock.fileno()), "next_id": self._next_id, "held": held}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of a channel. Its held requests are handled once the hub runs."""
        self._next_id = dumped["next_id"]
        for each in dumped["held"]:
            blob, fds = base64.b64decode(each["blob"]), tuple(each["fds"])
            self._dispatch(Message(each["kind"], each["header"], blob, fds))

    def withhold(self) -> None:
        """Keep further requests to the peer here, until `release` sends them, or another channel
        takes them over. Answers are still sent."""
        if self._withheld is None:
            self._withheld = []

    def release(self) -> None:
        """Send the withheld requests."""
        withheld, self._withheld = self._withheld, None
        for message in withheld or ():
            self._send(message)

    def take_over(self, other: "Channel") -> None:
        """Send the requests that another channel withholds; their answers reach the same
        callers."""
        withheld, other._withheld = other._withheld, None
        for message in withheld or ():
            if message.kind == CALL:
                answer = other._pending.pop(message.header["id"], None)
                if answer is None:  # the caller has stopped waiting
                    ancillary.close_all(message.fds)
                    continue
                if self.closed:
                    answer.set_exception(ChannelClosed("the peer is gone"))
                else:
                    message.header["id"] = self._number(answer)
            self._send(message)

    def flush(self) -> None:
        """Send what the socket accepts, without waiting for the hub."""
        if not self.closed:
            self._flush()

    @property
    def is_flushed(self) -> bool:
        """Whether everything has been sent."""
        return not (self._unsent or self._queue)

    def drain(self) -> None:
        """Read the remaining messages from a peer that has exited."""
        self.resume()
        while not self.closed and self._read_batch():
            pass

    # -- out

    def _send(self, message: Message) -> None:
        if self.closed:
            ancillary.close_all(message.fds)
            return
        if self._withheld is not None and message.kind != REPLY:
            self._withheld.append(message)
            return
        self._queue.append((encode(message), message.fds))
        if len(self._queue) > MAX_QUEUED:
            self._loop.run_callback(self._hang_up, "the send queue is full")
        elif not self._writer.active:
            self._flush()

    def _flush(self) -> None:
        """Send until the socket is full, at most about _BULK bytes per turn."""
        left = _BULK
        while left > 0 and self._has_datagram():
            try:
                ancillary.send(self._sock, self._unsent, self._riding)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS and self._riding:
                    ancillary.close_all(self._riding)  # the peer detects that they are lost
                    self._riding = ()
                    continue
                if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
                    self._loop.run_callback(self._hang_up, f"send: {error}")
                self._drop_queue()  # the peer has exited: the reader will report it
                break
            left -= len(self._unsent)
            ancillary.close_all(self._riding)
            self._unsent, self._riding = b"", ()
        if not (self._unsent or self._queue or left <= 0):
            self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self._flush)

    def _has_datagram(self) -> bool:
        """Load the next datagram into `_unsent`; return whether there is one."""
        while not self._unsent:
            self._unsent = next(self._datagrams, b"")
            if self._unsent:
                break
            if not self._queue:
                return False
            self._datagrams, self._riding = self._queue.popleft()
        return True

    def _drop_queue(self) -> None:
        ancillary.close_all(self._riding)
        for _, fds in self._queue:
            ancillary.close_all(fds)
        self._queue.clear()
        self._datagrams, self._unsent, self._riding = iter(()), b"", ()

    # -- in

    def _readable(self) -> None:
        self._read_batch()

    def _read_batch(self) -> bool:
        """Read a batch of datagrams; return whether there may be more."""
        try:
            left = _BULK
            for _ in range(_BATCH):
                if self.closed:
                    return False
                if left <= 0:
                    break
                datagram = ancillary.receive(self._sock, _PREFIX.size + CHUNK)
                if datagram is None:
                    self._hang_up("the peer is gone")
                    return False
                left -= len(datagram.data)
                message = self._decoder.feed(datagram.data, datagram.fds)
                if message is not None:
                    self._dispatch(message)
        except (BlockingIOError, InterruptedError):
            return False
        except (ControlError, OSError) as error:
            self._hang_up(str(error))
            return False
        return True

    def _hang_up(self, reason: str) -> None:
        if not self.closed:
            self.resume()  # a dead peer's last reports count
            self.close(reason)
            self._handler.hung_up(reason)

    def _dispatch(self, message: Message) -> None:
        if message.kind == REPLY:
            self._answered(message)
            return
        try:
            request = _parse_request(message)
        except ControlError:
            ancillary.close_all(message.fds)
            raise
        if message.lost:  # only calls carry descriptors
            self._send(Message(REPLY, {"id": message.header.get("id"), "error": NO_DESCRIPTORS}))
        elif self._holds:
            self._held.append((message, request))
        else:
            self._begin(message, request)

    def _begin(self, message: Message, request: Request) -> None:
        self._serving += 1
        gevent.spawn(self._handle, message, request)

    def _handle(self, message: Message, request: Request) -> None:
        try:
            if message.kind == NOTIFY:
                self._handler.notified(request)
            else:
                self._serve(message.header.get("id"), request)
        finally:
            self._serving -= 1

    def _serve(self, number: Any, request: Request) -> None:
        try:
            value = self._handler.called(request)
            answer = value if isinstance(value, Answer) else Answer(value)
            header = {"id": number, "value": answer.value}
            self._send(Message(REPLY, header, answer.blob, answer.fds))
        except Exception as error:  # catch all, because the caller waits for a reply
            text = _error_text(error)
            header = {"id": number, "error": text}
            if is_unreachable(error):
                header["unreachable"] = True
            self._send(Message(REPLY, header))

    def _answered(self, message: Message) -> None:
        number = message.header.get("id")
        waiting = self._pending.pop(number, None) if isinstance(number, int) else None
        if waiting is None:  # the caller has stopped waiting
            ancillary.close_all(message.fds)
        elif message.lost:
            waiting.set_exception(RemoteError(NO_DESCRIPTORS))
        elif "error" in message.header:
            ancillary.close_all(message.fds)
            unreachable = bool(message.header.get("unreachable"))
            waiting.set_exception(RemoteError(str(message.header["error"]), unreachable))
        else:
            waiting.set(Answer(message.header.get("value"), message.blob, message.fds))


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NO_DESCRIPTORS
    return str(error) or type(error).__name__


def _request_header(method: str, args: dict[str, Any], to: int | None) -> dict[str, Any]:
    header: dict[str, Any] = {"method": method, "args": args}
    if to is not None:
        header["to"] = to
    return header
