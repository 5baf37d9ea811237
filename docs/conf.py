"""Sphinx: the documentation site, built by `make docs`.

Pages are generated before each build, in `_generated`: the fields of a specification from its JSON
Schema, the help of all commands, the Python API from docstrings, the HTTP API from its OpenAPI
document, the notebooks with their outputs, and copies of pages that are elsewhere.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from pygments.lexers.special import TextLexer
from reference import link_generated, write_reference

project = "Tacit"
author = "The Tacit developers"
copyright = author  # noqa: A001 - the name that Sphinx expects
release = version = installed_version("tacit")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
exclude_patterns = ["conftest.py", "results/*.md", "notebooks/*"]
suppress_warnings = ["myst.xref_missing_download"]

html_theme = "furo"
html_title = "Tacit"
html_static_path = ["_static"]
html_css_files = ["tacit.css"]
html_show_sourcelink = False
html_theme_options: dict[str, Any] = {
    "light_css_variables": {"color-brand-primary": "#0f5c7a", "color-brand-content": "#0f5c7a"},
    "dark_css_variables": {"color-brand-primary": "#7cc7e0", "color-brand-content": "#7cc7e0"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "friendly"
pygments_dark_style = "github-dark"

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

linkcheck_ignore = [r"http://localhost.*", r"https://example\.com.*"]


def setup(app: Any) -> None:
    """Generate pages when a build starts; link to what they show as pages of the site."""
    app.add_lexer("csv", TextLexer)
    app.connect("builder-inited", lambda _: write_reference(Path(__file__).parent / "_generated"))
    app.connect("source-read", _link_pages)


def _link_pages(_: Any, page: str, source: list[str]) -> None:
    folder = "" if page.startswith("_generated/") else "_generated/"
    source[0] = link_generated(source[0], folder)
