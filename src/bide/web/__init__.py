"""The page: what is going to happen, what has, and why; for people, and as JSON.

`app` makes an ASGI application, which stands alone (`bide web`) or in another. HTML and SVG are
rendered here and can be read without scripts; small modules keep a page live.

    pages.py        what `bide.views` reads, as HTML
    application.py  the same as JSON, the addresses, and a server for it alone
    actions.py      what an operator may change; selection.py: which jobs a form means
    access.py       who may see and who may change; what a browser may do with a page
    live.py         tells browsers that something has changed
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
"""What needs the extra; `bide top` does without."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "jinja2", "markupsafe"):
            raise
        raise ImportError(
            "bide.web needs Starlette and Jinja: run `pip install 'bide[web]'`."
        ) from error
