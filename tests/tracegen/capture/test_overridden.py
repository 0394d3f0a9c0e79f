"""Routing that somebody changes after the router is recorded as executed, or refused."""

import functools
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401  # before all that imports torch
import pytest
import tiny_families
import torch
from replay_proof import generate

import tracegen

IDS = torch.tensor([[5, 6, 7, 8]])


def forced(_module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A hook that sends every token to the experts 6 and 7."""
    hidden, ids, weights = args
    return hidden, torch.tensor([6, 7]).expand_as(ids), weights


def test_a_hook_after_ours_is_recorded_as_the_experts_received_it(tmp_path: Path) -> None:
    model = tiny_families.tiny_model("mixtral")
    with tracegen.capture(model, tmp_path / "a.h5"):
        model.model.layers[1].mlp.experts.register_forward_pre_hook(forced)
        model(input_ids=IDS)
    trace = tracegen.load(tmp_path / "a.h5")
    assert (trace.layer_ids(1) == [6, 7]).all()
    assert not (trace.layer_ids(0) == [6, 7]).all()


def test_weights_of_other_experts_than_the_ids_are_refused(tmp_path: Path) -> None:
    """PhiMoE in transformers 5.0: weights of all experts, looked up by slot."""

    def of_all(_module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, ids, weights = args
        return hidden, ids, torch.zeros(len(ids), 8).scatter(1, ids, weights)

    model = tiny_families.tiny_model("mixtral")
    model.model.layers[1].mlp.experts.register_forward_pre_hook(of_all)
    with (
        pytest.raises(tracegen.UserError, match=r"layers\.1\..*\(4, 8\) are not of .*\(4, 2\)"),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        model(input_ids=IDS)


@pytest.mark.parametrize("where", ["before", "inside"])
def test_a_replaced_forward_is_refused(tmp_path: Path, where: str) -> None:
    model = tiny_families.tiny_model("mixtral")
    experts = model.model.layers[1].mlp.experts
    own = experts.forward

    def rerouted(hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return own(*forced(experts, (hidden, ids, weights)))

    if where == "before":
        experts.forward = rerouted
    with (
        pytest.raises(tracegen.UserError, match=r"layer 1 .*replaced by '.*rerouted'"),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        experts.forward = rerouted
        model(input_ids=IDS)


def test_a_wrapper_that_moves_tensors_is_none_that_routes(tmp_path: Path) -> None:
    """What accelerate does to a model that is spread over devices."""
    model = tiny_families.tiny_model("mixtral")
    for layer in model.model.layers:
        experts = layer.mlp.experts
        experts._hf_hook, experts._old_forward = object(), experts.forward
        experts.forward = functools.partial(lambda m, *args: m._old_forward(*args), experts)
    with tracegen.capture(model, tmp_path / "a.h5"):
        model(input_ids=IDS)
    assert tracegen.load(tmp_path / "a.h5").num_tokens == 4


def test_a_router_that_is_overridden_is_recorded_as_overridden(tmp_path: Path) -> None:
    """Llama 4 is read from what its router returns: from what the last hook made of it."""

    def first(_module: Any, _args: Any, output: Any) -> Any:
        logits = torch.zeros_like(output[1]).index_fill(1, torch.tensor([3]), 2.0)
        scores = torch.full_like(logits, float("-inf")).index_fill(1, torch.tensor([3]), 2.0)
        return scores.sigmoid(), logits

    model = tiny_families.tiny_model("llama4_text")
    with tracegen.capture(model, tmp_path / "a.h5"):
        model.model.layers[1].feed_forward.router.register_forward_hook(first)
        model(input_ids=IDS)
    trace = tracegen.load(tmp_path / "a.h5")
    at = trace.moe_layer_index.tolist().index(1)
    assert set(trace.layer_ids(at).ravel().tolist()) == {3}


@pytest.mark.parametrize(
    ("model_type", "router", "part"),
    [("llama4_text", "feed_forward.router", 0), ("jetmoe", "mlp.router", 1)],
)
def test_a_router_that_is_overridden_in_part_is_refused(
    tmp_path: Path, model_type: str, router: str, part: int
) -> None:
    """The experts run by one part of its output, capture reads another."""

    def mirrored(_module: Any, _args: Any, output: Any) -> Any:
        return tuple(value.flip(-1) if at == part else value for at, value in enumerate(output))

    model = tiny_families.tiny_model(model_type)
    with (
        pytest.raises(tracegen.UserError, match="overridden in part"),
        tracegen.capture(model, tmp_path / "a.h5"),
    ):
        model.model.layers[1].get_submodule(router).register_forward_hook(mirrored)
        model(input_ids=IDS)


def test_nested_captures_into_one_file_are_refused(tmp_path: Path) -> None:
    model, out = tiny_families.tiny_model("mixtral"), tmp_path / "a.h5"
    (tmp_path / "link").symlink_to(tmp_path)
    with tracegen.capture(model, out):
        generate(model)
        for other in (out, tmp_path / "link" / "a.h5"):
            with pytest.raises(tracegen.UserError, match="another capture of this process"):
                tracegen.capture(model, other, overwrite=True).__enter__()
    rows = tracegen.load(out).num_tokens
    again = tracegen.capture(model, out, overwrite=True)
    with again:
        generate(model)
    assert tracegen.load(out).num_tokens == rows
    with pytest.raises(tracegen.UserError, match="entered once"):
        again.__enter__()


def test_nested_captures_of_one_model_both_see_its_calls_of_generate(tmp_path: Path) -> None:
    """The inner one must not take off what tells the outer one of prompts and padding."""
    model = tiny_families.tiny_model("mixtral")
    with tracegen.capture(model, tmp_path / "outer.h5"):
        with tracegen.capture(model, tmp_path / "inner.h5"):
            generate(model)
        model.generate(input_ids=IDS, max_new_tokens=1)  # one forward pass, of the prompt
        model.generate(input_ids=IDS, max_new_tokens=2, min_new_tokens=2, use_cache=False)
    inner, outer = (tracegen.load(tmp_path / f"{name}.h5") for name in ("inner", "outer"))
    assert outer.tokens.request.max() == inner.tokens.request.max() + 2
    last = outer.tokens.request == outer.tokens.request.max()
    assert outer.tokens.position[last].tolist() == [0, 1, 2, 3, 4]
    assert "generate" not in vars(model)


def test_a_failed_pass_is_counted_as_dropped(tmp_path: Path) -> None:
    model = tiny_families.tiny_model("mixtral")
    with tracegen.capture(model, tmp_path / "a.h5"):
        handle = model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(input_ids=IDS)
        handle.remove()
        model(input_ids=IDS[:, :3])
    trace = tracegen.load(tmp_path / "a.h5")
    assert trace.num_tokens == 3
    (dropped,) = trace.info.provenance["dropped"]
    assert dropped["rows"] == 4
    assert "failed" in dropped["why"]
