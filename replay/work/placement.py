"""Placements: the rank that hosts each expert."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replay.errors import UserError, unknown
from replay.work.ragged import places

KINDS = ("contiguous", "round-robin", "random", "file")


@dataclass(frozen=True)
class Placement:
    """The rank of every expert of one layer.

    Attributes
    ----------
    expert_rank
        int32 (expert,): the rank that hosts the expert.
    num_ranks
        Number of ranks in the expert-parallel group; ranks without an expert are allowed.
    description
        Specification that it was made from, for the result's provenance.
    """

    expert_rank: npt.NDArray[np.int32]
    num_ranks: int
    description: str

    @property
    def num_experts(self) -> int:
        """Number of logical experts placed."""
        return len(self.expert_rank)

    def local_index(self) -> npt.NDArray[np.int32]:
        """int32 (expert,): position of each expert among the experts of its rank."""
        order = np.argsort(self.expert_rank, kind="stable")
        counts = np.bincount(self.expert_rank, minlength=self.num_ranks)
        local = np.empty(self.num_experts, np.int32)
        local[order] = places(counts)
        return local


def place(spec: str, num_experts: int, num_ranks: int, layer: int = 0) -> Placement:
    """Place the experts of one layer.

    Parameters
    ----------
    spec
        ``"contiguous"`` (expert e on rank floor(e N / E)), ``"round-robin"`` (e mod N),
        ``"random"`` or ``"random:SEED"`` (an even deal of the experts, drawn anew for each
        layer), or ``"file:PATH"``: JSON holding ``[rank of expert 0, ...]`` or one such list per
        MoE layer.
    num_experts, num_ranks
        Numbers E and N of experts and ranks.
    layer
        Position of the MoE layer, for placements that differ between layers.

    Raises
    ------
    UserError
        If the specification is unknown, or a file does not give a valid rank for every expert.
    """
    check_placement(spec)
    kind, _, argument = spec.partition(":")
    experts = np.arange(num_experts, dtype=np.int64)
    if kind == "contiguous":
        ranks = experts * num_ranks // num_experts
    elif kind == "round-robin":
        ranks = experts % num_ranks
    elif kind == "random":
        ranks = _random(_seed(argument), num_experts, num_ranks, layer)
    else:
        ranks = _from_file(Path(argument), num_experts, num_ranks, layer)
    return Placement(ranks.astype(np.int32), num_ranks, spec)


def check_placement(spec: str) -> None:
    """Refuse a specification that `place` does not know; a file is not looked at.

    Raises
    ------
    UserError
        Saying what is possible.
    """
    kind, _, argument = spec.partition(":")
    if kind == "random":
        _seed(argument)
    elif kind != "file" and (argument or kind not in KINDS):
        raise unknown("placement", spec, (*KINDS[:2], "random:SEED", "file:PATH"))


def identify(spec: str) -> str:
    """Specification as a result records it; that of a file has the hash of the file's content.

    Raises
    ------
    UserError
        If the file cannot be read.
    """
    kind, _, argument = spec.partition(":")
    if kind != "file":
        return spec
    try:
        content = Path(argument).read_bytes()
    except (OSError, ValueError) as error:
        message = f"placement file {argument}: {error}"
        raise UserError(message) from None
    return f"{spec} (SHA-256 {hashlib.sha256(content).hexdigest()})"


def _seed(text: str) -> int:
    try:
        entropy = int(text or "0")
        if entropy < 0:
            raise ValueError
    except ValueError:
        message = f"placement 'random:{text}': the seed must be a non-negative integer"
        raise UserError(message) from None
    return entropy


def _random(entropy: int, num_experts: int, num_ranks: int, layer: int) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(layer,)))
    even = np.arange(num_experts, dtype=np.int64) * num_ranks // num_experts
    return rng.permutation(even)


def _from_file(path: Path, num_experts: int, num_ranks: int, layer: int) -> npt.NDArray[np.int64]:
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        message = f"placement file {path}: {error.strerror}"
        raise UserError(message) from None
    except (ValueError, RecursionError) as error:
        message = f"placement file {path} is not JSON: {error}"
        raise UserError(message) from None
    rows = data if isinstance(data, list) else None
    if rows and isinstance(rows[0], list):
        if layer >= len(rows):
            message = f"placement file {path} has {len(rows)} layers; layer {layer} was asked for"
            raise UserError(message)
        rows = rows[layer]
    if (
        not isinstance(rows, list)
        or len(rows) != num_experts
        or not all(type(rank) is int and 0 <= rank < num_ranks for rank in rows)
    ):
        message = (
            f"placement file {path}: expected a list of {num_experts} ranks in 0..{num_ranks - 1}"
            ", or one such list per MoE layer"
        )
        raise UserError(message)
    return np.array(rows, dtype=np.int64)
