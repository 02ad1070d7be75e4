"""The table of events in docs/LOGS.md, which `make conf` writes."""

import sys
from itertools import dropwhile
from pathlib import Path

from nsqcy.logging.events import EVENTS

MARK = "<!-- events -->\n"


def table() -> str:
    """A row for each."""
    rows = [
        "| event | level | of | text | fields | what |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for event in EVENTS:
        fields = ", ".join(f"`{field}`" for field in event.fields)
        row = (f"`{event.name}`", event.level, event.of, f"`{event.text}`", fields, event.told)
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows) + "\n"


def rewritten(page: str) -> str:
    """A page with the table that there is now, behind its mark."""
    before, _, behind = page.partition(MARK)
    rest = dropwhile(lambda line: line.startswith("|"), behind.splitlines(keepends=True))
    return before + MARK + table() + "".join(rest)


if __name__ == "__main__":
    PAGE = Path(sys.argv[1])
    PAGE.write_text(rewritten(PAGE.read_text()))
