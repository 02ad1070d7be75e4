"""Quotas of the users in a file: limits and usage, by user name."""

from collections.abc import Iterator
from typing import Any

from nsqcy.ipc.core import Quota, QuotaTable
from nsqcy.users.user import User, Users

OF_CONNECTIONS = 2  # the first figures of a quota


class Quotas:
    """The quotas of all users that have one, as counted by one process."""

    def __init__(self, table: QuotaTable) -> None:
        self._table = table
        self._found: dict[str, Quota] = {}

    def of(self, user: User) -> Quota | None:
        """Return a user's quota; None if the user has none."""
        if not user.has_quota:
            return None
        found = self._found.get(user.name)
        if found is None:
            found = self._found[user.name] = Quota(self._table, user.name, *_limits(user))
        return found

    def told(self, users: Users, now: int) -> Iterator[dict[str, Any]]:
        """Yield the usage of each user with a quota, for /metrics.

        `figures` come from Quota; publish figures are included only if a rate is limited. Unless
        the quota is `shared`, each worker counts separately.
        """
        for user in users.values():
            quota = self.of(user)
            if quota is None:
                continue
            figures = quota.figures(now)
            if not quota.limits_publishes():
                figures = figures[:OF_CONNECTIONS]
            yield {"user": user.name, "shared": quota.is_shared, "figures": figures}

    def renew(self, users: Users) -> None:
        """Apply the users' limits after the file has been reloaded."""
        for name, quota in self._found.items():
            quota.change(*_limits(users.get(name) or User(name)))


def _limits(user: User) -> tuple[int, float, float]:
    return user.max_connections, user.publish_rate, user.publish_bytes_rate
