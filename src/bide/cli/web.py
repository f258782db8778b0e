"""`bide web`: the page, served from here."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import click

from bide.cli.options import queues_option, read_address, server_options
from bide.cli.screen import echo
from bide.errors import UsageError

EXTRA = "The page needs `pip install 'bide[web]'`."


@click.command()
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    default="127.0.0.1:8484",
    show_default=True,
    help="Where; 0 for any free port. Other machines are served only if tokens are set.",
)
@click.option(
    "--operator",
    is_flag=True,
    help="Whoever is at this machine may change things too, where no token is set.",
)
@queues_option("Show only this queue; again for more.")
@server_options
def web(
    listen: str, operator: bool, queues: tuple[str, ...], url: str | None, prefix: str | None
) -> None:
    """Serve the page: what is due when, queues, jobs, workers.

    Without tokens it can only be read, and only at this machine. $BIDE_WEB_VIEWER_TOKEN lets those
    in who have it, $BIDE_WEB_OPERATOR_TOKEN lets them change things too; a browser asks for a user,
    whose name does not matter, and the password, which is the token.
    """
    try:
        from bide.web.application import app, credentials_are_set
        from bide.web.serving import serve
    except ModuleNotFoundError as error:
        if error.name not in ("uvicorn", "starlette", "jinja2", "markupsafe"):
            raise
        raise UsageError(EXTRA) from None

    host, port = read_address(listen if ":" in listen else f"127.0.0.1:{listen}", "--listen")
    if not credentials_are_set() and not _is_loopback(host):
        raise UsageError(
            f"--listen {listen} would let other machines in, and no token is set; set "
            "$BIDE_WEB_VIEWER_TOKEN or $BIDE_WEB_OPERATOR_TOKEN, or listen on 127.0.0.1."
        )
    page = app(
        url=url,
        prefix=prefix,
        queues=queues or None,
        local_role="operator" if operator else "viewer",
    )
    with _listening(host, port) as listener:
        at, number = listener.getsockname()[:2]
        shown = f"[{at}]" if ":" in at else at
        echo(f"The page is at http://{shown}:{number}/ (Ctrl-C ends it).")
        serve(page, listener)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before anybody is told that it does.

    Raises:
        UsageError: it cannot.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except (OSError, TypeError) as error:  # the latter: what is no host's name
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--listen {host}:{port} cannot be had ({why}); give another port, or 0 for "
            "any that is free."
        ) from None
