"""`nsqcy data import|export|check`: import, export or check a stopped data path.

Owns the command lines and the output of `check`; `importer`, `exporter`, `audit` and `diskqueue` do
the work.

Exit codes: 0 success; 1 failure, or unreadable data; 2 invalid command line. Exit codes of `check`:
0 starting nsqd loses no message and redelivers no finished message; 1 starting it may do either; 2
nsqd would refuse to start, or the check failed.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from nsqcy.config import configuration_file, loader
from nsqcy.config.commands import Commands
from nsqcy.errors import StartError, Stop
from nsqcy.logging.logger import write
from nsqcy.names import is_valid_name
from nsqcy.nsqd.copies import completeness
from nsqcy.nsqd.copies.copy_files import FOLDER
from nsqcy.nsqd.data import audit_report, found_formats
from nsqcy.nsqd.data.audit import Audit, TopicFound
from nsqcy.nsqd.data.diskqueue import MARK, Damage, Queue, QueueReader, find_queues
from nsqcy.nsqd.data.exporter import Export
from nsqcy.nsqd.data.found_formats import FormatsFound
from nsqcy.nsqd.data.importer import ASIDE, DONE, TMP, Importer, is_needed
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.master import lost_memory, metadata, metadata_changes, policy_file
from nsqcy.nsqd.options import NSQD, policies, resolve
from nsqcy.process import data_path_lock
from nsqcy.storage import state_file, write_probe
from nsqcy.storage.core import IoThread
from nsqcy.storage.state_file import PREVIOUS
from nsqcy.util.standard_streams import show

PROGRESS = 0.2  # seconds between progress updates

# Names in a data path: regular files, and leftovers with nsqd's action at startup.
OURS = {metadata.FILE, metadata_changes.FILE, policy_file.FILE, PREVIOUS, FOLDER}
LEFTOVERS = {
    TMP: "an incomplete import; nsqd repeats it at the next start",
    DONE: "an import that lacks its final renames; nsqd completes it at the next start",
    f"{metadata.FILE}.tmp": "incomplete; nsqd overwrites it",
    f"{policy_file.FILE}.tmp": "incomplete; nsqd overwrites it",
}


class Terminal:
    """Prints lines to the terminal."""

    def info(self, text: str, /, **fields: object) -> None:
        show(f"{text}\n")

    def warn(self, text: str, /, **fields: object) -> None:
        write(2, f"warning: {text}\n")

    def error(self, text: str, /, **fields: object) -> None:
        write(2, f"error: {text}\n")


FILE_SIZE = click.option(
    "--max-bytes-per-file",
    type=int,
    default=104857600,
    show_default=True,
    metavar="N",
    help="as nsqd's option of the same name",
)
BAD = click.option("--bad", is_flag=True, help="also read NSQ's .bad files")


@click.group(cls=Commands)
def data() -> None:
    """Import, export or check the data path of a stopped nsqd."""


@data.command("import")
@click.argument("data_path")
@FILE_SIZE
@BAD
def import_(data_path: str, max_bytes_per_file: int, bad: bool) -> int:
    """Import NSQ's files in DATA_PATH, as nsqd does at startup."""

    def work(terminal: Terminal) -> int:
        if not is_needed(data_path):
            terminal.info(f"{data_path}: no NSQ files to import")
            return 0
        importer = Importer(data_path, terminal, max_bytes_per_file=max_bytes_per_file, bad=bad)
        importer.run()
        return 1 if importer.damages or importer.refused else 0

    return _locked(data_path, work)


@data.command("export")
@click.argument("data_path")
@click.argument("directory")
@FILE_SIZE
def export(data_path: str, directory: str, max_bytes_per_file: int) -> int:
    """Export DATA_PATH to NSQ's files in DIRECTORY, to return to NSQ.

    DIRECTORY must be empty or new.
    """

    def work(terminal: Terminal) -> int:
        done = Export(data_path, directory, terminal, max_bytes_per_file=max_bytes_per_file)
        done.run()
        return 1 if done.damages else 0

    return _locked(data_path, work)


