"""References of a training step's spec, resolved, and the identity that follows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from replay.chains.layer_stacks import launched_by
from replay.errors import UserError
from replay.experiments.base.experiment import NOTHING, SpecInputs
from replay.experiments.base.identity import identity_of, model_by_value, scheme_by_value
from replay.experiments.base.spec import DEFAULT_SYSTEM
from replay.experiments.train.schedules import registry
from replay.experiments.train.schedules.base import ScheduleShape
from replay.experiments.train.spec import CODE, TrainSpec
from replay.model.work.placement import identify
from replay.model.work.precision import Precision
from replay.model.work.stacks import Stack, facts_of_place, pays_hosts
from replay.schemes.registry import find
from replay.steps import plans, recipes
from replay.steps.chunks import chunks_of
from replay.steps.kernel_sizes import facts_of_step
from replay.steps.plan_fit import check
from replay.steps.replays import StepReplays
from replay.steps.routing import parse

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.train.schedules.base import Schedule
    from replay.schemes import Scheme
    from replay.steps.memory import StageMemory
    from replay.steps.plan import ParallelPlan
    from replay.steps.recipes import Recipe
    from replay.steps.routing import DrawnRouting
    from tracegen import RoutingTrace
    from tracegen.models import ModelShape

DEFAULT_RECIPES = {"bf16": "megatron-bf16", "fp8": "deepseek-v3", "fp32": "megatron-bf16"}
"""Types of the numbers that are kept, by that of the GEMMs."""
MOST_PASSES = 2_000_000
"""Passes over layers in a step that is composed: some GB of memory."""
MOST_TIMES = 25_000_000
"""Likewise, of all peers."""
DEFAULT_MODEL, DEFAULT_SCHEDULE, DEFAULT_SEQUENCE = "deepseek-v3", "1f1b", 4096


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """A spec with what its references lead to; nothing is replayed yet.

    Attributes
    ----------
    pipeline
        Sizes that the schedule is made for.
    chunks
        (chunk,) layers of each chunk of the model.
    sequence
        Tokens of a sequence.
    recipe, memory
        Types of the numbers that are kept, and bytes that each stage keeps of them.
    replays
        Level one: times of the step's parts, of which schemes share what does not depend on them.
    """

    spec: TrainSpec
    shape: ModelShape
    system: System
    plan: ParallelPlan
    schedule: Schedule
    pipeline: ScheduleShape
    chunks: list[range]
    sequence: int
    precision: Precision
    recipe: Recipe
    memory: list[StageMemory]
    trace: RoutingTrace | None
    routing: DrawnRouting
    replays: StepReplays

    @classmethod
    def of(cls, spec: TrainSpec, shape: ModelShape | None = None) -> Self:
        """Follow the references of a spec, but for its scheme.

        Parameters
        ----------
        shape
            In place of the model that the spec names.

        Raises
        ------
        UserError
            If a reference leads nowhere, or sizes do not fit together.
        """
        import tracegen

        named = plans.find(spec.plan)
        plan = named.plan
        trace = None if spec.trace is None else tracegen.load(spec.trace)
        if shape is None:
            shape = _shape(spec.model or named.model, trace)
        if trace is not None:
            trace = trace.with_shape(shape)
        system = _system(spec, plan, named.system or DEFAULT_SYSTEM)
        schedule = registry.find(spec.schedule or named.schedule or DEFAULT_SCHEDULE)
        sequence = spec.sequence or named.sequence or DEFAULT_SEQUENCE
        pipeline = ScheduleShape.of(plan)
        schedule.check(pipeline)
        check(plan, shape, system, sequence)
        _check_size(plan, shape)
        precision = Precision(spec.precision or shape.default_precision)
        recipe = recipes.find(spec.recipe or named.recipe or DEFAULT_RECIPES[precision.gemm])
        memory = schedule.memory(shape, plan, system, recipe, sequence, must_fit=spec.fit)
        routing = parse(spec.routing)
        stack = None
        has_stack = pays_hosts(spec.stack)
        if spec.host_spread and not has_stack:
            message = f"--host-spread {spec.host_spread:g}: hosts under a stack spread; give --stack"
            raise UserError(message)
        if has_stack:
            assert spec.stack is not None
            step = facts_of_step(shape, plan, schedule.beside)
            facts = {**step, **facts_of_place(system, plan.ep)}
            stack = Stack.of(spec.stack, system, facts)
        replays = StepReplays(
            shape,
            system,
            plan,
            sequence=sequence,
            precision=precision.name,
            trace=trace,
            routing=routing,
            layers=spec.layers_sampled,
            samples=spec.samples,
            sample_nodes=spec.sample_nodes,
            splits_backward=schedule.splits_backward,
            beside=schedule.beside,
            seed=spec.seed,
            placement=spec.placement,
            stack=stack,
            host_spread=spec.host_spread,
            dispatch_type=spec.dispatch_type,
        )
        return cls(
            spec,
            shape,
            system,
            plan,
            schedule,
            pipeline,
            chunks_of(shape, plan),
            sequence,
            precision,
            recipe,
            memory,
            trace,
            routing,
            replays,
        )

    def run_id(self, scheme: Scheme) -> str:
        """Identity of the step under a scheme: of everything that decides its result."""
        spec = self.spec
        routing = (
            {"kind": self.routing.kind, **self.routing.parameters}
            if self.trace is None
            else {"content_id": self.trace.content_id}
        )
        entered = {
            "model": model_by_value(self.shape),
            "system": self.system.describe(),
            "scheme": scheme_by_value(scheme),
            "plan": self.plan.model_dump(mode="json"),
            "routing": routing,
        }
        return identity_of(
            CODE,
            spec,
            entered,
            left_out=["fit"],  # which refuses, and changes nothing
            schedule=self.schedule.name,
            sequence=self.sequence,
            precision=self.precision.name,
            placement=identify(spec.placement),
            recipe=self.recipe.name,
        )


@dataclass(frozen=True)
class SchemedStep:
    """A step that was set up, and the scheme with its options."""

    step: TrainingSetup
    scheme: Scheme

    @classmethod
    def of(cls, spec: TrainSpec, given: SpecInputs[Self] = NOTHING) -> Self:
        """Follow the references of a spec; steps share what schemes do not decide.

        Parameters
        ----------
        given
            May have a `tracegen.models.ModelShape` as ``model``.

        Raises
        ------
        UserError
            If a reference leads nowhere, or sizes do not fit together.
        """
        found = find(spec.scheme, allow_code=given.allow_code).with_options(spec.options)
        scheme = launched_by(found, spec.stack, spec.options, in_pairs=False, is_training=True)
        if given.like is None:
            return cls(TrainingSetup.of(spec, given.objects.get("model")), scheme)
        return cls(dataclasses.replace(given.like.step, spec=spec), scheme)

    @property
    def run_id(self) -> str:
        """Identity of the result."""
        return self.step.run_id(self.scheme)


def _shape(name: str | None, trace: RoutingTrace | None) -> ModelShape:
    """The model that is named, or else that of the trace."""
    import tracegen.models

    if name is None and trace is not None:
        return trace.model_shape
    return tracegen.models.load(name or DEFAULT_MODEL)


def _system(spec: TrainSpec, plan: ParallelPlan, node: str) -> System:
    """As many GPUs as a plan has of the system that is named, or of so many nodes."""
    import hwmodel

    overrides = dict(spec.overrides)
    if spec.system is not None:
        whole = hwmodel.load(spec.system, overrides)
        if whole.num_gpus <= plan.num_gpus:
            return whole  # whether they are enough is for who checks the plan
        return hwmodel.load(spec.system, overrides, num_gpus=plan.num_gpus)
    nodes = -(-plan.num_gpus // hwmodel.load(node).num_gpus)
    name = node if nodes == 1 else f"{node}-x{nodes}"
    return hwmodel.load(name, overrides, num_gpus=plan.num_gpus)


def _check_size(plan: ParallelPlan, shape: ModelShape) -> None:
    """Refuse a step of more passes than can be composed, before memory is spent on it."""
    each = 2 * (shape.num_layers + plan.mtp + 2)  # layers and both ends, forward and backward
    most = min(MOST_PASSES, MOST_TIMES // plan.peers) // each
    if plan.micro_batches > most:
        message = (
            f"plan: micro_batches {plan.micro_batches:,} are more than can be composed with "
            f"{shape.num_layers} layers and {plan.peers} peers; at most {most:,}"
        )
        raise UserError(message)
