"""gnsq's backoff timer, for programs that use it directly."""

import random
from typing import Self


class BackoffTimer:
    """A random fraction of `ratio` * (2 ** failures - 1), within limits; a success removes one
    failure."""

    def __init__(
        self,
        ratio: float = 1,
        max_interval: float | None = None,
        min_interval: float | None = None,
    ) -> None:
        self.c = 0
        self.ratio = ratio
        self.max_interval = max_interval
        self.min_interval = min_interval

    def is_reset(self) -> bool:
        return self.c == 0

    def reset(self) -> Self:
        self.c = 0
        return self

    def success(self) -> Self:
        self.c = max(self.c - 1, 0)
        return self

    def failure(self) -> Self:
        self.c += 1
        return self

    def get_interval(self) -> float:
        interval: float = random.random() * ((1 << self.c) - 1) * self.ratio
        if self.max_interval is not None:
            interval = min(interval, self.max_interval)
        if self.min_interval is not None:
            interval = max(interval, self.min_interval)
        return interval
