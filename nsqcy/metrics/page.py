"""The tables of metrics in docs/METRICS.md, which `make conf` writes."""

import sys
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path

from nsqcy.metrics.families import OF_NSQADMIN, OF_NSQD, OF_NSQLOOKUPD, Family

TABLES = {"nsqd": OF_NSQD, "nsqlookupd": OF_NSQLOOKUPD, "nsqadmin": OF_NSQADMIN}


def table(families: Sequence[Family]) -> str:
    """A row for each."""
    rows = ["| metric | kind | labels | what |", "| --- | --- | --- | --- |"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{family.sample}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(rows) + "\n"


def rewritten(page: str) -> str:
    """A page with the tables that there are now, each behind `<!-- metrics of NAME -->`."""
    for name, families in TABLES.items():
        mark = f"<!-- metrics of {name} -->\n"
        before, _, behind = page.partition(mark)
        rest = dropwhile(lambda line: line.startswith("|"), behind.splitlines(keepends=True))
        page = before + mark + table(families) + "".join(rest)
    return page


if __name__ == "__main__":
    PAGE = Path(sys.argv[1])
    PAGE.write_text(rewritten(PAGE.read_text()))
