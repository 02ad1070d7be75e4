"""A daemon's settings: the command line overrides the file, which overrides the defaults.

Owns the precedence of the sources. Independent of particular options; checks only that a value has
the right kind. Each daemon checks its own rules.
"""

import time
from collections.abc import Mapping, Sequence

from nsqcy import NSQ_VERSION, __version__
from nsqcy.config import stray_words
from nsqcy.config.configuration_file import read_file
from nsqcy.config.file_settings import FileSettings
from nsqcy.config.flags import split_flags
from nsqcy.config.options import OptionTable
from nsqcy.errors import DATED, LOGGED, Stop, VersionWanted
from nsqcy.logging.logger import Log, date_time, write
from nsqcy.options.option import Value
from nsqcy.util.standard_streams import complaint, show


class Settings:
    """Values of all options in a table, with their sources, the pattern sections, and warnings."""

    __slots__ = ("_places", "given", "patterns", "table", "values", "warnings")

    def __init__(
        self, table: OptionTable, flags: Mapping[str, Value], file: FileSettings | None = None
    ) -> None:
        in_file = {} if file is None else file.values
        self.table = table
        self.values = {**table.defaults(), **in_file, **flags}
        self.given = frozenset(in_file) | frozenset(flags)
        self.patterns = [] if file is None else file.patterns
        self.warnings = [] if file is None else list(file.warnings)
        self._places = {
            name: file.place(name) for name in in_file if file is not None and name not in flags
        }
        for option in table:
            if option.notice and option.name in self.given:
                self.warnings.append(f"--{option.flag} {option.notice}{self.where(option.name)}")

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def where(self, name: str) -> str:
        """Return ` (FILE, line N)` for a value from a file, otherwise an empty string."""
        return f" ({self._places[name]})" if name in self._places else ""


def load(table: OptionTable, argv: Sequence[str]) -> Settings:
    """Return the settings of a daemon started with these arguments; raise Stop."""
    flags, rest = split_flags(table, argv)
    ignored = stray_words.check(table, argv, rest)
    if flags.get("version"):
        raise VersionWanted(version_line(table.daemon))
    path = flags.get("config")
    file = read_file(table, path) if path and isinstance(path, str) else None
    settings = Settings(table, flags, file)
    settings.warnings += ignored
    return settings


def version_line(daemon: str) -> str:
    """Return the compatible NSQ version, which clients use to detect features, followed by nsqcy's
    own."""
    return f"{daemon} v{NSQ_VERSION} (built w/nsqcy-{__version__})"


def report(stop: Stop, daemon: str) -> int:
    """Write a daemon's final message and return the exit code."""
    for part in stop.parts:
        if part.shape == LOGGED:
            Log(f"[{daemon}] ").fatal(str(part))
        else:
            moment = f"{date_time(int(time.time()))} " if part.shape == DATED else ""
            try:
                show(f"{moment}{part}\n", part.fd)
            except OSError as error:
                text = complaint(daemon, error)
                if text is not None:
                    write(2, text)
                    return 1
    return stop.exit_code
