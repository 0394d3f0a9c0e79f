"""How sure a comparison is: truths about drawn replays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loops import every

import hwmodel
import replay
from hwmodel.specs import SystemSpec
from replay.engine import schedule
from replay.engine.taskgraph import slow_down
from replay.errors import UserError
from replay.experiments.layer.setup import LayerSetup
from replay.model.machine.kinds import Kind
from replay.schemes import SCHEMES
from replay.schemes.ep.plain import Plain
from replay.studies.uncertainty.assess import assess
from replay.studies.uncertainty.bands import Draw, DrawnResult, summary
from replay.studies.uncertainty.draws import deviation, share
from replay.studies.uncertainty.parts import factors, group_of, parts_of
from replay.studies.uncertainty.residuals import POINTS, table
from replay.studies.uncertainty.scheme_times import Timer

ONES = np.ones(len(Kind))
KINDS_OF_REPLAY = {
    "layer": {"layer": 0},
    "layers apart": {"barrier": True},
    "chain": {},
    "both passes": {"direction": "training"},
    "micro-batches in turns": {"interleave": "tbo"},
}


class Twin(Plain):
    """The plain scheme, under another name."""

    def __init__(self, name):
        super().__init__()
        self.name = name


def uncertain_in(ranges, base="dgx-h100"):
    """A machine of which everything is exact but some values, given as (low, high) by key."""
    values = hwmodel.load(base).spec.model_dump()
    for key in hwmodel.load(base).spec.present():
        section, _, leaf = key.partition(".")
        low_high = ranges.get(key)
        spread = "exact" if low_high is None else dict(zip(("low", "high"), low_high, strict=True))
        values[section][leaf]["spread"] = spread
    return hwmodel.System.from_spec(SystemSpec.model_validate(values), 8)


@pytest.fixture(scope="module")
def small(synthetic):
    return synthetic(ranks=4, tokens_per_rank=16)


@pytest.fixture(scope="module")
def two(small):
    """Two schemes on a small layer."""
    return replay.compare(small, ["deepep", "nccl-alltoall"], layer=0)


# ---- a replay without a draw ---------------------------------------------------------------------


@every("settings", KINDS_OF_REPLAY.values(), ids=KINDS_OF_REPLAY)
def test_without_draws_the_times_are_those_of_the_comparison(small, settings):
    other = "deepep-ll" if "interleave" in settings else "nccl-alltoall"
    compared = replay.compare(small, ["deepep", other], ranks=4, **settings)
    system = hwmodel.load("dgx-h100")
    timer = Timer(compared.results, small, system)
    for index, result in enumerate(compared.results):
        assert timer.time_us(index, system, ONES) == result.totals.makespan_us


@pytest.mark.extended
def test_a_chain_in_a_draw_is_replayed_layer_by_layer_as_at_once(synthetic):
    """With errors of every kind of task, too."""
    trace = synthetic(ranks=4, tokens_per_rank=8, layers=4)
    compared = replay.compare(trace, ["deepep", "dysharp"], ranks=4, system="gh200-nvl32")
    system = hwmodel.load("gh200-nvl32")
    by_kind = np.linspace(0.8, 1.7, len(Kind))
    timer = Timer(compared.results, trace, system)
    for index, result in enumerate(compared.results):
        scheme = SCHEMES[result.scheme.name]
        chain = LayerSetup(result.spec, {}, system, scheme).prepare(trace).build()
        whole_ps = schedule(slow_down(chain.built.graph, by_kind)).makespan_ps
        assert timer.time_us(index, system, by_kind) == whole_ps / 1e6


def test_of_a_sample_of_layers_the_same_ones_are_timed(synthetic):
    trace = synthetic(ranks=4, tokens_per_rank=8, layers=5)
    compared = replay.compare(trace, ["deepep"], barrier=True, sample_layers=2)
    system = hwmodel.load("dgx-h100")
    (result,) = compared.results
    assert len(result.layers) == 2
    timed = Timer(compared.results, trace, system).time_us(0, system, ONES)
    assert timed == result.totals.makespan_us


def test_tuned_options_stay(small):
    compared = replay.compare(small, ["comet"], layer=0, tune=True)
    assert compared["comet"].scheme.tuned
    system = hwmodel.load("dgx-h100")
    timed = Timer(compared.results, small, system).time_us(0, system, ONES)
    assert timed == compared["comet"].totals.makespan_us


def test_all_errors_doubled_take_the_parts_twice_as_long(small, two):
    system = hwmodel.load("dgx-h100")
    timer = Timer(two.results, small, system)
    for index in range(len(two.results)):
        nominal = timer.time_us(index, system, ONES)
        assert timer.time_us(index, system, 2 * ONES) == pytest.approx(2 * nominal, rel=0.2)
        assert timer.time_us(index, system, ONES) == nominal  # nothing is left of a draw


# ---- bands ---------------------------------------------------------------------------------------


def test_what_is_exact_has_no_band(small, two):
    found = assess(two, small, draws=3, of=["hardware"], system=uncertain_in({})).uncertainty
    for band in found.bands:
        assert band.low_us == band.high_us == band.nominal_us
    assert found.order_holds == 1 and not found.decides


@pytest.mark.extended
def test_a_wider_range_gives_a_wider_band(small, two):
    """Of one value that everything depends on: the same draws, further from the median."""
    widths = []
    for factor in (1.1, 1.21):
        system = uncertain_in({"hbm.peak_GB_per_s": (3350 / factor, 3350 * factor)})
        found = assess(two, small, draws=5, of=["hardware"], system=system).uncertainty
        widths.append([band.high_us - band.low_us for band in found.bands])
    assert all(0 < 1.5 * narrow < wide for narrow, wide in zip(*widths, strict=True))


def test_what_calls_take_is_drawn_where_a_host_launches_kernel_by_kernel(small):
    """A graph holds the kernels of one scheme; of the other the host does most, whose costs decide."""
    compared = replay.compare(small, ["deepep", "deepep-ll"], layer=0, launch="eager")
    eager = assess(compared, small, draws=2, of=["software"], seed=1).uncertainty
    assert all(len({*band.times_us, band.nominal_us}) == 3 for band in eager.bands)
    system = hwmodel.load("dgx-h100")
    assert {"call.te", "operator.view"}.isdisjoint(Timer(compared.results, small, system).software(0))
    held = replay.compare(small, ["deepep-ll"], layer=0, launch="graph")
    assert Timer(held.results, small, system).software(0) == []
    (band,) = assess(held, small, draws=2, of=["software"], seed=1).uncertainty.bands
    assert set(band.times_us) == {band.nominal_us}
    bare = replay.compare(small, ["deepep"], layer=0, stack="bare")
    (band,) = assess(bare, small, draws=2, of=["software"], seed=1).uncertainty.bands
    assert set(band.times_us) == {band.nominal_us}


def test_calls_behind_a_wait_are_named_under_a_graph_too(small):
    """The host launches what follows its wait; these costs are drawn, and can decide."""
    compared = replay.compare(small, ["deepep"], layer=0, launch="graph")
    system = hwmodel.load("dgx-h100")
    timer = Timer(compared.results, small, system)
    nominal = timer.time_us(0, system, ONES)
    keys = timer.software(0)
    assert {"call.tensor", "call.launch", "part.function", "part.signal", "part.record"} <= set(keys)
    moved = [key for key in keys if timer.time_us(0, system, ONES, lambda one, key=key: float(one == key)) != nominal]
    assert set(keys) - set(moved) <= {"call.torch"}  # of what is launched before the layer


def test_draws_do_not_depend_on_how_many_there_are(small, two):
    """Nor on what else is drawn."""
    few = assess(two, small, draws=2, seed=5).uncertainty
    more = assess(two, small, draws=4, seed=5).uncertainty
    for one, other in zip(few.bands, more.bands, strict=True):
        assert one.times_us == other.times_us[:2]
    assert deviation(5, 1, "a") == deviation(5, 1, "a") != deviation(5, 1, "b")
    assert len({share(5, number, "a") for number in range(50)}) == 50


def test_another_seed_gives_other_draws(small, two):
    bands = [assess(two, small, draws=1, seed=seed).uncertainty.bands for seed in (0, 0, 1)]
    assert bands[0] == bands[1] != bands[2]


def test_the_comparison_stays_as_it_is(small, two):
    found = assess(two, small, draws=1)
    assert found.model_copy(update={"uncertainty": None}) == two
    assert two.uncertainty is None


# ---- what schemes share --------------------------------------------------------------------------


def twins(small, name):
    schemes = [Plain(), Twin(name)]
    compared = replay.compare(small, schemes, layer=0)
    return assess(compared, small, draws=16, of=["model"], schemes=schemes).uncertainty


def test_what_two_schemes_share_cancels(small):
    """A variant of a scheme has its errors: it is never faster, and never slower."""
    found = twins(small, "plain-twin")
    assert found.order_holds == 1
    assert [band.first for band in found.bands] == [1, 1]
    assert [band.before_next for band in found.bands] == [1, None]
    one, other = (band.times_us for band in found.bands)
    assert one == other and len(set(one)) > 12


@pytest.mark.extended
def test_what_two_schemes_have_alone_does_not_cancel(small):
    """Equal schemes that nobody measured, and that have nothing to do with each other."""
    found = twins(small, "other")
    first = found.bands[0].first
    assert 0.2 < first < 0.8
    assert found.bands[0].before_next == found.order_holds == first
    assert sum(band.first for band in found.bands) == pytest.approx(1)
    assert {one.name.partition(" (")[2] for one in found.decides} <= {"plain)", "other)"}


def test_every_scheme_has_parts_that_are_in_the_table(two):
    system = hwmodel.load("dgx-h100")
    for name in SCHEMES:
        of = two["deepep"].model_copy(update={"scheme": two["deepep"].scheme.model_copy(update={"name": name})})
        parts = parts_of(of, system)
        assert all(part.partition(" (")[0] in table() for part in parts.values())
        assert ("dispatch" in parts) == (name != "ideal")


@every(
    ("one", "other", "is_same"),
    [
        ("nccl-alltoall", "megatron", True),
        ("dysharp", "dysharp-basic", True),
        ("dysharp", "moe-hub", False),
        ("deepep", "deepep-ll", False),
        ("nccl-alltoall", "megatron-allgather", False),
    ],
)
def test_kernels_of_one_library_have_one_error(two, one, other, is_same):
    system, found = hwmodel.load("dgx-h100"), []
    for name in (one, other):
        scheme = two["deepep"].scheme.model_copy(update={"name": name})
        found.append(parts_of(two["deepep"].model_copy(update={"scheme": scheme}), system))
    assert (found[0]["dispatch"] == found[1]["dispatch"]) == is_same
    assert found[0]["experts"] == found[1]["experts"]


def test_blackwell_has_errors_of_its_own(two):
    parts = parts_of(two["deepep"], hwmodel.load("hgx-b200"))
    assert parts["dispatch"] == "DeepEP dispatch, B200"


def test_factors_are_of_the_kinds_of_their_part():
    by_kind, by_part = factors({"experts": "experts, FP8"}, lambda name: 0.9)
    (found,) = by_part.values()
    assert found > 1.05
    for kind in Kind:
        assert by_kind[kind] == (found if group_of(kind) == "experts" else 1)
    assert by_kind[Kind.GEMM1] == by_kind[Kind.WGRAD] == found


def test_residuals_are_distributions():
    for name, logarithms in table().items():
        assert len(logarithms) == len(POINTS)
        assert list(logarithms) == sorted(logarithms), name
        assert -0.35 < logarithms[0] < logarithms[-1] < 1.1, name


# ---- shares --------------------------------------------------------------------------------------


def summary_of(times, values=None):
    """What draws (draw, scheme) come to; the schemes' order is that of the columns."""
    rows = [DrawnResult(f"s{index}", "contiguous", float(index + 1), is_bound=False) for index in range(times.shape[1])]
    draws = [
        Draw(row, {name: float(of[number]) for name, of in (values or {}).items()}) for number, row in enumerate(times)
    ]
    return summary(rows, draws, 0, ["hardware"], [])


