"""`nsqcy version`."""

import click

from nsqcy import NSQ_VERSION, __version__


@click.command()
def version() -> None:
    """Print the versions of nsqcy and of the NSQ release that it is compatible with."""
    click.echo(f"nsqcy {__version__} (compatible with NSQ {NSQ_VERSION})")
