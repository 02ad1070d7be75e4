"""A figure that was measured, as capacities are computed from."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A number, what of, and where it is to be found."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:,g} {self.unit}: {self.source}"
