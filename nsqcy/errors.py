"""The exceptions that nsqcy raises.

They define the error code and fatality for clients, the status for HTTP callers, and the exit code
and final message of a daemon that cannot start. Independent of sockets and logs: handlers read the
attributes of an error, never its class.
"""

from collections.abc import Sequence

# Codes of errors that do not close the connection.
NON_FATAL_CODES = frozenset(
    {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED", "E_DEAD_LETTER_FAILED"}
)

# Formats for a process's final message.
AS_IS = "as is"  # send only the text
DATED = "dated"  # "2026/11/20 11:18:31 text"
LOGGED = "logged"  # a FATAL log line


class NsqError(Exception):
    """Base class of all exceptions that nsqcy raises."""


class ClientError(NsqError):
    """Rejected command, answered with an error frame `code description`.

    `description` keeps raw bytes from a client as surrogate escapes, so that the frame can echo
    them byte for byte.
    """

    def __init__(self, code: str, description: str = "", fatal: bool | None = None) -> None:
        super().__init__(f"{code} {description}" if description else code)
        self.code = code
        self.description = description
        self.fatal = code not in NON_FATAL_CODES if fatal is None else fatal

    @property
    def wire(self) -> bytes:
        """The data of the error frame."""
        return str(self).encode("utf-8", "surrogateescape")


class HttpError(NsqError):
    """HTTP request that ends with `status` and the JSON `{"message": message}`.

    `limit` is the limit that was exceeded and the option that sets it, for the header X-Nsq-Limit,
    because NSQ's messages do not name them.
    """

    def __init__(self, status: int, message: str, *, limit: str = "") -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message
        self.limit = limit


NOT_WRITTEN = "NOT_WRITTEN"


class NotWritten(NsqError):
    """Data that must outlive nsqd was not written to disk.

    The text is NOT_WRITTEN, for callers in other processes as well.
    """

    def __init__(self) -> None:
        super().__init__(NOT_WRITTEN)


class RequestError(NsqError):
    """Failed outgoing request: the status and body of the response, or status 0 if there was no
    response. `path` is the path of the request, if known."""

    def __init__(self, text: str, status: int = 0, body: bytes = b"", path: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.body = body
        self.path = path


TOKEN_WITHHELD = (
    "token withheld: the nsqd has not authenticated to nsqlookupd; set the nsqd's"
    " --lookupd-auth-token-file, specify the nsqd's address, or set"
)


class InvalidName(NsqError, ValueError):
    """Invalid topic or channel name."""


class LayerError(NsqError):
    """Input that TLS or a codec cannot decode; it ends the connection."""


class LayerEnd(NsqError):
    """Regular end of input on a TLS connection or a compressed stream."""


class Stop(NsqError):
    """The process exits before it serves clients; str() is its final message."""

    exit_code = 1
    fd = 2
    shape = LOGGED

    @property
    def parts(self) -> "tuple[Stop, ...]":
        """The messages, each for a separate line."""
        return (self,)


class HelpWanted(Stop):
    """`--help`: the usage, on stderr as in Go's flag package."""

    exit_code = 0
    shape = AS_IS


class VersionWanted(Stop):
    """`--version`: one line on stdout."""

    exit_code = 0
    fd = 1
    shape = AS_IS


class UsageError(Stop):
    """Invalid command line: the reason, and the correction."""

    exit_code = 2
    shape = AS_IS


class FloatListError(Stop):
    """Invalid number in a list on the command line."""

    shape = DATED


class StartError(Stop):
    """Reason why a daemon cannot start."""


class StartErrors(StartError):
    """Several reasons, in the order in which they should be read."""

    def __init__(self, parts: tuple[StartError, ...]) -> None:
        super().__init__(*parts)
        self._parts = parts

    @property
    def parts(self) -> "tuple[Stop, ...]":
        return self._parts

    def __str__(self) -> str:
        return "\n".join(map(str, self._parts))


def all_of(errors: Sequence[StartError]) -> StartError:
    """Return one exception for at least one error."""
    return errors[0] if len(errors) == 1 else StartErrors(tuple(errors))


class ConfigError(StartError):
    """Error in a configuration file: the place, the problem and the allowed values."""

    def __init__(self, file: str, line: int | None, problem: str, allowed: str = "") -> None:
        super().__init__(file, line, problem, allowed)
        self.file = file
        self.line = line
        self.problem = problem
        self.allowed = allowed

    @property
    def where(self) -> str:
        """`line 3: `, or empty if the problem concerns the whole file."""
        return "" if self.line is None else f"line {self.line}: "

    @property
    def detail(self) -> str:
        """The problem and the allowed values."""
        return f"{self.problem} (allowed: {self.allowed})" if self.allowed else self.problem

    def __str__(self) -> str:
        return f"failed to load config file {self.file} - {self.where}{self.detail}"


class ParseError(ConfigError):
    """Invalid log_level, tls_required or tls_min_version, which NSQ rejects first."""

    def __init__(
        self, file: str, line: int | None, problem: str, allowed: str, setting: str
    ) -> None:
        super().__init__(file, line, problem, allowed)
        self.setting = setting

    def __str__(self) -> str:
        return f"failed parsing {self.setting} - {self.file}: {self.where}{self.detail}"


class CoerceError(ConfigError):
    """Value of the wrong type in a TOML file; NSQ reports it outside its log."""

    shape = DATED

    def __init__(
        self, file: str, line: int | None, problem: str, allowed: str, setting: str
    ) -> None:
        super().__init__(file, line, problem, allowed)
        self.setting = setting

    def __str__(self) -> str:
        return (
            f"ERROR: Resolve failed to coerce value {self.setting}"
            f" - {self.file}: {self.where}{self.detail}"
        )


class DaemonError(NsqError):
    """Failed start or stop of a daemon in a test, with the last lines of its log."""
