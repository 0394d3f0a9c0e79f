"""A stack by name: its kernel list with the options that people run, and its host's costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from replay.errors import UserError, quote_names, unknown, value_text
from replay.model.work.kernel_lists import KernelList, load
from replay.model.work.stacks.bare import BARE, HOSTLESS
from replay.model.work.stacks.costs import CallCosts, load_costs

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.kernel_lists.lists import Pass
    from tracegen.models import ModelShape

STACKS: Mapping[str, tuple[str, str]] = {
    "megatron-plain": ("megatron", "plain"),
    "megatron-tuned": ("megatron", "tuned"),
    "automodel": ("automodel", ""),
    "deepseek": ("deepseek", ""),
    "megatron-inference": ("megatron-inference", ""),
    "sglang": ("sglang", ""),
    "vllm": ("vllm", ""),
    "tensorrt-llm": ("tensorrt-llm", ""),
}
"""Stacks by name: the kernel list, and the preset of its options. The first four train."""

PRACTICE = "practice"
# Where the scheme's option `stack` names no engine.
# sglang: --moe-a2a-backend deepep (docs/advanced_features/expert_parallelism.md at 020017c4965d),
# megamoe (server_args.py). vllm: --all2all-backend deepep_v2 and allgather_reducescatter, the
# default (config/parallel.py). megatron-inference: dispatch by NVLS (Megatron-LM 29b4491927).
# tensorrt-llm: NVLinkOneSided, NVLinkTwoSided and NcclEP (communication_factory.py at 03c36d6222ad).
SERVED = {
    "deepep-ll": "sglang",
    "deepep-v2": "vllm",
    "flashinfer-push": "tensorrt-llm",
    "megamoe": "sglang",
    "megamoe-hopper": "sglang",
    "megatron-allgather": "vllm",
    "nccl-ep": "tensorrt-llm",
    "nvls": "megatron-inference",
    "trtllm-alltoall": "tensorrt-llm",
}
"""Stacks in which a scheme serves, where it is known; the others are as if in SGLang."""
TRAINED = "megatron-plain"
"""The stack in which schemes train; a scheme that its list does not know is as if in it."""

DISPATCHERS: Mapping[str, str] = {
    "megatron": "alltoall",
    "nccl-alltoall": "alltoall",
    "deepep": "deepep",
    "hybrid-ep": "hybridep",
    "megatron-allgather": "allgather",
    "deepep-ll": "deepep-ll",
    "trtllm-alltoall": "one-sided",
}
"""Choices of lists' option `dispatcher` by scheme."""


class ListOption(NamedTuple):
    """Option of a kernel list that a scheme decides.

    Attributes
    ----------
    value
        Its value.
    by
        What of the scheme decides it, in words.
    """

    value: Value
    by: str


def is_bare(stack: str) -> bool:
    """Tell whether a name stands for no stack: no host launches kernels.

    Raises
    ------
    UserError
        If it has options.
    """
    name, colon, options = stack.partition(":")
    if name in HOSTLESS and colon:
        message = f"--stack {stack}: {name} has no options, but {value_text(options)} is given"
        raise UserError(message)
    return name in HOSTLESS


def pays_hosts(stack: str | None) -> bool:
    """Tell whether hosts are charged: whether the stack of a step or engine is given.

    Raises
    ------
    UserError
        If it is that of a comparison of single layers.
    """
    if stack is None or not is_bare(stack):
        return stack is not None
    if stack != BARE:
        message = f"--stack {stack}: a comparison of single layers, which no step runs in; take {BARE}, or one of "
        raise UserError(message + "`moereplay stacks`")
    return False


def practice_name(scheme: str, *, is_training: bool, own: str = "") -> str:
    """Name the stack that runs a scheme in practice: Megatron-Core's to train.

    Parameters
    ----------
    own
        The stack whose kernels the scheme runs around its own; it is taken if it has the pass.
    """
    if own in STACKS and load(STACKS[own][0]).trains == is_training:
        return own
    return TRAINED if is_training else SERVED.get(scheme, "sglang")


