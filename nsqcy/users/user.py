"""A user and its permissions: a role in nsqadmin, and topic patterns in nsqd and nsqlookupd.

Independent of the file format, which file.py owns.
"""

import fnmatch
from collections.abc import Mapping
from typing import NamedTuple

from nsqcy.users.hashes import Password, Token

VIEW, OPERATE = ROLES = ("view", "operate")
PUBLISH, SUBSCRIBE, ADMIN, REGISTER = PERMISSIONS = ("publish", "subscribe", "admin", "register")

EVERY = "*"  # pattern that matches all names


class User(NamedTuple):
    """A user, with credentials, permissions and quotas.

    `publish`, `subscribe`, `admin` and `register` are topic patterns; a `subscribe` pattern may
    also be TOPIC/CHANNEL. No permission implies another.
    """

    name: str
    role: str = ""  # empty: no access to nsqadmin
    password: Password | None = None
    token: Token | None = None
    certificate: str = ""  # a name in the certificate
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    max_connections: int = 0  # limits per nsqd; here and below, 0 means no limit
    publish_rate: float = 0.0  # messages per second
    publish_bytes_rate: int = 0
    register: tuple[str, ...] = ()  # topics that an nsqd may register with nsqlookupd

    @property
    def may_operate(self) -> bool:
        return self.role == OPERATE

    @property
    def may_administer_all(self) -> bool:
        """Return whether the user may administer the daemon itself, not only its topics."""
        return EVERY in self.admin

    @property
    def has_quota(self) -> bool:
        return bool(self.max_connections or self.publish_rate or self.publish_bytes_rate)

    @property
    def patterns(self) -> int:
        """Return the number of patterns."""
        return sum(map(len, (self.publish, self.subscribe, self.admin, self.register)))

    @property
    def publishable(self) -> tuple[str, ...]:
        """Return the patterns of topics to which nsqd may publish on the user's behalf: topics that
        the user may publish to or administer."""
        return self.publish + self.admin

    def may_publish(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, each) for each in self.publish)

    def may_administer(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, each) for each in self.admin)

    def may_register(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, each) for each in self.register)

    def may_subscribe(self, topic: str, channel: str) -> bool:
        """Return whether the user may consume. `channel` is empty for reads of the entire topic."""
        for each in self.subscribe:
            of_topic, _, of_channel = each.partition("/")
            if fnmatch.fnmatchcase(topic, of_topic) and fnmatch.fnmatchcase(
                channel, of_channel or EVERY
            ):
                return True
        return False


Users = Mapping[str, User]
