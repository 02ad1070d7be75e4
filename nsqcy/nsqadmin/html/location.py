"""Where a page is, and how its user wants to see it: what its links keep. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

Item = TypeVar("Item")
Value = float | str

# Part of a name, a column to sort by, how far plots go back. A page and a question are not kept.
_KEPT = ("q", "sort", "range")


@dataclass(frozen=True)
class Location:
    path: str
    params: Mapping[str, str]

    def link(self, **changes: str) -> str:
        """To the same page with something else in its query; what is empty is left out."""
        query = {name: self.params[name] for name in _KEPT if name in self.params} | changes
        given = {name: value for name, value in query.items() if value}
        return f"{self.path}?{urlencode(given)}" if given else self.path

    # In which order: `sort=depth`, and `sort=-depth` for the other way round.

    @property
    def sorted_by(self) -> str:
        return self.params.get("sort", "").removeprefix("-")

    @property
    def is_reversed(self) -> bool:
        return self.params.get("sort", "").startswith("-")

    def arranged(self, rows: Iterable[Item], value: Callable[[Item], Value]) -> list[Item]:
        """By these values: the greatest number first, texts from a to z."""
        return sorted(rows, key=lambda row: _rank(value(row)), reverse=self.is_reversed)


def _rank(value: Value) -> tuple[bool, float, str]:
    return (True, 0.0, value.casefold()) if isinstance(value, str) else (False, -value, "")


def slug(title: str) -> str:
    """`In-Flight` in a URL: `in_flight`."""
    return "_".join("".join(each if each.isalnum() else " " for each in title.lower()).split())