def test_the_share_is_that_of_the_closed_form():
    """One time is x, the other 110, and x has its median at 100 and nine of ten within 25 %."""
    system = uncertain_in({"overheads.host_sync_us": (15 / 1.25, 15 * 1.25)})
    (one,) = hwmodel.draws.uncertain(system.spec)
    x = np.array([one.at(deviation(3, number, one.key)) for number in range(2000)]) * 100 / 15
    found = summary_of(np.stack([x, np.full(2000, 110.0)], axis=1))
    # P(x <= 110) is the normal distribution's at ln 1.1 / ln 1.25 x 1.645 deviations.
    assert found.bands[0].first == pytest.approx(0.7588, abs=0.03)
    assert found.bands[0].low_us == pytest.approx(80, rel=0.03)
    assert found.bands[0].high_us == pytest.approx(125, rel=0.03)


def test_pairs_and_the_whole_order_are_told_apart():
    times = np.array([[1.0, 2, 3], [1, 3, 2], [2, 1, 3], [3, 2, 1]])
    found = summary_of(times)
    assert [band.before_next for band in found.bands] == [0.5, 0.5, None]
    assert [band.first for band in found.bands] == [0.5, 0.25, 0.25]
    assert found.order_holds == 0.25


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(1, 5).map(float))
)
def test_shares_are_those_of_the_draws_one_by_one(times):
    found = summary_of(times)
    count, draws = times.shape[1], times.tolist()
    for index, band in enumerate(found.bands):
        assert band.first == pytest.approx(sum(row[index] == min(row) for row in draws) / len(draws))
        assert band.low_us <= band.median_us <= band.high_us
        assert min(band.times_us) <= band.low_us and band.high_us <= max(band.times_us)
        if index + 1 < count:
            assert found.order_holds <= band.before_next
    assert sum(band.first for band in found.bands) >= 1 - 1e-9
    assert found.order_holds == pytest.approx(sum(row == sorted(row) for row in draws) / len(draws))
    more = summary_of(np.concatenate([times, times]))
    assert [band.first for band in more.bands] == pytest.approx([b.first for b in found.bands])


