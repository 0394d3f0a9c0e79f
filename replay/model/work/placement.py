"""Placements: the rank that hosts each expert, and experts that several ranks host.

`PLACEMENT.md` beside this file explains slots, replicas and the files that hold them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from replay.errors import UserError, check_kind, unknown
from replay.files import read_bytes
from replay.model.arrays import Ints
from replay.model.work import affinity, eplb
from replay.model.work.expert_maps import slots_of
from replay.model.work.map_arrays import WhichLayer
from replay.model.work.map_files import LARGEST_FILE, files_of, load_document

FITTED = ("eplb", "greedy", "affinity")
"""Placements that are computed from the loads of the layer's experts."""
PER_STEP = ("ultraep", "moonep")
"""Placements that are planned for the very rows of a layer; see `replay.model.work.step_plan`."""
PLACEMENTS = "text such as 'contiguous', or the Path of a map; an array of ranks is one once it is written as JSON"
"""The kinds of placements, in words."""
MOST_EXPERTS, MOST_RANKS, MOST_REPLICAS = 512, 72, 512
"""Of UltraEP's kernel, in one NVLink domain (``placement_quota_gpu.cu``)."""


@dataclass(frozen=True)
class Placement:
    """The rank of every expert of one layer.

    Attributes
    ----------
    expert_rank
        int32 (expert,): the rank that hosts the expert. Where experts have replicas, each replica
        counts as an expert of its own here: (slot,).
    num_ranks
        Number of ranks in the expert-parallel group; ranks without an expert are allowed.
    description
        Specification that it was made from, for the result's provenance.
    logical
        int64 (slot,): expert of the model that each slot holds, -1 for an empty one; None where
        slot s holds expert s.
    """

    expert_rank: npt.NDArray[np.int32]
    num_ranks: int
    description: str
    logical: Ints | None = None

    @property
    def num_experts(self) -> int:
        """Number of experts placed, replicas counted."""
        return len(self.expert_rank)

    @cached_property
    def num_logical(self) -> int:
        """Number of the model's experts."""
        return self.num_experts if self.logical is None else int(self.logical.max(initial=-1)) + 1

    @property
    def has_replicas(self) -> bool:
        """Tell whether any expert has more than one slot."""
        return self.num_logical < self.num_experts


def place(
    spec: str,
    num_experts: int,
    num_ranks: int,
    layer: int | WhichLayer = 0,
    *,
    loads: Ints | None = None,
    together: Ints | None = None,
    num_groups: int = 1,
) -> Placement:
    """Place the experts of one layer.

    Parameters
    ----------
    spec
        ``"contiguous"`` (expert e on rank floor(e N / E)), ``"round-robin"`` (e mod N),
        ``"random"`` or ``"random:SEED"`` (an even deal of the experts, drawn anew for each layer),
        ``"eplb:SLOTS"``, ``"eplb:SLOTS:NODES"`` or ``"greedy:SLOTS"`` (see
        `replay.model.work.eplb`; as many slots as experts where no number is given),
        ``"affinity:SLOTS:NODES"`` (see `replay.model.work.affinity`), ``"trivial:SLOTS"`` (slot s
        holds expert s mod E, as SGLang and vLLM begin), ``"ultraep:SLOTS"`` or ``"moonep"``
        (`with_reserved`), or ``"file:PATH"``: a map in a format of `replay.model.work.expert_maps`.
    num_experts, num_ranks
        Numbers E and N of experts and ranks.
    layer
        Position of the MoE layer, for placements that differ between layers; a file may need
        more of `WhichLayer`.
    loads
        (expert,): rows of each expert, for placements that are computed from them.
    together
        (expert, expert): how often tokens choose two experts, for ``affinity``.
    num_groups
        Groups of experts that the model's router chooses from, for ``eplb`` with nodes.

    Raises
    ------
    UserError
        If the specification is unknown, needs loads and has none, or a file does not place every
        expert.
    """
    check_placement(spec)
    which = layer if isinstance(layer, WhichLayer) else WhichLayer(layer, layer)
    kind, _, argument = spec.partition(":")
    experts = np.arange(num_experts, dtype=np.int64)
    if kind in FITTED:
        slots, nodes = _slots_and_nodes(spec, argument)
        found = fit_placement(
            kind,
            _known_loads(spec, loads),
            slots or num_experts,
            num_ranks,
            num_nodes=nodes,
            num_groups=num_groups,
            together=together,
        )
        return Placement(found.expert_rank, num_ranks, spec, found.logical)
    if kind == "trivial":
        num_slots = _number(spec, argument) or num_experts
        eplb.check_slots(num_slots, num_experts, num_ranks)
        every = np.arange(num_slots, dtype=np.int64)
        ranks = every * num_ranks // num_slots
        return Placement(ranks.astype(np.int32), num_ranks, spec, every % num_experts)
    if kind in PER_STEP:
        return with_reserved(spec, num_experts, num_ranks)
    if kind == "file":
        return _from_file(spec, Path(argument), num_experts, num_ranks, which)
    if kind == "contiguous":
        ranks = experts * num_ranks // num_experts
    elif kind == "round-robin":
        ranks = experts % num_ranks
    else:
        ranks = _random(_seed(argument), num_experts, num_ranks, which.position)
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
    elif kind in FITTED:
        _slots_and_nodes(spec, argument)
    elif kind in ("ultraep", "trivial"):
        _number(spec, argument)
    elif kind != "file" and spec not in ("contiguous", "round-robin", "moonep"):
        known = ("contiguous", "round-robin", "random:SEED", "eplb:SLOTS", "greedy:SLOTS")
        more = ("eplb:SLOTS:NODES", "affinity:SLOTS:NODES", "trivial:SLOTS", "ultraep:SLOTS")
        raise unknown("placement", spec, (*known, *more, "moonep", "file:PATH"))


