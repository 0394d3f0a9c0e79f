"""The software stack of layers: which one, from settings, and what it does in their stages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.chains.stack_calls import brings_experts, script_of, stage_calls
from replay.errors import UserError, quote_names, unknown
from replay.model.work.kernel_lists import load
from replay.model.work.stacks import (
    BARE,
    HOSTLESS,
    PRACTICE,
    STACKS,
    Stack,
    even_sizes,
    facts_of,
    facts_of_place,
    is_bare,
    knows,
    practice_name,
)
from replay.schemes.ep.staged_schemes import ListedExchanges
from replay.schemes.options import about

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.settings import ChainSettings
    from replay.model.machine.host import Calls
    from replay.model.machine.host_script import HostScript
    from replay.model.work.batch import Batch
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.kernel_lists.lists import Pass
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from tracegen import RoutingTrace
    from tracegen.models import ModelShape


def _own_stack(scheme: Scheme) -> str:
    """Value of a scheme's option `stack`; nothing where it has none."""
    return str(getattr(scheme.options, "stack", ""))


def default_stack(system: System, *, communication_only: bool) -> str:
    """Name the stack of layers for which none is given: that in practice, or bare hosts if nothing is known of it."""
    return BARE if communication_only or system.spec.host is None else PRACTICE


def launched_by(
    scheme: Scheme, stack: str | None, options: Mapping[str, Any], *, in_pairs: bool, is_training: bool
) -> Scheme:
    """Give a scheme the kernels of a stack, where its option `stack` knows that stack.

    None but its own, where the stack's list has what lies around its exchange: the option's kernels
    would be launched beside those.

    Parameters
    ----------
    stack
        A stack's name with options; None and bare hosts change nothing.
    options
        Of the scheme, as they were given.
    in_pairs
        Whether a forward pass runs beside a backward pass in the order of DualPipe, which some
        stacks have kernels of.
    is_training
        Whether any pass is backward.

    Raises
    ------
    UserError
        If the option was given and names another stack.
    """
    name = (stack or BARE).partition(":")[0]
    has = {one.name: one.choices for one in about(scheme.options)}.get("stack", ())
    if not has or name == BARE:
        return scheme
    is_practice = name == PRACTICE
    if is_practice:
        name = practice_name(scheme.name, is_training=is_training, own=_own_stack(scheme))
    lists = scheme.lists if isinstance(scheme, ListedExchanges) else ()
    in_list = name in STACKS and knows(load(STACKS[name][0]), scheme.name)
    own = BARE if in_list and not (in_pairs and name in lists) else name
    if own not in has or (is_practice and not in_list and "stack" in options):
        return scheme
    if (given := options.get("stack", own)) != own:
        who = f"{name}, which runs it in practice," if is_practice else f"--stack {stack}"
        way = ", or take --stack bare" if is_practice else ""
        message = (
            f"{who} and option stack={given} of scheme {scheme.name!r}: both say what is "
            f"launched around the exchanges; give one of them{way}"
        )
        raise UserError(message)
    return scheme.with_options({"stack": own})


def stack_of(settings: ChainSettings, trace: RoutingTrace, system: System, scheme: Scheme) -> Stack | None:
    """Find the stack around a scheme's kernels, with the scheme as its dispatcher if its list knows that.

    Returns
    -------
    That in practice where no stack is given; None for bare hosts: where they are asked for, or nothing is given
    and nothing is known of the machine's hosts, of such products in practice, or of layers without experts.

    Raises
    ------
    UserError
        If there is no such stack, it has no such pass or products, or experts are left out.
    """
    text = settings.stack or default_stack(system, communication_only=settings.communication_only)
    if is_bare(text):
        return None
    try:
        return _stack_of(text, settings, trace, system, scheme)
    except UserError:
        if settings.stack is None:  # the list of that in practice has no such products
            return None
        raise


