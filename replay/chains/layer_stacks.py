"""The software stack of layers: which one, from settings, and what it does in their stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replay.chains.host_program import outline_layer
from replay.chains.stack_calls import brings_experts, stage_calls
from replay.errors import UserError, quote_names
from replay.model.work.stacks import (
    BARE,
    PRACTICE,
    Stack,
    even_sizes,
    facts_of,
    facts_of_place,
    is_bare,
)
from replay.schemes.ep.staged_schemes import ListedExchanges
from replay.schemes.options import about

if TYPE_CHECKING:
    from hwmodel import System
    from replay.chains.chain import ChainLink
    from replay.chains.replay import Replay
    from replay.chains.settings import ChainSettings
    from replay.model.machine.host import Calls
    from replay.model.machine.host_script import HostScript
    from replay.model.work.batch import Batch
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.kernel_lists.lists import Pass
    from replay.schemes import Scheme
    from tracegen import RoutingTrace
    from tracegen.models import ModelShape


def launched_by(scheme: Scheme, stack: str | None, options: Mapping[str, Any], *, in_pairs: bool) -> Scheme:
    """Give a scheme the kernels of a stack, where its option `stack` knows that stack.

    Parameters
    ----------
    stack
        A stack's name with options; None changes nothing.
    options
        Of the scheme, as they were given.
    in_pairs
        Whether a forward pass runs beside a backward pass in the order of DualPipe, which some
        stacks have kernels of.

    Raises
    ------
    UserError
        If the option was given and names another stack.
    """
    name = (stack or "").partition(":")[0]
    has = {one.name: one.choices for one in about(scheme.options)}.get("stack", ())
    lists = scheme.lists if isinstance(scheme, ListedExchanges) else ()
    if name not in has or (name in lists and not in_pairs):
        return scheme
    if (given := options.get("stack", name)) != name:
        message = (
            f"--stack {stack} and option stack={given} of scheme {scheme.name!r}: both say what is "
            "launched around the exchanges; give one of them"
        )
        raise UserError(message)
    return scheme.with_options({"stack": name})


def stack_of(settings: ChainSettings, trace: RoutingTrace, system: System, scheme: Scheme) -> Stack | None:
    """Find the stack around a scheme's kernels, with the scheme as its dispatcher if its list knows that.

    Raises
    ------
    UserError
        If there is no such stack, it has no such pass or products, or experts are left out.
    """
    if settings.stack is None or is_bare(settings.stack):
        return None
    name, _, options = settings.stack.partition(":")
    if settings.communication_only:
        message = (
            f"--communication-only and --stack {settings.stack}: what a host does is spread "
            "over the kernels of a whole layer"
        )
        raise UserError(message)
    own = scheme.kernel_list if isinstance(scheme, ListedExchanges) else ""
    if own and name not in (own, PRACTICE):
        message = (
            f"--stack {settings.stack} and option stack={own} of scheme "
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
        scales = {"fp8": "blockwise"} if gemm == "fp8" else {}
        stack = Stack.in_practice(
            scheme.name,
            system,
            {**facts, **scales},
            is_training=is_training,
            settings=options,
            own=str(getattr(scheme.options, "stack", "")),
        )
    else:
        stack = Stack.of(settings.stack, system, facts)
    if not stack.kernels.trains and gemm not in stack.kernels.types:
        stack = stack.without_rows()
    known = stack.with_dispatcher(scheme.name)
    given = {part.partition("=")[0] for part in options.split(",")}
    serves_another = not stack.kernels.trains and known is None
    if idle := sorted(given & stack.kernels.options.keys()) if serves_another else []:
        message = (
            f"--stack {settings.stack}: {quote_names(idle)} changes no layer: its list has no kernels around "
            f"those of {scheme.name!r}; times of calls have an effect, such as library_us=20"
        )
        raise UserError(message)
    has_rows = known is not None or brings_experts(stack, scheme, system)
    stack.check(is_training=is_training, precision=gemm if has_rows else None)
    return known or stack


class PracticeHosts(NamedTuple):
    """Hosts of the stack that runs a scheme in practice, for a layer.

    Attributes
    ----------
    stack
        With the scheme as the dispatcher, if its list knows it.
    host_ps
        Time of a thread in calls, those that a CUDA graph holds left out; mean over the passes.
    waits
        Times that it waits for its GPU, in the pass with most.
    """

    stack: Stack
    host_ps: int
    waits: int


def in_practice(settings: ChainSettings, trace: RoutingTrace, batch: Batch, bare: Replay) -> PracticeHosts | None:
    """Find what hosts do in practice for layers that are launched bare; nothing is replayed.

    Returns
    -------
    None where a stack is given, `BARE` among them, or lists the scheme's kernels, experts are left
    out, or nothing is known of the machine's hosts or of such products.
    """
    system, scheme = bare.system, bare.scheme
    if isinstance(scheme, ListedExchanges) and scheme.kernel_list:
        return None
    if settings.stack is not None or settings.communication_only or system.spec.host is None:
        return None
    settings = dataclasses.replace(settings, stack=PRACTICE)
    try:
        stack = stack_of(settings, trace, system, scheme)
    except UserError:  # its list has no such products
        return None
    assert stack is not None and bare.launch is not None
    passes = _passes_of(bare.links)
    for is_backward in passes - bare.scripts.keys():
        link = bare.last.alone(_first(bare.links, is_backward=is_backward))
        bare.scripts[is_backward] = outline_layer(scheme, link.work(), system).host.script
    calls = calls_of(stack, settings, bare.links, trace.model_shape, batch, scheme, system, bare.scripts)
    turns = max(1, len(bare.links[0].micro_batches))
    host_ps = waits = 0
    for is_backward in passes:
        taken = bare.scripts[is_backward].under(calls, bare.launch, system.overheads)
        host_ps += turns * taken.launched_ps
        waits = max(waits, turns * taken.waits)
    return PracticeHosts(stack, host_ps // len(passes), waits)


def calls_of(
    stack: Stack,
    settings: ChainSettings,
    links: Sequence[ChainLink],
    shape: ModelShape,
    batch: Batch,
    scheme: Scheme,
    system: System,
    known: Mapping[bool, HostScript] | None = None,
) -> Calls:
    """Give what a stack does around the scheme's kernels.

    Kernel lists assume even work: the GPU with most tokens stands for all. The largest micro-batch
    stands for all, with its share of the bytes and of laws' times.

    Parameters
    ----------
    known
        By pass: what hosts do in a layer under the scheme; None to find it.
    """
    tokens = int(np.bincount(batch.source_rank, minlength=batch.num_ranks).max())
    sizes = even_sizes(shape, tokens=tokens, ranks=batch.num_ranks, sharing=settings.expert_tp)
    whole = len(batch.source_rank)
    part = max((len(one.tokens) for one in links[0].micro_batches), default=whole)
    if isinstance(scheme, ListedExchanges) and scheme.kernel_list:
        scheme, known = scheme.with_options({"stack": BARE}), None  # whose stages the list's rows are not of

    def script(*, is_backward: bool) -> HostScript:
        if known is not None:
            return known[is_backward]
        return outline_layer(scheme, _first(links, is_backward=is_backward).work(), system).host.script

    scripts: dict[Pass, Callable[[], HostScript]] = {
        "backward" if is_backward else "forward": partial(script, is_backward=is_backward)
        for is_backward in sorted(_passes_of(links))
    }
    found = stage_calls(stack, scheme, sizes, scripts, system)
    stages = {
        stage: calls._replace(
            nbytes=calls.nbytes * part // max(1, whole),
            late_ps=calls.late_ps * part // max(1, whole),
        )
        for stage, calls in found.stages.items()
    }
    return dataclasses.replace(found, stages=stages)


def _passes_of(links: Sequence[ChainLink]) -> set[bool]:
    return {link.is_backward for link in links}


def _first(links: Sequence[ChainLink], *, is_backward: bool) -> ChainLink:
    return next(link for link in links if link.is_backward == is_backward)
