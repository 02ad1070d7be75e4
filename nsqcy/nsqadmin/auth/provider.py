"""The interface to a log-in provider. oidc.py implements it, and needs an extra package."""

from typing import Protocol

from nsqcy.users.user import User


class Refused(Exception):
    """The log-in failed. The text is only for the log; users do not see it."""


class LoginProvider(Protocol):
    def begin(self, there: str) -> tuple[str, str]:
        """Begin an attempt that leads to the path `there`. Return the provider's URL and the
        state, which the browser must return. Raises Refused."""
        ...

    def finish(self, state: str, kept: str, code: str) -> tuple[User, str]:
        """Finish an attempt. Return the user and the path to show. kept: the state that the
        browser has stored since the attempt began. Raises Refused."""
        ...
