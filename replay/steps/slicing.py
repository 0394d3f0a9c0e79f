"""Whether groups of GPUs can share a model's layers as a plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import UserError

if TYPE_CHECKING:
    from hwmodel import System
    from replay.steps.plan import Plan
    from tracegen import ModelShape


def check_slices(shape: ModelShape, system: System, plan: Plan, sequence: int) -> None:
    """Refuse a plan whose slices do not come out even, or a group that the system cannot hold.

    Raises
    ------
    UserError
        Saying what does not fit, and what would.
    """
    if plan.peers > system.num_gpus:
        message = (
            f"plan: {plan.peers} GPUs exchange rows (ep {plan.ep}, tp {plan.tp} x cp {plan.cp}); "
            f"system {system.name!r} has {system.num_gpus}"
        )
        raise UserError(message)
    if plan.micro_batch * sequence % (plan.tp * plan.cp):
        message = (
            f"plan: tp {plan.tp} x cp {plan.cp} GPUs cannot own equal shares of "
            f"{plan.micro_batch} sequences of {sequence} tokens"
        )
        raise UserError(message)
    sliced = {
        "attention heads": shape.num_heads or 0,
        "the inner width of dense layers": shape.dense_intermediate,
        "the inner width of shared experts": shape.num_shared_experts * shape.shared_intermediate,
    }
    for what, size in sliced.items():
        if size % plan.tp:
            fit = [n for n in range(1, size + 1) if not any(one % n for one in sliced.values())]
            message = (
                f"plan: tp {plan.tp} does not divide {what} of {shape.name}, {size}; these do: "
                f"{', '.join(map(str, fit[:12]))}"
            )
            raise UserError(message)
    heads = shape.num_kv_heads or plan.tp
    if heads > plan.tp and heads % plan.tp:
        message = (
            f"plan: tp {plan.tp} can neither share nor copy the {heads} key-value heads of "
            f"{shape.name} equally"
        )
        raise UserError(message)
