"""The file of users at one worker: all that needs it is made here.

Imported by a worker of an nsqd with --auth-file, and by no other.
"""

import time
from collections.abc import Callable
from typing import Any

from nsqcy.ipc.quota import QuotaTable
from nsqcy.logging.logger import Log
from nsqcy.nsqd.auth.user_file import Asked, FileAuthorizer
from nsqcy.users import file
from nsqcy.users.gate import Gate
from nsqcy.users.known import Known
from nsqcy.users.quotas import Quotas


class FileUsers:
    """Who is in the file, by its latest reading, and what there is of their quotas."""

    def __init__(self, path: str, text: str, table: QuotaTable) -> None:
        self._path = path
        self._known = Known(file.parse(path, text))
        self._quotas = Quotas(table)

    def renew(self, text: str) -> None:
        """The file has been read again, and found good."""
        self._known.users = file.parse(self._path, text)
        self._quotas.renew(self._known.users)

    def quotas_told(self) -> list[dict[str, Any]]:
        """For /metrics."""
        return list(self._quotas.told(self._known.users, time.monotonic_ns()))

    def authorizer(
        self, servers: Asked | None, enter: Callable[[], object], log: Log
    ) -> FileAuthorizer:
        """Who knows what clients may do over TCP."""
        return FileAuthorizer(self._known, self._quotas, servers, enter, log)

    def gate(self, log: Log) -> Gate:
        """What stands before the routes of HTTP."""
        return Gate(self._known, "nsqd", log, quota=self._quotas.of)
