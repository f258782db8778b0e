"""The groups of a queue, a piece of them at a time: there may be millions."""

from __future__ import annotations

from typing import Any

from bide.cli.screen import moment_json
from bide.clock import from_us
from bide.errors import UsageError
from bide.ops import groups as ops
from bide.ops.groups import BEGIN, Page
from bide.web.asked import Asked
from bide.web.site import Site


async def groups(site: Site, asked: Asked) -> dict[str, Any]:
    """Some of the groups of `q`, those with most jobs first; from `after` on.

    Raises:
        NotFound: there is no queue `q`.
        UsageError: `q` is not given, or `after` is none that was told.
    """
    queue = await site.one(asked.text("q"))
    after = asked.text("after") or BEGIN
    if not (after.isascii() and after.isdecimal()) or len(after) > 20:
        raise UsageError(f"after={after[:60]!r} is no place among groups; leave it out to begin.")
    return {"name": queue, **piece(await site.client.run(ops.page(site.keys(queue), after)))}


def piece(page: Page) -> dict[str, Any]:
    """Groups as the page and the API have them."""
    found = sorted(page.groups, key=lambda one: (-one.delayed - one.waiting - one.active, one.name))
    listed = {
        one.name: one._asdict() | {"next": moment_json(from_us(page.turns[one.name]))}
        if one.name in page.turns
        else one._asdict() | {"next": None}
        for one in found
    }
    return {
        "now": moment_json(from_us(page.now_us)),
        "groups": list(listed.values()),
        "next": None if page.cursor == BEGIN else page.cursor,
    }
