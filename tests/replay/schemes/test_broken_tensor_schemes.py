"""Schemes of tensor parallelism with one defect each: the contract says what is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay.schemes.tp.direct
from replay.errors import UserError
from replay.experiments.dense import compare, run
from replay.experiments.dense.spec import TensorSpec
from replay.model.arrays import Ints
from replay.model.machine.kinds import Kind
from replay.model.work.transformer_layer import Core, Leave
from replay.schemes import find
from replay.schemes.contract import examine
from replay.schemes.contract.examine import case_of, check_declaration, examine_case
from replay.schemes.contract.tensor_checks import TENSOR_CHECKS
from replay.schemes.options import option
from replay.schemes.outside import CodeRefusedError
from replay.schemes.tp.base import TensorScheme
from replay.schemes.tp.direct import Direct, DirectOptions
from replay.schemes.tp.traffic import TensorTraffic

DIRECT = Path(replay.schemes.tp.direct.__file__).read_text(encoding="utf-8")
MINE = DIRECT.replace('name = "sp-direct"', 'name = "mine"')
SMALL: dict[str, Any] = {"model": "llama-2-7b", "tokens": 256, "tp": 4}


class Wrong(Direct):
    """The scheme to copy, under a name of its own."""

    name = "wrong"


class LostRow(Wrong):
    """Stores all rows but one."""

    def _pairs(self, kernels: Any) -> tuple[Ints, Ints]:
        owner, other = super()._pairs(kernels)
        return owner[1:], other[1:]


class TwiceStored(Wrong):
    """Stores one row twice."""

    def _pairs(self, kernels: Any) -> tuple[Ints, Ints]:
        owner, other = super()._pairs(kernels)
        return np.append(owner, owner[0]), np.append(other, other[0])


class OtherClass(Wrong):
    """Says that the switch copies its rows."""

    traffic = TensorTraffic("switch", "direct")


class NoProduct(Wrong):
    """Gathers rows and multiplies none."""

    def enter(self, kernels: Any, step: Any, after: Ints) -> Ints:
        return kernels.works(step.before, self.gather(kernels, after))


class NoAttention(Wrong):
    """Leaves attention and activations out."""

    def step(self, kernels: Any, step: Any, after: Ints) -> Ints:
        return after if isinstance(step, Core) else super().step(kernels, step, after)


class EarlyProduct(Wrong):
    """Multiplies rows before they are there."""

    def gather(self, kernels: Any, after: Ints) -> Ints:
        super().gather(kernels, after)
        return after


class EarlySums(Wrong):
    """Sends sums before their product has made them."""

    def leave(self, kernels: Any, step: Any, after: Ints) -> Ints:
        assert isinstance(step, Leave)
        ready = self.gather(kernels, after) if kernels.layer.is_backward else after
        done = kernels.product(step.product, Kind.GEMM2, self.reduce(kernels, ready))
        done = kernels.works(step.after, done)
        return kernels.gradient(step.product, done) if kernels.layer.is_backward else done


class DeafEnd(Wrong):
    """Ends before the sums of others have come."""

    def reduce(self, kernels: Any, after: Ints) -> Ints:
        super().reduce(kernels, after)
        return after


class EarlyStart(Wrong):
    """Waits for nothing."""

    def gather(self, kernels: Any, after: Ints) -> Ints:
        return super().gather(kernels, kernels.machine.mark(kernels.machine.ranks))


class EarlyEnd(Wrong):
    """Returns what it was given."""

    def build(self, layer: Any, machine: Any, start: Ints) -> Ints:
        super().build(layer, machine, start)
        return start


class OneEnd(Wrong):
    """Returns the end of one GPU."""

    def build(self, layer: Any, machine: Any, start: Ints) -> Ints:
        return super().build(layer, machine, start)[:1]


class MoreSms(Wrong):
    """States an SM more than it takes."""

    def communication_sms(self, machine: Any) -> int:
        return super().communication_sms(machine) + 1


class Remembering(Wrong):
    """Adds a wait each time that it is built."""

    built = 0

    def gather(self, kernels: Any, after: Ints) -> Ints:
        type(self).built += 1
        for _ in range(type(self).built):
            after = kernels.machine.kernel(after, "again")
        return super().gather(kernels, after)


@dataclass(frozen=True)
class TwoWays(DirectOptions):
    """Options with a way that does not work."""

    way: str = option("good", choices=("good", "bad"), help="How.", source="chosen")


class BadWay(Wrong):
    """Has an option of which one value fails."""

    options: TwoWays = TwoWays()

    def gather(self, kernels: Any, after: Ints) -> Ints:
        if self.options.way == "bad":
            raise IndexError("no such way")
        return super().gather(kernels, after)


FORWARD, TURNS, ROWS = "forward", "attention to mlp, backward", "512 rows"
#: (scheme, check that finds it, layer, what is said).
DEFECTS: list[tuple[type[TensorScheme], str, str, str]] = [
    (LostRow, "payload", FORWARD, r"gather: the uplink of GPU 0 carries .* rows are missing"),
    (TwiceStored, "payload", FORWARD, r"gather: the uplink of GPU 0 carries .* rows too many"),
    (OtherClass, "payload", FORWARD, r"its class 'switch' .* rows too many"),
    (NoProduct, "products", FORWARD, r"GEMM1: GPU 0 carries out 0 operations, the layer has"),
    (NoAttention, "kernels", FORWARD, r"attention runs 0 times on 8 GPUs; the layer has it 1"),
    (EarlyProduct, "rows", ROWS, r"GPU \d begins to multiply rows at .* that come later"),
    (EarlySums, "sums", ROWS, r"GPU \d sends sums at .* that are made later"),
    (DeafEnd, "waits", TURNS, r"GPU \d ends without waiting for \d+ of \d+ messages"),
    (EarlyStart, "starts", TURNS, r"begin before any rank's start"),
    (DeafEnd, "aftermath", FORWARD, r"tasks of kind .* end after the last rank does"),
    (EarlyEnd, "frees", FORWARD, r"GPU \d ends at 0 ps, and its SMs still work at"),
    (EarlyEnd, "late", FORWARD, r"GPU \d ends at [\d,]+ ps, and its SMs still work at"),
    (EarlyEnd, "sms", FORWARD, r"in a chain of three such layers GPU \d uses \d+ SMs"),
    (OneEnd, "ends", FORWARD, r"build must return one task per rank, .* shape \(8,\)"),
    (MoreSms, "communication", FORWARD, r"states 12 SMs .* hold 11 SMs"),
    (Remembering, "same", TURNS, r"tasks when built first, .* when built again"),
    (BadWay, "options", "mlp to attention, 3 GPUs", r"with way=bad, build fails: .*no such way"),
]


@cache
def keeps_it(layer: str) -> bool:
    """Whether the scheme without a defect keeps the contract on a layer."""
    return not list(examine_case(case_of(Wrong(), layer)))


@pytest.mark.parametrize(("scheme", "check", "layer", "said"), DEFECTS, ids=lambda one: getattr(one, "__name__", None))
def test_the_contract_says_what_is_wrong(scheme: type[TensorScheme], check: str, layer: str, said: str) -> None:
    assert keeps_it(layer)
    found = [one.sentence for one in examine_case(case_of(scheme(), layer)) if one.check == check]
    assert any(re.search(said, sentence) for sentence in found), found
    assert all("\n" not in sentence for sentence in found)


def test_every_check_has_a_scheme_that_breaks_it() -> None:
    assert {check for _, check, _, _ in DEFECTS} == set(TENSOR_CHECKS)


class UnknownClass(Wrong):
    """Names a class of traffic that there is not."""

    traffic = TensorTraffic("direct", "nothing")


class OwnsNothing(Wrong):
    """Says that all GPUs have all rows, and gathers them."""

    sequence_parallel = False


class Unassumed(Wrong):
    """Proposes hardware and says nothing of it."""

    proposes = frozenset({"telepathy"})


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (UnknownClass, "traffic.reduce 'nothing' is no class of it; known: none, ring"),
        (OwnsNothing, "sequence_parallel is False, its classes of traffic are 'direct'"),
        (Unassumed, "assumes is empty"),
    ],
)
def test_what_is_declared_wrongly(scheme: type[TensorScheme], said: str) -> None:
    assert not list(check_declaration(Wrong()))
    (sentence,) = check_declaration(scheme())
    assert sentence.startswith(said)


class Unwilling(Wrong):
    """Refuses every layer, in two lines."""

    def refuses(self, layer: Any) -> str:
        return "no\nnever"


def test_who_refuses_everything_is_not_examined_but_told() -> None:
    sentences = [one.sentence for one in examine(Unwilling())]
    assert "it refuses every layer of the contract" in sentences
    assert any(one.startswith("it refuses in several lines") for one in sentences)


# ---- schemes from files --------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    return f"{file}:Direct"


def test_a_scheme_from_a_file_runs_like_its_model(mine: str) -> None:
    compared = compare(schemes=[mine, "sp-direct"], baseline="mine", **SMALL)
    own, model = compared["mine"], compared["sp-direct"]
    assert own.time_us == model.time_us
    assert own.scheme.code and not model.scheme.code
    assert own.run_id != model.run_id
    assert own.spec.scheme == mine


def test_a_file_that_only_a_document_names_is_refused(mine: str) -> None:
    spec = TensorSpec(scheme=mine, **SMALL)
    with pytest.raises(CodeRefusedError, match="--allow-code"):
        run(spec)
    assert run(spec, allow_code=True).time_us == run(**SMALL, scheme="sp-direct").time_us


def test_kinds_are_told_apart(mine: str) -> None:
    for reference, kind, said in (
        ("sp-nvls", "ep", "'sp-nvls' is a scheme of tensor parallelism: use `moereplay tensor"),
        (mine, "ep", "is a scheme of tensor parallelism: use `moereplay tensor compare`"),
        ("deepep", "tp", "'deepep' is a scheme of expert parallelism: use `moereplay compare`"),
        ("sp-nvlz", "ep", "unknown scheme 'sp-nvlz'; 'sp-nvls' is a scheme of tensor"),
        ("deeepep", "tp", "unknown scheme 'deeepep'; 'deepep' is a scheme of expert"),
    ):
        with pytest.raises(UserError) as caught:
            find(reference, kind)  # type: ignore[call-overload]  # a kind from a table
        assert said in str(caught.value)
    assert find("sp-nvls", None).kind == "tp"
    assert find("deepep", None) is find("deepep")
