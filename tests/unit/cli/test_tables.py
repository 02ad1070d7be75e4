"""Tables and numbers for a terminal."""

import click

from nsqcy.cli import tables


def test_columns_are_as_wide_as_their_cells_without_colours() -> None:
    rows = [[click.style("a", fg="red"), "1,000"], ["bcd", "2"]]
    text = click.unstyle(tables.table(["x", "n"], rows, right="n"))
    assert text == "x        n\na    1,000\nbcd      2\n"


def test_numbers() -> None:
    assert [tables.number(each) for each in (0, 0.5, 3, 12.6, 1234567)] == [
        "0",
        "0.5",
        "3",
        "13",
        "1,234,567",
    ]
    assert [tables.plural(each, "nsqd") for each in (0, 1, 2)] == ["0 nsqds", "1 nsqd", "2 nsqds"]
