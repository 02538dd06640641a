"""Configuration of Sphinx for the documentation site. tools/docs_site.py writes its pages."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import agentrl_cli

project = "agentrl"
author = "The agentrl developers"
copyright = f"{author}, Apache-2.0"
version = release = agentrl_cli.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
nb_execution_mode = "off"  # the outputs of notebooks are stored in them
myst_enable_extensions = ["attrs_block"]  # {.settings} before a table
myst_heading_anchors = 4
default_role = "code"  # `name` in docstrings
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 80
suppress_warnings = ["ref.python"]  # short names in signatures: more than one class is named Run

html_theme = "pydata_sphinx_theme"
html_title = f"agentrl {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_nav_level": 2,
}


def setup(app: Any) -> None:
    def without_settings(_: Any, what: str, __: str, documented: Any, *___: Any) -> Any:
        """Leave the parameters of components out, which the pages of settings list."""
        is_component = what == "class" and is_dataclass(documented)
        return ("", None) if is_component and hasattr(documented, "__abstractmethods__") else None

    app.connect("autodoc-process-signature", without_settings)
