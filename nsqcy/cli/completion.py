"""`nsqcy completion`: prints a script that completes commands, options and names in a shell."""

import click
from click.shell_completion import get_completion_class

from nsqcy.cli.main import group

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_NSQCY_COMPLETE"  # the script runs nsqcy with this variable


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL: bash, zsh or fish.

    \b
      bash: nsqcy completion bash > ~/.local/share/bash-completion/completions/nsqcy
      zsh:  nsqcy completion zsh > ~/.zfunc/_nsqcy      (with ~/.zfunc in fpath)
      fish: nsqcy completion fish > ~/.config/fish/completions/nsqcy.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(group, {}, "nsqcy", VARIABLE).source())
