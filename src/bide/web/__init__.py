"""The dashboard: queues, jobs, schedules and workers as HTML pages and as JSON.

`app` returns an ASGI application, which runs alone (`bide web`) or mounted in another. HTML and SVG
are rendered here and can be read without scripts; small JavaScript modules update a page.

    pages.py        the data of `bide.views` as HTML
    application.py  the data as JSON, the routes, live updates, and a server
    actions.py      the changes of operators; selection.py: the jobs that a form selects
    access.py       authentication, roles, and the headers for browsers
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bide.queue.select import Mask
from bide.views.job import mask_secrets

if TYPE_CHECKING:
    from bide.web.access import Role
    from bide.web.application import app

__all__ = ["Mask", "Role", "app", "mask_secrets"]

_LATE = {"app": "bide.web.application", "Role": "bide.web.access"}
"""The names that need the extra `web`; `bide top` does not need it."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        needed = ("starlette", "uvicorn", "jinja2", "markupsafe")
        if (error.name or "").partition(".")[0] not in needed:
            raise
        raise ImportError(
            "bide.web needs Starlette, uvicorn and Jinja: run `pip install 'bide[web]'`."
        ) from error
