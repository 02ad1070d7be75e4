"""Long lists in pages of rows, so that a page stays small even with thousands of topics. Pure."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from nsqcy.nsqadmin.html.location import Location

ROWS = 500  # per page

Row = TypeVar("Row")


class Part(NamedTuple, Generic[Row]):
    """The rows of a page, its number, and the number of the last page."""

    rows: Sequence[Row]
    page: int
    last: int


def part(location: Location, rows: Sequence[Row]) -> Part[Row]:
    """Return the rows of the page that the location requests, or of the nearest page."""
    last = max(1, -(-len(rows) // ROWS))
    wanted = location.params.get("page", "")
    page = min(max(1, int(wanted)) if wanted.isdecimal() and len(wanted) < 9 else 1, last)
    return Part(rows[(page - 1) * ROWS : page * ROWS], page, last)
