"""Experts that an engine is told to choose: by request and position, and laid out for a batch."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers.files import integers, load_npz
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

FILE = "MOEREPLAY_FOLLOW"
"""Environment variable with the file of the plan."""
NAMED = re.compile(r"moereplay-(\d+)")
"""Part of a request's name that says which request of the plan it is."""
_POSITIONS = 2**32
"""More than a request has."""
log = logging.getLogger("moereplay.follow")


class RoutePlan:
    """Expert ids by request and position.

    Numbers beyond the plan wrap around: request r is taken for r modulo the plan's number of
    requests, and a position that its request lacks for one of its own likewise.

    Parameters
    ----------
    ids
        Integer (token, layer, k), none of them empty.
    request
        Integer (token,), any numbers; they are counted from 0 in their order.
    position
        Integer (token,); of tokens at the same position of a request, the first one counts.
    layers
        Decoder layer of each layer.

    Raises
    ------
    UserError
        If there is no row, or a row has fewer than k experts.
    """

    def __init__(self, ids: Array, request: Array, position: Array, layers: tuple[int, ...]) -> None:
        if not ids.size:
            msg = "the plan holds no row"
            raise UserError(msg)
        empty = int((ids < 0).any(axis=(1, 2)).sum())
        if empty:
            msg = (
                f"{empty} of {len(ids)} tokens have fewer than {ids.shape[2]} experts in some "
                "layer; a router of an engine always chooses as many"
            )
            raise UserError(msg)
        _, number = np.unique(request, return_inverse=True)
        keys = number.astype(np.int64) * _POSITIONS + position
        self._keys, first = np.unique(keys, return_index=True)
        self.ids = ids[first]
        self.layers = layers
        counts = np.bincount(self._keys // _POSITIONS)
        self._counts, self._starts = counts, np.cumsum(counts) - counts

    @classmethod
    def load(cls, path: Path) -> RoutePlan:
        """Read a file of ``trace export``.

        Parameters
        ----------
        path
            ``.npz`` with expert_ids, request, position and layers.

        Raises
        ------
        UserError
            If it is none.
        """
        arrays = load_npz(path)
        missing = {"expert_ids", "request", "position", "layers"} - set(arrays)
        if missing:
            msg = f"{path}: no {', '.join(sorted(missing))}; moereplay trace export writes such files"
            raise UserError(msg)
        ids = integers(arrays["expert_ids"], 3, f"{path}: expert_ids")
        request, position, layers = (
            integers(arrays[name], 1, f"{path}: {name}") for name in ("request", "position", "layers")
        )
        if not len(request) == len(position) == len(ids) or len(layers) != ids.shape[1]:
            msg = f"{path}: {ids.shape} ids, {len(request)} requests, {len(position)} positions"
            raise UserError(msg)
        if ((position < 0) | (position >= _POSITIONS)).any():
            msg = f"{path}: a position is not from 0 to {_POSITIONS - 1}"
            raise UserError(msg)
        return cls(ids, request, position, tuple(int(layer) for layer in layers))

    @property
    def num_requests(self) -> int:
        """Requests of the plan."""
        return self._counts.size

    @property
    def topk(self) -> int:
        """Experts of a token."""
        return int(self.ids.shape[2])

    def rows(self, request: Array, position: Array) -> tuple[Array, int]:
        """Experts of some tokens.

        Parameters
        ----------
        request, position
            Integer (token,).

        Returns
        -------
        Integer (token, layer, k), and how many tokens lie beyond the plan.
        """
        number = request % self.num_requests
        keys = number * _POSITIONS + position
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_own = (self._keys[place] == keys) & (number == request)
        known = self._keys[place] == keys
        round_again = self._starts[number] + position % self._counts[number]
        return self.ids[np.where(known, place, round_again)], int((~is_own).sum())


class PlanBuffer:
    """Experts of the rows of the pass that runs, at one place in an engine's memory.

    Its address never changes, so that CUDA graphs that read it read each pass's own rows. Rows
    without a request (warm-up, padding) are dealt experts in turn.

    Parameters
    ----------
    plan
        What is followed.
    max_tokens
        Rows of the largest pass.
    device
        Of torch.
    num_experts
        Of a layer of the model.
    topk
        Of the model.

    Raises
    ------
    UserError
        If the plan is of another model.
    """

    def __init__(self, plan: RoutePlan, max_tokens: int, device: Any, num_experts: int, topk: int) -> None:
        import torch

        highest = int(plan.ids.max())
        if plan.topk != topk or highest >= num_experts:
            msg = f"{FILE} has top-{plan.topk} up to expert {highest}, the model top-{topk} of {num_experts} experts"
            raise UserError(msg)
        self._plan, self._strays = plan, 0
        self._places = {layer: place for place, layer in enumerate(plan.layers)}
        turn = np.arange(max_tokens * topk).reshape(max_tokens, topk) % num_experts
        self._idle = np.tile(turn.astype(np.int32), (len(plan.layers), 1, 1))
        self._buffer = torch.from_numpy(self._idle.copy()).to(device)
        self._used = 0
        self._numbers: dict[str, int] = {}

    def fill(self, names: list[str], lengths: Array, position: Array) -> None:
        """Lay out the rows of a pass.

        Parameters
        ----------
        names
            The engine's name of each request of the pass. One with ``moereplay-N`` in it is
            request N of the plan; others are counted as they come.
        lengths
            Tokens of each, integer (request,).
        position
            Of each token, integer (token,).

        Raises
        ------
        UserError
            If the pass has more rows than the buffer.
        """
        import torch

        tokens = len(position)
        if tokens > self._idle.shape[1]:
            msg = f"a pass of {tokens} tokens; at most {self._idle.shape[1]} can follow {FILE}"
            raise UserError(msg)
        numbers = [self._number(name) for name in names]
        ids, strays = self._plan.rows(np.repeat(np.array(numbers, np.int64), lengths), position)
        if strays and not self._strays:
            log.warning(
                "%d tokens of a pass are not in the plan (%d requests): they follow others of it",
                strays,
                self._plan.num_requests,
            )
        self._strays += strays
        end = max(tokens, self._used)
        own = ids.astype(np.int32).transpose(1, 0, 2)
        rows = np.concatenate([own, self._idle[:, tokens:end]], axis=1)
        self._buffer[:, :end].copy_(torch.from_numpy(rows))
        self._used = tokens

    def of_layer(self, layer: int, rows: int) -> Any:
        """Experts of the first rows of the pass.

        Parameters
        ----------
        layer
            Decoder layer.
        rows
            As many as the router is called for.

        Returns
        -------
        Tensor of int32 (rows, k).

        Raises
        ------
        UserError
            If the plan does not have the layer, or a pass has no so many rows.
        """
        if layer not in self._places:
            msg = f"decoder layer {layer} routes, {FILE} has {_few(self._places)}"
            raise UserError(msg)
        if rows > self._idle.shape[1]:
            msg = (
                f"a router is called for {rows} rows, a pass of this process has at most "
                f"{self._idle.shape[1]}: rows of other ranks among them cannot follow {FILE}"
            )
            raise UserError(msg)
        return self._buffer[self._places[layer], :rows]

    def _number(self, name: str) -> int:
        """Request of the plan that a request of the engine is."""
        named = NAMED.search(name)
        return int(named[1]) if named else self._numbers.setdefault(name, len(self._numbers))


def _few(layers: Any) -> str:
    listed = list(layers)
    return ", ".join(map(str, listed[:8])) + (", ..." if len(listed) > 8 else "")
