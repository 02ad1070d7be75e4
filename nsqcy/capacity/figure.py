"""The type of a measured figure, the input of capacity estimates."""

from typing import NamedTuple


class Figure(NamedTuple):
    """A number, its unit, and its source."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:,g} {self.unit}: {self.source}"