def placement_name(given: str | Path) -> str:
    """Give a placement as text; a `Path` is that of a map.

    Raises
    ------
    UserError
        If it is something else, or a text that `place` does not know.
    """
    check_kind("placement", given, (str, Path), PLACEMENTS)
    name = f"file:{given}" if isinstance(given, Path) else given
    check_placement(name)
    return name


def with_reserved(spec: str, num_experts: int, num_ranks: int) -> Placement:
    """Place experts as ``contiguous`` does, with empty slots for replicas behind them on each GPU.

    Parameters
    ----------
    spec
        ``"ultraep:SLOTS"`` or ``"moonep"``. The second, and the first without a number, have one slot
        for a replica beside every expert.

    Raises
    ------
    UserError
        If the numbers do not divide, or are more than the planner's kernel has room for.
    """
    kind, _, argument = spec.partition(":")
    if num_experts % num_ranks:
        message = f"placement {spec!r}: {num_ranks} GPUs do not divide {num_experts} experts"
        raise UserError(message)
    num_slots = _number(spec, argument) or 2 * num_experts
    eplb.check_slots(num_slots, num_experts, num_ranks)
    for number, most, what in (
        (num_experts, MOST_EXPERTS, "experts"),
        (num_ranks, MOST_RANKS, "GPUs"),
        (num_slots - num_experts, MOST_REPLICAS, "replicas"),
    ):
        if kind == "ultraep" and number > most:
            message = f"placement {spec!r}: its kernel has room for {most} {what}, not {number}"
            raise UserError(message)
    logical = np.full(num_slots, -1, np.int64)
    logical[homes(num_slots, num_experts, num_ranks)] = np.arange(num_experts)
    ranks = np.repeat(np.arange(num_ranks, dtype=np.int32), num_slots // num_ranks)
    return Placement(ranks, num_ranks, spec, logical)


def homes(num_slots: int, num_experts: int, num_ranks: int) -> Ints:
    """(expert,): slot of each expert, where reserved slots lie behind the experts of a GPU."""
    experts, local = np.arange(num_experts, dtype=np.int64), num_experts // num_ranks
    found: Ints = experts + experts // local * (num_slots // num_ranks - local)
    return found


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
        content = b"".join(read_bytes(one, LARGEST_FILE) for one in files_of(Path(argument)))
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


def _number(spec: str, text: str) -> int:
    """Slots of a specification; 0 where it gives none."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) < 9):
        message = f"placement {spec!r}: the number of slots must be a positive whole number"
        raise UserError(message)
    return int(text)


def _slots_and_nodes(spec: str, text: str) -> tuple[int, int]:
    """Slots of a specification, 0 where it gives none, and nodes, 1 where it gives none."""
    slots, colon, nodes = text.partition(":")
    if colon and spec.startswith("greedy"):
        message = f"placement {spec!r}: greedy knows no nodes; eplb and affinity do"
        raise UserError(message)
    if colon and not nodes:
        message = f"placement {spec!r}: the number of nodes is missing"
        raise UserError(message)
    if not colon and spec.startswith("affinity"):
        message = f"placement {spec!r}: expected affinity:SLOTS:NODES, such as affinity:256:4"
        raise UserError(message)
    return _number(spec, slots), _number(spec, nodes) or 1


def _known_loads(spec: str, loads: Ints | None) -> Ints:
    if loads is None:
        message = f"placement {spec!r} is computed from the loads of experts, and none are known"
        raise UserError(message)
    return loads


def fit_placement(
    kind: str,
    loads: Ints,
    num_slots: int,
    num_ranks: int,
    *,
    num_nodes: int = 1,
    num_groups: int = 1,
    together: Ints | None = None,
) -> Placement:
    """Compute a placement of `FITTED` for one layer.

    Parameters
    ----------
    loads, num_slots, num_ranks, num_nodes, num_groups
        See `replay.model.work.eplb.rebalance_experts`.
    together
        (expert, expert): how often tokens choose two experts, for ``affinity``.

    Raises
    ------
    UserError
        If the numbers do not divide each other.
    """
    if kind == "affinity":
        eplb.check_slots(num_slots, len(loads), num_ranks)
        eplb.check_nodes(num_nodes, num_ranks)
        assert together is not None, "affinity is fitted to what tokens choose together"
        nodes = affinity.experts_of_nodes(together, loads, num_nodes)
        experts = eplb.within_nodes(loads, nodes, num_slots, num_ranks)
    elif kind == "greedy":
        experts = eplb.greedy(loads, num_slots, num_ranks)
    else:
        experts = eplb.rebalance_experts(loads, num_slots, num_groups, num_nodes, num_ranks)
    ranks = np.arange(num_slots) * num_ranks // num_slots
    return Placement(ranks.astype(np.int32), num_ranks, kind, experts)


def _from_file(spec: str, path: Path, num_experts: int, num_ranks: int, layer: WhichLayer) -> Placement:
    data = load_document(path)
    try:
        logical, rank = slots_of(data, layer, num_experts, num_ranks)
    except UserError as error:
        message = f"placement file {path}: {error}"
        raise UserError(message) from None
    return Placement(rank.astype(np.int32), num_ranks, spec, logical)
