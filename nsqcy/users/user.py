"""A user, and what it may do: a role in nsqadmin, and patterns of topics in nsqd and nsqlookupd.

Pure. How users are written down is file.py's.
"""

import fnmatch
from collections.abc import Mapping
from typing import NamedTuple

from nsqcy.users.hashes import Password, Token

VIEW, OPERATE = ROLES = ("view", "operate")
PUBLISH, SUBSCRIBE, ADMIN = PERMISSIONS = ("publish", "subscribe", "admin")

EVERY = "*"  # the pattern that all names fit


class User(NamedTuple):
    """`publish` and `admin` hold patterns of topics; `subscribe` too, and some may be
    TOPIC/CHANNEL. One does not include another."""

    name: str
    role: str = ""  # empty: no user of nsqadmin
    password: Password | None = None
    token: Token | None = None
    certificate: str = ""  # a name of it
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    max_connections: int = 0  # of it to one nsqd; 0, here and below: any number
    publish_rate: float = 0.0  # messages a second
    publish_bytes_rate: int = 0

    @property
    def may_operate(self) -> bool:
        return self.role == OPERATE

    @property
    def may_administer_all(self) -> bool:
        """Not only each of the topics: the daemon itself."""
        return EVERY in self.admin

    @property
    def has_quota(self) -> bool:
        return bool(self.max_connections or self.publish_rate or self.publish_bytes_rate)

    @property
    def patterns(self) -> int:
        """How many there are."""
        return len(self.publish) + len(self.subscribe) + len(self.admin)

    def may_publish(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, each) for each in self.publish)

    def may_administer(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, each) for each in self.admin)

    def may_subscribe(self, topic: str, channel: str) -> bool:
        """Without a channel: whether it may read what any channel of the topic gets."""
        for each in self.subscribe:
            of_topic, _, of_channel = each.partition("/")
            if fnmatch.fnmatchcase(topic, of_topic) and fnmatch.fnmatchcase(
                channel, of_channel or EVERY
            ):
                return True
        return False


Users = Mapping[str, User]
