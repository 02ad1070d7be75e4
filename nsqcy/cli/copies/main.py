"""The subcommands of `nsqcy copies`.

Exit codes:

    0  success: every group has all of its copies, or the group was changed
    1  something is at risk, or the group was not changed
    2  invalid command line
"""

import click

from nsqcy.cli.copies.force import force
from nsqcy.cli.copies.repair import repair
from nsqcy.cli.copies.status import status
from nsqcy.config.commands import Commands


@click.group(cls=Commands)
def copies() -> None:
    """Show and repair topics with copies."""


copies.add_command(status)
copies.add_command(force)
copies.add_command(repair)
