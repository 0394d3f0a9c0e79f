"""``python -m replay.cli``: the same as ``moereplay``."""

from replay.cli import main

main()