def test_what_decides_is_what_the_lead_follows():
    random = np.random.default_rng(0)
    good, noise = random.random(60), random.random(60)
    times = np.stack([2 - good, np.full(60, 2.5), np.full(60, 9)], axis=1)
    (cause,) = summary_of(times, {"noise": noise, "good": good}).decides
    assert cause.name == "good" and cause.correlation == pytest.approx(1)


def test_the_best_of_many_unrelated_values_decides_nothing():
    """With 10 draws of 60 values some correlate by more than 0.65, as one of 20 would by chance."""
    random, draws = np.random.default_rng(0), 10
    times = np.stack([1 + random.random(draws), np.full(draws, 2.5)], axis=1)
    values = {f"value {place}": random.random(draws) for place in range(60)}
    best = max(
        abs(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(times[:, 0])))[0, 1])
        for one in values.values()
    )
    assert best > 1.96 / np.sqrt(draws - 1)
    assert not summary_of(times, values).decides


def test_routing_that_a_scheme_cannot_run_is_left_out_and_said():
    times = np.array([[1.0, 2], [1, np.nan], [2, 1]])
    found = summary_of(times)
    assert found.bands[0].first == 0.5 and "1 draws left out" in found.notes[0]
    with pytest.raises(UserError, match="no draw can be replayed"):
        summary_of(times[1:2])


