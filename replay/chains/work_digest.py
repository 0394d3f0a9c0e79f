"""Digest of a layer's work: of layers with equal digests, one replay stands for all."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.model.work.layer import LayerWork

if TYPE_CHECKING:
    from replay.chains.chain import ChainLink
    from replay.model.machine.machine import Time

WORK = tuple(inspect.signature(LayerWork).parameters)
"""What a layer's work is made from; everything else follows from it."""


def digest_of(link: ChainLink, lead: Time) -> str:
    """SHA-256 of everything that decides what the replay of a layer by itself gives.

    Parameters
    ----------
    link
        The layer; which one it is does not count.
    lead
        By how much each host begins before its GPU.
    """
    digest = hashlib.sha256()
    parts = [batch.tokens for batch in link.micro_batches]
    for value in (link.work(), lead, link.trace_rows, parts, link.delays_ps):
        _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value with its type and length, so that no two values look alike."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, LayerWork):
        for name in WORK:
            _add(digest, getattr(value, name))
    elif dataclasses.is_dataclass(value):
        digest.update(type(value).__name__.encode())
        for field in dataclasses.fields(value):
            _add(digest, getattr(value, field.name))
    elif isinstance(value, list | tuple):
        digest.update(f"{type(value).__name__}{len(value)}".encode())
        for one in value:
            _add(digest, one)
    else:
        text = repr(value).encode()
        digest.update(f"{type(value).__name__}{len(text)}".encode() + text)
