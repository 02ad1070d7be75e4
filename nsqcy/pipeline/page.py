"""The tables of options in docs/PIPELINE.md, which `make conf` writes."""

import sys
from itertools import dropwhile
from pathlib import Path

from nsqcy.pipeline.__main__ import COMMON_TABLES, JOBS, load
from nsqcy.pipeline.options import Table, documentation


def tables() -> dict[str, Table]:
    """What is shared, and for each job what is its own."""
    shared = {option.flag for table in COMMON_TABLES.values() for option in table}
    own = {name: [each for each in load(name).OPTIONS if each.flag not in shared] for name in JOBS}
    return COMMON_TABLES | own


def rewritten(page: str) -> str:
    """A page with the tables that there are now, each behind `<!-- options of NAME -->`."""
    for name, table in tables().items():
        mark = f"<!-- options of {name} -->\n"
        before, found, behind = page.partition(mark)
        if found:
            lines = behind.splitlines(keepends=True)
            rest = dropwhile(lambda line: line.startswith("|"), lines)
            page = before + mark + documentation(table) + "".join(rest)
    return page


if __name__ == "__main__":
    PAGE = Path(sys.argv[1])
    PAGE.write_text(rewritten(PAGE.read_text()))
