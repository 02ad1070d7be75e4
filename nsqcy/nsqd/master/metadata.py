"""nsqd.dat: the names of topics and channels and whether they are paused.

`load` and `dump` handle the file format, which is NSQ's byte for byte. `Store` writes the file, and
the changes that follow it, outside the hub, one write at a time. This module does not depend on
messages or processes.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import gevent
from gevent.event import AsyncResult

from nsqcy import NSQ_VERSION
from nsqcy.base.core import crc32c
from nsqcy.errors import StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import is_ephemeral, is_valid_name
from nsqcy.nsqd.known_topics import KnownTopics, View, to_json
from nsqcy.nsqd.master import metadata_changes
from nsqcy.nsqd.master.metadata_changes import ChangeLog
from nsqcy.storage import state_file
from nsqcy.storage.state_file import Fault, Found, StateFile
from nsqcy.util.slices import Slices

FILE = "nsqd.dat"
MIN_PAUSE, MAX_PAUSE = 1.0, 10.0  # seconds between attempts to write the file
DEBOUNCE = 0.05  # seconds that a creation may wait for other creations before the file is written
REST, MAX_REST = 10, 1.0
"""After a write, changes that no caller waits for gather for this many times the duration of the
write, but at most for MAX_REST seconds. The file lists every topic: one write per deletion would
take a time that grows with the square of the number of topics."""
LARGE = 64 << 10
"""Bytes. After a write of such an nsqd.dat, changes that callers wait for are appended to
nsqd.dat.changes, until the file is written again."""
SLICE = 1000
"""Topics and channels to encode in one turn of the hub: less than 1 ms of work."""
_TOPIC_SUFFIX = ".topic"
_SEPARATOR = b","


def dump(known_topics: KnownTopics) -> bytes:
    """Return the content for nsqd.dat: durable topics and their durable channels."""
    return _SEPARATOR.join(_encode(known_topics.view(), lambda: None))


def _encode(view: View, give_way: Callable[[], object]) -> list[bytes]:
    """Return the content for nsqd.dat in pieces to join with commas. `give_way` is called between
    slices of the work."""
    slices = Slices(give_way, SLICE)
    pieces: list[bytes] = []
    topics: list[bytes] = []
    for name, topic in zip(view.names, view.topics, strict=True):
        slices.step()
        if not is_ephemeral(name):
            topics.append(topic.to_json(name, slices))
        if len(topics) == SLICE:
            pieces.append(_SEPARATOR.join(topics))
            topics = []
    if topics:
        pieces.append(_SEPARATOR.join(topics))
    end = b',"version":%b}' % to_json(NSQ_VERSION)
    if not pieces:
        return [b'{"topics":null' + end]
    pieces[0] = b'{"topics":[' + pieces[0]
    pieces[-1] += b"]" + end
    return pieces


class _Entry(NamedTuple):
    name: str
    paused: bool
    channels: list[Any]


def load(data_path: str, log: Lines) -> KnownTopics:
    """Read nsqd.dat, and find `.topic` directories that it does not list.

    The newest intact version is used. Raises StartError, with NSQ's text, if the only version is
    unusable: the file was written by NSQ or by hand.
    """
    found = look(data_path)
    if found.value is None and len(found.faults) == 1:
        _refuse(found.faults[0])
    state_file.report(found, log)
    if found.is_foreign:
        events.metadata_foreign(log, path=found.path)
    known_topics = KnownTopics()
    if found.value is not None:
        _fill(known_topics, found.value.topics, log)
        if not found.is_foreign:
            _repeat(known_topics, data_path, found.value.checksum, found.path, log)
    _adopt(known_topics, data_path, log)
    return known_topics


class _Content(NamedTuple):
    """A version of nsqd.dat: its topics with their channels, including invalid names."""

    topics: list[tuple[_Entry, list[_Entry]]]
    checksum: int


def look(data_path: str) -> Found[_Content]:
    """Read nsqd.dat, without the changes that follow it."""
    return _file(data_path).look(lambda content: _Content(_topics(content), crc32c(content)))


def _repeat(
    known_topics: KnownTopics, data_path: str, checksum: int, path: str, log: Lines
) -> None:
    """Make the changes that follow a version of nsqd.dat, which has this path."""
    is_previous = path != _file(data_path).path
    changes, faults = metadata_changes.read(data_path, checksum, is_previous=is_previous)
    for fault in faults:
        use = "nsqd uses the intact changes"
        events.state_file_damaged(log, fault.text, use, path=fault.path, error=fault.error, used="")
    for change in changes:
        known_topics.apply(change)


def _file(data_path: str) -> StateFile:
    return StateFile(data_path, FILE, is_shared=True)


def _refuse(fault: Fault) -> None:
    path, reason = fault.path, fault.error
    if fault.is_unreadable:
        reason = f"failed to read metadata from {path} - open {path}: {reason}"
    else:
        reason = f"failed to parse metadata in {path} - {reason}"
    raise StartError(f"failed to load metadata - {reason}")


def _topics(content: bytes) -> list[tuple[_Entry, list[_Entry]]]:
    """Return the topics in the file with their channels. Raises ValueError."""
    topics = [_entry(item, "topics") for item in _list(_parse(content), "topics")]
    return [(each, [_entry(item, "channels") for item in each.channels]) for each in topics]


def _fill(
    known_topics: KnownTopics, topics: Iterable[tuple[_Entry, list[_Entry]]], log: Lines
) -> None:
    for topic, its_channels in topics:
        if not is_valid_name(topic.name):
            log.warn(f"skipping creation of invalid topic {topic.name}")
            continue
        known_topics.create_topic(topic.name)
        if topic.paused:
            known_topics.pause_topic(topic.name, True)
        for channel in its_channels:
            if not is_valid_name(channel.name):
                log.warn(f"skipping creation of invalid channel {channel.name}")
                continue
            known_topics.create_channel(topic.name, channel.name)
            if channel.paused:
                known_topics.pause_channel(topic.name, channel.name, True)


def _adopt(known_topics: KnownTopics, data_path: str, log: Lines) -> None:
    """Add topics that have a directory but are not listed in the file."""
    with os.scandir(data_path or ".") as entries:
        found = [
            entry.name for entry in entries if entry.name.endswith(_TOPIC_SUFFIX) and entry.is_dir()
        ]
    for directory in sorted(found):
        topic = directory.removesuffix(_TOPIC_SUFFIX)
        if topic not in known_topics and is_valid_name(topic):
            events.topic_adopted(log, FILE, topic=topic)
            known_topics.create_topic(topic)


def _parse(content: bytes) -> dict[str, Any]:
    """Parse the JSON object of the file. Raises ValueError with the text of Go's parser."""
    text = content.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(_parse_reason(text, error)) from None
    except RecursionError:
        raise ValueError("exceeded max depth") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"json: cannot unmarshal {_kind(value)} into a metadata object")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"invalid character '{text.lstrip('-')[0]}' looking for beginning of value")


