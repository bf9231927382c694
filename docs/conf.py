"""Sphinx's settings of the manual. ``make docs`` writes the manual to out/docs, for use without a
network.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import generated_pages
from sphinx.application import Sphinx

project = "onernn"
author = "the onernn authors"
copyright = "the onernn authors, Apache-2.0"
version = release = metadata.version("onernn")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "sphinx_copybutton"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
nb_execution_mode = "off"  # the file of the notebook has its outputs; a test runs it
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
default_role = "py:obj"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"onernn {release}"
html_static_path = ["pictures"]
html_css_files = ["manual.css"]
html_js_files = ["manual.js"]
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a page under file:// may not fetch them
html_search_scorer = str(Path(__file__).with_name("search_order.js"))
templates_path: list[str] = []


def setup(app: Sphinx) -> None:
    generated_pages.write(Path(__file__).parent)
    app.connect("autodoc-process-docstring", _docstring)


def _docstring(app: Sphinx, *about: Any) -> None:
    lines: list[str] = about[-1]
    lines[:] = generated_pages.with_code_blocks(lines)
