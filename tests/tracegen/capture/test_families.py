"""Family by family: what was captured, fed back to the model, gives bit-identical logits."""

import os
from pathlib import Path

import pytest

ENABLE = "needs torch and transformers 5: pip install 'moereplay[capture]'"
pytest.importorskip("torch", reason=ENABLE)
pytest.importorskip("transformers", "5.0", reason=ENABLE)

import tiny_families  # noqa: E402 (only once it is known that models can be made)
from replay_proof import Proof, prove  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

import tracegen  # noqa: E402
from tracegen.capture.sites import BROKEN  # noqa: E402

TABLE = Path(tracegen.__file__).parent / "capture" / "FAMILIES.md"
REWRITE = "MOEREPLAY_WRITE_FAMILIES"

PADDING_MATTERS = {"deepseek_v32": 0.95, "glm_moe_dsa": 0.95, "minimax": 0.9}
"""Sparse or linear attention that sees padding: a padded and an unpadded pass of these models
differ by themselves; share of rows that still agree."""

INTRODUCTION = f"""# Model families that capture is proven for

Written by the test run (`{REWRITE}=1 pytest tests/tracegen/capture/test_families.py`), and
compared with it in every other run. Each row is a tiny random model: configured, saved, loaded,
generated with.

- **proven**: the routing is read from what the experts module receives. The trace holds one row
  for each real token; fed back, its ids and weights give bit-identical logits, and ids moved by
  one give others; cached generation is routed as one pass over the whole sequence.
- **adapter**: the same, with the routing read from the family's own router or mask format.
- **refused**: capture raises an error that says why.

A model type that is not listed is captured all the same if its experts module receives ids and
weights: sites are found by signature, not by this list.

| model type | read from | verdict |
|---|---|---|
"""


def installed() -> list[str]:
    return sorted(name for name in tiny_families.FAMILIES if name in CONFIG_MAPPING)


def row(model_type: str, proof: Proof) -> str:
    verdict = {"experts": "proven", "adapter": "adapter"}[proof.how]
    return f"| {model_type} | `{proof.read_from}` | {verdict} |"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("model_type", sorted(tiny_families.FAMILIES))
def test_the_captured_routing_is_what_the_model_executed(model_type: str, folder: Path) -> None:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    proof = prove(model_type, folder)
    assert proof.rows_as_expected
    assert proof.replay_exact
    assert proof.shift_differs
    if model_type != "switch_transformers":  # capacity makes its routing depend on the batch
        assert proof.cached_equals_whole >= PADDING_MATTERS.get(model_type, 1.0)
    assert REWRITE in os.environ or row(model_type, proof) in TABLE.read_text("utf-8").splitlines()


def test_a_family_that_transformers_runs_wrongly_is_refused(tmp_path: Path) -> None:
    import torch

    router = type("NllbMoeTop2Router", (torch.nn.Linear,), {})(4, 4)
    with pytest.raises(tracegen.UserError, match="only the first two experts"):
        tracegen.capture(torch.nn.Sequential(router), tmp_path / "a.h5")


def test_the_committed_table_lists_every_family(folder: Path) -> None:
    refused = [f"| nllb-moe | | refused: {reason} |" for reason in BROKEN.values()]
    if REWRITE in os.environ:
        rows = [row(name, prove(name, folder)) for name in installed()] + refused
        TABLE.write_text(INTRODUCTION + "\n".join(sorted(rows)) + "\n", "utf-8")
    text = TABLE.read_text("utf-8")
    assert text.startswith(INTRODUCTION)
    listed = [line for line in text.splitlines() if line.startswith("| ")][1:]
    names = [line.split("|")[1].strip() for line in listed]
    assert sorted([*tiny_families.FAMILIES, "nllb-moe"]) == names
    assert set(refused) <= set(listed)
    assert sum("refused" not in line for line in listed) >= 35
