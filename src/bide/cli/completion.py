"""`bide completion`: scripts by which a shell completes commands, options and queues."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(bide completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(bide completion zsh)"   in ~/.zshrc',
    "fish": "bide completion fish > ~/.config/fish/completions/bide.fish",
}


@click.command(
    epilog="\b\n" + "\n".join(_HOW.values()),
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets your shell complete commands."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "bide", "_BIDE_COMPLETE").source())
