"""How Sphinx makes the site: `make docs` writes it to build/docs, without any network."""

from __future__ import annotations

from typing import Any

from bide.version import VERSION

project = "bide"
author = "the bide authors"
project_copyright = "the bide authors"
version = release = VERSION

extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
source_suffix = {".md": "markdown"}

# Links between pages are those of the files, so that they work where the files are read as well.
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

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
    """Name the blocks that show what was printed."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("output", TextLexer)
