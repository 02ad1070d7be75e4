"""`nsqcy version`."""

import click

from nsqcy import NSQ_VERSION, __version__
from nsqcy.commit import commit


@click.command()
def version() -> None:
    """Print the version and commit of nsqcy, and the NSQ release that it is compatible with."""
    click.echo(f"nsqcy {__version__}, commit {commit()} (compatible with NSQ {NSQ_VERSION})")
