"""Whole traces: each of many steps replayed by itself, under one or several schemes.

`steps` says which steps are replayed, `task` is the replay of one of them,
`replay` has a crew carry them out, and keeps what is finished in a folder.
"""
