"""Inputs that a paper leaves open: which replays they ask for, and what the one table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from loops import every

from replay.errors import UserError
from replay.experiments.base.load import load_result
from replay.report.pages import page
from replay.studies.sweeps import load_study, study_names
from replay.studies.sweeps.free import free_inputs_of, free_table, swept_claims, verdict
from replay.studies.sweeps.plan import plan_sweep
from replay.studies.sweeps.points import points_of
from replay.studies.sweeps.result import SweepResult
from replay.studies.sweeps.run import sweep
from replay.studies.sweeps.study import Study, parse_study
from replay.studies.sweeps.sweep_file import ClaimValue, SweptClaim, inputs_text

STUDY = """
title = "A paper's layers"
question = "What do its open inputs decide?"
[fixed]
system = "dgx-h100"
tune = false
trace.kind = "zipf"
trace.skew = 0.8
trace.model = "olmoe-1b-7b"

[[columns]]
header = "us"
path = "totals.makespan_us"
[[columns]]
header = "over ideal"
path = "totals.makespan_us"
relative_to = { scheme = "ideal" }
digits = 3

[[free]]
input = "skew"
why = "Not stated."
stated = "Zipf 0.8"
others = [{ label = "even", trace.skew = 0.0 }]
[[free]]
input = "tokens"
why = "Not stated."
stated = "4 and 8"
others = [{ label = "16", tokens_per_rank = 16 }]

[[grid]]
title = "Layers"
across = "scheme"
corners = [{ skew = "even", tokens = "16" }]
leave_out = [{ scheme = "nvls", size = "few" }]
[grid.axes]
size = [
  { label = "few", tokens_per_rank = 4, ranks = 2 },
  { label = "many", tokens_per_rank = 8, ranks = 4 },
]
scheme = ["deepep", "nvls", "comet", "ideal"]
[[grid.claims]]
says = "DeepEP over the bound"
published = 2.0
column = "over ideal"
where = { scheme = "deepep" }
[[grid.free]]
input = "which DeepEP"
why = "Not stated."
stated = "version 1"
others = [{ label = "version 2", scheme = "deepep-v2" }]
at = { scheme = "deepep" }

[[grid]]
title = "A grid without claims"
fixed.ranks = 2
fixed.tokens_per_rank = 4
axes.scheme = ["nvls", "ideal"]
"""


def study(old: str = "", new: str = "") -> Study:
    assert old in STUDY
    return parse_study(STUDY.replace(old, new), "paper", "paper.toml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper") / "out"


@pytest.fixture(scope="module")
def swept(folder: Path) -> SweepResult:
    return sweep(study(), folder)


def asked(inputs: dict[str, str], old: str = "", new: str = "") -> list[dict[str, Any]]:
    """Settings of the points that a variation asks for."""
    plan = plan_sweep(free_inputs_of(study(old, new)))
    number = [getattr(grid, "inputs") for grid in plan.study.grids].index(inputs)  # noqa: B009
    return [dict(point.settings) for point in plan.points if point.grid == number]


def test_a_variation_asks_for_the_points_of_the_claims_and_their_baselines() -> None:
    assert [(one["scheme"], one["tokens_per_rank"]) for one in asked({})] == [
        ("deepep", 4),
        ("ideal", 4),
        ("deepep", 8),
        ("ideal", 8),
    ]


def test_each_input_alone_then_corners() -> None:
    grids = free_inputs_of(study()).grids
    assert [getattr(grid, "inputs") for grid in grids] == [  # noqa: B009
        {},
        {"skew": "even"},
        {"tokens": "16"},
        {"which DeepEP": "version 2"},
        {"skew": "even", "tokens": "16"},
    ]


def test_variations_are_no_race() -> None:
    """Their columns are those of claims, of which none need be a time."""
    told = 'scheme = ["deepep", "nvls", "comet", "ideal"]\n'
    found = plan_sweep(free_inputs_of(study(told, told + '[grid.answer]\nrivals = "scheme"\ncolumn = "us"\n')))
    assert all(grid.answer is None for grid in found.study.grids)


def test_a_value_holds_for_all_points_against_what_axes_say() -> None:
    found = asked({"skew": "even", "tokens": "16"})
    assert [(one["tokens_per_rank"], one["ranks"], one["trace.skew"]) for one in found] == [
        (16, 2, 0.0),
        (16, 2, 0.0),
        (16, 4, 0.0),
        (16, 4, 0.0),
    ]


def test_a_value_holds_at_the_points_that_it_names() -> None:
    two = 'scheme = "deepep-v2"'
    found = asked({"which DeepEP": "version 2"}, two, f'{two}, launch = "eager"')
    assert [(one["scheme"], one.get("launch")) for one in found] == [
        ("deepep-v2", "eager"),
        ("ideal", None),
        ("deepep-v2", "eager"),
        ("ideal", None),
    ]


def test_what_is_left_out_stays_left_out() -> None:
    found = asked({"tokens": "16"}, '{ scheme = "nvls", size', '{ scheme = ["nvls", "ideal"], size')
    assert [(one["scheme"], one["ranks"]) for one in found] == [("deepep", 2), ("deepep", 4), ("ideal", 4)]


def test_a_value_is_left_out_of_grids_without_the_points_that_it_is_about() -> None:
    other = """
