"""Studies that come with the package: a TOML file each, and beside it the table that it gave.

``moereplay sweep NAME -o FOLDER`` replays one; its table is then ``FOLDER/table.md``.
"""