@data.command("check")
@click.argument("data_path")
@BAD
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option(
    "--quick",
    is_flag=True,
    help="read only what nsqd reads at startup; skip the records in segments with a footer",
)
@click.option(
    "--config",
    default="",
    metavar="FILE",
    help="nsqd's configuration file, which sets the retention of topics",
)
def check(data_path: str, bad: bool, as_json: bool, quick: bool, config: str) -> int:
    """Read everything in DATA_PATH and report what nsqd would do at startup.

    DATA_PATH may be a data path of nsqcy or NSQ.
    """

    def work(terminal: Terminal) -> int:
        found = Check(
            data_path,
            _Silence() if as_json else terminal,
            settings=_settings(config),
            quick=quick,
            progress=_Percent() if sys.stderr.isatty() else None,
        ).run(bad=bad)
        if as_json:
            show(json.dumps(found.to_json(), indent=2) + "\n")
        return found.exit_code

    return _locked(data_path, work, failed=2)


def _locked(data_path: str, work: Callable[[Terminal], int], failed: int = 1) -> int:
    """Do the work while no nsqd uses the data path, and return the exit code. `failed`: the exit
    code if the work cannot be done."""
    terminal = Terminal()
    try:
        with data_path_lock.lock_data_path(data_path, orphans_wait=0):
            return work(terminal)
    except (data_path_lock.DataPathError, Stop) as error:
        terminal.error(str(error))
    except KeyboardInterrupt:
        terminal.error("interrupted")
    return failed


# -- check


def _settings(config_file: str) -> loader.Settings:
    """Return nsqd's settings from a configuration file, or the defaults if there is none."""
    file = configuration_file.read_file(NSQD, config_file) if config_file else None
    return loader.Settings(NSQD, {}, file)


class _Silence(Terminal):
    """Prints nothing, for JSON output."""

    def info(self, text: str, /, **fields: object) -> None:
        pass

    warn = error = info


class _Percent:
    """Shows progress on a terminal."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, topic: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS
            write(2, f"\r{topic}: {done * 100 // max(1, total)} %\033[K\r")


@dataclass
class QueueFound:
    """A queue from NSQ's nsqd, which nsqd would import at startup."""

    name: str
    messages: int


@dataclass
class CopyFound:
    """A topic's files in a group of copies. The group's members decide which of them are needed."""

    path: str  # relative to the data path
    records: int
    bytes: int
    damages: int


@dataclass
class Found:
    """The results of a check."""

    data_path: str
    topics: list[TopicFound] = field(default_factory=list)
    copies: list[CopyFound] = field(default_factory=list)
    queues: list[QueueFound] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    formats: FormatsFound = field(default_factory=FormatsFound)
    refused: str | None = None  # why nsqd would refuse to start
    unreadable: int = 0  # number of unreadable parts

    @property
    def exit_code(self) -> int:
        if self.refused is not None or any(each.refused for each in self.topics):
            return 2
        if self.formats.unsupported:
            return 2
        return 0 if not self.unreadable and all(each.clean for each in self.topics) else 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": self.exit_code}


