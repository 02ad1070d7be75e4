"""File names: tokens, strftime, revisions, and patterns that match the names.

Owns the grammar of --filename-format and --datetime-format. Opens no file and reads no clock.
"""

import os
import re
import time

from nsqcy.errors import NsqError

REV = "<REV>"
DATETIME = "<DATETIME>"

# The conversions of Go's nsq_to_file, with the patterns of their output. Any other percent sign is
# literal.
_CONVERSIONS = {
    "Y": r"[0-9]{4,}",
    **dict.fromkeys("ymdHIMS", "[0-9]{2}"),
    **dict.fromkeys("pBbAa", "[A-Za-z]+"),
    "Z": "[A-Za-z0-9+-]+",
    "z": "[+-][0-9]{4}",
    "%": "%",
}
_PIECES = {
    REV: "-([0-9]{6,})",
    "<PID>": "[0-9]+",
    **{f"\0{letter}": pattern for letter, pattern in _CONVERSIONS.items()},
}
_CONVERSION = re.compile("%([YymdHIMSpBbAaZz%])")

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


class FormatError(NsqError):
    """A format yields no usable file name; str() returns the reason."""


def format_time(format: str, moment: time.struct_time) -> str:
    """Format a local time. Always in English, so that file names do not depend on the locale."""
    return _CONVERSION.sub(lambda found: _convert(found[1], moment), format)


def _convert(letter: str, moment: time.struct_time) -> str:
    match letter:
        case "Y":
            return f"{moment.tm_year:04d}"
        case "B" | "b":
            month = _MONTHS[moment.tm_mon - 1]
            return month if letter == "B" else month[:3]
        case "A" | "a":
            day = _DAYS[moment.tm_wday]
            return day if letter == "A" else day[:3]
        case "p":
            return "PM" if moment.tm_hour >= 12 else "AM"
    return time.strftime(f"%{letter}", moment)  # digits, or the system's time zone


def host(identifier: str, hostname: str) -> str:
    """Return the value of <HOST>: --host-identifier, or the first label of the hostname."""
    short = hostname.partition(".")[0]
    if not identifier:
        return short
    return identifier.replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)


class FileNames:
    """Names of one topic's files, relative to the work or output directory.

    <REV> stays in a name until a file is opened; `revisions`: whether the format contains it.
    """

    def __init__(
        self,
        format: str,
        datetime_format: str,
        *,
        topic: str,
        host: str,
        revisions: bool,
        suffix: str = "",
        pid: int | None = None,
    ) -> None:
        if not revisions:
            format = format.replace(REV, "")
        elif REV not in format:
            codec = "zstd" if suffix == ".zst" else "gzip"
            raise FormatError(
                f"missing <REV> in --filename-format when {codec}, rotation, or work dir enabled"
            )
        if suffix and not format.endswith(suffix):
            format += suffix
        self.revisions = revisions
        self._format = format
        self._datetime_format = datetime_format
        self._tokens = {"<TOPIC>": topic, "<HOST>": host}
        self._pid = str(os.getpid() if pid is None else pid)
        self._second = -1
        self._name = ""
        self._folders = [re.compile(part) for part in self._pattern().split("/")]
        _check(self.at(0))

    def at(self, wall: float) -> str:
        """Return the name for a wall-clock time; it is computed once per second."""
        second = int(wall)
        if second != self._second:
            text = format_time(self._datetime_format, time.localtime(second))
            self._name = os.path.normpath(self._filled({**self._tokens, "<PID>": self._pid}, text))
            self._second = second
        return self._name

    def _filled(self, tokens: dict[str, str], datetime: str) -> str:
        name = self._format
        for token, value in tokens.items():
            name = name.replace(token, value)
        return name.replace(DATETIME, datetime)

    def depth(self) -> int:
        """Number of directory levels in the names."""
        return len(self._folders) - 1

    def is_part(self, level: int, part: str) -> bool:
        """Return whether a directory, or a file at the last level, may belong to this topic."""
        return self._folders[level].fullmatch(part) is not None

    def open_name(self, filled: str) -> tuple[str, int]:
        """Return a file's name with <REV> restored, and its revision."""
        revision = 0
        parts = []
        for folder, part in zip(self._folders, filled.split("/"), strict=True):
            found = folder.fullmatch(part)
            assert found is not None
            for group in range(found.re.groups, 0, -1):
                revision = int(found[group])
                part = f"{part[: found.start(group) - 1]}{REV}{part[found.end(group) :]}"
            parts.append(part)
        return "/".join(parts), revision

    def _pattern(self) -> str:
        """Return the pattern for the files of this topic and host, with any time, process and
        revision."""
        # NUL marks a conversion: names never contain it, and it survives path normalization.
        datetime = _CONVERSION.sub("\0\\1", self._datetime_format)
        text = os.path.normpath(self._filled(self._tokens, datetime))
        pieces = re.split("(<PID>|<REV>|\0.)", text)
        return "".join(_PIECES.get(piece) or re.escape(piece) for piece in pieces)


def with_revision(name: str, revision: int) -> str:
    return name.replace(REV, f"-{revision:06d}")


def _check(name: str) -> None:
    # A topic's name may be `..`, but files must stay inside the given directory.
    if name.startswith("/") or ".." in name.split("/") or name == ".":
        raise FormatError(f"--filename-format must stay in its directory: {name}")
