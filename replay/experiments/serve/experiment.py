"""Serving a batch of requests as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from replay.errors import unknown
from replay.experiments.base import compare as base
from replay.experiments.base.experiment import SchemeExperiment
from replay.experiments.base.load import load_of
from replay.experiments.serve.result import InferComparison, InferResult, named, result_of_old
from replay.experiments.serve.spec import InferSpec

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress
    from replay.experiments.serve.setup import Setup
    from replay.schemes.outside import AllowCode


class Serve(SchemeExperiment[InferSpec, "Setup", InferResult]):
    """A batch of requests that a whole model prefills and decodes."""

    name = "serve"
    command = "infer"
    title = "served batch"
    spec = InferSpec
    result = InferResult
    headline = "time_us"
    comparison = InferComparison
    baselines = ("deepep-ll",)
    scheme_help = "A name of `moereplay schemes`, or PREFILL+DECODE."
    usual = "deepep+deepep-ll, which is what deepep-ll stands for"
    details = "nothing: all tables are shown anyway"
    lacking: ClassVar[Mapping[str, str]] = {
        "dry_run": "how many replays a batch takes follows from what the first of them give"
    }
    code = ("steps", "experiments/serve")
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-infer/1": result_of_old
    }

    def usual_schemes(self, shared: InferSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """The spec's own: engines differ in more than a scheme."""
        return [f"{shared.of_prompts}+{shared.scheme}"]

    def under(
        self, shared: InferSpec, reference: str, options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, InferSpec]:
        """A scheme of decoding, or ``PREFILL+DECODE``."""
        from replay.schemes.registry import find

        first, plus, second = reference.partition("+")
        decoding = find(second if plus else first, allow_code=True).name  # the caller named it
        made = shared.changed(scheme=decoding, options=dict(options.get(decoding, {})))
        if not plus:
            made = made.changed(prefill_scheme=None)
            prompts = made.of_prompts
        else:
            prompts = find(first, allow_code=True).name
            made = made.changed(prefill_scheme=prompts)
        if prompts != decoding:
            made = made.changed(prefill_options=dict(options.get(prompts, {})))
        return named(made.of_prompts, made.scheme), made

    def schemes_of(self, reference: str) -> Sequence[str]:
        """That of prompts and that of decoding, or that of both."""
        return [one for one in reference.partition("+")[::2] if one]

    def schemes_in(self, name: str, spec: InferSpec) -> Sequence[str]:
        """That of decoding, and that of prompts."""
        return [spec.scheme, spec.of_prompts]

    def setup(
        self,
        spec: InferSpec,
        given: Mapping[str, Any],
        *,
        like: Setup | None = None,
        allow_code: AllowCode = False,
    ) -> Setup:
        """Nothing is given beside the spec."""
        from replay.experiments.serve.setup import Setup

        if given:
            raise unknown("object", next(iter(given)), ())
        return Setup.of(spec, allow_code=allow_code)

    def replay(
        self, setup: Setup, *, progress: Progress | None = None, observe: Observer | None = None
    ) -> InferResult:
        """Nothing is observed: a batch has no schedule of its own."""
        from replay.experiments.serve.replay import carry_out

        result = carry_out(setup)
        if progress is not None:
            progress()
        return result

    def shown(self, compared: Any, *, details: bool) -> Any:
        """Tables for the screen."""
        from replay.report.infer import tables

        return tables(compared)


EXPERIMENT = Serve()


def run(spec: InferSpec | None = None, **settings: Any) -> InferResult:
    """Serve a batch under one scheme of prompts and decoding; see `base.compare.run`."""
    result: InferResult = base.run(EXPERIMENT, spec, **settings)
    return result


def compare(
    spec: InferSpec | None = None, schemes: str | Sequence[str] | None = None, **settings: Any
) -> InferComparison:
    """Serve a batch under several schemes; parameters are those of `base.compare.compare`."""
    found: InferComparison = base.compare(EXPERIMENT, spec, schemes, **settings)
    return found


def load_result(path: str | Path) -> InferResult | InferComparison:
    """Read a result or a comparison of this kind; errors are those of `replay.load_result`."""
    found: InferResult | InferComparison = load_of(EXPERIMENT, path)
    return found