class Check:
    """Reads every record in a data path, in nsqcy's or NSQ's format, and reports damage and the
    effects of starting nsqd. Changes nothing."""

    def __init__(
        self,
        data_path: str,
        lines: Terminal,
        *,
        settings: loader.Settings,
        quick: bool = False,
        progress: _Percent | None = None,
    ) -> None:
        self._data_path = data_path or "."
        self._lines = lines
        self._options = resolve(settings)
        self._policies = policies(settings, self._options)
        self._quick = quick
        self._progress = progress
        self._found = Found(self._data_path)

    def run(self, *, bad: bool = False) -> Found:
        found = self._found
        known_topics = KnownTopics()
        try:
            known_topics = metadata.load(self._data_path, self._lines)
            found.unreadable += len(metadata.look(self._data_path).faults)
        except StartError as error:
            found.refused = str(error)
            self._lines.error(found.refused)
        self._look_around()
        self._read_policies()
        for queue in find_queues(self._data_path):
            self._check_queue(queue, bad)
        io = IoThread(read_only=True)
        try:
            for name in sorted(known_topics):
                if os.path.isdir(os.path.join(self._data_path, f"{name}.topic")):
                    self._check_topic(io, known_topics, name)
            for directory in sorted(Path(self._data_path, FOLDER).glob("*/*/*.topic")):
                if _is_topic(directory.name):
                    self._check_copy(io, directory)
            for text in completeness.faults(Path(self._data_path)):
                self._damage(text)
        finally:
            io.close()
        self._check_formats()
        self._lines.info(f"{self._data_path}: unreadable parts: {found.unreadable}")
        return found

    def _check_formats(self) -> None:
        """Report the formats, and the versions of nsqcy that read them."""
        found = self._found
        found.formats = found_formats.find(self._data_path)
        refusals = [found.refused, *(each.refused for each in found.topics)]
        reported = "\n".join(each for each in refusals if each is not None)
        for text in found.formats.unsupported:
            if text not in reported:
                self._lines.error(text)
        for line in found_formats.lines(found.formats):
            self._lines.info(line)

    def _look_around(self) -> None:
        """Report files in the data path that are neither topics nor NSQ queues."""
        found = self._found
        with os.scandir(self._data_path) as entries:
            names = sorted(each.name for each in entries)
        for name in names:
            if name.startswith(f"{write_probe.FILE}."):
                continue
            if name.startswith(f"{lost_memory.FOLDER}."):
                found.leftovers.append(name)
                self._lines.warn(f"{name}: memory of a dead worker; nsqd does not read it")
            elif name in LEFTOVERS:
                found.leftovers.append(name)
                self._lines.warn(f"{name}: {LEFTOVERS[name]}")
            elif not (name in OURS or name.startswith(ASIDE) or MARK in name or _is_topic(name)):
                found.unknown.append(name)
                self._lines.info(f"{name}: not an nsqd file; ignored")

    def _read_policies(self) -> None:
        """Read the policies that were set over HTTP, which affect retention."""
        try:
            found = policy_file.look(self._data_path)
        except StartError as error:
            self._found.refused = str(error)
            self._lines.error(self._found.refused)
            return
        state_file.report(found, self._lines)
        self._found.unreadable += len(found.faults)
        if found.value is not None:
            self._policies.version = found.value.version
            for name, values in found.value.values(self._options, self._lines).items():
                self._policies.set(name, values)

    def _check_queue(self, queue: Queue, bad: bool) -> None:
        reader = QueueReader(queue, self._on_damage, self._lines.warn)
        try:
            for _ in reader.records(bad=bad):
                pass
        except OSError as error:
            self._damage(f"{error.filename}: {(error.strerror or '').lower()}")
        self._found.queues.append(QueueFound(queue.name, reader.count))
        self._lines.info(f"{queue.name}: {reader.count} messages to deliver")

    def _check_topic(self, io: IoThread, known_topics: KnownTopics, name: str) -> None:
        entry = known_topics.get(name)
        found = Audit(
            io,
            self._data_path,
            name,
            {} if entry is None else entry.channels,
            policies=self._policies,
            quick=self._quick,
            progress=self._progress,
        ).run()
        self._found.topics.append(found)
        self._report_damage(found, os.path.join(self._data_path, f"{name}.topic"))
        if found.refused is not None:
            self._lines.error(f"{name}: nsqd would refuse to start: {found.refused}")
            return
        for line in audit_report.lines(found):
            self._lines.info(line)
        for line in found.start_says:
            self._lines.warn(line)

    def _check_copy(self, io: IoThread, directory: Path) -> None:
        """Check that a topic's files in a copy are readable. Other nodes may have later changes, so
        what these files lack is not known here."""
        name = directory.name.removesuffix(".topic")
        audit = Audit(io, str(directory.parent), name, {}, quick=self._quick)
        found = audit.run()
        path = str(directory.relative_to(self._data_path))
        self._found.copies.append(CopyFound(path, found.records, found.bytes, found.damages))
        self._report_damage(found, str(directory))
        if found.refused is not None:
            self._damage(f"{path}: {found.refused}")
        self._lines.info(f"{path}: a copy with {found.records} records, {found.bytes} bytes")

    def _report_damage(self, found: TopicFound, directory: str) -> None:
        self._found.unreadable += found.damages
        for file, damages in found.damaged_files():
            for each in damages:
                path = os.path.join(directory, file)
                self._lines.error(f"{path} at {each.offset}: {each.text}")

    def _on_damage(self, damage: Damage) -> None:
        self._damage(str(damage))

    def _damage(self, text: str) -> None:
        self._found.unreadable += 1
        self._lines.error(text)


def _is_topic(name: str) -> bool:
    return name.endswith(".topic") and is_valid_name(name.removesuffix(".topic"))
