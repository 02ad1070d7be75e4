"""The path and view parameters of a page, which its links preserve. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

Item = TypeVar("Item")
Value = float | str

# Search text, sort column and time range. The page number and any question are not preserved.
_KEPT = ("q", "sort", "range")


@dataclass(frozen=True)
class Location:
    path: str
    params: Mapping[str, str]

    def link(self, **changes: str) -> str:
        """Return a link to the same page with changed parameters; empty ones are omitted."""
        query = {name: self.params[name] for name in _KEPT if name in self.params} | changes
        given = {name: value for name, value in query.items() if value}
        return f"{self.path}?{urlencode(given)}" if given else self.path

    # Sort order: `sort=depth`, or `sort=-depth` to reverse it.

    @property
    def sorted_by(self) -> str:
        return self.params.get("sort", "").removeprefix("-")

    @property
    def is_reversed(self) -> bool:
        return self.params.get("sort", "").startswith("-")

    def arranged(self, rows: Iterable[Item], value: Callable[[Item], Value]) -> list[Item]:
        """Sort by these values: numbers in descending order, strings in ascending order."""
        return sorted(rows, key=lambda row: _rank(value(row)), reverse=self.is_reversed)


def _rank(value: Value) -> tuple[bool, float, str]:
    return (True, 0.0, value.casefold()) if isinstance(value, str) else (False, -value, "")


def slug(title: str) -> str:
    """Return the form of a title used in URLs: `In-Flight` becomes `in_flight`."""
    return "_".join("".join(each if each.isalnum() else " " for each in title.lower()).split())
