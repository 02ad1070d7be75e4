"""Lookup of users by credential; its timing reveals nothing about other users' secrets.

Reads the file; file.py parses it.
"""

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable

from nsqcy.config import configuration_file
from nsqcy.users import file
from nsqcy.users.user import User, Users

_OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


def read(path: str) -> tuple[Users, list[str]]:
    """Return a file's users and warnings about the file; raises ConfigError."""
    found = file.parse(path, configuration_file.read_text(path))
    return found, warnings(path)


def warnings(path: str) -> list[str]:
    """Return warnings about the file's permissions."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return []
    if mode & _OTHERS:
        text = f"{path} has mode {mode:04o}: other users can read or write the file"
        return [f"{text}; run chmod 600"]
    return []


class Known:
    """Users by token, or by a name in their certificate."""

    def __init__(self, users: Users) -> None:
        # A lookup compares HMACs under a random key, not token hashes. Otherwise an attacker could
        # find tokens with chosen hash prefixes, and learn stored hashes from the timing.
        self._key = secrets.token_bytes(32)
        self.users = users

    @property
    def users(self) -> Users:
        return self._users

    @users.setter
    def users(self, users: Users) -> None:
        """Replace the users after the file has been reloaded."""
        self._users = users
        self._by_token = {
            self._place(user.token.hash): user for user in users.values() if user.token
        }
        self._by_certificate = {
            user.certificate: user for user in users.values() if user.certificate
        }

    def of_token(self, token: bytes) -> User | None:
        return self._by_token.get(self._place(hashlib.sha256(token).digest()))

    def of_certificate(self, names: Iterable[str]) -> User | None:
        """Return the user with the first of these names that is known."""
        found = (self._by_certificate.get(name) for name in names)
        return next((user for user in found if user), None)

    def _place(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, "sha256")
