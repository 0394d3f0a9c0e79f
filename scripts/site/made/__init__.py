"""What the site makes from the project: documents, references, pictures, lists of pages.

Each module here has ``pages()``, which yields files of the site's source. Nothing that a page of
these says is written by hand, beside what it says about itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
"""The repository."""

HERE = Path(__file__).parents[1]
"""The folder of the site: its settings, its own pages, and this package."""


class Made(NamedTuple):
    """A file of the site's source.

    Attributes
    ----------
    path
        Where it stands, relative to the root of the site, with ``/``.
    text
        What is in it; bytes of a picture.
    """

    path: str
    text: str | bytes

    @property
    def data(self) -> bytes:
        """What is in it, as a file has it."""
        return self.text if isinstance(self.text, bytes) else self.text.encode()
