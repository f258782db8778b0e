"""The page: what is going to happen, what has, and why; for people, and as JSON.

`app` makes an ASGI application, which stands alone (`bide web`) or in another. HTML and SVG are
rendered here and can be read without scripts; small modules keep a page live.

    reads/       what is shown, as plain values: functions from a site and what was asked for
    pages.py     the same values as HTML; api.py: as JSON
    actions.py   what an operator may change
    access.py    who may see and who may change; what a browser may do with a page
    live.py      tells browsers that something has changed
"""

from bide.web.access import Role
from bide.web.app import app
from bide.web.masking import Mask, mask_secrets

__all__ = ["Mask", "Role", "app", "mask_secrets"]