def knows(kernels: KernelList, scheme: str) -> bool:
    """Tell whether a list has what lies around a scheme's exchange."""
    known = kernels.options.get("dispatcher")
    if known is None:
        return scheme == kernels.dispatcher
    return DISPATCHERS.get(scheme) in known.choices


MOST_DIGITS = 19
"""From which on a number among options is text, that nothing takes."""


@dataclass(frozen=True)
class Stack:
    """A software stack on a machine.

    Attributes
    ----------
    name
        A name of `STACKS`, with options.
    kernels
        Its list.
    options
        Every option's value.
    costs
        Of its host's calls.
    """

    name: str
    kernels: KernelList
    options: Mapping[str, Value]
    costs: CallCosts

    @classmethod
    def of(cls, text: str, system: System, facts: Mapping[str, Value] | None = None) -> Self:
        """Find a stack.

        Parameters
        ----------
        text
            Its name, and options behind a colon: ``megatron-plain:graphs=router,qk_norm=true``.
            Among them what a kind of call takes the host in both passes, with all around it, in
            microseconds: ``library_us=20``.
        facts
            Options that the model decides unless they are given; those that the list lacks are of
            no account.

        Raises
        ------
        UserError
            If there is no such stack or option, or nothing is known of the system's host.
        """
        name, _, settings = text.partition(":")
        if name in HOSTLESS:
            message = f"stack {name!r} has no list of kernels and host calls; these have one: {', '.join(STACKS)}"
            raise UserError(message)
        if name not in STACKS:
            raise unknown("stack", name, [*STACKS, *HOSTLESS])
        of, preset = STACKS[name]
        kernels = load(of)
        given: dict[str, Value] = {}
        for part in filter(None, settings.split(",")):
            key, equals, value = part.partition("=")
            if not equals or key in given:
                wrong = "is given twice" if equals else "has no value, as library_us=20 has one"
                message = f"stack {name!r}: option {value_text(key)} {wrong}"
                raise UserError(message)
            given[key] = _value(value)
        decided = {name: value for name, value in (facts or {}).items() if name in kernels.options}
        costs = load_costs(of, system.host.speed.value)
        for key in given:
            if key.endswith("_us") and key not in {*kernels.options, *costs.settings}:
                raise unknown("time of a kind of call", key, costs.settings)
        us = {key: given.pop(key) for key in list(given) if key in costs.settings}
        options = kernels.option_values(preset, **{**decided, **given})
        return cls(text, kernels, options, costs.replace(us))

    def check(self, *, is_training: bool, precision: str | None = None) -> None:
        """Refuse a pass, or products, that its list has no kernels of.

        Parameters
        ----------
        precision
            Type of the products that are to run; None leaves it unchecked.

        Raises
        ------
        UserError
            If the list has no backward pass, or is of another type of products; or if a dispatcher
            is given, which is the scheme's.
        """
        if "dispatcher=" in self.name:
            message = (
                f"stack {self.name}: the scheme says who brings rows to experts; the option dispatcher is "
                "for `moereplay stacks` only"
            )
            raise UserError(message)
        if is_training and not self.kernels.trains:
            trained = quote_names(name for name, (of, _) in STACKS.items() if load(of).trains)
            message = f"stack {self.name}: its list has no backward pass; those that train are {trained}"
            raise UserError(message)
        if precision is None:
            return
        if precision not in self.kernels.types:
            types = quote_names(self.kernels.types)
            message = f"stack {self.name}: its GEMMs are {types}, and not {precision}"
            raise UserError(message)
        scales = self.options.get("fp8")
        if scales is not None and (scales != "none") != (precision == "fp8"):
            choices = quote_names(str(one) for one in self.kernels.options["fp8"].choices)
            message = f"stack {self.name}: option fp8 is {scales} and GEMMs are {precision}; fp8 may be {choices}"
            raise UserError(message)

    def check_model(self, shape: ModelShape, tp: int) -> None:
        """Refuse a model, or slices, that its list has no kernels of.

        Parameters
        ----------
        tp
            GPUs that slice attention.

        Raises
        ------
        UserError
            If the list has other attention, or knows no slices.
        """
        if tp > 1 and not self.kernels.speaks_of("tp"):
            message = f"stack {self.name}: tp is {tp}; its list knows no slices of attention, so tp must be 1"
            raise UserError(message)
        if not self.has_attention_of(shape):
            message = f"stack {self.name}: its list has no kernels for the attention of {shape.name}"
            other = "grouped" if shape.kv_lora_rank else "latent"
            raise UserError(f"{message}; it has that of {other} queries, keys and values")

    def has_attention_of(self, shape: ModelShape) -> bool:
        """Tell whether its list has a model's kind of attention, or the model's heads are not known."""
        of_latent = self.kernels.speaks_of("kv_rank", ["attention"])
        is_latent = self.kernels.has("latent attention") or of_latent
        return not shape.num_heads or (is_latent if shape.kv_lora_rank else not of_latent)

    @property
    def facts(self) -> dict[str, object]:
        """Its name and every option's value, as JSON."""
        return {"name": self.name, "options": dict(self.options)}

    def captures(self, scope: str) -> bool:
        """Tell whether its CUDA graphs hold a scope; each choice of `graphs` includes those before it."""
        if not scope or "graphs" not in self.options:
            return False
        choices = self.kernels.options["graphs"].choices
        return scope in choices and choices.index(scope) <= choices.index(self.options["graphs"])

    def knows(self, scheme: str) -> bool:
        """Tell whether its list has what lies around a scheme's exchange."""
        return knows(self.kernels, scheme)

    @property
    def dispatcher(self) -> str:
        """First scheme that brings rows as its options say; nothing where none does."""
        choice = self.options.get("dispatcher")
        if choice is None:
            return self.kernels.dispatcher
        return next((scheme for scheme, of in DISPATCHERS.items() if of == choice), "")

    def with_dispatcher(self, scheme: str, options: Mapping[str, ListOption] | None = None) -> Self:
        """Give it with a scheme as the dispatcher of rows; as it is if its list does not know the scheme.

        Parameters
        ----------
        options
            Of the list, as the scheme decides them: `Scheme.list_options`.
        """
        if not self.knows(scheme):
            return self
        costs = self.costs.of(scheme)
        if "dispatcher" not in self.options:
            return dataclasses.replace(self, costs=costs)
        given = {"dispatcher": DISPATCHERS[scheme], **{name: one.value for name, one in (options or {}).items()}}
        return dataclasses.replace(self, options={**self.options, **given}, costs=costs)

    def without_rows(self) -> Self:
        """Give it with a list that knows no scheme, so that its calls alone are paid."""
        options = {name: one for name, one in self.kernels.options.items() if name != "dispatcher"}
        return dataclasses.replace(self, kernels=self.kernels.model_copy(update={"dispatcher": "", "options": options}))

    def operations(self, sizes: KernelSizes, parts: Iterable[str], direction: Pass) -> tuple[ListedOperation, ...]:
        """Launches for parts of a pass, in order."""
        return self.kernels.operations(sizes, self.options, parts=parts, direction=direction)

    def experts(self, sizes: KernelSizes, direction: Pass, *, shared: bool) -> tuple[ListedOperation, ...]:
        """Launches for routed experts, or for shared ones among their kernels."""
        parts = [part for part in ("experts", "experts' weights") if self.kernels.has(part)]
        rows = self.operations(sizes, parts, direction)
        return tuple(row for row in rows if row.shared == shared)

    def each_ps(self, row: ListedOperation) -> int:
        """Host time of each kernel of a row: an equal share of the row's time."""
        return self.costs.ps(row) // max(1, row.kernels)


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() and text.isascii() and len(text) < MOST_DIGITS else text