[[grid]]
axes.scheme = ["nvls", "ideal"]
fixed.ranks = 2
claims = [{ says = "so", published = 1.0, column = "over ideal" }]
"""
    grids = free_inputs_of(parse_study(STUDY + other, "paper", "paper.toml")).grids
    assert [getattr(grid, "inputs") for grid in grids if getattr(grid, "of") == 2] == [  # noqa: B009
        {},
        {"skew": "even"},
        {"tokens": "16"},
    ]


def test_what_is_stated_is_no_further_replay() -> None:
    plan = plan_sweep(study())
    stated = [id for id, point in zip(plan.identities, plan.points, strict=True) if point.grid == 2]
    shown = [id for id, point in zip(plan.identities, plan.points, strict=True) if point.grid == 0]
    assert len(stated) == 4 and set(stated) < set(shown)


def claimed(result: SweepResult) -> SweptClaim:
    (claim,) = swept_claims(result.plan.tables)
    return claim


def test_numbers_are_those_of_grids_with_these_settings(swept: SweepResult, tmp_path: Path) -> None:
    """Each number of the table, from a study in which the value is written where it is meant."""
    written = {
        "": ("", ""),
        "even": ("trace.skew = 0.8", "trace.skew = 0.0"),
        "version 2": ('["deepep", "nvls"', '[{ label = "deepep", scheme = "deepep-v2" }, "nvls"'),
    }
    found = {", ".join(one.inputs.values()): one.value for one in claimed(swept).found}
    for label, (old, new) in written.items():
        result = sweep(study(old, new), tmp_path / "other")
        (claim,) = json.loads(result.to_json())["grids"][0]["claims"]
        assert found[label] == claim["replayed"]
    assert len(set(found.values())) == len(found) == 5


def test_the_table_has_the_range_and_what_decides(swept: SweepResult) -> None:
    claim = claimed(swept)
    value = {", ".join(one.inputs.values()): one.value or 0.0 for one in claim.found}
    ((says, published, stated, lowest, highest, decides),) = free_table([claim]).rows
    assert (says, published, stated) == ("DeepEP over the bound", "2", f"{value['']:.3f}")
    names = {
        "even": "skew: even",
        "16": "tokens: 16",
        "version 2": "which DeepEP: version 2",
        "even, 16": "skew: even; tokens: 16",
        "": "",
    }
    for shown, edge in ((lowest, min), (highest, max)):
        label = edge(value, key=lambda name: value[name])
        told = f" ({names[label]})" if label else ""
        assert shown == f"{value[label]:.3f}{told}"
    name = max(["even", "16", "version 2"], key=lambda one: abs(value[one] - value[""]))
    low, high = sorted([value[name], value[""]])
    assert decides == f"{names[name].partition(':')[0]} ({low:.3f} to {high:.3f})"


def made(found: dict[tuple[tuple[str, str], ...], float | None]) -> SweptClaim:
    values = [ClaimValue(inputs=dict(at), value=value, num_missing=0) for at, value in found.items()]
    return SweptClaim(says="so", published=1.0, digits=2, found=values)


def test_corners_and_what_cannot_run_decide_nothing() -> None:
    claim = made(
        {
            (): 2.0,
            (("a", "x"),): 2.5,
            (("a", "y"),): 1.9,
            (("b", "x"),): 2.55,
            (("c", "x"),): None,
            (("a", "x"), ("b", "x")): 4.0,
        }
    )
    assert claim.decides == "a (1.90 to 2.50)"
    assert claim.text(claim.highest, of=True) == "4.00 (a: x; b: x)"
    assert claim.text(claim.lowest, of=True) == "1.90 (a: y)"
    same = made({(): 2.0, (("a", "x"),): 2.004})
    assert (same.decides, same.text(same.highest, of=True)) == ("-", "2.00")
    nothing = made({(): None})
    assert nothing.decides == nothing.text(nothing.stated_value) == "-"


def test_a_value_without_all_points_is_left_out(tmp_path: Path) -> None:
    result = sweep(
        study('label = "version 2", scheme = "deepep-v2"', 'label = "version 2", scheme = "tutel", precision = "fp8"'),
        tmp_path,
    )
    assert [one.num_missing for one in claimed(result).found] == [0, 0, 0, 2, 0]
    assert "which DeepEP: version 2: left out" in result.markdown()
    assert "version 2" not in str(free_table([claimed(result)]).rows)


@every(("fixed", "changed"), [("bf16", "fp8"), ("fp8", "bf16")])
def test_a_value_with_other_points_is_left_out(fixed: str, changed: str, tmp_path: Path) -> None:
    """A mean of other points is no number to compare; the same ones may be missing throughout."""
    text = STUDY.replace('["deepep", "nvls"', '[{ label = "deepep", scheme = "tutel" }, "nvls"')
    text = text.replace('scheme = "deepep-v2"', f'precision = "{changed}"')
    text = text.replace('at = { scheme = "deepep" }', 'at = { size = "few" }')
    text = text.replace('label = "few"', f'label = "few", precision = "{fixed}"')
    claim = claimed(sweep(parse_study(text, "paper", "paper.toml"), tmp_path))
    assert [one.num_missing for one in claim.found] == [0, 0, 0, 1, 0]
    assert [one.value is None for one in claim.found] == [False, False, False, True, False]


def test_the_table_is_the_same_alone_and_with_the_study(swept: SweepResult, folder: Path) -> None:
    alone = sweep(free_inputs_of(study()), folder)
    assert alone.num_computed == 0
    whole = swept.markdown()
    begin, end = whole.index("## Free inputs"), whole.index("## Layers")
    assert whole[begin:end].strip() in alone.markdown()
    assert "even" not in whole[end:], "grids of variations are no tables of their own"


def test_pages_have_the_table_and_no_variations(swept: SweepResult, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(swept.to_json(), encoding="utf-8")
    titles = [section.title for section in page(load_result(path)).sections]
    assert titles[:4] == ["The answer", "Free inputs", "Layers", "A grid without claims"]
    assert page(load_result(path)) == page(swept)


@every(
    ("old", "new", "says"),
    [
        ('input = "tokens"', 'input = "skew"', "two free inputs are called 'skew'"),
        ('label = "16", ', "", "give each value a label"),
        ('label = "even"', 'label = "Zipf 0.8"', "give each value a label"),
        ('skew = "even", tokens', 'skews = "even", tokens', "unknown free input 'skews'"),
        ('skew = "even", tokens', 'skew = "odd", tokens', "unknown value of free input 'skew'"),
        ('at = { scheme = "deepep" }', 'at = { scheme = "flux" }', "of axis 'scheme'"),
        ('at = { scheme = "deepep" }', 'at = { schemes = "deepep" }', "unknown axis 'schemes'"),
        ("trace.skew = 0.0", "trace.skews = 0.0", "unknown setting of trace"),
        ('why = "Not stated."', "why = 3", "expected text"),
        ("corners = [{", "corners = 3 #[{", "corners must be a list of tables"),
    ],
)
def test_a_mistake_is_a_line_that_says_what_is_possible(old: str, new: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_sweep(study(old, new))
    assert says in str(caught.value) and str(caught.value).count("\n") < 2


def test_the_command_puts_the_table_into_a_page(swept: SweepResult, folder: Path) -> None:
    source, kept = folder.parent / "paper.toml", folder.parent / "page.md"
    source.write_text(STUDY, encoding="utf-8")
    kept.write_text("# Mine\n\n## Free inputs\n\nold\n\n## More\n\nkept\n", encoding="utf-8")
    done = invoke("sweep", source, "--free", "-o", folder, "--into", kept)
    assert done.exit_code == 0, done.exception
    text = kept.read_text()
    assert text.startswith("# Mine\n\n## Free inputs\n\n`moereplay sweep paper --free -o FOLDER`")
    assert text.endswith("\n\n## More\n\nkept\n") and "old" not in text
    assert "| DeepEP over the bound" in text
    before = text
    assert invoke("sweep", source, "--free", "-o", folder, "--into", kept).exit_code == 0
    assert kept.read_text() == before


@every(
    ("page_text", "study_text", "says"),
    [
        ("# Mine\n", STUDY, "has no section '## Free inputs'"),
        (None, STUDY, "cannot read the page"),
        (
            "",
            STUDY.replace("[[grid.claims]]", "[[grid.columns]]").partition("says =")[0]
            + 'header = "us"\npath = "totals.makespan_us"\n',
            "has no free inputs",
        ),
    ],
)
def test_what_has_no_place_for_the_table_is_refused_before_anything_is_replayed(
    page_text: str | None, study_text: str, says: str, tmp_path: Path
) -> None:
    source, kept, out = tmp_path / "paper.toml", tmp_path / "page.md", tmp_path / "out"
    source.write_text(study_text, encoding="utf-8")
    kept.unlink(missing_ok=True)
    if page_text is not None:
        kept.write_text(page_text, encoding="utf-8")
    done = invoke("sweep", source, "--free", "-o", out, "--into", kept)
    assert isinstance(done.exception, UserError) and says in str(done.exception)
    assert not out.exists()


@every("name", study_names())
def test_free_inputs_of_shipped_studies_say_why_and_each_value_changes_a_replay(name: str) -> None:
    shipped = load_study(name)
    if not any(grid.claims and grid.free for grid in shipped.grids):
        return
    free = free_inputs_of(shipped)
    assert all(one.why.endswith(".") for grid in free.grids for one in grid.free)
    asked: dict[tuple[str, int], list[object]] = {}
    for point in points_of(free):
        grid = free.grids[point.grid]
        at = (inputs_text(getattr(grid, "inputs")), getattr(grid, "of"))  # noqa: B009
        asked.setdefault(at, []).append(sorted(point.settings.items(), key=str))
    for values in {values for values, _ in asked if values}:
        grids = [of for told_of, of in asked if told_of == values]
        assert any(asked[values, of] != asked["", of] for of in grids), values


def test_the_first_published_number_and_what_decides_stand_before_all_answers(swept: SweepResult) -> None:
    rows = [
        ("speed-up of DeepEP", "2", "1.50", "1.00 (tiles: arrival)", "1.60 (gate: plain)", "tiles (1.00 to 1.50)"),
        ("traffic", "4.4", "4.41", "4.41", "4.41", "-"),
        ("nobody can", "3", "-", "-", "-", "-"),
    ]
    assert verdict(rows) == (
        "Speed-up of DeepEP: published 2, replayed 1.50, and 1.00 (tiles: arrival) to 1.60 (gate: plain) as what the "
        "paper leaves open varies. 1 of 2 published numbers lie within such ranges, which most depend on tiles (1)."
    )
    assert verdict(rows[1:2]) == (
        "Traffic: published 4.4, replayed 4.41 in every case. 1 of 1 published numbers lie within such ranges."
    )
    assert verdict([]) == ""
    said = verdict(free_table(swept_claims(swept.plan.tables)).texts())
    assert said.startswith("DeepEP over the bound: published 2, ")
    assert said in swept.text() and said in swept.markdown().replace("\\", "") and said in page(swept).summary
