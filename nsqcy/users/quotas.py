"""The quotas of the users of a file, by name: what each may have, and what there is of it."""

from collections.abc import Iterator
from typing import Any

from nsqcy.ipc.quota import Quota, QuotaTable
from nsqcy.users.user import User, Users

OF_CONNECTIONS = 2  # the first of a quota's figures


class Quotas:
    """Those of users who have some, as one process counts them."""

    def __init__(self, table: QuotaTable) -> None:
        self._table = table
        self._found: dict[str, Quota] = {}

    def of(self, user: User) -> Quota | None:
        """None: nothing is counted."""
        if not user.has_quota:
            return None
        found = self._found.get(user.name)
        if found is None:
            found = self._found[user.name] = Quota(self._table, user.name, *_limits(user))
        return found

    def told(self, users: Users, now: int) -> Iterator[dict[str, Any]]:
        """For /metrics, of each who has some: `figures` are Quota's, those of publishes only where
        there is a rate; unless they are `shared`, every worker has others."""
        for user in users.values():
            quota = self.of(user)
            if quota is None:
                continue
            figures = quota.figures(now)
            if not quota.limits_publishes():
                figures = figures[:OF_CONNECTIONS]
            yield {"user": user.name, "shared": quota.is_shared, "figures": figures}

    def renew(self, users: Users) -> None:
        """The file was read again: what was found before counts no more."""
        for name, quota in self._found.items():
            quota.change(*_limits(users.get(name) or User(name)))


def _limits(user: User) -> tuple[int, float, float]:
    return user.max_connections, user.publish_rate, user.publish_bytes_rate
