"""``python -m replay.cli``: the same as ``moereplay``."""

from replay.cli.app import main

main()
