"""Every mistake in a replay of a layer is one line that says what is possible."""

from __future__ import annotations

from typing import Any

import pytest
from loops import every

from replay.errors import UserError
from replay.experiments.dense import compare, run
from replay.experiments.dense.spec import TensorSpec
from replay.schemes.registry import find

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"model": "nope"}, "unknown model 'nope'; known: "),
    ({"model": 3}, "model = 3: expected text"),
    ({"model": "deepseek-v3"}, "deepseek-v3 has latent attention"),
    ({"model": "none.toml"}, "cannot read the model file none.toml"),
    ({"scheme": "sp-rings"}, "unknown scheme of tensor parallelism 'sp-rings' (did you mean"),
    ({"options": {"x": 1}}, "scheme 'sp-nvls' has no options; 'x' was given"),
    ({"options": [1]}, "options = [1]: expected a table"),
    ({"system": "nope"}, "unknown system 'nope'; known: "),
    ({"overrides": {"a": 1}}, "override: unknown key 'a'; known: "),
    ({"overrides": {"link.links_per_gpu": "x"}}, "override: link.links_per_gpu=x is not a number"),
    ({"tp": 0}, "tp must be at least 1, not 0"),
    ({"tp": 2000}, "tp must be at most 1024, not 2000"),
    ({"tp": 16}, "tp 16: an NVLink domain of 'dgx-h100' has 8 GPUs"),
    ({"tp": 5}, "5 GPUs cannot share the attention heads of llama-2-7b equally: 32"),
    ({"tp": 2}, "scheme 'sp-nvls' cannot run this: NCCL uses the switch for 3 GPUs or more"),
    ({"tokens": 0}, "tokens must be at least 1, not 0"),
    ({"tokens": "8"}, "tokens = '8': expected a whole number"),
    ({"tokens": True}, "tokens = True: expected a whole number"),
    ({"tokens": 513}, "scheme 'sp-nvls' cannot run this: 8 GPUs cannot own equal shares of 513"),
    ({"sequence": 10**12}, "sequence must be at most 2147483648, not 1000000000000"),
    ({"phase": "x"}, "unknown phase 'x'; known: decode, prefill"),
    ({"direction": "x"}, "unknown pass 'x'; known: backward, forward, training"),
    ({"part": "mlp"}, "unknown part 'mlp' (did you mean 'mlp-to-attention'?); known: attention-to-mlp, layer, mlp-to-"),
    ({"launch": "x"}, "unknown launch 'x'; known: ahead, eager, graph"),
    ({"layers": 0}, "layers must be at least 1, not 0"),
    ({"phase": "decode", "direction": "training"}, "decoding has no backward pass"),
    ({"nonsense": 1}, "unknown setting 'nonsense'; known: "),
    ({"system": "dgx-a100"}, "scheme 'sp-nvls' cannot run this: it needs multicast and reduction"),
]


@every(("given", "beginning"), MISTAKES, ids=lambda one: str(one)[:40])
def test_a_mistake_is_one_line(given: dict[str, Any], beginning: str) -> None:
    with pytest.raises(UserError) as caught:
        run(**{"model": "llama-2-7b", "tokens": 512, **given})
    assert str(caught.value).startswith(beginning)
    assert "\n" not in str(caught.value)


COMPARED: list[tuple[dict[str, Any], str]] = [
    ({"schemes": ["sp-ring", "nope"]}, "unknown scheme of tensor parallelism 'nope'; known: "),
    ({"schemes": ["sp-ring"], "baseline": "tp-ring"}, "unknown baseline 'tp-ring'"),
    ({"options": {"nope": {}}}, "unknown scheme with options 'nope'; known: "),
    ({"options": {"sp-ring": {"x": 1}}}, "scheme 'sp-ring' has no options; 'x' was given"),
    ({"schemes": ["sp-nvls"], "tp": 2}, "scheme 'sp-nvls' cannot run this: NCCL uses the switch"),
    ({"baseline": "sp-nvls", "tp": 2}, "scheme 'sp-nvls' cannot run this: NCCL uses the switch"),
    ({"system": "atlas-800t-a2"}, "no scheme can run this; tp-nvls and 5 more: it needs cuda and multicast"),
]


@every(("given", "beginning"), COMPARED, ids=lambda one: str(one)[:40])
def test_a_mistake_in_a_comparison_is_one_line(given: dict[str, Any], beginning: str) -> None:
    with pytest.raises(UserError) as caught:
        compare(**{"model": "llama-2-7b", "tokens": 512, **given})
    assert str(caught.value).startswith(beginning)
    assert "\n" not in str(caught.value)


def test_another_scheme_takes_its_own_defaults() -> None:
    spec = TensorSpec(scheme="sp-ring", options={"a": 1}, tp=4)
    assert spec.changed(tp=2).options == {"a": 1}
    assert spec.changed(scheme="tp-ring").options == {}
    assert spec.changed(scheme="tp-ring").tp == 4


def test_a_pass_has_the_name_that_commands_use() -> None:
    spec = TensorSpec(**{"pass": "training"})
    assert spec == TensorSpec(direction="training")
    assert TensorSpec.model_validate(spec.model_dump(by_alias=True)) == spec


def test_a_whole_number_is_a_number() -> None:
    options = find("cais", "tp").with_options({"timeout_us": 1}).options
    assert options.timeout_us == 1.0
    assert isinstance(options.timeout_us, float)
    with pytest.raises(UserError, match="timeout_us=True of scheme 'cais': expected a number"):
        find("cais", "tp").with_options({"timeout_us": True})
