"""References of a spec of a layer under tensor parallelism, resolved, and the identity that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from replay.errors import RefusedError, UserError
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity_of, model_by_value, scheme_by_value
from replay.experiments.dense.spec import CODE, PASSES, TensorSpec
from replay.model.work.transformer_layer import Sizes, TensorLayer, layer_of
from replay.model.work.transformer_shape import load
from replay.schemes.registry import find, supporting_schemes

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.host import Launch
    from replay.model.work.transformer_shape import LayerShape
    from replay.schemes.tp.base import TensorScheme

DEFAULT_TOKENS, DEFAULT_SEQUENCE, DEFAULT_REQUESTS = 8192, 2048, 64


def refusal(scheme: str, reason: str, possible: str = "") -> RefusedError:
    """Say that a scheme cannot run a layer on a system, which others may."""
    return RefusedError(f"scheme {scheme!r} cannot run this: {reason}{possible}", reason)


@dataclass(frozen=True)
class DenseSetup:
    """A spec with what its references lead to.

    Attributes
    ----------
    layers
        The layer of each pass.
    """

    spec: TensorSpec
    shape: LayerShape
    system: System
    scheme: TensorScheme
    num_ranks: int
    sizes: Sizes
    layers: tuple[TensorLayer, ...]

    @classmethod
    def of(cls, spec: TensorSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Follow the references of a spec.

        Raises
        ------
        UserError
            If a reference leads nowhere, or the layer cannot be sliced.
        RefusedError
            If the scheme cannot run it.
        """
        import hwmodel

        system = hwmodel.load(spec.system, dict(spec.overrides))
        shape = load(spec.model)
        found = find(spec.scheme, "tp", allow_code=given.allow_code)
        scheme = found.with_options(spec.options)
        num_ranks = spec.tp or system.fabric.gpus_per_domain
        if num_ranks > system.fabric.gpus_per_domain:
            message = (
                f"tp {num_ranks}: an NVLink domain of {system.name!r} has "
                f"{system.fabric.gpus_per_domain} GPUs, and layers are sliced within one"
            )
            raise UserError(message)
        sizes = _sizes(spec, shape, system)
        layers = tuple(
            layer_of(shape, num_ranks, sizes, is_backward=is_backward, part=spec.part)
            for is_backward in PASSES[spec.direction]
        )
        if missing := scheme.lacks(system):
            reason = f"it needs {' and '.join(sorted(missing))}, which {system.name} lacks"
            able = ", ".join(supporting_schemes(system, "tp")) or "none"
            possible = f"; {system.name} can run {able}"
            raise refusal(scheme.name, reason, possible)
        for layer in layers:
            if reason := scheme.refuses(layer):
                raise refusal(scheme.name, reason)
        return cls(spec, shape, system, scheme, num_ranks, sizes, layers)

    @property
    def launch(self) -> Literal["ahead", "eager", "graph"]:
        """Launches of kernels by hosts."""
        return self.spec.launch or ("graph" if self.spec.phase == "decode" else "ahead")

    @property
    def host_launch(self) -> Launch | None:
        """The same as a machine takes it: None where no host holds anything up."""
        return None if self.launch == "ahead" else self.launch

    @property
    def run_id(self) -> str:
        """Identity of the replay: of everything that decides its result."""
        entered = {
            "model": model_by_value(self.shape),
            "system": self.system.describe(),
            "scheme": scheme_by_value(self.scheme),
        }
        return identity_of(
            CODE,
            self.spec,
            entered,
            tp=self.num_ranks,
            tokens=self.sizes.tokens,
            sequence=self.sizes.sequence,
            launch=self.launch,
        )


def _sizes(spec: TensorSpec, shape: LayerShape, system: System) -> Sizes:
    own = shape.sequence_length or DEFAULT_SEQUENCE
    is_decode = spec.phase == "decode"
    if is_decode:
        tokens = spec.tokens or DEFAULT_REQUESTS
    else:
        batch = (shape.micro_batch or 0) * own
        tokens = spec.tokens or batch or DEFAULT_TOKENS
    sequence = spec.sequence or own
    if not is_decode:
        sequence = min(sequence, tokens)
    attention = system.attention
    return Sizes(tokens, sequence, is_decode, attention.tile_rows, attention.tile_keys)