def _stack_of(text: str, settings: ChainSettings, trace: RoutingTrace, system: System, scheme: Scheme) -> Stack:
    name, _, options = text.partition(":")
    if settings.communication_only:
        message = (
            f"--communication-only and --stack {text}: what a host does is spread over the kernels of a whole layer"
        )
        raise UserError(message)
    own = scheme.kernel_list if isinstance(scheme, ListedExchanges) else ""
    if own and name not in (own, PRACTICE):
        message = (
            f"--stack {text} and option stack={own} of scheme "
            f"{scheme.name!r}: both say what is launched around the exchanges; give one of them"
        )
        raise UserError(message)
    ranks = trace.num_ranks or settings.ranks or system.num_gpus
    facts: dict[str, Value] = {**facts_of(trace.model_shape), **facts_of_place(system, ranks)}
    gemm = settings.number_types(trace).gemm
    if settings.interleave == "megatron":
        facts["overlap"] = "passes"
    is_training = any(settings.passes)
    if name == PRACTICE:
        name = practice_name(scheme.name, is_training=is_training, own=_own_stack(scheme))
        if gemm == "fp8" and "fp8" in load(STACKS[name][0]).options and "fp8=" not in options:
            options = ",".join(filter(None, ("fp8=blockwise", options)))
        text = f"{name}:{options}" if options else name
    elif name not in (*STACKS, *HOSTLESS):
        raise unknown("stack", name, [PRACTICE, *STACKS, *HOSTLESS])
    stack = Stack.of(text, system, facts)
    if not stack.kernels.trains and gemm not in stack.kernels.types:
        stack = stack.without_rows()
    is_known = stack.knows(scheme.name)
    given = {part.partition("=")[0] for part in options.split(",")} & stack.kernels.options.keys()
    for name in sorted(given & scheme.list_options.keys()):
        message = f"--stack {text}: scheme {scheme.name!r} decides {name}, by {scheme.list_options[name].by}"
        raise UserError(message)
    if idle := [] if stack.kernels.trains or is_known else sorted(given):
        message = (
            f"--stack {text}: {quote_names(idle)} changes no layer: its list has no kernels around "
            f"those of {scheme.name!r}; times of calls have an effect, such as library_us=20"
        )
        raise UserError(message)
    has_rows = is_known or brings_experts(stack, scheme, system)
    stack.check(is_training=is_training, precision=gemm if has_rows else None)
    return stack.with_dispatcher(scheme.name, scheme.list_options)


def calls_maker(
    settings: ChainSettings,
    links: Sequence[ChainLink],
    shape: ModelShape,
    batch: Batch,
    scheme: Scheme,
    system: System,
    work_of: Callable[[ChainLink], LayerWork],
) -> Callable[[Stack], Calls]:
    """Give a function that says what a stack does around the scheme's kernels.

    Kernel lists assume even work: the GPU with most tokens stands for all. The largest micro-batch
    stands for all, with its share of the bytes and of laws' times.
    """
    tokens = int(np.bincount(batch.source_rank, minlength=batch.num_ranks).max())
    sizes = even_sizes(shape, tokens=tokens, ranks=batch.num_ranks, sharing=settings.expert_tp)
    whole = len(batch.source_rank)
    part = max((len(one.tokens) for one in links[0].micro_batches), default=whole)
    if isinstance(scheme, ListedExchanges) and scheme.kernel_list:
        scheme = scheme.with_options({"stack": BARE})  # whose stages the list's rows are not of

    first = {link.is_backward: link for link in reversed(links)}
    scripts: dict[Pass, Callable[[], HostScript]] = {
        "backward" if is_backward else "forward": functools.cache(
            partial(script_of, scheme, system, partial(work_of, first[is_backward]))
        )
        for is_backward in sorted(first)
    }

    def calls_of(stack: Stack) -> Calls:
        found = stage_calls(stack, scheme, sizes, scripts, system)
        stages = {stage: calls.share(part, max(1, whole)) for stage, calls in found.stages.items()}
        return dataclasses.replace(found, stages=stages)

    return calls_of
