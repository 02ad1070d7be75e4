"""Tables and numbers for a terminal.

Pure, except for the local time zone: returns text. Colours are ANSI sequences, which click.echo
removes when the output is not a terminal.
"""

from collections.abc import Sequence
from datetime import datetime

import click

from nsqcy.config.durations import SECOND
from nsqcy.names import one_line

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """Return columns that are as wide as their widest cells.

    right: the names of the columns to align to the right, separated by commas
    """
    aligned = set(right.split(","))
    widths = [
        max(len(click.unstyle(cell)) for cell in column) for column in zip(head, *rows, strict=True)
    ]

    def line(cells: Sequence[str]) -> str:
        shown = []
        for name, cell, width in zip(head, cells, widths, strict=True):
            padding = " " * (width - len(click.unstyle(cell)))
            shown.append(padding + cell if name in aligned else cell + padding)
        return "  ".join(shown).rstrip() + "\n"

    titles = line([click.style(name, bold=True) for name in head])
    return titles + "".join(line(row) for row in rows)


def plain(text: str) -> str:
    """Return untrusted text as one line without control characters."""
    return one_line(text)


def number(value: float) -> str:
    """Return a number with separators; a small number with a decimal."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 nsqd`, `2 nsqds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """Return a number of bytes with a unit."""
    value = float(count)
    for unit in UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {UNITS[-1]}"


def moment(nanoseconds: int | None) -> str:
    """Return nanoseconds since 1970 as a time in the local zone."""
    if nanoseconds is None:
        return "-"
    return datetime.fromtimestamp(nanoseconds / SECOND).strftime("%Y-%m-%d %H:%M:%S")


def yes(value: bool) -> str:
    return "yes" if value else ""
