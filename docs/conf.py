"""How Sphinx makes the site: `make docs` writes it to build/docs, without any network."""

from __future__ import annotations

from typing import Any

from bide.version import VERSION

project = "bide"
author = "the bide authors"
project_copyright = "the bide authors"
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py"]
source_suffix = {".md": "markdown"}

# Links between pages are those of the files, so that they work where the files are read as well.
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

# A name in single backticks is code, in docstrings as in Markdown.
default_role = "literal"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = f"bide {VERSION}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["bide.css"]
pygments_style = "default"
pygments_dark_style = "monokai"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5fa5", "color-brand-content": "#0b5fa5"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ff", "color-brand-content": "#7cc4ff"},
}


def setup(app: Any) -> None:
    """Name the blocks that show what was printed, and mend what autodoc makes of docstrings."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("output", TextLexer)
    app.connect("autodoc-process-docstring", _whole, priority=400)  # before napoleon's
    app.connect("autodoc-process-signature", _short)


def _whole(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon in the first line of a property for its type."""
    if what in ("attribute", "data", "property") and lines:
        lines[:0] = ["..", ""]  # a comment, in place of the line that is looked at


def _short(
    app: Any, what: str, name: str, obj: object, options: Any, signature: str | None, returns: str
) -> tuple[str | None, str]:
    """A duration by its name, which the reference explains, not by all that it may be."""
    spelled = "int | float | ~datetime.timedelta | str"
    return signature and signature.replace(spelled, "Duration"), returns
