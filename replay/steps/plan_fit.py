"""Fit of a plan to a model and a system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.errors import UserError
from replay.steps.chunks import chunks_of

if TYPE_CHECKING:
    from hwmodel import System
    from replay.steps.plan import ParallelPlan
    from tracegen.models import ModelShape


def check(plan: ParallelPlan, shape: ModelShape, system: System, sequence: int | None = None) -> None:
    """Refuse a plan that does not suit a model and a system.

    The vocabulary need not be divisible by tp: frameworks pad it.

    Parameters
    ----------
    sequence
        Tokens of a sequence, where they are known.

    Raises
    ------
    UserError
        If GPUs are more or fewer than the system's, GPUs of a tensor-parallel group are not in one
        NVLink domain, or heads, experts, widths, layers or tokens do not divide.
    """
    if plan.num_gpus != system.num_gpus:
        message = (
            f"plan: tp {plan.tp} x cp {plan.cp} x dp {plan.dp} x pp {plan.pp} = {plan.num_gpus} "
            f"GPUs; {system.name} has {system.num_gpus}"
        )
        raise UserError(message)
    domain = min(system.fabric.gpus_per_domain, system.num_gpus)
    if domain % plan.tp:
        message = f"plan: tp {plan.tp} is not within a domain of {domain} GPUs; possible are {_divisors(domain)}"
        raise UserError(message)
    check_model(plan, shape)
    tokens, slices = plan.micro_batch * (sequence or 0), plan.tp * plan.cp
    if tokens % slices:
        message = f"plan: tp {plan.tp} x cp {plan.cp} do not divide the {tokens} tokens of a micro-batch"
        raise UserError(message)


def check_model(plan: ParallelPlan, shape: ModelShape) -> None:
    """Refuse a plan that does not suit a model.

    Raises
    ------
    UserError
        If heads, experts, widths or layers do not divide.
    """
    _divides(plan, shape, "tp", "attention heads", shape.num_heads or 0)
    kv_heads = shape.num_kv_heads or shape.num_heads or plan.tp
    if kv_heads % plan.tp and plan.tp % kv_heads:  # fewer are copied
        message = (
            f"plan: tp {plan.tp} neither divides the {kv_heads} key-value heads of {shape.name} nor is divided by them"
        )
        raise UserError(message)
    if shape.dense_layers:
        _divides(plan, shape, "tp", "inner width of dense layers", shape.dense_intermediate)
    width = shape.num_shared_experts * shape.shared_intermediate
    _divides(plan, shape, "tp", "inner width of shared experts", width)
    _divides(plan, shape, "ep", "experts", shape.num_ffn_experts)
    if plan.mtp > shape.mtp_layers:
        message = f"plan: mtp {plan.mtp}; {shape.name} has {shape.mtp_layers}"
        raise UserError(message)
    chunks_of(shape, plan)


def _divides(plan: ParallelPlan, shape: ModelShape, name: str, what: str, count: int) -> None:
    size = getattr(plan, name)
    if count % size:
        message = (
            f"plan: {name} {size} does not divide the {what} of {shape.name}, {count}; possible are {_divisors(count)}"
        )
        raise UserError(message)


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