def test_a_bound_is_no_rival(small):
    """It has a band, and neither a share nor a part in the order."""
    compared = replay.compare(small, ["ideal", "deepep"], layer=0)
    found = assess(compared, small, draws=2).uncertainty
    bound, rival = found.bands
    assert (bound.scheme, bound.first, bound.before_next) == ("ideal", None, None)
    assert (rival.first, rival.before_next, found.order_holds, found.decides) == (1, None, 1, [])
    alone = replay.compare(small, ["ideal"], layer=0)
    assert assess(alone, small, draws=1).uncertainty.bands[0].first is None


# ---- files and refusals --------------------------------------------------------------------------


def test_the_json_has_it_where_it_was_asked_for(tmp_path, small, two):
    assert "uncertainty" not in json.loads(two.to_json())
    found = assess(two, small, draws=2)
    found.save(tmp_path / "c.json")
    assert replay.load_result(tmp_path / "c.json") == found
    text = replay.summary(found)
    assert "How sure it is: 2 draws of hardware, software, model and routing, seed 0" in text
    assert "fastest in" in text


@every(
    ("asked", "says"),
    [
        ({"draws": 0}, "from 1 to 100000"),
        ({"draws": 1, "seed": -1}, "at least 0"),
        ({"draws": 1, "of": ["weather"]}, "weather.*known: hardware, model, routing, software"),
        ({"draws": 1, "of": []}, "nothing is to be drawn"),
    ],
)
def test_what_cannot_be_drawn_is_refused(small, two, asked, says):
    with pytest.raises(UserError, match=says):
        assess(two, small, **asked)


def test_values_without_a_spread_are_held_and_named(small, two):
    values = hwmodel.load("dgx-h100").spec.model_dump()
    values["overheads"]["host_sync_us"]["spread"] = None
    system = hwmodel.System.from_spec(SystemSpec.model_validate(values), 8)
    (note,) = assess(two, small, draws=1, of=["hardware"], system=system).uncertainty.notes
    assert note.endswith(": overheads.host_sync_us")
