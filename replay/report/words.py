"""The words that stand over columns and beside bars, each explained in one line.

The table in the terminal, the report and the documentation show the same lines.
"""

from __future__ import annotations

WORDS: dict[str, str] = {
    "speed-up": "the baseline's time over this one",
    "exposed": "communication and waiting that no computation hides; mean over the GPUs",
    "bound": "a time that no schedule of this work can beat",
    "bound/time": "how much of the time the bound explains",
    "binds": "the resource that is busy for the largest share of the time, and that share",
    "compute": "work on a GPU's own data: products, activations, permutes",
    "serialisation": "a message on a port, for as long as its bytes take there",
    "copying": "what SMs and memory do for rows that travel",
    "overhead": "launches, barriers, flags and waits of hosts",
    "queueing": "waiting for a resource that serves others",
    "latency": "a message on its way, with no resource busy for it",
    "credits": "waiting for room in a buffer",
}
"""One line for each word."""


def says(word: str) -> str:
    """The line that explains a word."""
    return WORDS[word]
