"""Replaying: what is asked for is done, and what cannot be done is refused in a line or two."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

import hwmodel
import replay
import tracegen
from replay.chains.preparation import make_work
from replay.errors import UserError
from replay.model.work.batch import form_batch
from replay.model.work.placement import place
from replay.model.work.precision import Precision
from replay.report.text import summary
from replay.schemes import SCHEMES, Scheme, supporting_schemes
from replay.schemes.options import about


@pytest.fixture(scope="module")
def system() -> hwmodel.System:
    return hwmodel.load("dgx-h100")


def refusal(trace, system, scheme, **settings) -> str:
    """The message of a replay that must be refused; one or two lines."""
    with pytest.raises(UserError) as error:
        replay.run(trace, system=system, scheme=scheme, **settings)
    message = str(error.value)
    assert message.count("\n") < 2
    return message


def test_work_is_the_traces_routing(synthetic) -> None:
    trace = synthetic(ranks=2, tokens_per_rank=5)
    batch = form_batch(trace)
    for layer in (0, 1):
        work = make_work(trace, batch, layer=layer, placement="round-robin", precision=Precision("bf16"))
        assert (work.expert_ids == trace.expert_ids[layer][batch.rows]).all()
        assert work.placement.expert_rank.tolist() == place("round-robin", 64, 2).expert_rank.tolist()
        assert (work.shape.hidden, work.shape.intermediate) == (2048, 1024)


def test_layers_one_several_or_all(synthetic, system) -> None:
    def indices(layer) -> list[int]:
        result = replay.run(synthetic(), system=system, scheme="ideal", layer=layer, barrier=True)
        return [one.layer_index for one in result.layers]

    assert indices(1) == [1]
    assert indices([1, 0]) == [1, 0]
    assert indices("all") == [0, 1]
    assert indices(np.array([0])) == [0]


def test_progress_is_told_of_every_layer(synthetic, system) -> None:
    calls = []
    for barrier in (True, False):
        calls.clear()
        replay.run(
            synthetic(),
            system=system,
            scheme="ideal",
            barrier=barrier,
            progress=lambda: calls.append(1),
        )
        assert len(calls) == 2


@pytest.mark.extended
def test_compare_takes_every_supported_scheme(synthetic, system) -> None:
    trace = synthetic(ranks=2, tokens_per_rank=2)
    compared = replay.compare(trace, system=system, layer=0)
    assert [result.scheme.name for result in compared.results] == list(SCHEMES)
    assert compared.baseline == "deepep"
    plain = hwmodel.load("dgx-h100", {"switch.multicast": False})
    assert supporting_schemes(plain) == [
        name for name in SCHEMES if name not in ("nvls", "dysharp-basic", "dysharp-comet", "dysharp")
    ]
    compared = replay.compare(trace, system=plain, layer=0)
    assert [result.scheme.name for result in compared.results] == supporting_schemes(plain)


def test_decode_is_compared_with_low_latency_kernels(synthetic, system) -> None:
    decode, names = synthetic(phase="decode"), ["ideal", "deepep", "deepep-ll"]
    assert replay.compare(decode, names, system=system, layer=0).baseline == "deepep-ll"
    assert replay.compare(decode, names[:2], system=system, layer=0).baseline == "deepep"
    assert replay.compare(decode, names[:1], system=system, layer=0).baseline == "ideal"
    given = replay.compare(decode, names, system=system, layer=0, baseline="deepep")
    assert given.baseline == "deepep"
    assert replay.compare(synthetic(), names, system=system, layer=0).baseline == "deepep"


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_schemes_without_code_for_a_batch_are_left_out_and_named(synthetic, system, jobs) -> None:
    settings = {"system": system, "layer": 0, "direction": "backward"}
    trace = synthetic(ranks=2, tokens_per_rank=2)
    reason = "scheme 'deepep-ll': its kernels have no backward pass"
    some = {"options": {}, "jobs": jobs, "tune": False}
    named = replay.compare(trace, ["ideal", "deepep-ll"], **some, **settings)
    assert named.left_out == {"deepep-ll": reason}
    with pytest.raises(UserError, match=reason):
        replay.compare(trace, baseline="deepep-ll", **some, **settings)
    compared = replay.compare(trace, **some, **settings)
    names = (
        "deepep-ll",
        "nccl-ep",
        "trtllm-alltoall",
        "megamoe",
        "megamoe-hopper",
        "flashinfer-push",
    )
    out = {name: reason.replace("deepep-ll", name) for name in names}
    assert compared.left_out == out
    assert [one.scheme.name for one in compared.results] == [name for name in SCHEMES if name not in out]
    alike = f"Left out: schemes {', '.join(map(repr, names))}: its kernels have no backward pass"
    assert alike in " ".join(summary(compared).split())


def test_compare_uses_the_options_of_each_scheme(synthetic, system) -> None:
    compared = replay.compare(
        synthetic(),
        ["comet", "deepep"],
        system=system,
        layer=0,
        baseline="comet",
        options={"deepep": {"num_sms": 20}},
    )
    assert compared["deepep"].scheme.options["num_sms"] == 20
    assert compared.baseline == "comet"


def test_a_scheme_of_ones_own_can_be_replayed(synthetic, system) -> None:
    scheme = SCHEMES["comet"].with_options({"message_rows": 8})
    result = replay.run(synthetic(), system=system, scheme=scheme, layer=0)
    assert result.scheme.options["message_rows"] == 8


# ---- mistakes ----------------------------------------------------------------------------------


def test_unknown_scheme(synthetic, system) -> None:
    message = refusal(synthetic(), system, "deeepep")
    assert "unknown scheme 'deeepep' (did you mean 'deepep'?)" in message
    assert all(name in message for name in SCHEMES)


def test_too_many_ranks(synthetic, recorded, system) -> None:
    message = refusal(synthetic(ranks=9), system, "deepep")
    assert message == "9 ranks were asked for; system 'dgx-h100' has 8 GPUs"


@pytest.mark.parametrize("layer", [2, [0, 5]])
def test_layer_that_is_not_there(synthetic, system, layer) -> None:
    assert "the trace has MoE layers 0..1, or 'all'" in refusal(synthetic(), system, "ideal", layer=layer)


@every("layer", [-1, "2", "last", [0, -1], [0.5], True, [[0]]])
def test_layer_that_no_trace_has(synthetic, system, layer) -> None:
    assert "possible are the position of an MoE layer" in refusal(synthetic(), system, "ideal", layer=layer)


def test_no_layer_at_all(synthetic, system) -> None:
    assert "layer" in refusal(synthetic(), system, "ideal", layer=[])


def test_no_steps_at_all(synthetic, system) -> None:
    assert refusal(synthetic(), system, "ideal", steps=0) == "steps must be at least 1, not 0"


@every("scheme", [name for name, scheme in SCHEMES.items() if "multicast" in scheme.needs])
def test_scheme_that_the_system_cannot_do(synthetic, scheme) -> None:
    plain = hwmodel.load("dgx-h100", {"switch.multicast": False})
    message = refusal(synthetic(), plain, scheme)
    assert f"scheme {scheme!r} needs multicast, which system 'dgx-h100' lacks" in message
    assert "it supports: ideal, nccl-alltoall" in message


@every("scheme", SCHEMES)
def test_unknown_option(synthetic, system, scheme) -> None:
    message = refusal(synthetic(), system, scheme, options={"num_smss": 3})
    assert "num_smss" in message and scheme in message
    for name in SCHEMES[scheme].describe()["options"]:
        assert name in message


def numbers_of(kind: Scheme, name: str) -> list[object]:
    """Values among the bad ones that are good for an option that is a number."""
    [option] = [one for one in about(kind.options) if one.name == name]
    return ["1.5", *([-1] if option.least is None else [])]


BAD_VALUES = [
    (scheme, name, value)
    for scheme, kind in SCHEMES.items()
    for name, default in kind.describe()["options"].items()
    for value in (["maybe", 1.5] if isinstance(default, bool) else ["x", "", None, -1, "1.5", True])
    if not (isinstance(default, float) and value in numbers_of(kind, name))
]


@every("scheme", sorted({scheme for scheme, _, _ in BAD_VALUES}))
def test_impossible_value_of_an_option(synthetic, system, scheme) -> None:
    for name, value in [(name, value) for one, name, value in BAD_VALUES if one == scheme]:
        message = refusal(synthetic(), system, scheme, options={name: value})
        assert name in message, (name, value)
        assert f"scheme {scheme!r}" in message, (name, value)


@every(
    ("scheme", "options", "said"),
    [
        ("deepep", {"num_sms": 3}, "must be even"),
        ("comet", {"dispatch_sms": 132}, "the GPU has 132 SMs, and some must compute"),
        ("dysharp", {"dispatch_sms": 66, "combine_sms": 66}, "take 132 SMs"),
        ("dysharp", {"tile_order": "arival"}, "did you mean 'arrival'?"),
        ("deepep", {"num_sms": 400}, "the GPU has 132"),
        ("nvls", {"num_sms": 400}, "the GPU has 132"),
        ("nccl-alltoall", {"channels": 400}, "the GPU has 132"),
    ],
)
def test_options_that_do_not_fit_the_machine(synthetic, system, scheme, options, said) -> None:
    assert said in refusal(synthetic(), system, scheme, options=options, layer=0)


@pytest.mark.parametrize("options", [{"ring_tokens": 1}, {"ring_tokens": 6, "combine_chunk": 4}])
def test_deepep_rings_too_small_to_make_progress_are_refused(synthetic, system, options) -> None:
    trace = synthetic(ranks=8, tokens_per_rank=200, layers=1)
    try:
        replay.run(trace, system=system, scheme="deepep", options={"num_sms": 2, **options})
    except UserError as error:
        assert "ring_tokens" in str(error)


def test_options_beside_a_scheme_that_has_its_own(synthetic, system) -> None:
    assert "options go with the name of a scheme" in refusal(
        synthetic(), system, SCHEMES["comet"], options={"message_rows": 8}
    )


@every(
    ("settings", "said"),
    [
        ({"schemes": ["comet", "comet"]}, "a scheme is listed twice: comet, comet"),
        ({"schemes": ["comet"], "baseline": "deepep"}, "unknown baseline 'deepep'"),
        ({"schemes": ["comet"], "options": {"deepep": {}}}, "unknown scheme with options 'deepep'"),
        ({"schemes": ["comet", "nope"]}, "unknown scheme 'nope'"),
    ],
)
def test_comparisons_that_cannot_be_made(synthetic, system, settings, said) -> None:
    with pytest.raises(UserError) as error:
        replay.compare(synthetic(), system=system, **settings)
    assert said in str(error.value)


def test_more_than_one_domain_is_refused_to_schemes_that_know_one(synthetic) -> None:
    """A replay must not pretend to know the network between domains."""
    two = hwmodel.load("dgx-h100", {"fabric.num_domains": 2})
    assert two.num_gpus == 16
    bound = [name for name, scheme in SCHEMES.items() if not scheme.network]
    assert {"comet", "flashdmoe", "moe-hub"} <= set(bound)
    for name in bound:
        assert "domain" in refusal(synthetic(ranks=16, tokens_per_rank=2), two, name, layer=0)


def test_a_scheme_that_knows_a_network_runs_over_two_domains(synthetic) -> None:
    two = hwmodel.load("dgx-h100", {"fabric.num_domains": 2})
    result = replay.run(synthetic(ranks=16, tokens_per_rank=2), system=two, scheme="ideal", layer=0)
    assert len(result.layers[0].measures.rank_end_us) == 16


def test_processes_do_not_change_a_comparison(synthetic, system) -> None:
    names = ["ideal", "deepep", "dysharp"]
    calls: list[int] = []
    alone, shared = (
        replay.compare(synthetic(), names, system=system, jobs=jobs, progress=lambda: calls.append(1), steps=1)
        for jobs in (1, 2)
    )
    assert alone.to_json() == shared.to_json()
    assert len(calls) == 2 * sum(result.totals.num_layers for result in alone.results)
    assert "at least 1" in refusal_of_compare(synthetic(), names, system=system, jobs=0)


def refusal_of_compare(*args, **settings) -> str:
    with pytest.raises(UserError) as error:
        replay.compare(*args, **settings)
    return str(error.value)


@pytest.mark.extended
def test_trace_system_and_scheme_may_be_named(synthetic, system, tmp_path) -> None:
    path = tmp_path / "small.h5"
    tracegen.write(synthetic(), path)
    named = replay.run(path, scheme="comet", system="dgx-h100", layer=0)
    given = replay.run(synthetic(), scheme=SCHEMES["comet"], system=system, layer=0)
    assert named.run_id == given.run_id
    assert (named.layers, named.scheme, named.system) == (given.layers, given.scheme, given.system)
    assert (named.spec.trace, given.spec.trace) == (str(path), None)
    assert named.spec.changed(trace=None) == given.spec


def test_overrides_beside_a_system_that_has_its_own_values(synthetic, system) -> None:
    assert "overrides go with the name of a system" in refusal(
        synthetic(), system, "comet", overrides={"link.links_per_gpu": 8}
    )


def test_a_replay_without_scheme_or_trace_says_what_there_is(synthetic) -> None:
    with pytest.raises(UserError, match=r"no scheme is given: .*; `moereplay schemes` lists all \d+$"):
        replay.run(synthetic())
    with pytest.raises(UserError, match="no trace is given"):
        replay.run(scheme="ideal")


def test_a_system_where_a_spec_is_expected(synthetic, system) -> None:
    with pytest.raises(UserError, match=r"^spec = System.*expected a RunSpec"):
        replay.run(synthetic(), system, scheme="ideal")
