"""Every exception of nsqcy.

Owns what an error means to whoever meets it: the code and fatality a client sees, the status an
HTTP caller sees, the exit code and the shape of the last words of a daemon that cannot start.
Knows no sockets and no log; whoever catches one reads its attributes and never asks for its class.
"""

# The three errors after which a connection lives on.
NON_FATAL_CODES = frozenset({"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"})

# Shapes of the last words of a process.
AS_IS = "as is"  # the text and nothing else
DATED = "dated"  # "2026/11/20 11:18:31 text"
LOGGED = "logged"  # a FATAL log line


class NsqError(Exception):
    """Base of everything nsqcy raises on purpose."""


class ClientError(NsqError):
    """A command a client may not have: answered with an error frame `code description`.

    Raw bytes a client sent travel in `description` as surrogate escapes, so that the frame can
    echo them byte for byte.
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
    """A request that ends with `status` and the JSON `{"message": message}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


NOT_WRITTEN = "NOT_WRITTEN"


class NotWritten(NsqError):
    """The disk has not taken what is to outlive nsqd. It says NOT_WRITTEN, and so does the error of
    whoever asked another process."""

    def __init__(self) -> None:
        super().__init__(NOT_WRITTEN)


class RequestError(NsqError):
    """A request of ours that failed: the status and the body of what was answered, or status 0
    when nothing was."""

    def __init__(self, text: str, status: int = 0, body: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class InvalidName(NsqError, ValueError):
    """A name that no topic or channel may have."""


class LayerError(NsqError):
    """Bytes of a peer that its connection's TLS or codec cannot be read from; the end of it."""


class LayerEnd(NsqError):
    """A peer has ended its side of a TLS connection or of a compressed stream, as it may."""


class Stop(NsqError):
    """The process ends before it has served anyone; str() is what it says last."""

    exit_code = 1
    fd = 2
    shape = LOGGED


class HelpWanted(Stop):
    """`--help`: the usage, on stderr as in Go's flag package; config/arguments.py sets stdout."""

    exit_code = 0
    shape = AS_IS


class VersionWanted(Stop):
    """`--version`: one line on stdout."""

    exit_code = 0
    fd = 1
    shape = AS_IS


class UsageError(Stop):
    """A command line that cannot be read: the reason, then the usage."""

    exit_code = 2
    shape = AS_IS


class FloatListError(Stop):
    """A list of numbers on the command line that holds something else."""

    shape = DATED


class StartError(Stop):
    """A daemon that cannot start, and why."""


class ConfigError(StartError):
    """Something wrong in a configuration file: where, what, and what is allowed there."""

    def __init__(self, file: str, line: int | None, problem: str, allowed: str = "") -> None:
        super().__init__(file, line, problem, allowed)
        self.file = file
        self.line = line
        self.problem = problem
        self.allowed = allowed

    @property
    def where(self) -> str:
        """`line 3: `, or nothing when the trouble is with the file as a whole."""
        return "" if self.line is None else f"line {self.line}: "

    @property
    def detail(self) -> str:
        """What is wrong and what is allowed."""
        return f"{self.problem} (allowed: {self.allowed})" if self.allowed else self.problem

    def __str__(self) -> str:
        return f"failed to load config file {self.file} - {self.where}{self.detail}"


class ParseError(ConfigError):
    """A log_level, tls_required or tls_min_version that NSQ refuses before it reads the rest."""

    def __init__(
        self, file: str, line: int | None, problem: str, allowed: str, setting: str
    ) -> None:
        super().__init__(file, line, problem, allowed)
        self.setting = setting

    def __str__(self) -> str:
        return f"failed parsing {self.setting} - {self.file}: {self.where}{self.detail}"


class CoerceError(ConfigError):
    """A value of the wrong type in a TOML file; NSQ says this outside its log."""

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
    """A daemon of a test that could not start or ended badly, with the end of its log."""
