"""Operators from rows to rows, whose host time `measure_host.py more` and `mixed` measure."""

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


def operators(calls: int, device: str = "cuda", rows: tuple = ROWS) -> tuple[dict, list]:
    """Operators by name, each of (rows, number of the call), and the parameters they train.

    Parameters
    ----------
    calls
        Number of calls in a row that each find parameters of their own.
    device, rows
        Where and how many by how wide the rows are.
    """
    with torch.device(device):
        return _operators(calls, rows)


def _operators(calls, rows):
    kind, (num_rows, width) = {"dtype": torch.bfloat16}, rows
    linears = [nn.Linear(width, width, bias=False, **kind) for _ in range(calls)]
    weights = [linear.weight for linear in linears]
    frozen, constant = weights[0].detach(), torch.randn(*rows, **kind)
    experts = [torch.randn(EXPERTS, width, width, **kind).mul_(width**-0.5).requires_grad_() for _ in range(calls)]
    norms = [torch.ones(width, requires_grad=True, **kind) for _ in range(calls)]
    step = num_rows // EXPERTS
    ends = torch.arange(step, num_rows + 1, step, dtype=torch.int32)
    ids = torch.randperm(num_rows)
    nothing, hooked, hooked_back = Nothing(), Nothing(), Nothing()
    hooked.register_forward_hook(lambda *_given: None)
    hooked_back.register_full_backward_hook(lambda *_given: None)

    def attention(given, _index):
        heads = given.view(num_rows, HEADS, width // HEADS).transpose(0, 1)[None]
        found = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return found[0].transpose(0, 1).reshape(rows)

    found = {
        "functional.linear, trained": lambda given, index: functional.linear(given, weights[index]),
        "functional.linear, frozen": lambda given, _: functional.linear(given, frozen),
        "nn.Linear": lambda given, index: linears[index](given),
        "add of a constant": lambda given, _: given + constant,
        "mul by a constant": lambda given, _: given * constant,
        "view": lambda given, _: given.view(rows),
        "nn.Module of nothing": lambda given, _: nothing(given),
        "nn.Module of nothing with a forward hook": lambda given, _: hooked(given),
        "nn.Module of nothing with a backward hook": lambda given, _: hooked_back(given),
        "silu": lambda given, _: functional.silu(given),
        "rms_norm": lambda given, index: functional.rms_norm(given, (width,), norms[index]),
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
    scratch = torch.zeros(1)

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
    scratch = torch.zeros(1)

    @torch.library.custom_op("measured::one_kernel", mutates_args=())
    def one_kernel(given: torch.Tensor) -> torch.Tensor:
        scratch.add_(1)
        return torch.empty_like(given)  # a result must be no argument

    one_kernel.register_fake(torch.empty_like)
    one_kernel.register_autograd(lambda _context, gradient: one_kernel(gradient))
    return {"custom_op of add_ and empty_like": lambda given, _: one_kernel(given)}


def _triton_function():
    from tile_kernels import quantised

    fp8 = torch.empty(*ROWS, dtype=torch.float8_e4m3fn)
    scales = torch.empty(NUM_ROWS, WIDTH // 128)

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


def compiled_too() -> dict:
    """Another compiled function."""
    function = torch.compile(lambda given: functional.softplus(given) + given, dynamic=False)
    return {"torch.compile of softplus and add": lambda given, _: function(given)}


# Of `operators`: those of which operators.toml and costs.toml have costs.
COSTED = (
    "view",
    "nn.Module of nothing",
    "add of a constant",
    "mul by a constant",
    "functional.linear, trained",
    "grouped_mm of 4",
    "attention between transposes",
    "rms_norm",
    "silu",
    "softmax",
    "to float32 and back",
    "chunk in 2 and cat",
    "index_select",
    "zeros and index_add_",
    "autograd.Function of a Triton kernel",
    "custom_op of add_ and empty_like",
)


def beside(call):
    """An operator that leaves the rows alone and makes a call."""

    def operator(given, _index):
        call()
        return given

    return operator


def more_operators(device: str = "cuda", rows: tuple = ROWS) -> dict:
    """Operators of a router that `operators` lacks; those beside the rows have no gradient."""
    num_rows, width = rows
    with torch.device(device):
        ids, constant = torch.randperm(num_rows), torch.randn(*rows)
        mask = torch.zeros(*rows, dtype=torch.bool)
        places = torch.randint(0, width, (num_rows, EXPERTS))

    return {
        "sum over a dimension": lambda given, _: given[None].sum(0),
        "topk of all": lambda given, _: given.topk(width)[0],
        "slice, beside": beside(lambda: constant[:4]),
        "zeros, beside": beside(lambda: torch.zeros(rows, device=device)),
        "scatter_ of True, beside": beside(lambda: mask.scatter_(1, places, True)),
        "argsort, beside": beside(lambda: ids.argsort(stable=True)),
        "cumsum to int32, beside": beside(lambda: ids.cumsum(0, dtype=torch.int32)),
    }


def weight_lookups() -> dict:
    """A weight that a module looks up, and the call around it."""
    linear = nn.Linear(1, 1)
    return {"weight of a module, beside": beside(lambda: linear.weight), "nothing, beside": beside(lambda: None)}


def modules(operators: list) -> list:
    """Modules of eight classes that each call an operator."""

    def layer(number):
        class Layer(nn.Module):
            def __init__(self, operator):
                super().__init__()
                self.operator = operator

            def forward(self, given, index):
                return self.operator(given, index)

        # Code of its own: Python adapts code to what it has met.
        code = Layer.forward.__code__
        Layer.forward.__code__ = code.replace(co_firstlineno=code.co_firstlineno + number)
        return Layer

    layers = [layer(number) for number in range(8)]
    return [layers[at % 8](operator) for at, operator in enumerate(operators)]
