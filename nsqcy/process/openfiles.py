"""How many files this process may have open: each connection is one. Owns nothing."""

import resource
from typing import NamedTuple

from nsqcy.logging.types import Lines

FEW = 16_384


class Limit(NamedTuple):
    """The limit that holds, before and after, and the one that only root may pass."""

    before: int
    after: int
    hard: int

    def tell(self, log: Lines) -> None:
        """Say what became of it, and what to do if that is little."""
        if self.after != self.before:
            log.info(f"open files: limit raised from {self.before} to {self.after}")
        else:
            log.info(f"open files: limit is {self.after}")
        if self.after < FEW:
            log.warn(
                f"open files: a limit of {self.after} is low, because each connection needs one;"
                f" the hard limit is {self.hard}: raise LimitNOFILE= of the service, or ulimit -Hn",
                event="few_open_files",
                limit=self.after,
                hard_limit=self.hard,
            )


def raise_limit() -> Limit:
    """Allow as many open files as we may."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        pass
    return Limit(before, resource.getrlimit(resource.RLIMIT_NOFILE)[0], hard)
