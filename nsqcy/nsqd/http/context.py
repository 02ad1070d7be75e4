"""Shared by nsqd's route handlers: the backend, the options, and HTTP errors.

Defines no routes.
"""

from nsqcy.errors import NOT_WRITTEN, HttpError
from nsqcy.http import router
from nsqcy.http.router import Gate
from nsqcy.logging.types import DetailedLines
from nsqcy.nsqd.http.backend import Backend
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_calls import Refusal, Refused
from nsqcy.process.control import is_out_of_descriptors, is_unreachable

# Status codes for verb errors. Any other error means that the topic or channel does not exist: 404.
_REFUSED_STATUS: dict[Refusal, int] = {
    "CHANNEL_EXISTS": 409,
    "NOT_READ": 503,
    "NOT_A_DEAD_LETTER": 400,
    "FORBIDDEN": 403,
    "REDRIVE_UNDER_WAY": 409,
    "NO_KEY_RULES": 400,
    "TOO_MANY_EMPTIED_KEYS": 409,
    "TOO_MANY_MESSAGES": 400,
    "TOO_MANY_PAUSED_KEYS": 400,
    "TOO_MANY_TOPICS": 400,
}


class Context(router.Api):
    """The context that every handler of a worker receives."""

    reads_headers = frozenset((b"accept", b"accept-encoding", b"authorization"))

    def __init__(
        self, backend: Backend, options: NsqdOptions, log: DetailedLines, gate: Gate | None = None
    ) -> None:
        super().__init__(options, log, gate)
        self.backend = backend
        self.options = options

    def refusal(self, error: Exception) -> HttpError | None:
        if isinstance(error, Refused):
            return HttpError(_REFUSED_STATUS.get(error.code, 404), error.code)
        if str(error) == NOT_WRITTEN:
            return HttpError(503, NOT_WRITTEN)
        if is_out_of_descriptors(error):
            return HttpError(503, "TOO_MANY_OPEN_FILES")
        return HttpError(503, "UNREACHABLE") if is_unreachable(error) else None
