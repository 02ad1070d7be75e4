"""The subcommands of `nsqcy copies`.

Exit codes:

    0  success: every group has all of its copies, or the group was changed
    1  something is at risk, or the group was not changed
    2  invalid command line
"""

from collections.abc import Sequence

from nsqcy.cli.copies import force, repair, status
from nsqcy.config import loader
from nsqcy.errors import Stop
from nsqcy.logging.logger import write
from nsqcy.util.standard_streams import show

USAGE = """\
Usage: nsqcy copies COMMAND

  status [FLAGS]       show the groups of topics with copies, and what is at risk (--help)
  force GROUP [FLAGS]  give up lost copies of a group that no node can own (--help)
  repair DATA_PATH     accept an etcd that was restored from a backup (--help)
"""


def main(words: Sequence[str]) -> int:
    """Run a command; return the exit code."""
    try:
        match words:
            case ["-h" | "-help" | "--help"]:
                show(USAGE)
            case ["status", *flags]:
                return status.run(flags)
            case ["force", *rest]:
                return force.run(rest)
            case ["repair", *rest]:
                return repair.run(rest)
            case _:
                what = f"unknown command: copies {' '.join(words)}\n" if words else ""
                write(2, what + USAGE)
                return 2
    except Stop as stop:
        return loader.report(stop, "nsqcy copies")
    return 0
