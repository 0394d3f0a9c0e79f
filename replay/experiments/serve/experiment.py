"""Serving a batch of requests as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from replay.experiments.base.experiment import NOTHING, AnySetup, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.base.result import AnyTimed
from replay.experiments.base.scheme_experiment import AnyCompared, SchemeExperiment
from replay.experiments.serve.result import (
    InferComparison,
    InferResult,
    options_by_scheme,
    result_of_old,
    scheme_name,
)
from replay.experiments.serve.spec import CODE, InferSpec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.serve.setup import ServingSetup

AnyServed = TypeVar("AnyServed", bound=InferSpec)


class Serving(SchemeExperiment[AnyServed, AnySetup, AnyTimed, AnyCompared]):
    """Base of serving under one scheme of prompts and one of decoding."""

    baselines = ("deepep-ll",)
    scheme_help = (
        "A name of `moereplay schemes`, or FILE.py:NAME, which executes the file; or PREFILL+DECODE, one for each."
    )
    usual = "deepep+deepep-ll, the same as deepep-ll alone"
    details = "Change nothing, since all tables are shown"
    lacking: ClassVar[Words] = dict.fromkeys(
        ("dry-run", "max-memory"),
        "how many replays a batch takes follows from what the first of them give",
    )
    code = CODE

    def options_in(self, spec: AnyServed) -> Mapping[str, Mapping[str, Any]]:
        """Options by scheme; those of prompts are their scheme's, whether it is named or implied."""
        return options_by_scheme(spec, *_names_of(spec))

    def usual_schemes(self, shared: AnyServed, given: Mapping[str, Any]) -> Sequence[str]:
        """The spec's own schemes alone: engines differ in more than a scheme."""
        return [self.reference(shared)]

    def reference(self, spec: AnyServed) -> str:
        """The scheme of decoding (of the machine, if none is named), or ``PREFILL+DECODE``."""
        spec = spec.with_scheme()
        return f"{spec.prefill_scheme}+{spec.scheme}" if spec.prefill_scheme else spec.scheme

    def under(
        self, shared: AnyServed, reference: str, options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, AnyServed]:
        """Name and spec under a scheme of decoding, or ``PREFILL+DECODE``."""
        first, plus, second = reference.partition("+")
        made = shared.changed(scheme=second if plus else first, prefill_scheme=first if plus else None)
        prompts, decoding = _names_of(made)
        return scheme_name(prompts, decoding), made.changed(
            options=dict(options.get(decoding, {})),
            prefill_options={} if prompts == decoding else dict(options.get(prompts, {})),
        )

    def schemes_of(self, reference: str) -> Sequence[str]:
        """Scheme of prompts and that of decoding, or that of both."""
        return [one for one in reference.partition("+")[::2] if one]

    def schemes_in(self, name: str, spec: AnyServed) -> Sequence[str]:
        """Scheme of prompts, and that of decoding."""
        return _names_of(spec)


def _names_of(spec: InferSpec) -> tuple[str, str]:
    """Names of the schemes of prompts and of decoding; a spec may have the files of both."""
    from replay.schemes.registry import find

    prompts, decoding = (find(one, allow_code=False).name for one in (spec.of_prompts, spec.scheme))
    return prompts, decoding


class Serve(Serving[InferSpec, "ServingSetup", InferResult, InferComparison]):
    """A batch of requests that a whole model prefills and decodes."""

    name = "serve"
    command = "infer"
    title = "served batch"
    spec = InferSpec
    result = InferResult
    headline = "time_us"
    comparison = InferComparison
    older: ClassVar[Older] = {"moereplay-infer/1": result_of_old}

    def setup(self, spec: InferSpec, given: SpecInputs[ServingSetup] = NOTHING) -> ServingSetup:
        """Follow the references of a spec; no objects may be given."""
        from replay.experiments.serve.setup import ServingSetup

        return ServingSetup.of(spec, given)

    def machine(self, setup: ServingSetup) -> System:
        """The machine that decodes, and prefills unless another one does."""
        return setup.decode.system

    def replay(self, setup: ServingSetup, watch: ReplayWatcher) -> InferResult:
        """Serve the batch; it has no schedule to observe."""
        from replay.experiments.serve.replay import carry_out

        return carry_out(setup)


EXPERIMENT = Serve()
