"""This process's open-files limit. Each connection uses one descriptor."""

import resource
from typing import NamedTuple

from nsqcy.logging import events
from nsqcy.logging.types import Lines

FEW = 16_384


class Limit(NamedTuple):
    """The soft limit before and after raising it, and the hard limit, which only root may
    exceed."""

    before: int
    after: int
    hard: int

    def tell(self, log: Lines) -> None:
        """Log the limit, and a warning with advice if it is low."""
        if self.after != self.before:
            log.info(f"open files: limit raised from {self.before} to {self.after}")
        else:
            log.info(f"open files: limit is {self.after}")
        if self.after < FEW:
            events.few_open_files(log, limit=self.after, hard_limit=self.hard)


def raise_limit() -> Limit:
    """Raise the soft limit to the hard limit, if permitted."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass
    return Limit(before, resource.getrlimit(resource.RLIMIT_NOFILE)[0], hard)
