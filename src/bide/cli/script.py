"""`bide script`: the text of a script, for programs in other languages."""

from __future__ import annotations

import click

from bide.cli.options import complete_queues, json_option, server_options
from bide.cli.screen import echo, echo_json
from bide.connection import resolve_prefix
from bide.errors import UsageError
from bide.keys import keys_of
from bide.script import load

SCRIPTS = ("enqueue",)
"""Those that other programs may call: docs/reference/wire.md says what of them stays as it is."""


@click.command()
@click.argument("name", type=click.Choice(SCRIPTS))
@click.option("--keys", "only_keys", is_flag=True, help="Print the keys of QUEUE, one a line.")
@click.option("--sha", "only_sha", is_flag=True, help="Print what EVALSHA calls it by.")
@click.option("-q", "--queue", metavar="QUEUE", shell_complete=complete_queues, help="Whose keys.")
@server_options
@json_option
def script(
    name: str,
    only_keys: bool,
    only_sha: bool,
    queue: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Print the Lua of a script, for other languages to call.

    It is printed as bide sends it: EVAL and SCRIPT LOAD take it as it is. Asks no server.
    """
    if only_keys + only_sha + as_json > 1:
        raise UsageError("Give one of --keys, --sha and --json.")
    if (only_keys or as_json) and queue is None:
        raise UsageError("Keys are those of a queue; name it with --queue.")
    if queue is not None and not (only_keys or as_json):
        raise UsageError("The text is the same for all queues; with --queue goes --keys or --json.")
    found = load(name)
    if only_sha:
        echo(found.sha)
    elif queue is None:
        click.echo(found.text, nl=False)
    else:
        keys = keys_of(queue, resolve_prefix(prefix)).of(found.keys)
        if as_json:
            echo_json({"name": name, "sha": found.sha, "keys": list(keys), "text": found.text})
        else:
            for key in keys:
                echo(key)
