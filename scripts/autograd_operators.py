"""Operators from rows to rows, whose host time `measure_host.py more` measures."""

# mypy: ignore-errors

from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

NUM_ROWS, WIDTH = ROWS = (128, 256)
HEADS, EXPERTS = 4, 4
grouped_mm = getattr(functional, "grouped_mm", None) or torch._grouped_mm


class Nothing(nn.Module):
    """A module that does nothing."""

    def forward(self, given):
        return given


def operators(calls: int) -> tuple[dict, list]:
    """Operators by name, each of (rows, number of the call), and the parameters they train.

    Parameters
    ----------
    calls
        Number of calls in a row that each find parameters of their own.
    """
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    linears = [nn.Linear(WIDTH, WIDTH, bias=False, **kind) for _ in range(calls)]
    weights = [linear.weight for linear in linears]
    frozen, constant = weights[0].detach(), torch.randn(*ROWS, **kind)
    experts = [
        torch.randn(EXPERTS, WIDTH, WIDTH, **kind).mul_(WIDTH**-0.5).requires_grad_()
        for _ in range(calls)
    ]
    norms = [torch.ones(WIDTH, requires_grad=True, **kind) for _ in range(calls)]
    step = NUM_ROWS // EXPERTS
    ends = torch.arange(step, NUM_ROWS + 1, step, device="cuda", dtype=torch.int32)
    ids = torch.randperm(NUM_ROWS, device="cuda")
    nothing, hooked, hooked_back = Nothing(), Nothing(), Nothing()
    hooked.register_forward_hook(lambda *_given: None)
    hooked_back.register_full_backward_hook(lambda *_given: None)

    def attention(given, _index):
        heads = given.view(NUM_ROWS, HEADS, WIDTH // HEADS).transpose(0, 1)[None]
        found = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return found[0].transpose(0, 1).reshape(ROWS)

    found = {
        "functional.linear, trained": lambda given, index: functional.linear(given, weights[index]),
        "functional.linear, frozen": lambda given, _: functional.linear(given, frozen),
        "nn.Linear": lambda given, index: linears[index](given),
        "add of a constant": lambda given, _: given + constant,
        "mul by a constant": lambda given, _: given * constant,
        "view": lambda given, _: given.view(ROWS),
        "nn.Module of nothing": lambda given, _: nothing(given),
        "nn.Module of nothing with a forward hook": lambda given, _: hooked(given),
        "nn.Module of nothing with a backward hook": lambda given, _: hooked_back(given),
        "silu": lambda given, _: functional.silu(given),
        "rms_norm": lambda given, index: functional.rms_norm(given, (WIDTH,), norms[index]),
        "softmax": lambda given, _: given.softmax(-1),
        "to float32 and back": lambda given, _: given.float().bfloat16(),
        "chunk in 2 and cat": lambda given, _: torch.cat(given.chunk(2, -1), -1),
        "contiguous transpose, twice": lambda given, _: given.t().contiguous().t().contiguous(),
        "index_select": lambda given, _: given.index_select(0, ids),
        "index by tensor": lambda given, _: given[ids],
        "zeros and index_add_": lambda given, _: torch.zeros_like(given).index_add_(0, ids, given),
        "grouped_mm of 4": lambda given, index: grouped_mm(given, experts[index], offs=ends),
        "attention between transposes": attention,
    }
    for reentrant in (False, True):
        for keeps in (True, False):
            again = partial(checkpoint, use_reentrant=reentrant, preserve_rng_state=keeps)
            name = f"checkpoint of nn.Linear, use_reentrant={reentrant}, preserve_rng_state={keeps}"
            found[name] = lambda given, index, again=again: again(linears[index], given)
    for make in (_function, _custom_operator, _triton_function):
        try:
            found.update(make())
        except Exception as error:
            print("failed:", make.__name__, repr(error)[:300], flush=True)
    return found, [*weights, *experts, *norms]


def _function():
    scratch = torch.zeros(1, device="cuda")

    class OneKernel(torch.autograd.Function):
        @staticmethod
        def forward(_context, given):
            scratch.add_(1)
            return given.view_as(given)

        @staticmethod
        def backward(_context, given):
            scratch.add_(1)
            return given

    return {"autograd.Function of add_": lambda given, _: OneKernel.apply(given)}


def _custom_operator():
    scratch = torch.zeros(1, device="cuda")

    @torch.library.custom_op("measured::one_kernel", mutates_args=())
    def one_kernel(given: torch.Tensor) -> torch.Tensor:
        scratch.add_(1)
        return torch.empty_like(given)  # a result must be no argument

    one_kernel.register_fake(torch.empty_like)
    one_kernel.register_autograd(lambda _context, gradient: one_kernel(gradient))
    return {"custom_op of add_ and empty_like": lambda given, _: one_kernel(given)}


def _triton_function():
    from tile_kernels import quantised

    fp8 = torch.empty(*ROWS, device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(NUM_ROWS, WIDTH // 128, device="cuda")

    class OneTritonKernel(torch.autograd.Function):
        @staticmethod
        def forward(_context, given):
            quantised[(1, 1)](given, fp8, scales, WIDTH, block=128, num_warps=4)
            return given.view_as(given)

        @staticmethod
        def backward(_context, given):
            quantised[(1, 1)](given, fp8, scales, WIDTH, block=128, num_warps=4)
            return given

    return {"autograd.Function of a Triton kernel": lambda given, _: OneTritonKernel.apply(given)}


def compiled() -> dict:
    """A compiled function of two pointwise operators."""
    function = torch.compile(lambda given: functional.silu(given) * 2, dynamic=False)
    return {"torch.compile of two pointwise operators": lambda given, _: function(given)}
