"""Caches of a forward pass, recognised by use: objects that a pass fills and a later one is given.

Their argument has had several names (``past_key_values``, ``cache_params``, ``cache``), and their
classes are many. So every object that a pass is given or gives back, at whatever place, is looked
at: one whose tensors the pass changed, or that comes out of it with tensors, is a cache.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TENSORS = 8
"""So many tensors of a cache tell whether it was changed: what changes it changes every layer."""
DEPTH = 3
"""Objects within objects, from an argument or a result to a cache, and from a cache to tensors."""
ITEMS = 1024
"""Longest sequence that is searched: longer ones are data."""
PLAIN = (str, bytes, bool, int, float, complex, type(None))


def find(values: Iterable[Any]) -> list[Any]:
    """Objects that may be caches, each once.

    Parameters
    ----------
    values
        Arguments of a forward pass, or its results: also within tuples, dictionaries, data
        classes and other objects.
    """
    seen: set[int] = set()
    return [one for value in values for one in _objects(value, DEPTH, seen)]


def _objects(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Objects with attributes of their own within a value, itself included."""
    if isinstance(value, PLAIN) or _is_tensor(value) or callable(value) or id(value) in seen:
        return
    seen.add(id(value))
    if not _is_container(value):
        if not depth or not hasattr(value, "__dict__"):
            return
        yield value
        if hasattr(value, "get_seq_length"):
            return  # its layers say no more than it does
        depth -= 1
    for item in _items(value):
        yield from _objects(item, depth, seen)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "ndim") and hasattr(value, "dtype")


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and not hasattr(value, "get_seq_length")


def _items(value: Any) -> Iterable[Any]:
    """Values within a container or an object; none of one that is too long."""
    if isinstance(value, Mapping):
        return list(value.values())[:ITEMS]
    if isinstance(value, list | tuple):
        return value if len(value) <= ITEMS else ()
    return list(getattr(value, "__dict__", {}).values())


def length(cache: Any) -> int | None:
    """Columns that a cache holds; None if there is none, or it cannot say.

    Parameters
    ----------
    cache
        Object that a forward pass is given, or None.
    """
    get = getattr(cache, "get_seq_length", None)
    if get is not None:
        try:
            return int(get())
        except Exception:  # caches of linear attention have no length and say so in many ways
            pass
    # Those say at least whether they hold anything.
    holds = getattr(cache, "has_previous_state", None)
    if callable(holds):
        try:
            holds = holds()
        except Exception:  # the same, of one that no layer has filled yet
            return None
    return 0 if holds is False else None


def is_tuple_of_layers(value: Any, size: int) -> bool:
    """Tell whether a value is an old-style cache: a tuple of each layer's keys and values.

    Parameters
    ----------
    value
        Argument of a forward pass.
    size
        Sequences of the pass.
    """
    if not isinstance(value, tuple | list) or not value:
        return False
    return any(
        isinstance(layer, tuple)
        and len(layer) > 1
        and all(_is_tensor(t) and t.ndim > 2 and t.shape[0] == size for t in layer)
        for layer in value
    )


@dataclass(frozen=True)
class CacheState:
    """State of a cache at some time: enough to see that it was changed."""

    length: int | None
    tensors: list[tuple[weakref.ref[Any], int]]
    """The first of its tensors, and how often each had been changed in place."""

    @classmethod
    def of(cls, cache: Any) -> CacheState:
        """State of an object at this moment.

        Parameters
        ----------
        cache
            Any object.
        """
        tensors = []
        for tensor in _tensors(cache, DEPTH, set()):
            tensors.append((weakref.ref(tensor), _version(tensor)))
            if len(tensors) == TENSORS:
                break
        return cls(length(cache), tensors)

    def equals(self, other: CacheState) -> bool:
        """Tell whether nothing was changed between the two.

        Parameters
        ----------
        other
            State of the same object at another time.
        """
        return (
            self.length == other.length
            and len(self.tensors) == len(other.tensors)
            and all(
                a() is not None and a() is b() and was == now
                for (a, was), (b, now) in zip(self.tensors, other.tensors, strict=True)
            )
        )


def _version(tensor: Any) -> int:
    """Number of in-place changes of a tensor; 0 of one that does not count (inference mode)."""
    try:
        return int(tensor._version)
    except (RuntimeError, AttributeError):
        return 0


def _tensors(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Tensors that an object holds, as its attributes come."""
    if isinstance(value, PLAIN) or id(value) in seen:
        return
    seen.add(id(value))
    if _is_tensor(value):
        if hasattr(value, "detach"):
            yield value
        return
    if callable(value) or not depth:
        return
    for item in _items(value):
        yield from _tensors(item, depth - (not _is_container(value)), seen)


@dataclass(frozen=True)
class CacheArgument:
    """An object that a forward pass is given and that may be a cache."""

    cache: Any
    state: CacheState
    """Before the pass."""
    batch: Any
    """What it holds the beginning of; None if that is not known, or it was changed since."""

    @property
    def tells(self) -> bool:
        """Tell whether its content is known: its batch, or at least its number of columns."""
        return self.batch is not None or self.state.length is not None

    def changed(self) -> bool:
        """Tell whether the pass changed it."""
        return not self.state.equals(CacheState.of(self.cache))


class CacheLedger:
    """The batch that each cache holds, and the state in which its last pass left it.

    Caches are told apart by identity, and forgotten when nobody else holds them.

    Parameters
    ----------
    generate
        Whether it is of one call of generate, which may put its caches into other memory between
        its passes; there only their length tells that somebody changed them.
    """

    def __init__(self, *, generate: bool = False) -> None:
        self._generate = generate
        self._entries: dict[int, tuple[weakref.ref[Any], CacheState, Any]] = {}

    def __bool__(self) -> bool:
        """Tell whether a cache is known."""
        return bool(self._entries)

    def write(self, cache: Any, batch: Any) -> None:
        """Note that a pass has left its batch in a cache.

        Parameters
        ----------
        cache
            Any object.
        batch
            What it holds the beginning of.
        """
        key, entries, state = id(cache), self._entries, CacheState.of(cache)
        if not state.tensors:
            return  # it holds nothing

        def forget(_gone: weakref.ref[Any]) -> None:
            entries.pop(key, None)

        # What cannot be referred to cannot be known again; a cache within it can.
        with contextlib.suppress(TypeError):
            entries[key] = (weakref.ref(cache, forget), state, batch)

    def argument_of(self, cache: Any) -> CacheArgument:
        """An object as a pass is given it, with the batch that it holds if nobody changed it.

        Parameters
        ----------
        cache
            Any object.
        """
        state = CacheState.of(cache)
        entry = self._entries.get(id(cache))
        if entry is None or entry[0]() is not cache:
            return CacheArgument(cache, state, None)
        left = entry[1]
        same = left.length == state.length if self._generate else left.equals(state)
        return CacheArgument(cache, state, entry[2] if same else None)
