"""Every command of `replay`, put together with those of the other packages.

`app` holds the commands and says how they end; one module per command holds what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run ``moereplay``; see `replay.cli.app.main`."""
    from replay.cli.app import main as carry_out

    carry_out(argv)
