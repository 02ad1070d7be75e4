"""pynsq's backoff timer, for programs that use it directly; readers use nsqcy's backoff."""

from decimal import Decimal

Number = int | float | Decimal


class BackoffTimer:
    """An interval that grows by two steps after each failure, and shrinks by the same steps after
    each success. The large step covers up to `ratio` of the range, the small step the rest."""

    def __init__(
        self,
        min_interval: Number,
        max_interval: Number,
        ratio: Number = 0.25,
        short_length: int = 10,
        long_length: int = 250,
    ) -> None:
        self.min_interval = _decimal(min_interval)
        self.max_interval = _decimal(max_interval)
        range_ = self.max_interval - self.min_interval
        self.max_short_timer = range_ * _decimal(ratio)
        self.max_long_timer = range_ * (1 - _decimal(ratio))
        self.short_unit = self.max_short_timer / short_length
        self.long_unit = self.max_long_timer / long_length
        self.short_interval = self.long_interval = Decimal(0)

    @property
    def interval(self) -> float:
        return float(self.min_interval + self.short_interval + self.long_interval)

    def success(self) -> None:
        if self.interval:
            self._move(-1)

    def failure(self) -> None:
        self._move(1)

    def get_interval(self) -> float:
        return self.interval

    def _move(self, sign: int) -> None:
        short = self.short_interval + sign * self.short_unit
        long = self.long_interval + sign * self.long_unit
        self.short_interval = max(Decimal(0), min(short, self.max_short_timer))
        self.long_interval = max(Decimal(0), min(long, self.max_long_timer))


def _decimal(value: Number) -> Decimal:
    assert isinstance(value, int | float | Decimal)
    return value if isinstance(value, Decimal) else Decimal(str(value))
