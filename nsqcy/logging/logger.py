"""Log lines: one write to stderr per line, in nsqd's form or as JSON.

Owns the form of a line and the level below which nothing is written. Independent of the logged
content. Imported before all slow modules, so it imports very little itself.
"""

import os
import time
from collections.abc import Callable, Mapping

DEBUG, INFO, WARN, ERROR, FATAL = range(1, 6)

LEVELS = {"debug": DEBUG, "info": INFO, "warn": WARN, "error": ERROR, "fatal": FATAL}
NAMES = ("", *LEVELS)
TITLES = ("", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
FORMATS = ("text", "json")
MESSAGE = "message"


class Log:
    """A sink for log lines. `level` may be changed at any time.

    Keyword fields appear only in JSON: a text line is exactly nsqd's, so the text alone must be
    complete. One of the fields is `event`, a name from nsqcy.logging.events; a line without it is a
    `message`. `context` is added to every line. Each call writes one line: control characters in
    the text are escaped, so that clients can neither forge lines nor control a terminal.
    """

    __slots__ = ("_clock", "_context", "_stamp", "fd", "format", "level", "prefix")

    def __init__(
        self,
        prefix: str = "",
        level: int = INFO,
        format: str = "text",
        fd: int = 2,
        clock: Callable[[], int] = time.time_ns,
        context: Mapping[str, object] | None = None,
    ) -> None:
        self.prefix = prefix
        self.level = level
        self.format = format
        self.fd = fd
        self._clock = clock
        self._context = {"event": MESSAGE, **(context or {})}
        self._stamp = (-1, "")

    def debug(self, text: str, /, **fields: object) -> None:
        if self.level <= DEBUG:
            self._write(DEBUG, text, fields)

    def info(self, text: str, /, **fields: object) -> None:
        if self.level <= INFO:
            self._write(INFO, text, fields)

    def warn(self, text: str, /, **fields: object) -> None:
        if self.level <= WARN:
            self._write(WARN, text, fields)

    def error(self, text: str, /, **fields: object) -> None:
        if self.level <= ERROR:
            self._write(ERROR, text, fields)

    def fatal(self, text: str, /, **fields: object) -> None:
        """Log the text only; the caller exits."""
        if self.level <= FATAL:
            self._write(FATAL, text, fields)

    def _write(self, level: int, text: str, fields: dict[str, object]) -> None:
        second, nanosecond = divmod(self._clock(), 1_000_000_000)
        line = self._json_line if self.format == "json" else self._text_line
        write(self.fd, line(second, nanosecond // 1000, level, text, fields))

    def _text_line(
        self, second: int, microsecond: int, level: int, text: str, fields: dict[str, object]
    ) -> str:
        # Assign the pair in one step, so that another thread never sees a half-changed stamp.
        stamp = self._stamp
        if stamp[0] != second:
            stamp = self._stamp = (second, date_time(second))
        return f"{self.prefix}{stamp[1]}.{microsecond:06d} {TITLES[level]}: {printable(text)}\n"

    def _json_line(
        self, second: int, microsecond: int, level: int, text: str, fields: dict[str, object]
    ) -> str:
        import json

        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        head = {"time": f"{moment}.{microsecond:06d}Z", "level": NAMES[level], "msg": text}
        # The head comes first to set the key order, and again last so that its values win.
        record = {**head, **self._context, **fields, **head}
        try:
            line = json.dumps(record, default=str, allow_nan=False)
        except (ValueError, TypeError):
            # A NaN, a cycle or a non-string key must not cause the line to be lost.
            line = json.dumps({name: str(value) for name, value in record.items()})
        return line + "\n"


def printable(text: str) -> str:
    """Escape the characters that a terminal may interpret: control characters (C0 and C1), line
    separators, and changes of the text's direction."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def date_time(second: int) -> str:
    """Return local time as Go's log package writes it: `2026/11/20 11:18:31`."""
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))


def write(fd: int, text: str) -> None:
    """Write `text` with one call. If that fails, the line is lost and the process continues."""
    try:
        os.write(fd, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
