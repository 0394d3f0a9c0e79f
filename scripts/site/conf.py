"""Settings of Sphinx. ``build.py`` beside this file calls it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for what is made while Sphinx runs

project = "moereplay"
author = "the moereplay maintainers"
copyright = "the moereplay maintainers; Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nitpicky = True
default_role = "code"
highlight_language = "none"  # a fence says its language; one that does not is shown as it is
smartquotes = False  # "--option" is no dash
toc_object_entries = False

myst_heading_anchors = 4  # the same anchors as a code host gives to headings
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
nb_execution_mode = "off"  # what a notebook shows was executed by the test that also compares it

html_theme = "furo"
html_title = "moereplay"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []
