"""A stack by name: its kernel list with the options that people run, and its host's costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from replay.errors import UserError, unknown
from replay.model.work.kernel_lists import KernelList, load
from replay.model.work.stacks.costs import CallCosts, load_costs

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.work.kernel_lists import KernelSizes, ListedOperation
    from replay.model.work.kernel_lists.expressions import Value
    from replay.model.work.kernel_lists.lists import Pass

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
SERVED = {
    "deepep": "sglang",
    "deepep-ll": "sglang",
    "deepep-v2": "sglang",
    "nvls": "megatron-inference",
    "megatron-allgather": "vllm",
    "flashinfer-push": "tensorrt-llm",
}
"""Stacks in which a scheme serves, where it is known; the others are as if in SGLang."""


DISPATCHERS: Mapping[str, str] = {
    "megatron": "alltoall",
    "nccl-alltoall": "alltoall",
    "deepep": "deepep",
    "hybrid-ep": "hybridep",
}
"""Schemes that Megatron's list knows as dispatchers."""


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
        facts
            Options that the model decides unless they are given; those that the list lacks are of
            no account.

        Raises
        ------
        UserError
            If there is no such stack or option, or nothing is known of the system's host.
        """
        name, _, settings = text.partition(":")
        if name not in STACKS:
            raise unknown("stack", name, STACKS)
        listed, preset = STACKS[name]
        kernels = load(listed)
        given: dict[str, Value] = {}
        for part in filter(None, settings.split(",")):
            key, equals, value = part.partition("=")
            if not equals or key in given:
                message = (
                    f"stack {name!r}: {part!r} is no option as graphs=router, or is given twice"
                )
                raise UserError(message)
            given[key] = _value(value)
        decided = {name: value for name, value in (facts or {}).items() if name in kernels.options}
        options = kernels.chosen(preset, **{**decided, **given})
        return cls(text, kernels, options, load_costs(listed, system.host.speed.value))

    @classmethod
    def in_practice(
        cls, scheme: str, system: System, facts: Mapping[str, Value], *, is_training: bool
    ) -> Self:
        """Find the stack that runs a scheme in practice: Megatron-Core's to train."""
        name = "megatron-plain" if is_training else SERVED.get(scheme, "sglang")
        return cls.of(name, system, facts)

    @property
    def facts(self) -> dict[str, object]:
        """Its name and every option's value, as JSON."""
        return {"name": self.name, "options": dict(self.options)}

    def captures(self, scope: str) -> bool:
        """Whether its CUDA graphs hold parts of a scope; each choice of them holds those before."""
        if not scope or "graphs" not in self.options:
            return False
        choices = self.kernels.options["graphs"].choices
        return scope in choices and choices.index(scope) <= choices.index(self.options["graphs"])

    def with_dispatcher(self, scheme: str) -> Self | None:
        """Give it with a scheme as the dispatcher of rows; None if its list knows none such."""
        known = self.kernels.options.get("dispatcher")
        of_list = DISPATCHERS.get(scheme)
        if known is None:
            return self if scheme == self.kernels.dispatcher else None
        if of_list not in known.choices:
            return None
        return dataclasses.replace(self, options={**self.options, "dispatcher": str(of_list)})

    def listed(
        self, sizes: KernelSizes, parts: Iterable[str], direction: Pass
    ) -> tuple[ListedOperation, ...]:
        """What it launches for parts of a pass, in order."""
        return self.kernels.operations(sizes, self.options, parts=parts, direction=direction)

    def each_ps(self, listed: ListedOperation) -> int:
        """What each kernel of a row takes the host: an equal share of the row's time."""
        return self.costs.ps(listed) // max(1, listed.kernels)


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdecimal() and text.isascii() else text
