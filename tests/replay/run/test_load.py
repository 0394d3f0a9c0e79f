"""Results are read back, those of older schemas too; what is something else is refused in a line.

The files in tests/data/results were written by the version before the second schema and stay.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loops import every

import replay
from replay.errors import UserError
from replay.experiments.layer.experiment import EXPERIMENT
from replay.experiments.layer.result import Comparison, Result

DATA = Path(__file__).parents[2] / "data" / "results"
SINGLE = ("layer-1", "chain-1", "tuned-1")


@pytest.fixture(scope="module")
def small(synthetic):
    """The trace that the old results were made from."""
    return synthetic(ranks=2, tokens_per_rank=4)


def old(name: str) -> Result:
    loaded = replay.load_result(DATA / f"{name}.json")
    assert isinstance(loaded, Result)
    return loaded


@every("name", SINGLE)
def test_a_result_of_the_first_schema_holds_what_it_held(name: str) -> None:
    before = json.loads((DATA / f"{name}.json").read_text())
    after = json.loads(old(name).to_json())
    assert before["format"] == "moereplay-result/1" and after["format"] == "moereplay-result/3"
    assert after["run_id"] == before["run_id"]
    assert after["totals"] == before["totals"]
    assert after["trace"] == before["trace"]
    system = after["system"]
    assert before["system"] == system["values"] | {key: system[key] for key in ("name", "num_gpus")}
    for part, was in zip(parts(after), parts(before), strict=True):
        measures = part.pop("measures")
        assert measures["mechanisms"].pop("cache") == {}, "the first schema had none"
        for unknown, place in (
            ("exposure", measures),
            ("sm_time_us", measures),
            ("token_latency_from_start_us", part),
            ("memory", part),
            ("network", measures),
            ("sampled_nodes", part),
            ("experts", measures["mechanisms"]),
            ("behind_by_kind_us", measures["critical_path"]),
            *((name, measures["critical_path"]) for name in ("overhead", "latencies", "by_place_us", "beside")),
        ):
            assert place.pop(unknown, None) is None, "the first schema did not say"
        assert {**measures, **part} == was
    assert after["scheme"].pop("tuned") == before["scheme"].pop("tuned", [])
    assert after["scheme"].pop("code") == "", "the first schema had moereplay's own alone"
    assert after["scheme"] == before["scheme"]


def parts(document: dict) -> list[dict]:
    return [document["chain"]] if document.get("chain") else document["layers"]


@pytest.mark.extended
@every("name", SINGLE)
def test_a_result_of_the_first_schema_can_be_run_again(name: str, small) -> None:
    """With the same input; the numbers are the business of tests/golden."""
    before = old(name)
    after = replay.run(small, before.spec)
    for what in ("trace", "batch", "placement", "precision"):
        assert getattr(after, what) == getattr(before, what), what
    assert after.system.name == before.system.name
    assert after.system.num_gpus == before.system.num_gpus
    # What was described then is the same; more may be described now.
    now, then = after.system.values, dict(before.system.values)
    parts = now["nic.post_ns"] + 6 * now["pcie.latency_ns"] + now["network.leaf_ns"]
    assert then.pop("nic.put_latency_us") == parts / 1000, "told in its parts today"
    assert then.pop("nic.cross_rail_us") == now["network.spine_ns"] / 1000
    assert {key: now[key] for key in then} == then
    assert after.scheme.name == before.scheme.name
    for now_tried, tried in zip(after.scheme.tuned[:1], before.scheme.tuned[:1], strict=True):
        assert tried.options.items() <= now_tried.options.items(), "more is searched now"
    if not before.scheme.tuned:
        options = dict(before.scheme.options)
        assert options.pop("weight_passes", 1) == 1, "nobody's option any more"
        assert options.items() <= after.scheme.options.items()
    assert places(after) == places(before)
    assert (after.chain is None) == (before.chain is None)


def places(result: Result) -> list[tuple[int, int, bool]]:
    """Step, layer and pass of every layer."""
    layers = result.layers if result.chain is None else result.chain.layers
    return [(layer.step, layer.layer_index, layer.is_backward) for layer in layers]


def test_a_comparison_of_the_first_schema_is_read() -> None:
    before = replay.load_result(DATA / "comparison-1.json")
    assert isinstance(before, Comparison) and before.baseline == "deepep"
    assert [result.scheme.name for result in before.results] == ["deepep", "ideal"]
    assert "speed-up over deepep" in replay.summary(before)


def test_present_results_come_back(small, tmp_path: Path) -> None:
    compared = replay.compare(small, ["deepep", "ideal"], layer=0)
    for number, one in enumerate((compared, compared["ideal"])):
        one.save(tmp_path / f"{number}.json")
        assert replay.load_result(tmp_path / f"{number}.json") == one


def test_the_summary_is_the_same_for_a_result_that_was_read_back() -> None:
    for name in SINGLE:
        text = replay.summary(old(name))
        assert "Critical path of" in text and old(name).scheme.name in text


def document() -> dict:
    return json.loads((DATA / "layer-1.json").read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ((DATA / "layer-1.json").read_text()[:-200], "cut short"),
        ("", "cut short"),
        ("[1]", "its format is None"),
        ('{"format": 3}', "its format is 3"),
        ('{"format": "moereplay-dream/1"}', "is a moereplay-dream document; this takes: "),
        ('{"format": "moereplay-result/4"}', "this version reads"),
        ('{"format": "moereplay-comparison/4"}', "this version reads"),
        ('{"format": "moereplay-result/2"}', "is damaged: run_id"),
        ('{"format": "moereplay-result/1"}', "is damaged"),
        ('{"format": "moereplay-comparison/1", "results": 3}', "is damaged"),
        ('{"format": "moereplay-comparison/3", "baseline": "a", "results": []}', "results"),
        (json.dumps({**document(), "layers": [{}]}), "is damaged"),
        (json.dumps({**document(), "totals": {}}), "is damaged: totals"),
        (json.dumps({**document(), "colour": "blue"}), "colour"),
        (json.dumps({**document(), "batch": {**document()["batch"], "num_ranks": 0}}), "damaged"),
    ],
)
def test_what_is_no_whole_result_is_refused_in_a_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        replay.load_result(path)
    message = str(caught.value)
    assert said in message and "some.json" in message and "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*gone\.json"):
        replay.load_result(tmp_path / "gone.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bytes\.json is no result"):
        replay.load_result(tmp_path / "bytes.json")


def test_a_comparison_is_no_spec() -> None:
    with pytest.raises(UserError, match="holds a comparison of 2 results"):
        EXPERIMENT.load_one(DATA / "comparison-1.json")
