"""Settings of Sphinx. ``build.py`` beside this file calls it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from made import docstrings  # noqa: E402

project = "moereplay"
author = "the moereplay maintainers"
copyright = "the moereplay maintainers; Apache-2.0"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nitpicky = True
# Types in signatures are names of this project or of others; not every one of them has a page.
nitpick_ignore_regex = [(r"py:.*", r".*")]
suppress_warnings = ["ref.python"]  # likewise, where several have such a name
default_role = "code"
highlight_language = "none"  # a fence says its language; one that does not is shown as it is
smartquotes = False  # "--option" is no dash
toc_object_entries = False

myst_heading_anchors = 4  # the same anchors as a code host gives to headings
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
nb_execution_mode = "auto"  # notebooks are texts, and what their cells give is made anew
nb_execution_in_temp = True  # they write files
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # seconds for a cell; all take a few, but for the first use of a kernel
nb_merge_streams = True

autodoc_default_options = {"exclude-members": "model_config"}
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 70
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = "moereplay"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []


def setup(app: Sphinx) -> None:
    """Have docstrings rewritten before napoleon sees them."""
    app.connect("autodoc-process-docstring", docstrings.rewritten, priority=100)
    app.connect("autodoc-process-signature", docstrings.signed)
