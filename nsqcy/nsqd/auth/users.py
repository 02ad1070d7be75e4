"""The users file in one worker. Creates all objects that depend on the file.

Only the workers of an nsqd with --auth-file import this module.
"""

import time
from collections.abc import Callable
from typing import Any

from nsqcy.ipc.core import QuotaTable
from nsqcy.logging.logger import Log
from nsqcy.nsqd.auth.user_file import Asked, FileAuthorizer
from nsqcy.users import file
from nsqcy.users.credentials import Known
from nsqcy.users.gate import Gate
from nsqcy.users.quotas import Quotas


class FileUsers:
    """The users from the last valid version of the file, and their quotas."""

    def __init__(self, path: str, text: str, table: QuotaTable) -> None:
        self._path = path
        self._known = Known(file.parse(path, text))
        self._quotas = Quotas(table)

    def renew(self, text: str) -> None:
        """Replace the users after the file has been reloaded without errors."""
        self._known.users = file.parse(self._path, text)
        self._quotas.renew(self._known.users)

    def quotas_told(self) -> list[dict[str, Any]]:
        """For /metrics."""
        return list(self._quotas.told(self._known.users, time.monotonic_ns()))

    def authorizer(
        self, servers: Asked | None, enter: Callable[[], object], log: Log
    ) -> FileAuthorizer:
        """Return the authorizer for TCP clients."""
        return FileAuthorizer(self._known, self._quotas, servers, enter, log)

    def gate(self, log: Log) -> Gate:
        """Return the check that runs before an HTTP request's route."""
        return Gate(self._known, "nsqd", log, quota=self._quotas.of)
