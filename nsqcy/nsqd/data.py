"""`nsqcy data import|export|check`: a stopped data path, brought here, taken away, looked at.

Owns the words of these commands and what `check` says; the work is `importer`'s, `exporter`'s and
`diskqueue`'s. Exit codes: 0 all is well; 1 it could not be done, or something is unreadable; 2 the
command line could not be read.
"""

import argparse
import os
from collections.abc import Sequence

from nsqcy._io import IoThread
from nsqcy._log import FormatError
from nsqcy.errors import StartError, Stop
from nsqcy.log import write
from nsqcy.nsqd import metadata
from nsqcy.nsqd.diskqueue import Damage, Queue, QueueReader, find_queues
from nsqcy.nsqd.exporter import Export, TopicReader
from nsqcy.nsqd.importer import DONE, Importer, is_needed
from nsqcy.process import datapath


class Terminal:
    """Lines for whoever runs the command."""

    def info(self, text: str, /, **fields: object) -> None:
        write(1, f"{text}\n")

    def warn(self, text: str, /, **fields: object) -> None:
        write(2, f"warning: {text}\n")

    def error(self, text: str, /, **fields: object) -> None:
        write(2, f"error: {text}\n")


def main(words: Sequence[str]) -> int:
    """Run one of the commands; gives the exit code."""
    arguments = _parser().parse_args(words)
    terminal = Terminal()
    try:
        lock = datapath.lock_data_path(arguments.data_path, orphans_wait=0)
    except datapath.DataPathError as error:
        terminal.error(str(error))
        return 1
    with lock:
        try:
            code: int = arguments.run(arguments, terminal)
        except Stop as stop:
            terminal.error(str(stop))
            return 1
        except KeyboardInterrupt:
            terminal.error("interrupted")
            return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nsqcy data", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    size = argparse.ArgumentParser(add_help=False)
    size.add_argument(
        "--max-bytes-per-file", type=int, default=104857600, metavar="N", help="as nsqd's"
    )
    bad = argparse.ArgumentParser(add_help=False)
    bad.add_argument("--bad", action="store_true", help="read .bad files of NSQ, too")

    one = commands.add_parser(
        "import", parents=[size, bad], help="take over NSQ's files, as a start of nsqd does"
    )
    one.add_argument("data_path", metavar="DATA_PATH")
    one.set_defaults(run=_import)
    one = commands.add_parser("export", parents=[size], help="write NSQ's files, to go back to it")
    one.add_argument("data_path", metavar="DATA_PATH")
    one.add_argument("target", metavar="DIRECTORY", help="empty, or not there yet")
    one.set_defaults(run=_export)
    one = commands.add_parser("check", parents=[bad], help="read everything and report damage")
    one.add_argument("data_path", metavar="DATA_PATH", help="nsqcy's or NSQ's")
    one.set_defaults(run=_check)
    return parser


def _import(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if not is_needed(arguments.data_path):
        terminal.info(f"{arguments.data_path}: there are no files of NSQ to import")
        return 0
    importer = Importer(
        arguments.data_path,
        terminal,
        max_bytes_per_file=arguments.max_bytes_per_file,
        bad=arguments.bad,
    )
    importer.run()
    return 1 if importer.damages or importer.refused else 0


def _export(arguments: argparse.Namespace, terminal: Terminal) -> int:
    export = Export(
        arguments.data_path,
        arguments.target,
        terminal,
        max_bytes_per_file=arguments.max_bytes_per_file,
    )
    export.run()
    return 1 if export.damages else 0


# -- check


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    check = Check(arguments.data_path, terminal)
    check.run(bad=arguments.bad)
    return 1 if check.damages else 0


class Check:
    """Reads every record of a data path, ours or NSQ's, and says what cannot be read."""

    def __init__(self, data_path: str, lines: Terminal) -> None:
        self._data_path = data_path or "."
        self._lines = lines
        self.damages = 0

    def run(self, *, bad: bool = False) -> None:
        picture = metadata.Picture()
        try:
            picture = metadata.load(self._data_path, self._lines)
        except StartError as error:
            self._damage(str(error))
        if os.path.isdir(os.path.join(self._data_path, DONE)):
            self._lines.warn("an import is complete but for its last renames; a start does them")
        for queue in find_queues(self._data_path):
            self._check_queue(queue, bad)
        io = IoThread()
        try:
            for topic in sorted(picture):
                if os.path.isdir(os.path.join(self._data_path, f"{topic}.topic")):
                    self._check_topic(io, picture, topic)
        finally:
            io.close()
        self._lines.info(f"{self._data_path}: {self.damages} places unreadable")

    def _check_queue(self, queue: Queue, bad: bool) -> None:
        reader = QueueReader(queue, self._on_damage, self._lines.warn)
        try:
            for _ in reader.records(bad=bad):
                pass
        except OSError as error:
            self._damage(f"{error.filename}: {(error.strerror or '').lower()}")
        self._lines.info(f"{queue.name}: {reader.count} messages to deliver")

    def _check_topic(self, io: IoThread, picture: metadata.Picture, topic: str) -> None:
        entry = picture.get(topic)
        known = [] if entry is None else list(entry.channels)
        try:
            count = TopicReader(io, self._data_path, topic, known, self._on_log_damage).check()
        except FormatError as error:
            self._damage(str(error))
            return
        self._lines.info(f"{topic}: {count} records")

    def _on_damage(self, damage: Damage) -> None:
        self._damage(str(damage))

    def _on_log_damage(self, path: str, offset: int, text: str) -> None:
        self._damage(f"{path} at {offset}: {text}")

    def _damage(self, text: str) -> None:
        self.damages += 1
        self._lines.error(text)