def _parse_reason(text: str, error: json.JSONDecodeError) -> str:
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "unexpected end of JSON input"
    character = text[error.pos]
    if error.msg == "Extra data":
        return f"invalid character '{character}' after top-level value"
    if error.msg == "Expecting value":
        return _value_reason(text[error.pos :])
    return f"invalid character '{character}' at offset {error.pos}: {error.msg}"


def _value_reason(rest: str) -> str:
    for literal in ("null", "true", "false"):
        if rest[0] != literal[0]:
            continue
        for expected, found in zip(literal, rest, strict=False):
            if expected != found:
                where = f"in literal {literal} (expecting '{expected}')"
                return f"invalid character '{found}' {where}"
        return "unexpected end of JSON input"
    return f"invalid character '{rest[0]}' looking for beginning of value"


def _kind(value: object) -> str:
    """Return Go's word for a JSON value of the wrong type."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def _field(item: dict[str, Any], name: str) -> Any:
    """Return a field by name. As in Go, case is ignored and the last match wins."""
    found = None
    for key, value in item.items():
        if key.lower() == name:
            found = value
    return found


def _list(item: dict[str, Any], name: str) -> list[Any]:
    value = _field(item, name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"json: cannot unmarshal {_kind(value)} into field {name} (a list)")
    return value


def _entry(item: Any, where: str) -> _Entry:
    if item is None:
        item = {}
    if not isinstance(item, dict):
        raise ValueError(f"json: cannot unmarshal {_kind(item)} into an entry of {where}")
    name = _field(item, "name")
    paused = _field(item, "paused")
    if not isinstance(name, str | None):
        raise ValueError(f"json: cannot unmarshal {_kind(name)} into field name (a string)")
    if not isinstance(paused, bool | None):
        raise ValueError(f"json: cannot unmarshal {_kind(paused)} into field paused (a bool)")
    return _Entry(name or "", bool(paused), _list(item, "channels"))


# -- writing


def replace_file(data_path: str, content: bytes) -> None:
    """Replace nsqd.dat with `content`; after a crash, either the old or the new file exists."""
    _file(data_path).write(content)


class Store:
    """Writes the known topics to nsqd.dat outside the hub, one write at a time for any number of
    callers.

    A caller waits for a write that begins after its call, so its change is then on disk. A write
    replaces nsqd.dat, or appends changes if a large nsqd.dat was just written. The hub encodes what
    is written in slices, from a view of the topics when the write began; later changes follow in
    the next write. After a failure, the store retries with growing pauses.
    """

    def __init__(
        self,
        known_topics: KnownTopics,
        data_path: str,
        log: Lines,
        give_way: Callable[[], object] = gevent.sleep,
    ) -> None:
        """give_way: called between slices of the work"""
        self._give_way = give_way
        self._known_topics = known_topics
        self._data_path = data_path
        self._path = os.path.join(data_path, FILE)
        self._log = log
        self._waiting: list[AsyncResult] = []
        self._dirty = False
        self._is_whole = False  # whether a caller waits for a complete nsqd.dat
        self._changes = ChangeLog(data_path)
        self._checksum = self._before = 0  # of nsqd.dat, and of its previous version
        self._written: int | None = None  # version of the known topics on disk
        self._pause = 0.0
        """Seconds before the next attempt, after a failure."""
        self._timer: gevent.Greenlet | None = None
        self._timer_due = 0.0
        self._rests_until = 0.0  # monotonic clock, as `_timer_due`
        self._writer: gevent.Greenlet | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a write is in progress."""
        return self._writer is not None

    def persist(self) -> None:
        """Replace nsqd.dat, and block this greenlet until it is on disk. Raises OSError."""
        self._is_whole = True
        self._await_write()

    def catch_up(self) -> None:
        """Block this greenlet until all changes are on disk. Raises OSError."""
        if self._written != self._known_topics.version:
            self._await_write()

    def _await_write(self) -> None:
        done = AsyncResult()
        self._waiting.append(done)
        self._start()
        done.get()

    def persist_now(self) -> None:
        """Begin to write, unless a write is in progress or has just ended: then write after it,
        together with other changes."""
        self._write_after(0.0)

    def persist_soon(self) -> None:
        """Write soon, together with any changes made until then."""
        self._write_after(DEBOUNCE)

    def _write_after(self, delay: float) -> None:
        self._dirty = True
        now = time.monotonic()
        due = max(now + delay, self._rests_until)
        if self._writer is not None or (self._timer is not None and self._timer_due <= due):
            return
        self._stop_timer()
        if due <= now:
            self._start()
        else:
            self._timer_due = due
            self._timer = gevent.spawn_later(due - now, self._start)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer is not gevent.getcurrent():
            timer.kill(block=False)

    def _start(self) -> None:
        self._stop_timer()
        if self._writer is None:
            self._writer = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            waiting, self._waiting = self._waiting, []
            self._dirty = False
            error = self._append() if self._may_append() else self._write()
            for done in waiting:
                done.set(None) if error is None else done.set_exception(error)
            if not self._waiting:
                break
        self._writer = None
        if error is not None:
            self._dirty = True
            self._pause = min(2 * self._pause, MAX_PAUSE) if self._pause else MIN_PAUSE
            self._timer_due = time.monotonic() + self._pause
            self._timer = gevent.spawn_later(self._pause, self._start)
            return
        self._pause = 0.0
        if self._dirty:
            self.persist_soon()

    def _may_append(self) -> bool:
        is_resting = time.monotonic() < self._rests_until
        return self._changes.is_usable and is_resting and not self._is_whole

    def _append(self) -> OSError | None:
        """Write the changes; nsqd.dat follows after a rest."""
        changes, version = self._known_topics.take_changes(), self._known_topics.version
        if changes is None:
            return self._write()
        lines = metadata_changes.encode(changes, self._give_way)
        places = self._checksum, self._before
        if lines and self._in_pool(self._changes.append, lines, *places) is not None:
            return self._write()
        self._written = version
        self._dirty = True
        return None

    def _write(self) -> OSError | None:
        began = time.monotonic()
        events.metadata_persisting(self._log, path=self._path)
        self._is_whole = False
        view = self._known_topics.view()
        self._known_topics.take_changes()
        self._changes.is_usable = False  # until nsqd.dat contains the changes just taken
        error = self._in_pool(self._replace, _encode(view, self._give_way))
        if error is None:
            self._written = view.version
        else:
            events.metadata_failed(self._log, path=self._path, error=_reason(error))
        ended = time.monotonic()
        self._rests_until = ended + min(MAX_REST, REST * (ended - began))
        return error

    def _replace(self, pieces: list[bytes]) -> None:
        content = _SEPARATOR.join(pieces)
        replace_file(self._data_path, content)
        self._before, self._checksum = self._checksum, crc32c(content)
        self._changes.restart()
        self._changes.is_usable = len(content) >= LARGE

    def _in_pool(self, call: Callable[..., None], *args: Any) -> OSError | None:
        """Run a call in a pool thread; return its error, which the pool would print."""

        def run() -> OSError | None:
            try:
                call(*args)
            except OSError as error:
                return error
            return None

        found: OSError | None = gevent.get_hub().threadpool.apply(run)
        return found


def _reason(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
